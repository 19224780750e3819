"use strict";

/* Texts that leave the page. A button with data-copy="ID" copies the text of this element. In a .result-item, a button
   with data-copy-item copies the text of its [data-source], or the text at the address in data-copy-item. A button with
   data-show-all="ADDRESS" shows this text there. Others use window.copyToClipboard(text, button, label). */
(() => {
  const SHOWN_SECONDS = 2.5;
  const DEADLINE = 30_000;
  const MAX_SHOWN = 5_000_000; // characters that a page can show at once

  document.documentElement.classList.add("has-scripts");

  const labels = new Map(); // the first label of each button that was pressed
  const timers = new Map();

  document.addEventListener("click", async (event) => {
    const button = event.target.closest("button[data-copy], button[data-copy-item], button[data-show-all]");
    if (!button || button.getAttribute("aria-busy") === "true") return;
    button.setAttribute("aria-busy", "true");
    try {
      if (button.dataset.showAll) await showAll(button);
      else await copyOf(button);
    } catch {
      say(button, "The hall did not respond");
    } finally {
      button.removeAttribute("aria-busy");
    }
  });

  async function copyOf(button) {
    const source = sourceOf(button);
    const text = button.dataset.copyItem ? await load(button.dataset.copyItem) : source.textContent;
    await window.copyToClipboard(text, button, "Copied", source);
  }

  function sourceOf(button) {
    return button.dataset.copy ? document.getElementById(button.dataset.copy) : button.closest(".result-item").querySelector("[data-source]");
  }

  async function showAll(button) {
    const text = await load(button.dataset.showAll);
    const source = sourceOf(button);
    if (text.length > MAX_SHOWN) {
      say(button, "Too long to show. Download it");
      return;
    }
    source.textContent = text;
    source.closest("details")?.setAttribute("open", "");
    source.closest(".result-item").querySelector(".result-kind .result-note:last-child")?.remove(); // "only the beginning"
    source.focus();
    button.remove();
  }

  async function load(address) {
    const response = await fetch(address, { redirect: "error", signal: AbortSignal.timeout(DEADLINE) });
    if (!response.ok) throw new Error(response.status);
    return response.text();
  }

  /* Over plain http from another machine there is no clipboard object, but execCommand works. */
  window.copyToClipboard = async (text, button, label = "Copied", source = null) => {
    let isCopied = true;
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      isCopied = copySelection(text);
    }
    if (!isCopied && source) select(source);
    const status = document.getElementById("copy-status");
    if (status) status.textContent = isCopied ? `${label}.` : source ? "The text is selected. Press Ctrl+C to copy it." : "Copying failed.";
    say(button, isCopied ? label : source ? "Selected" : "Copying failed");
  };

  function copySelection(text) {
    const hidden = document.createElement("textarea");
    hidden.className = "visually-hidden";
    hidden.value = text;
    const focused = document.activeElement;
    document.body.append(hidden);
    hidden.select();
    const isCopied = document.execCommand("copy");
    hidden.remove();
    focused?.focus();
    return isCopied;
  }

  function select(source) {
    const range = document.createRange();
    range.selectNodeContents(source);
    getSelection().removeAllRanges();
    getSelection().addRange(range);
  }

  /* Show a word on the button for a moment. */
  function say(button, word) {
    if (!labels.has(button)) labels.set(button, button.textContent);
    button.textContent = word;
    clearTimeout(timers.get(button));
    timers.set(button, setTimeout(() => (button.textContent = labels.get(button)), 1000 * SHOWN_SECONDS));
  }
})();
