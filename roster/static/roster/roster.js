"use strict";

/* The roster: search while the user types, and filter by status, without leaving the page. */
(() => {
  const PAUSE = 200; // after the last key

  const form = document.getElementById("find");
  const roster = document.getElementById("roster");
  if (!form || !roster) return;
  const words = form.elements.q;
  let status = new URLSearchParams(location.search).get("status") ?? "";
  let timer = 0;

  function search() {
    clearTimeout(timer);
    const query = new URLSearchParams();
    if (words.value.trim()) query.set("q", words.value.trim());
    if (status) query.set("status", status);
    const address = `${roster.dataset.address}?${query}`;
    if (address === roster.dataset.live) return;
    roster.dataset.live = address;
    history.replaceState(null, "", query.size ? `?${query}` : location.pathname);
    roster.dispatchEvent(new CustomEvent("live:refresh"));
  }

  words.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(search, PAUSE);
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    search();
  });
  roster.addEventListener("click", (event) => {
    const chip = event.target.closest("a[data-status]");
    if (!chip || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    status = chip.dataset.status;
    if (chip.matches(".no-matches a")) words.value = "";
    search();
  });
})();
