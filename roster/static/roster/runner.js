"use strict";

/* The tool runner's page: form and JSON in step, the call and its result on the same page, links and texts to copy.

   The page sends the text area. The form (schema_form.js) writes into it, and is drawn from it. */
(() => {
  const MAX_LINK = 20_000; // characters of arguments in a link
  const SNIPPETS_DELAY = 400;
  const REDRAW_DELAY = 250;
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
  function parseArguments() {
    let value;
    try {
      value = JSON.parse(text.value.trim() || "{}");
    } catch (error) {
      throw new NotArguments(`This is not valid JSON: ${error.message}`);
    }
    if (typeof value !== "object" || value === null || Array.isArray(value)) throw new NotArguments("The arguments must be a JSON object.");
    return value;
  }

  /* Whether this page would change a number by reading and writing it, such as 12345678901234567890. */
  function losesDigits() {
    let isRounded = false;
    try {
      JSON.parse(text.value, (_, value, context) => {
        if (typeof value === "number" && context?.source && /^-?\d{16,}$/.test(context.source)) isRounded ||= BigInt(context.source) !== BigInt(value);
        return value;
      });
    } catch {
      return false;
    }
    return isRounded;
  }

  function createForm() {
    const schema = schemaOfPage();
    if (schema === null) {
      hideForm("the schema is too long or cannot be read");
      return;
    }
    try {
      schemaForm = new SchemaForm(fields, schema, updateText, textsOfPage());
    } catch (error) {
      hideForm(reasonOf(error));
      return;
    }
    redraw();
  }

  /* The descriptions that the server has laid out, by their text. */
  function textsOfPage() {
    const texts = new Map();
    for (const each of document.getElementById("field-texts").content.children) {
      const html = document.createDocumentFragment();
      html.append(...each.childNodes);
      texts.set(SchemaForm.keyOf(each.dataset.text), html);
    }
    return texts;
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
    if (error instanceof RangeError) return "the schema is nested too deeply";
    console.warn(error);
    return "the schema has an unsupported structure";
  }

  /* Show only JSON, with the reason. */
  function hideForm(reason) {
    fieldsPart.hidden = false;
    fieldsPart.classList.add("runner-no-form");
    fields.replaceChildren();
    fieldsNote.textContent = `This tool has no form: ${reason}. Enter the arguments as JSON.`;
    fieldsNote.hidden = false;
  }

  let redrawTimer = 0; // for typed JSON that is not in the form yet

  function redraw() {
    clearTimeout(redrawTimer);
    redrawTimer = 0;
    if (!schemaForm) return;
    let problem = "";
    try {
      schemaForm.show(parseArguments());
      fieldsPart.hidden = false;
      fieldsPart.classList.remove("runner-no-form");
      fieldsNote.hidden = true;
    } catch (error) {
      if (error instanceof NotArguments) problem = error.message;
      else hideForm(reasonOf(error));
    }
    if (!problem && losesDigits()) problem = "A number has more digits than the form can hold. Edit the arguments here.";
    status.textContent = problem;
    fields.inert = Boolean(problem);
    fieldsPart.classList.toggle("runner-invalid-json", Boolean(problem));
    text.setAttribute("aria-invalid", String(Boolean(problem) && problem.startsWith("This is not valid JSON")));
  }

  function updateText(value, problem) {
    text.value = JSON.stringify(value, null, 2);
    text.setAttribute("aria-invalid", "false");
    if (problem) hideForm(problem);
    updateBanner();
    updateSnippets();
  }

  text.addEventListener("input", () => {
    clearTimeout(redrawTimer);
    redrawTimer = setTimeout(redraw, REDRAW_DELAY);
    updateSnippets();
  });

  for (const type of ["input", "change", "click"]) fields.addEventListener(type, applyTypedJson, { capture: true });

  /* A change in the form applies to the current JSON, not to the older one that the form was drawn from. */
  function applyTypedJson(event) {
    const isClick = event.type === "click";
    if (!redrawTimer || (isClick && !event.target.closest("button"))) return;
    const value = isClick ? null : typedArguments(); // buttons move and remove places, which may have changed
    if (value) {
      schemaForm.value = value;
      return;
    }
    event.stopPropagation();
    redraw();
  }

  /* The arguments of the text, if the form can show them. */
  function typedArguments() {
    try {
      return losesDigits() ? null : parseArguments();
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
  function readLink() {
    const encoded = new URLSearchParams(location.hash.slice(1)).get("args");
    if (encoded === null) return;
    try {
      if (encoded.length > MAX_LINK) throw new RangeError("too long");
      const value = JSON.parse(encoded);
      if (typeof value !== "object" || value === null || Array.isArray(value)) throw new TypeError("no object");
      fill(value, "These arguments come from the link. Check them before you call the tool.");
    } catch {
      fill({}, "The arguments in the link are not valid.");
    }
  }

  // The call --------------------------------------------------------------------------------------------------------

  form.addEventListener("submit", (event) => {
    if (event.submitter && event.submitter !== callButton) return; // posts.js sends it
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

  /* What is wrong with the arguments. The server decides, but the form says it better where it sees the same fault. */
  async function findFaults() {
    if (redrawTimer) redraw(); // the form shows the JSON of a moment ago
    const invalidPlace = schemaForm?.invalidPlace;
    if (invalidPlace) {
      invalidPlace.box.focus();
      return null;
    }
    try {
      parseArguments();
    } catch (error) {
      return [{ path: [], reason: error.message }];
    }
    const faults = schemaForm?.faults ?? [];
    if (!faults.length) return [];
    const errors = await serverErrors();
    if (errors === null) return faults;
    const placesOf = (list) => new Set(list.map(({ path }) => JSON.stringify(path)));
    const refused = placesOf(errors);
    const confirmed = faults.filter(({ path, isEmpty }) => isEmpty || refused.has(JSON.stringify(path)));
    const known = placesOf(confirmed);
    return [...confirmed, ...errors.filter(({ path }) => !known.has(JSON.stringify(path)))];
  }

  /* The errors of these arguments. Null if the server does not respond, and then those of the form are shown. */
  async function serverErrors() {
    const body = new FormData(form);
    body.append("only_check", "on");
    try {
      return (await post(form.action, body, { Accept: "application/json" })).errors ?? [];
    } catch {
      return null;
    }
  }

  async function call() {
    if (callButton.disabled || callButton.getAttribute("aria-busy") === "true") return;
    callButton.setAttribute("aria-busy", "true");
    try {
      const faults = await findFaults();
      if (faults?.length) showErrors(faults);
      else if (faults && (await isConfirmed())) showResponse(await post(form.action, new FormData(form), { Accept: "application/json" }));
    } catch (error) {
      showErrors([{ path: [], reason: error.message }]);
    } finally {
      callButton.removeAttribute("aria-busy");
    }
  }

  /* Ask for confirmation if the tool may destroy something. */
  async function isConfirmed() {
    if (!dialog) return true;
    dialog.returnValue = "no";
    dialog.showModal();
    await new Promise((resolve) => dialog.addEventListener("close", resolve, { once: true }));
    form.elements.confirmed.checked = dialog.returnValue === "yes";
    return form.elements.confirmed.checked;
  }

  async function post(address, body, headers) {
    let response;
    try {
      response = await fetch(address, { method: "POST", body, headers, redirect: "manual", signal: AbortSignal.timeout(DEADLINE) });
    } catch {
      throw new Error("The hall did not respond. It is safe to press Call again, because the same form makes only one call.");
    }
    if (response.type === "opaqueredirect") throw new Error("You are logged out. Reload the page to log in.");
    if (response.status === 403) throw new Error("The hall refused this. You do not have permission, or this page is too old. Reload the page.");
    if (response.status === 404) throw new Error("This tool no longer exists.");
    if (!response.ok) throw new Error(`The hall responded with an error (${response.status}).`);
    return response.json();
  }

  function showResponse(response) {
    if (response.call_key) form.elements.call_key.value = response.call_key;
    if (response.errors) {
      showErrors(response.errors);
      return;
    }
    showErrors([]);
    outcome.replaceChildren();
    outcome.dataset.live = response.outcome;
    outcome.dataset.liveEvery = "0";
    outcome.dispatchEvent(new CustomEvent("live:refresh"));
    lastStatus = "";
  }

  function showErrors(newErrors) {
    const { remaining, first } = schemaForm ? schemaForm.showErrors(newErrors) : { remaining: newErrors, first: null };
    errors.replaceChildren();
    if (!newErrors.length) return;
    errors.append(line("p", "errornote", ""));
    if (remaining.length) {
      const list = line("ul", "errorlist", "");
      for (const { path, reason } of remaining) list.append(line("li", "", path.length ? `${path.join(".")}: ${reason}` : reason));
      errors.append(list);
    }
    updateBanner();
    const place = first?.box.matches("input, select, textarea, button") ? first.box : first?.box.querySelector("input, select, textarea, button");
    (place ?? errors).focus();
  }

  /* The banner counts the marks, and goes with the last one. */
  function updateBanner() {
    const note = errors.querySelector(".errornote");
    if (!note) return;
    const count = schemaForm?.errorCount ?? 0;
    if (!count && !errors.querySelector(".errorlist")) {
      errors.replaceChildren();
      return;
    }
    const marks = count ? ` Correct the ${count === 1 ? "marked field" : `${count} marked fields`} below.` : "";
    if (note.textContent !== `The call was not made.${marks}`) note.textContent = `The call was not made.${marks}`;
  }

  function line(tag, className, content) {
    const element = document.createElement(tag);
    if (className) element.className = className;
    element.textContent = content;
    return element;
  }

  // The result ------------------------------------------------------------------------------------------------------

  let lastStatus = ""; // the last status in the announcement for screen readers
  let clockBase = { elapsed: "", at: 0 };

  outcome.addEventListener("live:updated", () => {
    const word = document.getElementById("outcome-status")?.textContent ?? "";
    if (!word || word === lastStatus) return;
    if (!lastStatus) outcome.scrollIntoView({ block: "nearest", behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
    lastStatus = word;
    document.getElementById("announcement").textContent = `The call: ${word}.`;
  });

  /* The server sends the elapsed time. Between its responses the page updates the time. */
  setInterval(() => {
    const clock = outcome.querySelector("[data-ticks]");
    if (!clock) return;
    if (clockBase.elapsed !== clock.dataset.elapsed) clockBase = { elapsed: clock.dataset.elapsed, at: performance.now() };
    clock.textContent = `${((Number(clockBase.elapsed) + performance.now() - clockBase.at) / 1000).toFixed(1)} s`;
  }, 100);

  // Links and texts to copy -----------------------------------------------------------------------------------------

  const snippets = document.getElementById("snippets");
  const snippetsProblem = document.getElementById("snippets-problem");
  let snippetsTimer = 0;

  function updateSnippets() {
    clearTimeout(snippetsTimer);
    if (snippets.open) snippetsTimer = setTimeout(writeSnippets, SNIPPETS_DELAY);
  }
  snippets.addEventListener("toggle", () => snippets.open && writeSnippets());

  /* The server writes them, because it can quote and mask secrets. */
  async function requestTexts() {
    const body = new FormData();
    body.append("arguments", text.value);
    body.append("csrfmiddlewaretoken", form.elements.csrfmiddlewaretoken.value);
    const response = await post(page.dataset.snippets, body, {});
    if (response.error) throw new Error(`${response.error}.`);
    return response;
  }

  let lastRequest = 0;

  async function writeSnippets() {
    const request = ++lastRequest;
    try {
      const response = await requestTexts();
      if (request !== lastRequest) return; // a response for older arguments
      for (const block of snippets.querySelectorAll("[data-snippet]")) block.textContent = response.snippets[block.dataset.snippet];
      snippetsProblem.textContent = "";
    } catch (error) {
      if (request !== lastRequest) return;
      snippetsProblem.textContent = `These texts have older arguments: ${error.message}`;
    }
  }

  const linkButton = document.getElementById("copy-link");
  linkButton.addEventListener("click", async () => {
    try {
      const response = await requestTexts();
      const encoded = encodeURIComponent(JSON.stringify(response.arguments));
      if (encoded.length > MAX_LINK) throw new Error("The arguments are too long for a link. Save them as a preset.");
      const doneText = response.left_out.length ? `Copied, without ${response.left_out.join(", ")}` : "Copied";
      await window.copyToClipboard(`${location.origin}${location.pathname}#args=${encoded}`, linkButton, doneText);
    } catch (error) {
      showErrors([{ path: [], reason: error.message }]);
    }
  });

  // Start -----------------------------------------------------------------------------------------------------------

  linkButton.hidden = false;
  document.getElementById("keys").hidden = callButton.disabled;
  document.getElementById("confirmation")?.setAttribute("hidden", "");
  readLink();
  window.addEventListener("hashchange", () => {
    readLink();
    redraw();
  });
  if (!document.querySelector(".runner-columns-no-arguments")) createForm();
  focusFirst();

  /* Not on a phone, where the keyboard would cover half of the page. */
  function focusFirst() {
    if (matchMedia("(pointer: coarse)").matches || document.activeElement !== document.body) return;
    if (document.querySelector(".runner-columns-no-arguments")) callButton.focus({ preventScroll: true });
    else if (schemaForm && !fieldsPart.hidden && fields.childElementCount) schemaForm.focusFirst();
    else text.focus({ preventScroll: true });
  }
})();
