"use strict";

/* The tool runner's page: form and JSON in step, the call and its result on the same page, links and texts to copy.

   The text area is sent. The form (schema_form.js) writes into it and is drawn again from it. */
(() => {
  const MAX_LINK = 20_000; // characters of arguments in a link
  const SNIPPETS_AFTER = 400;
  const REDRAW_AFTER = 250;
  const DEADLINE = 30_000;

  const page = document.querySelector(".runner");
  const form = document.getElementById("call-form");
  const text = form.elements.arguments;
  const status = document.getElementById("json-status");
  const fieldsPart = document.getElementById("schema-form");
  const fieldsNote = document.getElementById("form-note");
  const fields = document.getElementById("fields");
  const errors = document.getElementById("call-errors");
  const callButton = document.getElementById("call");
  const outcome = document.getElementById("outcome");
  const dialog = document.getElementById("confirm");

  let schemaForm = null;

  // Form and JSON ---------------------------------------------------------------------------------------------------

  class NotArguments extends Error {}

  /* The arguments of the text. Throws NotArguments. */
  function written() {
    let value;
    try {
      value = JSON.parse(text.value.trim() || "{}");
    } catch (error) {
      throw new NotArguments(`Not JSON yet: ${error.message}`);
    }
    if (typeof value !== "object" || value === null || Array.isArray(value)) throw new NotArguments("The arguments must be a JSON object.");
    return value;
  }

  /* Numbers that this page would change by reading and writing them, such as 12345678901234567890. */
  function losesDigits() {
    let loses = false;
    try {
      JSON.parse(text.value, (_, value, context) => {
        if (typeof value === "number" && context?.source && /^-?\d{16,}$/.test(context.source)) loses ||= BigInt(context.source) !== BigInt(value);
        return value;
      });
    } catch {
      return false;
    }
    return loses;
  }

  function begin() {
    const schema = schemaOfPage();
    if (schema === null) {
      tellNoForm("the schema is too long, or cannot be read");
      return;
    }
    try {
      schemaForm = new SchemaForm(fields, schema, formChanged);
    } catch (error) {
      tellNoForm(reasonOf(error));
      return;
    }
    redraw();
  }

  function schemaOfPage() {
    try {
      return JSON.parse(document.getElementById("input-schema").textContent);
    } catch {
      return null;
    }
  }

  function reasonOf(error) {
    if (error instanceof SchemaForm.CannotShow) return error.message;
    if (error instanceof RangeError) return "it is nested too deep";
    console.warn(error);
    return "its schema is too unusual";
  }

  /* Show only JSON, with the reason. */
  function tellNoForm(reason) {
    fieldsPart.hidden = false;
    fieldsPart.classList.add("runner-no-form");
    fields.replaceChildren();
    fieldsNote.textContent = `No form here: ${reason}. Write the arguments as JSON.`;
    fieldsNote.hidden = false;
  }

  let redrawTimer = 0; // for typed JSON that is not in the form yet

  function redraw() {
    clearTimeout(redrawTimer);
    redrawTimer = 0;
    if (!schemaForm) return;
    let problem = "";
    try {
      schemaForm.show(written());
      fieldsPart.hidden = false;
      fieldsPart.classList.remove("runner-no-form");
      fieldsNote.hidden = true;
    } catch (error) {
      if (error instanceof NotArguments) problem = error.message;
      else tellNoForm(reasonOf(error));
    }
    if (!problem && losesDigits()) problem = "A number has more digits than fields can hold: change it here alone.";
    status.textContent = problem;
    fields.inert = Boolean(problem);
    fieldsPart.classList.toggle("runner-waits", Boolean(problem));
    text.setAttribute("aria-invalid", String(Boolean(problem) && problem.startsWith("Not JSON")));
  }

  function formChanged(value, cannotShow) {
    text.value = JSON.stringify(value, null, 2);
    text.setAttribute("aria-invalid", "false");
    if (cannotShow) tellNoForm(cannotShow);
    changed();
  }

  text.addEventListener("input", () => {
    clearTimeout(redrawTimer);
    redrawTimer = setTimeout(redraw, REDRAW_AFTER);
    changed();
  });

  for (const type of ["input", "change", "click"]) fields.addEventListener(type, takeTyped, { capture: true });

  /* A change in the form applies to the current JSON, not to the older one that the form was drawn from. */
  function takeTyped(event) {
    const isClick = event.type === "click";
    if (!redrawTimer || (isClick && !event.target.closest("button"))) return;
    const value = isClick ? null : typed(); // buttons move and remove places, which may have changed
    if (value) {
      schemaForm.value = value;
      return;
    }
    event.stopPropagation();
    redraw();
  }

  /* The arguments of the text, if the form can show them. */
  function typed() {
    try {
      return losesDigits() ? null : written();
    } catch {
      return null;
    }
  }

  function fill(value, note) {
    text.value = JSON.stringify(value, null, 2);
    const paragraph = document.createElement("p");
    paragraph.className = "runner-note";
    paragraph.textContent = note;
    document.getElementById("notes").replaceChildren(paragraph);
  }

  /* In the fragment, not in the query. Browsers do not send fragments, so the arguments get into no server's log. */
  function takeLink() {
    const encoded = new URLSearchParams(location.hash.slice(1)).get("args");
    if (encoded === null) return;
    try {
      if (encoded.length > MAX_LINK) throw new RangeError("too long");
      const value = JSON.parse(encoded);
      if (typeof value !== "object" || value === null || Array.isArray(value)) throw new TypeError("no object");
      fill(value, "These arguments came with the link. Look at them before you call.");
    } catch {
      fill({}, "The arguments of the link could not be read.");
    }
  }

  // The call --------------------------------------------------------------------------------------------------------

  form.addEventListener("submit", (event) => {
    if (event.submitter && event.submitter !== callButton) return; // saved by posts.js
    event.preventDefault();
    call();
  });

  // The Enter key must not send a half-filled form.
  fields.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.ctrlKey && !event.metaKey && event.target.matches("input:not([type=checkbox])")) event.preventDefault();
  });
  document.getElementById("preset-name").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    form.requestSubmit(form.querySelector("button[formaction]"));
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !dialog?.open) {
      event.preventDefault();
      call();
    }
  });

  function isReady() {
    const broken = schemaForm?.broken;
    if (broken) {
      broken.box.focus();
      return false;
    }
    try {
      written();
    } catch (error) {
      complain([{ path: [], reason: error.message }]);
      return false;
    }
    const missing = schemaForm?.missing ?? [];
    if (missing.length) complain(missing);
    return !missing.length;
  }

  async function call() {
    if (callButton.getAttribute("aria-busy") === "true" || !isReady() || !(await isMeant())) return;
    callButton.setAttribute("aria-busy", "true");
    try {
      take(await answer(form.action, new FormData(form), { Accept: "application/json" }));
    } catch (error) {
      complain([{ path: [], reason: error.message }]);
    } finally {
      callButton.removeAttribute("aria-busy");
    }
  }

  /* Ask for confirmation if the tool may destroy something. */
  async function isMeant() {
    if (!dialog) return true;
    dialog.returnValue = "no";
    dialog.showModal();
    await new Promise((resolve) => dialog.addEventListener("close", resolve, { once: true }));
    form.elements.confirmed.checked = dialog.returnValue === "yes";
    return form.elements.confirmed.checked;
  }

  async function answer(address, body, headers) {
    let response;
    try {
      response = await fetch(address, { method: "POST", body, headers, redirect: "manual", signal: AbortSignal.timeout(DEADLINE) });
    } catch {
      throw new Error("The hall does not answer. Calling again is safe: the same form calls once.");
    }
    if (response.type === "opaqueredirect") throw new Error("You are logged out. Reload the page to log in.");
    if (response.status === 403) throw new Error("Refused: you may not do that, or this page is too old. Reload it.");
    if (response.status === 404) throw new Error("This tool is not there any more.");
    if (!response.ok) throw new Error(`The hall answers with an error (${response.status}).`);
    return response.json();
  }

  function take(said) {
    if (said.call_key) form.elements.call_key.value = said.call_key;
    if (said.errors) {
      complain(said.errors);
      return;
    }
    complain([]);
    outcome.replaceChildren();
    outcome.dataset.live = said.outcome;
    outcome.dataset.liveEvery = "0";
    outcome.dispatchEvent(new CustomEvent("live:refresh"));
    announced = "";
  }

  function complain(complaints) {
    const { homeless, first } = schemaForm ? schemaForm.showErrors(complaints) : { homeless: complaints, first: null };
    errors.replaceChildren();
    if (!complaints.length) return;
    errors.append(line("p", "errornote", homeless.length < complaints.length ? "The call was not made: see the fields marked below." : "The call was not made."));
    if (homeless.length) {
      const list = line("ul", "errorlist", "");
      for (const { path, reason } of homeless) list.append(line("li", "", path.length ? `${path.join(".")}: ${reason}` : reason));
      errors.append(list);
    }
    const place = first?.box.matches("input, select, textarea, button") ? first.box : first?.box.querySelector("input, select, textarea, button");
    (place ?? errors).focus();
  }

  function line(tag, className, content) {
    const made = document.createElement(tag);
    if (className) made.className = className;
    made.textContent = content;
    return made;
  }

  // The end ---------------------------------------------------------------------------------------------------------

  let announced = "";
  let base = { shown: "", at: 0 };

  outcome.addEventListener("live:updated", () => {
    const word = document.getElementById("outcome-status")?.textContent ?? "";
    if (!word || word === announced) return;
    if (!announced) outcome.scrollIntoView({ block: "nearest", behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
    announced = word;
    document.getElementById("said").textContent = `The call: ${word}.`;
  });

  /* The server sends the elapsed time. Between its responses the page counts on. */
  setInterval(() => {
    const clock = outcome.querySelector("[data-ticks]");
    if (!clock) return;
    if (base.shown !== clock.dataset.elapsed) base = { shown: clock.dataset.elapsed, at: performance.now() };
    clock.textContent = `${((Number(base.shown) + performance.now() - base.at) / 1000).toFixed(1)} s`;
  }, 100);

  // Links and texts to copy -----------------------------------------------------------------------------------------

  const snippets = document.getElementById("snippets");
  const snippetsProblem = document.getElementById("snippets-problem");
  let snippetsTimer = 0;

  function changed() {
    clearTimeout(snippetsTimer);
    if (snippets.open) snippetsTimer = setTimeout(writeSnippets, SNIPPETS_AFTER);
  }
  snippets.addEventListener("toggle", () => snippets.open && writeSnippets());

  /* The server writes them, because it can quote and mask secrets. */
  async function texts() {
    const body = new FormData();
    body.append("arguments", text.value);
    body.append("csrfmiddlewaretoken", form.elements.csrfmiddlewaretoken.value);
    const said = await answer(page.dataset.snippets, body, {});
    if (said.error) throw new Error(`${said.error}.`);
    return said;
  }

  let writing = 0;

  async function writeSnippets() {
    const turn = ++writing;
    try {
      const said = await texts();
      if (turn !== writing) return; // a response for older arguments
      for (const block of snippets.querySelectorAll("[data-snippet]")) block.textContent = said.snippets[block.dataset.snippet];
      snippetsProblem.textContent = "";
    } catch (error) {
      if (turn !== writing) return;
      snippetsProblem.textContent = `These are of older arguments: ${error.message}`;
    }
  }

  for (const copier of snippets.querySelectorAll("[data-copy]")) {
    copier.hidden = false;
    copier.addEventListener("click", () => copy(document.getElementById(copier.dataset.copy).textContent, copier, "Copied"));
  }

  const ownWords = new Map(); // of each pressed button
  const ownWordsTimers = new Map();

  async function copy(content, copier, done) {
    if (!ownWords.has(copier)) ownWords.set(copier, copier.textContent);
    copier.textContent = (await intoClipboard(content)) ? done : "Copying failed";
    clearTimeout(ownWordsTimers.get(copier));
    ownWordsTimers.set(copier, setTimeout(() => (copier.textContent = ownWords.get(copier)), 2500));
  }

  /* Over plain http from another machine there is no clipboard object, but execCommand works. */
  async function intoClipboard(content) {
    try {
      await navigator.clipboard.writeText(content);
      return true;
    } catch {
      const hidden = line("textarea", "visually-hidden", content);
      document.body.append(hidden);
      hidden.select();
      const isDone = document.execCommand("copy");
      hidden.remove();
      return isDone;
    }
  }

  const linker = document.getElementById("copy-link");
  linker.addEventListener("click", async () => {
    try {
      const said = await texts();
      const encoded = encodeURIComponent(JSON.stringify(said.arguments));
      if (encoded.length > MAX_LINK) throw new Error("The arguments are too long for a link; save them as a preset.");
      const done = said.left_out.length ? `Copied, without ${said.left_out.join(", ")}` : "Copied";
      await copy(`${location.origin}${location.pathname}#args=${encoded}`, linker, done);
    } catch (error) {
      complain([{ path: [], reason: error.message }]);
    }
  });

  // Begin -----------------------------------------------------------------------------------------------------------

  linker.hidden = false;
  document.getElementById("keys").hidden = false;
  document.getElementById("confirmation")?.setAttribute("hidden", "");
  takeLink();
  window.addEventListener("hashchange", () => {
    takeLink();
    redraw();
  });
  if (!document.querySelector(".runner-columns-none")) begin();
})();
