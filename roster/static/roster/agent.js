"use strict";

/* An agent: messages are sent without leaving the page, and the page follows the transcript. */
(() => {
  const DEADLINE = 30000;
  const AT_END = 40; // pixels from the end of the page that still count as the end

  const transcript = document.getElementById("transcript");
  const form = document.getElementById("say");
  const maker = document.querySelector(".new-agent");

  document.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey) || !event.target.matches("textarea")) return;
    event.preventDefault();
    if (!event.repeat) event.target.form.requestSubmit(); // a key that stays down sends one request
  });

  if (form) form.addEventListener("submit", send);
  if (maker) makeOnce();
  if (transcript) follow();

  /* Send the form only once, because each time would create an agent. */
  function makeOnce() {
    const button = maker.querySelector("button");
    maker.addEventListener("submit", (event) => {
      if (button.getAttribute("aria-busy") === "true") event.preventDefault();
      else button.setAttribute("aria-busy", "true");
    });
    // The browser may restore the page as it was after "Back".
    window.addEventListener("pageshow", (event) => event.persisted && button.removeAttribute("aria-busy"));
  }

  async function send(event) {
    event.preventDefault();
    const prompt = form.elements.prompt;
    const button = form.querySelector("button");
    if (button.getAttribute("aria-busy") === "true") return; // pressed twice
    const sent = prompt.value;
    button.setAttribute("aria-busy", "true");
    const problem = await problemOf(new FormData(form));
    button.removeAttribute("aria-busy");
    say(problem);
    if (!problem) {
      if (prompt.value === sent) prompt.value = "";
      toEnd();
    }
    for (const part of document.querySelectorAll("[data-live]")) part.dispatchEvent(new CustomEvent("live:refresh"));
  }

  /* Why it was not sent. Empty if it was sent. */
  async function problemOf(body) {
    try {
      const response = await fetch(form.action, {
        method: "POST",
        body,
        headers: { "X-Live": "form" },
        redirect: "manual",
        signal: AbortSignal.timeout(DEADLINE),
      });
      if (response.type === "opaqueredirect") return "Not sent: you are logged out. Reload the page to log in.";
      if (response.status === 403) return "Not sent: you may not speak here, or this page is too old. Reload it.";
      const { messages } = await response.json();
      return messages.map((message) => message.text).join(" ");
    } catch {
      return "Not sent, or not known to be: the hall did not answer. Look above before you send it again.";
    }
  }

  function say(text) {
    document.getElementById("say-state").textContent = text;
  }

  function toEnd() {
    window.scrollTo(0, document.documentElement.scrollHeight);
  }

  /* Stay at the end of the page, unless the user scrolled up. */
  function follow() {
    const isAtEnd = () => window.innerHeight + window.scrollY > document.documentElement.scrollHeight - AT_END;
    let wasAtEnd = true;
    window.addEventListener("scroll", () => (wasAtEnd = isAtEnd()), { passive: true });
    transcript.addEventListener("live:updated", () => {
      if (wasAtEnd) toEnd();
    });
    if (transcript.querySelector(".turn")) toEnd();
  }
})();
