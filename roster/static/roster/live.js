"use strict";

/* Parts of a page that update automatically.

   <section data-live="URL">...</section> is requested from URL each second (data-live-every="5": each five seconds). The
   response is morphed into it, so that focus, open <details> and typed text survive. data-live-etag may hold the ETag of
   the part in the page. The server (roster/admin/live.py) answers 304 if nothing has changed, and `X-Live: done` if
   nothing will change any more.

   Scripts may change the URL of a part at any time. They may dispatch "live:refresh" on a part to request it at once. A
   part dispatches "live:updated" (bubbling) after each morph. Elements with data-live-keep are not changed. */
(() => {
  const PERIOD = 800; // between two requests, so that a change is shown within a second
  const FIRST_RETRY = 1000;
  const LAST_RETRY = 5000;
  const DEADLINE = 10000;

  const parts = new Set();

  class Failure extends Error {}

  class Part {
    #section;
    #url;
    #etag;
    #timer = 0;
    #request = null; // the AbortController of the request in progress
    #failures = 0;
    #done = false;
    problem = "";

    constructor(section) {
      this.#section = section;
      this.#url = section.dataset.live;
      this.#etag = section.dataset.liveEtag ?? "";
      section.addEventListener("live:refresh", () => this.requestNow());
      this.#schedule(this.#etag ? this.#period : 0);
    }

    get #period() {
      return Math.max(1000 * (Number(this.#section.dataset.liveEvery) || 0), PERIOD);
    }

    /* Do not wait for a request in progress. Its response may be older than the change. */
    requestNow() {
      this.#request?.abort();
      this.#request = null;
      this.#done = false;
      this.#schedule(0);
    }

    pause() {
      clearTimeout(this.#timer);
    }

    resume() {
      if (!this.#done && !this.#request) this.#schedule(0);
    }

    #schedule(delay) {
      clearTimeout(this.#timer);
      if (document.hidden || this.#done) return;
      this.#timer = setTimeout(() => this.#update(), delay);
    }

    async #update() {
      if (!this.#section.isConnected) {
        parts.delete(this);
        showProblem();
        return;
      }
      const startedAt = performance.now();
      const request = new AbortController();
      this.#request = request;
      const deadline = setTimeout(() => request.abort(), DEADLINE);
      let problem = "";
      try {
        await this.#load(request.signal);
      } catch (error) {
        problem = error instanceof Failure ? error.message : "the hall does not respond.";
      } finally {
        clearTimeout(deadline);
      }
      if (this.#request !== request) return; // requested again meanwhile
      this.#request = null;
      this.#failures = problem ? this.#failures + 1 : 0;
      this.problem = problem;
      showProblem();
      const retry = Math.min(FIRST_RETRY * 2 ** (this.#failures - 1), LAST_RETRY);
      this.#schedule(problem ? retry : Math.max(0, startedAt + this.#period - performance.now()));
    }

    async #load(signal) {
      if (this.#section.dataset.live !== this.#url) {
        this.#url = this.#section.dataset.live;
        this.#etag = "";
      }
      const headers = { "X-Live": "part", ...(this.#etag && { "If-None-Match": this.#etag }) };
      const response = await fetch(this.#url, { headers, signal, redirect: "manual", cache: "no-store" });
      if (response.status !== 304) {
        const html = await this.#textOf(response);
        if (signal.aborted) return;
        this.#etag = response.headers.get("ETag") ?? "";
        morph(this.#section, html);
      }
      this.#done = response.headers.get("X-Live") === "done";
    }

    async #textOf(response) {
      if (response.type === "opaqueredirect" || response.status === 401) {
        throw new Failure("you are logged out. Reload the page to log in.");
      }
      if (response.status === 403) throw new Failure("you no longer have permission to see this.");
      if (response.status === 404) throw new Failure("this no longer exists.");
      if (!response.ok) throw new Failure(`the hall responded with an error (${response.status}).`);
      // Ignore other responses, such as an error page of a proxy.
      if (!response.headers.has("X-Live")) throw new Failure("another server responded instead of the hall.");
      return response.text();
    }
  }

  function morph(section, html) {
    Idiomorph.morph(section, html, {
      morphStyle: "innerHTML",
      ignoreActiveValue: true,
      callbacks: {
        beforeNodeMorphed: (old) => old === section || !isProtected(old),
        // The user decides when an open element closes.
        beforeAttributeUpdated: (name, element) => !(name === "open" && element.matches("details, dialog")),
      },
    });
    adopt(section);
    section.dispatchEvent(new CustomEvent("live:updated", { bubbles: true }));
  }

  /* Whether a morph must not change the node. */
  function isProtected(node) {
    return node instanceof Element && (node.matches("[data-live-keep], [data-live]") || isEdited(node));
  }

  /* Whether the user typed or chose something here. */
  function isEdited(node) {
    if (node instanceof HTMLSelectElement) {
      const options = [...node.options];
      if (node.multiple) return options.some((option) => option.selected !== option.defaultSelected);
      return node.selectedIndex !== Math.max(0, options.findLastIndex((option) => option.defaultSelected));
    }
    if (node instanceof HTMLInputElement && ["checkbox", "radio"].includes(node.type)) {
      return node.checked !== node.defaultChecked;
    }
    const isText = node instanceof HTMLInputElement || node instanceof HTMLTextAreaElement;
    return isText && node.value !== node.defaultValue;
  }

  /* One line for the whole page. */
  function showProblem() {
    const problem = [...parts].map((part) => part.problem).find(Boolean) ?? "";
    const line = document.getElementById("not-live");
    const text = problem ? `No live updates: ${problem}` : "";
    if (line && line.textContent !== text) line.textContent = text;
  }

  const adoptedSections = new WeakSet();

  function adopt(root) {
    for (const section of root.querySelectorAll("[data-live]")) {
      if (adoptedSections.has(section)) continue;
      adoptedSections.add(section);
      parts.add(new Part(section));
    }
  }

  document.addEventListener("visibilitychange", () => {
    for (const part of parts) document.hidden ? part.pause() : part.resume();
  });
  window.addEventListener("online", () => parts.forEach((part) => part.resume()));
  adopt(document);
})();
