"use strict";

/* The links of a plot to other spans: they change the section without leaving the page. */
document.addEventListener("click", (event) => {
  const link = event.target.closest(".plot-spans a[data-part]");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
  const section = link.closest("[data-live]");
  event.preventDefault();
  section.dataset.live = link.dataset.part;
  section.dispatchEvent(new CustomEvent("live:refresh"));
  const address = new URL(location.href);
  address.searchParams.set("span", new URL(link.href).searchParams.get("span"));
  history.replaceState(null, "", address);
});
