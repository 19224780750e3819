"use strict";

/* The form of a new token: members and tools are shown if the scope uses them. */
(() => {
  const scope = document.getElementById("id_scope");
  if (!scope) return;

  function showFields() {
    for (const field of ["members", "tools"]) {
      const row = document.querySelector(`.field-${field}`);
      // Choices from before a change of the scope stay visible, because the form refuses them.
      const hasChoice = document.querySelectorAll(`#id_${field}_to option, select#id_${field} option:checked`).length > 0;
      row.hidden = scope.value !== field && !hasChoice;
    }
  }

  scope.addEventListener("change", showFields);
  showFields();
})();

/* A token's page: the configuration follows the choices, and contains a token that was just created. */
(() => {
  const PLACEHOLDER = "gh_PUT_A_TOKEN_HERE";

  const part = document.getElementById("configuration");
  if (!part) return;
  const choices = document.getElementById("choices");
  // The token is shown once, in the message of the page after its creation. It is only in this page, and is not sent.
  const secret = document.querySelector(".messagelist code.token")?.textContent ?? "";

  function fillIn() {
    if (!secret) return;
    for (const text of part.querySelectorAll("pre.block")) {
      if (text.textContent.includes(PLACEHOLDER)) text.textContent = text.textContent.replaceAll(PLACEHOLDER, secret);
    }
  }

  if (choices) {
    choices.querySelector(".choices-row").hidden = true;
    choices.addEventListener("change", () => {
      const address = part.dataset.live.split("?")[0];
      part.dataset.live = `${address}?${new URLSearchParams(new FormData(choices))}`;
      part.dispatchEvent(new CustomEvent("live:refresh"));
    });
  }

  part.addEventListener("live:updated", fillIn);
  fillIn();

  if (secret) {
    document.getElementById("secret-note")?.remove();
    const code = document.querySelector(".messagelist code.token");
    const copy = document.createElement("button");
    copy.type = "button";
    copy.className = "copy-token";
    copy.textContent = "Copy";
    copy.setAttribute("aria-label", "Copy the token");
    code.id = "new-token";
    copy.dataset.copy = code.id;
    code.after(" ", copy);
  }
})();
