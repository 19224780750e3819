"use strict";

/* The page of a member: the search of its tools, and its log as it grows. */

/* <input data-find="ID"> hides the rows of the list ID that do not contain each word of the input. */
(() => {
  function find(input) {
    const rows = document.getElementById(input.dataset.find)?.children ?? [];
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    let found = 0;
    for (const row of rows) {
      const text = row.querySelector(".row-main").textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
      found += row.hidden ? 0 : 1;
    }
    const said = document.querySelector(`[data-found="${input.dataset.find}"]`);
    const text = words.length ? `${found} of ${rows.length}` : "";
    if (said.textContent !== text) said.textContent = text;
  }

  for (const input of document.querySelectorAll("input[data-find]")) {
    input.addEventListener("input", () => find(input));
    document.addEventListener("live:updated", () => find(input));
    find(input); // the browser may restore the text after a reload
  }
})();

/* The log. While the tab is visible, new lines are requested each second, with the cursor of the previous response. The
   log stays scrolled to its end unless the user scrolled up. */
(() => {
  const PERIOD = 1000;
  const LONGEST_PERIOD = 10000; // while requests fail
  const DEADLINE = 10000;
  const MAX_LINES = 2000;
  const AT_END = 24; // pixels from the end that still count as the end

  const box = document.getElementById("log-lines");
  if (!box) return;
  const filter = document.getElementById("log-filter");
  const pauseButton = document.getElementById("log-pause");
  const endButton = document.getElementById("log-end");
  const state = document.getElementById("log-state");
  const empty = document.getElementById("log-empty");

  let cursor = box.dataset.cursor;
  let timer = 0;
  let asking = false;
  let paused = false;
  let failures = 0;

  const isAtEnd = () => box.scrollHeight - box.scrollTop - box.clientHeight < AT_END;
  const toEnd = () => (box.scrollTop = box.scrollHeight);

  function askIn(delay) {
    clearTimeout(timer);
    if (!document.hidden && !paused && !asking) timer = setTimeout(ask, delay);
  }

  async function ask() {
    asking = true;
    try {
      const address = `${box.dataset.url}?after=${encodeURIComponent(cursor)}`;
      const response = await fetch(address, { redirect: "error", cache: "no-store", signal: AbortSignal.timeout(DEADLINE) });
      if (!response.ok) throw new Error(response.status);
      take(await response.json());
      failures = 0;
    } catch {
      failures += 1;
    }
    asking = false;
    say();
    askIn(Math.min(PERIOD * 2 ** failures, LONGEST_PERIOD));
  }

  function take(part) {
    cursor = part.cursor;
    if (!part.lines.length) return;
    const wasAtEnd = isAtEnd();
    const lines = part.lines.slice(-MAX_LINES).map(lineOf);
    if (part.gap) lines.unshift(gap());
    box.append(...lines);
    while (box.childElementCount > MAX_LINES) box.firstElementChild.remove();
    empty.hidden = true;
    if (wasAtEnd) toEnd();
  }

  function lineOf(text) {
    const line = document.createElement("div");
    line.textContent = text;
    return dressed(line);
  }

  function gap() {
    const line = document.createElement("div");
    line.className = "gap";
    line.textContent = "… lines were left out here; the download has what is kept";
    return line;
  }

  function dressed(line) {
    const text = line.textContent.toLowerCase();
    if (/\b(error|fatal|critical|traceback|exception|panic)\b/.test(text)) line.className = "bad";
    else if (/\bwarn(ing)?\b/.test(text)) line.className = "warn";
    line.hidden = !text.includes(needle());
    return line;
  }

  const needle = () => filter.value.trim().toLowerCase();

  function say() {
    const total = box.childElementCount;
    const shown = needle() ? `${box.querySelectorAll(":scope > :not([hidden])").length} of ${total} lines` : "";
    const doing = failures ? "The hall does not answer; trying again" : paused ? "Paused" : "Following";
    const text = [doing, shown].filter(Boolean).join(" · ");
    if (state.textContent !== text) state.textContent = text;
    box.classList.toggle("is-following", !paused && !failures);
  }

  filter.addEventListener("input", () => {
    const text = needle();
    for (const line of box.children) line.hidden = !line.textContent.toLowerCase().includes(text);
    toEnd();
    say();
  });

  pauseButton.addEventListener("click", () => {
    paused = !paused;
    pauseButton.textContent = paused ? "Follow" : "Pause";
    pauseButton.setAttribute("aria-pressed", String(paused));
    say();
    askIn(0);
  });

  endButton.addEventListener("click", toEnd);
  box.addEventListener("scroll", () => (endButton.hidden = isAtEnd()));
  document.addEventListener("visibilitychange", () => askIn(0));

  for (const line of box.children) dressed(line);
  pauseButton.hidden = false;
  toEnd();
  say();
  askIn(PERIOD);
})();
