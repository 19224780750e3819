"use strict";

/* The page of a prompt, a resource or a template: values that the member offers for the fields, the answer on the same
   page, and updates of a resource. Without scripts the form loads the page again with the answer. */
(() => {
  const DELAY = 250; // after the last key, before values are requested
  const COMPLETION_DEADLINE = 5_000;
  const DEADLINE = 90_000; // longer than the hall waits for a member
  const WATCH_PERIOD = 2; // seconds

  const form = document.getElementById("use-form");
  if (!form) return;
  const outcome = document.getElementById("outcome");
  const button = document.getElementById("use");
  const state = document.getElementById("use-state");

  // Values for a field ---------------------------------------------------------------------------------------------

  /* The field is a combobox, and the list is below it (ARIA APG: editable combobox with list autocomplete). */
  class Suggestions {
    #field;
    #list = document.createElement("ul");
    #timer = 0;
    #request = null; // the AbortController of the request in progress
    #active = -1;

    constructor(field) {
      this.#field = field;
      this.#list.className = "suggestions";
      this.#list.id = `${field.id}-values`;
      this.#list.hidden = true;
      this.#list.setAttribute("role", "listbox");
      this.#list.setAttribute("aria-label", "Values that the member offers");
      field.after(this.#list);
      for (const [name, value] of [["role", "combobox"], ["aria-autocomplete", "list"], ["aria-controls", this.#list.id], ["aria-expanded", "false"]]) field.setAttribute(name, value);
      field.addEventListener("input", () => this.#schedule());
      field.addEventListener("focus", () => this.#schedule());
      field.addEventListener("blur", () => this.#close());
      field.addEventListener("keydown", (event) => this.#onKey(event));
      this.#list.addEventListener("mousedown", (event) => event.preventDefault()); // the field keeps the focus
      this.#list.addEventListener("click", (event) => {
        const option = event.target.closest("[role=option]");
        if (option) this.#choose(option);
      });
    }

    get #options() {
      return [...this.#list.querySelectorAll("[role=option]")];
    }

    #schedule() {
      clearTimeout(this.#timer);
      this.#timer = setTimeout(() => this.#load(), DELAY);
    }

    async #load() {
      this.#request?.abort();
      const request = new AbortController();
      this.#request = request;
      const body = new FormData(form);
      body.append("argument", this.#field.dataset.argument);
      try {
        const signal = AbortSignal.any([request.signal, AbortSignal.timeout(COMPLETION_DEADLINE)]);
        const response = await fetch(form.dataset.complete, { method: "POST", body, redirect: "error", signal });
        if (!response.ok) throw new Error(response.status);
        const answer = await response.json();
        if (this.#request === request && document.activeElement === this.#field) this.#show(answer);
      } catch {
        if (this.#request === request) this.#close(); // the field works without values
      }
    }

    #show({ values, total, has_more: hasMore }) {
      const others = values.filter((value) => value !== this.#field.value);
      this.#list.replaceChildren(...others.map((value, number) => this.#option(value, number)));
      if (hasMore) this.#list.append(this.#note(total ? `… of ${total.toLocaleString("en")} values` : "… and more values"));
      this.#setActive(-1);
      this.#toggle(others.length > 0);
    }

    #option(value, number) {
      const option = document.createElement("li");
      option.id = `${this.#list.id}-${number}`;
      option.setAttribute("role", "option");
      option.setAttribute("aria-selected", "false");
      option.dataset.value = value;
      option.textContent = value;
      return option;
    }

    #note(text) {
      const note = document.createElement("li");
      note.className = "suggestions-more";
      note.setAttribute("role", "presentation");
      note.textContent = text;
      return note;
    }

    #onKey(event) {
      const isOpen = !this.#list.hidden;
      if (event.key === "ArrowDown" && !isOpen && event.altKey) this.#schedule();
      else if ((event.key === "ArrowDown" || event.key === "ArrowUp") && isOpen) this.#move(event.key === "ArrowDown" ? 1 : -1);
      else if (event.key === "Enter" && isOpen && this.#active >= 0 && !event.ctrlKey && !event.metaKey) this.#choose(this.#options[this.#active]);
      else if (event.key === "Escape" && isOpen) this.#close();
      else return;
      event.preventDefault();
    }

    #move(step) {
      const count = this.#options.length;
      this.#setActive((this.#active + step + count + (this.#active < 0 && step < 0 ? 1 : 0)) % count);
      this.#options[this.#active].scrollIntoView({ block: "nearest" });
    }

    #setActive(number) {
      this.#active = number;
      this.#options.forEach((option, index) => option.setAttribute("aria-selected", String(index === number)));
      if (number < 0) this.#field.removeAttribute("aria-activedescendant");
      else this.#field.setAttribute("aria-activedescendant", this.#options[number].id);
    }

    #choose(option) {
      this.#field.value = option.dataset.value;
      this.#close();
    }

    #close() {
      clearTimeout(this.#timer);
      this.#request?.abort();
      this.#request = null;
      this.#setActive(-1);
      this.#toggle(false);
    }

    #toggle(isOpen) {
      this.#list.hidden = !isOpen;
      this.#field.setAttribute("aria-expanded", String(isOpen));
    }
  }

  if (form.dataset.complete) for (const field of form.querySelectorAll("[data-argument]")) new Suggestions(field);

  // The answer -----------------------------------------------------------------------------------------------------

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (button.getAttribute("aria-busy") !== "true") ask();
  });
  form.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  });

  async function ask() {
    button.setAttribute("aria-busy", "true");
    outcome.replaceChildren();
    const startedAt = performance.now();
    const clock = setInterval(() => (state.textContent = `Waiting for the member, ${Math.round((performance.now() - startedAt) / 1000)} s`), 1000);
    try {
      const html = await post();
      outcome.innerHTML = html; // from the hall, with all texts of the member escaped
      state.textContent = "";
      document.getElementById("outcome-heading")?.focus();
    } catch (error) {
      state.textContent = error.message;
    } finally {
      clearInterval(clock);
      button.removeAttribute("aria-busy");
    }
  }

  async function post() {
    let response;
    try {
      const options = { method: "POST", body: new FormData(form), headers: { "X-Live": "part" }, redirect: "manual" };
      response = await fetch(location.href, { ...options, signal: AbortSignal.timeout(DEADLINE) });
    } catch {
      throw new Error("The hall did not respond. Try again.");
    }
    if (response.type === "opaqueredirect") throw new Error("You are logged out. Reload the page to log in.");
    if (response.status === 403) throw new Error("The hall refused this. You do not have permission, or this page is too old. Reload the page.");
    if (response.status === 404) throw new Error("This no longer exists. Reload the page.");
    if (!response.ok) throw new Error(`The hall responded with an error (${response.status}).`);
    return response.text();
  }

  // Updates --------------------------------------------------------------------------------------------------------

  const watchButton = document.getElementById("watch");
  const updates = document.getElementById("updates");
  if (!watchButton) return;
  const idleUrl = updates.dataset.live;

  watchButton.hidden = false;
  watchButton.addEventListener("click", () => (watchButton.getAttribute("aria-pressed") === "true" ? stop() : watch()));

  async function watch() {
    const body = new FormData();
    body.append("csrfmiddlewaretoken", form.elements.csrfmiddlewaretoken.value);
    body.append("uri", watchButton.dataset.uri);
    try {
      const response = await fetch(watchButton.dataset.url, { method: "POST", body, redirect: "error", signal: AbortSignal.timeout(10_000) });
      if (!response.ok) throw new Error(response.status);
      poll((await response.json()).url, WATCH_PERIOD);
      press(true);
    } catch {
      state.textContent = "The hall did not respond correctly. Reload the page and try again.";
    }
  }

  /* Without questions of this page, the hall ends the subscription after half a minute. */
  function stop() {
    poll(idleUrl, 1_000_000);
    updates.replaceChildren();
    press(false);
  }

  function poll(url, seconds) {
    updates.dataset.live = url;
    updates.dataset.liveEvery = String(seconds);
    updates.dispatchEvent(new CustomEvent("live:refresh"));
  }

  function press(isPressed) {
    watchButton.setAttribute("aria-pressed", String(isPressed));
    watchButton.textContent = isPressed ? "Stop watching" : "Watch for updates";
  }
})();
