"use strict";

/* The page of a member: the search of its tools, and its log as it grows. */

/* <input data-find="ID"> hides the rows of the list ID that do not contain each word of the input. */
(() => {
  function find(input) {
    const rows = document.getElementById(input.dataset.find)?.children ?? [];
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    let matches = 0;
    for (const row of rows) {
      const text = row.querySelector(".row-main").textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
      matches += row.hidden ? 0 : 1;
    }
    const summary = document.querySelector(`[data-matches-of="${input.dataset.find}"]`);
    const text = words.length ? `${matches} of ${rows.length}` : "";
    if (summary.textContent !== text) summary.textContent = text;
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
  let isRequesting = false;
  let isPaused = false;
  let failures = 0;

  const isAtEnd = () => box.scrollHeight - box.scrollTop - box.clientHeight < AT_END;
  const toEnd = () => (box.scrollTop = box.scrollHeight);

  function schedule(delay) {
    clearTimeout(timer);
    if (!document.hidden && !isPaused && !isRequesting) timer = setTimeout(requestLines, delay);
  }

  async function requestLines() {
    isRequesting = true;
    try {
      const address = `${box.dataset.url}?after=${encodeURIComponent(cursor)}`;
      const response = await fetch(address, { redirect: "error", cache: "no-store", signal: AbortSignal.timeout(DEADLINE) });
      if (!response.ok) throw new Error(response.status);
      addLines(await response.json());
      failures = 0;
    } catch {
      failures += 1;
    }
    isRequesting = false;
    showState();
    schedule(Math.min(PERIOD * 2 ** failures, LONGEST_PERIOD));
  }

  function addLines(part) {
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
    return classify(line);
  }

  function gap() {
    const line = document.createElement("div");
    line.className = "gap";
    line.textContent = "… some lines were skipped here. The download has all stored lines.";
    return line;
  }

  /* Mark errors and warnings, and hide lines that do not match the filter. */
  function classify(line) {
    const text = line.textContent.toLowerCase();
    if (/\b(error|fatal|critical|traceback|exception|panic)\b/.test(text)) line.className = "bad";
    else if (/\bwarn(ing)?\b/.test(text)) line.className = "warn";
    line.hidden = !text.includes(filterText());
    return line;
  }

  const filterText = () => filter.value.trim().toLowerCase();

  function showState() {
    const total = box.childElementCount;
    const matches = filterText() ? `${box.querySelectorAll(":scope > :not([hidden])").length} of ${total} lines` : "";
    const activity = failures ? "The hall does not respond. Trying again" : isPaused ? "Paused" : "Following";
    const text = [activity, matches].filter(Boolean).join(" · ");
    if (state.textContent !== text) state.textContent = text;
    box.classList.toggle("is-following", !isPaused && !failures);
  }

  filter.addEventListener("input", () => {
    const text = filterText();
    for (const line of box.children) line.hidden = !line.textContent.toLowerCase().includes(text);
    toEnd();
    showState();
  });

  pauseButton.addEventListener("click", () => {
    isPaused = !isPaused;
    pauseButton.textContent = isPaused ? "Follow" : "Pause";
    pauseButton.setAttribute("aria-pressed", String(isPaused));
    showState();
    schedule(0);
  });

  endButton.addEventListener("click", toEnd);
  box.addEventListener("scroll", () => (endButton.hidden = isAtEnd()));
  document.addEventListener("visibilitychange", () => schedule(0));

  for (const line of box.children) classify(line);
  pauseButton.hidden = false;
  toEnd();
  showState();
  schedule(PERIOD);
})();
