"use strict";

/* The list of tools: search while the user types, and change its filters, without leaving the page. Without scripts the
   search is an ordinary form, and filters are links. */
(() => {
  const PAUSE = 200; // after the last key

  const form = document.getElementById("find");
  const list = document.getElementById("tool-list");
  if (!form || !list) return;
  const words = form.elements.q;
  const member = form.elements.member__id__exact;
  let timer = 0;

  /* Show the list with these parameters. Empty ones are left out. */
  function show(query) {
    clearTimeout(timer);
    for (const [name, value] of [...query]) if (!value) query.delete(name);
    const address = `${location.pathname}${query.size ? `?${query}` : ""}`;
    if (address === list.dataset.live) return;
    list.dataset.live = address;
    history.replaceState(null, "", address);
    list.dispatchEvent(new CustomEvent("live:refresh"));
  }

  /* The filters of the address, with the words and the member of the form, from the first page. */
  function search() {
    const query = new URLSearchParams(location.search);
    query.set("q", words.value.trim());
    query.set("member__id__exact", member.value);
    query.delete("p");
    show(query);
  }

  words.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(search, PAUSE);
  });
  member.addEventListener("change", search);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    search();
  });

  list.addEventListener("click", (event) => {
    const link = event.target.closest("a[data-filter]");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    const query = new URLSearchParams(link.search);
    words.value = query.get("q") ?? "";
    member.value = query.get("member__id__exact") ?? "";
    show(query);
    if (query.has("p")) list.scrollIntoView({ block: "start" });
  });
})();
