"use strict";

/* The list of calls. A button is enabled for the number of selected calls that it accepts. Empty fields of the filters are
   not sent, so that a link to a page has only the filters in use. */
(() => {
  const form = document.getElementById("changelist-form");
  const buttons = form.querySelectorAll("button[data-least]");

  function updateButtons() {
    const count = form.querySelectorAll("input.action-select:checked").length;
    for (const button of buttons) {
      const { least, most } = button.dataset;
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
