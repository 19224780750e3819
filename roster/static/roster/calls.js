"use strict";

/* The list of calls: buttons are for so many selected calls as they can take, and a narrow page begins without filters.
   A link of a page is found in the address: what is not filled in is not asked. */
(() => {
  const form = document.getElementById("changelist-form");
  const buttons = form.querySelectorAll("button[data-least]");

  function count() {
    const chosen = form.querySelectorAll("input.action-select:checked").length;
    for (const button of buttons) {
      const { least, most } = button.dataset;
      button.disabled = chosen < Number(least) || chosen > Number(most ?? Infinity);
    }
  }

  form.addEventListener("change", count);
  document.addEventListener("live:updated", count);
  count();

  document.querySelector(".calls-filter").addEventListener("submit", (event) => {
    for (const field of event.target.elements) field.disabled = field.name !== "" && field.value === "";
    setTimeout(() => [...event.target.elements].forEach((field) => (field.disabled = false)));
  });
})();
