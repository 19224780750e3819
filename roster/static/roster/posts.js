"use strict";

/* Buttons that change something without leaving the page.

   <form method="post" data-live-form> is sent with fetch, also for its buttons with their own formaction. The server
   (roster/admin/live.py, `form_response`) answers with Django's messages as JSON. They are shown for some seconds at the
   bottom or top of the window, and all live parts are requested at once. Without scripts it is an ordinary form. */
(() => {
  const DISPLAY_TIMES = { success: 6000, info: 6000, warning: 12000, error: 20000 };
  const DEADLINE = 30000;

  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (!form.matches("form[data-live-form]") || event.defaultPrevented) return;
    event.preventDefault();
    send(form, event.submitter);
  });

  async function send(form, button) {
    if (button?.getAttribute("aria-busy") === "true") return; // the user pressed it twice
    button?.setAttribute("aria-busy", "true");
    placeMessages(button ?? form);
    try {
      const messages = await post(form, button);
      messages.forEach(show);
    } catch {
      show({ level: "error", text: "The hall did not respond correctly. Reload the page and try again." });
    } finally {
      button?.removeAttribute("aria-busy");
      document.querySelectorAll("[data-live]").forEach((part) => part.dispatchEvent(new CustomEvent("live:refresh")));
    }
  }

  async function post(form, button) {
    const address = button?.getAttribute("formaction") ?? form.getAttribute("action");
    const response = await fetch(address, {
      method: "POST",
      body: new FormData(form, button),
      headers: { "X-Live": "form" },
      redirect: "manual",
      signal: AbortSignal.timeout(DEADLINE),
    });
    if (response.type === "opaqueredirect") location.reload(); // logged out, so the login page is shown
    if (response.status === 403) return [{ level: "error", text: "The hall refused this. You do not have permission, or this page is too old. Reload the page." }];
    if (response.status === 404) return [{ level: "error", text: "This no longer exists. Reload the page." }];
    return (await response.json()).messages;
  }

  /* A button is next to what it changes, so messages are shown at the other end of the window. */
  function placeMessages(control) {
    const { top, bottom } = control.getBoundingClientRect();
    document.getElementById("live-messages").classList.toggle("at-top", top + bottom > window.innerHeight);
  }

  function show({ level, text }) {
    const container = document.getElementById("live-messages");
    const line = document.createElement("p");
    line.className = level;
    line.textContent = text;
    container.append(line);
    setTimeout(() => line.remove(), DISPLAY_TIMES[level] ?? DISPLAY_TIMES.error);
  }
})();
