"use strict";

/* Buttons that copy the text of the element whose id is in data-copy. */
(() => {
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("button[data-copy]");
    if (!button) return;
    const source = document.getElementById(button.dataset.copy);
    const isCopied = await copyText(source);
    document.getElementById("copy-status").textContent = isCopied ? "Copied." : "The text is selected. Press Ctrl+C to copy it.";
    button.textContent = isCopied ? "Copied" : "Selected";
    setTimeout(() => (button.textContent = "Copy"), 2000);
  });

  /* Returns whether the text was copied. Without a secure context scripts have no clipboard, and the text is selected. */
  async function copyText(source) {
    try {
      await navigator.clipboard.writeText(source.textContent);
      return true;
    } catch {
      const range = document.createRange();
      range.selectNodeContents(source);
      getSelection().removeAllRanges();
      getSelection().addRange(range);
      return false;
    }
  }
})();
