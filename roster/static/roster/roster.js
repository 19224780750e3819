"use strict";

/* The roster: search while the user types, and filter by status, without leaving the page. */
(() => {
  const PAUSE = 200; // after the last key

  const form = document.getElementById("find");
  const roster = document.getElementById("roster");
  if (!form || !roster) return;
  const words = form.elements.q;
  let status = new URLSearchParams(location.search).get("status") ?? "";
  let show = new URLSearchParams(location.search).get("show") ?? ""; // how many cards
  let timer = 0;

  function search() {
    clearTimeout(timer);
    const query = new URLSearchParams();
    if (words.value.trim()) query.set("q", words.value.trim());
    if (status) query.set("status", status);
    if (show) query.set("show", show);
    const address = `${roster.dataset.address}?${query}`;
    if (address === roster.dataset.live) return;
    roster.dataset.live = address;
    history.replaceState(null, "", query.size ? `?${query}` : location.pathname);
    roster.dispatchEvent(new CustomEvent("live:refresh"));
  }

  /* The focus goes to the first new card, where the link was. */
  function showMore(count) {
    roster.addEventListener("live:updated", () => roster.querySelectorAll(".card h2 a")[count]?.focus(), { once: true });
    search();
  }

  words.addEventListener("input", () => {
    show = "";
    clearTimeout(timer);
    timer = setTimeout(search, PAUSE);
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    search();
  });
  roster.addEventListener("click", (event) => {
    const link = event.target.closest("a[data-status], a[data-show]");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    show = link.dataset.show ?? "";
    status = link.dataset.status ?? status;
    if (link.matches(".no-matches a")) words.value = "";
    if (link.dataset.show) showMore(roster.querySelectorAll(".card").length);
    else search();
  });
})();
