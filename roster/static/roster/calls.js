"use strict";

/* The list of calls. A button is enabled for the number of selected calls that it accepts, or for those of one
   kind alone: a call that has ended cannot be cancelled. Empty fields of the filters are
   not sent, so that a link to a page has only the filters in use. */
(() => {
  const form = document.getElementById("changelist-form");
  const buttons = form.querySelectorAll("button[data-least]");

  function updateButtons() {
    for (const button of buttons) {
      const { least, most, only } = button.dataset;
      const count = form.querySelectorAll(`input.action-select${only ?? ""}:checked`).length;
      button.disabled = count < Number(least) || count > Number(most ?? Infinity);
    }
  }

  form.addEventListener("change", updateButtons);
  document.addEventListener("live:updated", updateButtons);
  updateButtons();

  document.querySelector(".calls-filter").addEventListener("submit", (event) => {
    for (const field of event.target.elements) field.disabled = field.name !== "" && field.value === "";
    setTimeout(() => [...event.target.elements].forEach((field) => (field.disabled = false)));
  });
})();
