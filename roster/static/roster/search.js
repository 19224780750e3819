"use strict";

/* The search of all pages: a dialog that Ctrl+K opens, or the page /admin/search/, whose parts have the same attributes.

   `/` goes to the search of the page, and `?` shows the keys. The arrow keys go through the results, and Enter opens the
   first one. */
(() => {
  const PAUSE = 120; // after the last key
  const DEADLINE = 10000;

  const dialog = document.getElementById("search-dialog");
  const keys = document.getElementById("keys-dialog");
  const form = document.querySelector("form[data-search]");
  const hits = document.querySelector("[data-hits]");
  if (!form || !hits) return;
  const field = form.elements.q;
  const address = document.getElementById("open-search").href;
  let timer = 0;
  let request = null;

  function open() {
    if (keys?.open) keys.close();
    if (dialog && !dialog.open) dialog.showModal();
    field.focus();
    field.select();
    if (dialog) load(); // pins and calls may have changed
  }

  async function load() {
    clearTimeout(timer);
    request?.abort();
    const current = (request = new AbortController());
    const deadline = setTimeout(() => current.abort(), DEADLINE);
    try {
      const query = new URLSearchParams({ q: field.value.trim() });
      const response = await fetch(`${address}?${query}`, {
        headers: { "X-Live": "part" },
        redirect: "manual",
        signal: current.signal,
      });
      if (!response.ok || !response.headers.has("X-Live")) throw new Error("no results");
      const html = await response.text();
      if (request === current) show(html);
    } catch {
      if (request === current) say("The hall does not respond. You may be logged out. Reload the page.");
    } finally {
      clearTimeout(deadline);
    }
  }

  function show(html) {
    const index = stops().indexOf(document.activeElement);
    hits.innerHTML = html;
    if (index >= 0) (stops()[index] ?? field).focus();
  }

  function say(text) {
    const line = document.createElement("p");
    line.className = "no-hits";
    line.textContent = text;
    hits.replaceChildren(line);
  }

  /* The results as the links and buttons that the keys go through. */
  function stops() {
    return [...hits.querySelectorAll("a, button")];
  }

  function move(step) {
    const places = [field, ...stops()];
    const index = places.indexOf(document.activeElement);
    places[Math.min(Math.max(index + step, 0), places.length - 1)].focus();
  }

  const container = dialog ?? form.parentElement;
  container.addEventListener("keydown", (event) => {
    if (event.isComposing || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Escape" && dialog) {
      event.preventDefault(); // otherwise the first one only empties the field
      dialog.close();
    } else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      move(event.key === "ArrowDown" ? 1 : -1);
    } else if (event.key.length === 1 && event.key !== " " && document.activeElement !== field) {
      field.focus(); // and the character goes there
    }
  });

  field.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(load, PAUSE);
  });

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    await load(); // the results of a moment ago may be those of other words
    if (field.value.trim()) stops()[0]?.click();
  });

  // What a command did is told by posts.js, and the page is seen.
  hits.addEventListener("click", (event) => {
    if (event.target.closest("button")) setTimeout(() => dialog?.close());
  });

  document.getElementById("open-search").addEventListener("click", (event) => {
    if (!dialog || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    open();
  });

  function isTyping(element) {
    return element.closest("input, textarea, select, [contenteditable]") !== null;
  }

  function searchOfPage() {
    const fields = document.querySelectorAll("#find-words, #searchbar, #content input[type=search]");
    return [...fields].find((each) => each.offsetParent !== null && each !== field);
  }

  document.addEventListener("keydown", (event) => {
    if (event.isComposing || event.defaultPrevented) return;
    if ((event.ctrlKey || event.metaKey) && !event.shiftKey && !event.altKey && event.key.toLowerCase() === "k") {
      event.preventDefault();
      open();
      return;
    }
    const hasDialog = document.querySelector("dialog[open]") !== null;
    if (event.ctrlKey || event.metaKey || event.altKey || hasDialog || isTyping(event.target)) return;
    if (event.key === "/") {
      event.preventDefault();
      const other = searchOfPage();
      if (other) {
        other.focus();
        other.select();
      } else open();
    } else if (event.key === "?" && keys) {
      event.preventDefault();
      keys.showModal();
    }
  });

  for (const each of [dialog, keys]) {
    each?.addEventListener("click", (event) => {
      if (event.target === each) each.close(); // its backdrop
    });
  }
})();
