"use strict";

/* The menu of the navigation closes with Escape, and when the user clicks or moves the focus outside of it. */
(() => {
  const menu = document.querySelector("#places details");
  if (!menu) return;

  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !menu.open) return;
    menu.open = false;
    menu.querySelector("summary").focus();
  });
  for (const kind of ["click", "focusin"]) {
    document.addEventListener(kind, (event) => {
      if (!menu.contains(event.target)) menu.open = false;
    });
  }
})();
