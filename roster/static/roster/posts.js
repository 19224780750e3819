"use strict";

/* Buttons that change something without leaving the page.

   <form method="post" data-live-form> is sent with fetch, also for its buttons with their own formaction. The server
   (roster/admin/live.py, `form_response`) answers with Django's messages as JSON. They are shown for some seconds in
   the corner of the window where they cover least, until somebody dismisses them, and all live parts are requested at
   once. Without scripts it is an ordinary form. */
(() => {
  const DISPLAY_TIMES = { success: 6000, info: 6000, warning: 12000, error: 20000 };
  const DEADLINE = 30000;
  const MAX_SHOWN = 4;
  const CORNERS = ["", "at-end", "at-top at-end", "at-top"];
  const WANTED = "a[href], button, input:not([type=hidden]), select, textarea, summary, label, #outcome-status";
  const STATUS = "#outcome-status"; // what the message is about

  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (!form.matches("form[data-live-form]") || event.defaultPrevented) return;
    event.preventDefault();
    send(form, event.submitter);
  });

  /* A double click counts once. Its second press may hit another button that has taken the place of the first one. */
  document.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (event.detail > 1 && button?.form?.matches("form[data-live-form]")) event.preventDefault();
  });

  async function send(form, button) {
    if (button?.getAttribute("aria-busy") === "true") return; // the user pressed it twice
    button?.setAttribute("aria-busy", "true");
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
    const address = button?.getAttribute("formaction") ?? form.getAttribute("action") ?? location.href;
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

  function show({ level, text }) {
    const container = document.getElementById("live-messages");
    for (const old of [...container.children]) {
      if (old.firstChild.textContent === text) old.remove();
    }
    const line = document.createElement("p");
    line.className = level;
    const words = document.createElement("span");
    words.textContent = text;
    line.append(words, dismissal(line));
    container.append(line);
    while (container.children.length > MAX_SHOWN) container.firstChild.remove();
    place(container);
    setTimeout(() => line.remove(), DISPLAY_TIMES[level] ?? DISPLAY_TIMES.error);
  }

  function dismissal(line) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "dismiss";
    button.setAttribute("aria-label", "Dismiss");
    button.addEventListener("click", () => line.remove());
    return button;
  }

  /* The first corner where the messages cover nothing to click and no status, or else where they cover least. */
  function place(container) {
    const wanted = [...document.querySelectorAll(WANTED)].filter((each) => !container.contains(each));
    const boxes = wanted.map((each) => [each.getBoundingClientRect(), each.matches(STATUS) ? 100 : 1]).filter(([box]) => isInWindow(box));
    let least = Infinity;
    let best = "";
    for (const corner of CORNERS) {
      container.className = corner;
      const own = container.getBoundingClientRect();
      const covered = boxes.reduce((sum, [box, weight]) => sum + (overlap(box, own) ? weight : 0), 0);
      if (covered < least) [least, best] = [covered, corner];
    }
    container.className = best;
  }

  function isInWindow(box) {
    return box.width > 0 && box.bottom > 0 && box.top < window.innerHeight;
  }

  function overlap(one, other) {
    return one.left < other.right && other.left < one.right && one.top < other.bottom && other.top < one.bottom;
  }
})();
