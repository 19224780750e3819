"use strict";

/* The form of a new token: a field is shown if the scope, or the search mode, uses it. */
(() => {
  const scope = document.getElementById("id_scope");
  if (!scope) return;

  const searchMode = document.getElementById("id_search_mode");

  function showField(field, isUsed) {
    const row = document.querySelector(`.field-${field}`);
    // Choices from before a change stay visible, because the form refuses them.
    const chosen = row.querySelectorAll("option:checked, input:checked");
    const hasChoice = [...chosen].some((option) => option.value);
    row.hidden = !isUsed && !hasChoice;
  }

  function showFields() {
    for (const field of ["members", "tools", "tool_set"]) showField(field, scope.value === field);
    showField("pinned_tools", searchMode.checked);
  }

  scope.addEventListener("change", showFields);
  searchMode.addEventListener("change", showFields);
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
    for (const link of part.querySelectorAll("a[data-adds]")) link.href = linkWithSecret(link.getAttribute("href"));
  }

  /* The configuration in the link of Cursor is in base64. */
  function linkWithSecret(address) {
    const encoded = address.match(/^(cursor:.*&config=)(.+)$/);
    if (!encoded) return address.replaceAll(PLACEHOLDER, secret);
    const config = atob(decodeURIComponent(encoded[2])).replaceAll(PLACEHOLDER, secret);
    return encoded[1] + encodeURIComponent(btoa(config));
  }

  const find = document.getElementById("find-choices");
  if (find) {
    find.hidden = false;
    find.addEventListener("input", () => {
      const words = find.value.toLowerCase().split(/\s+/);
      for (const label of document.querySelectorAll("#member-choices label")) {
        // What is chosen stays in sight, so that nobody forgets it.
        const isFound = words.every((word) => label.textContent.toLowerCase().includes(word));
        label.hidden = !isFound && !label.querySelector("input").checked;
      }
    });
    find.addEventListener("change", (event) => event.stopPropagation());
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
