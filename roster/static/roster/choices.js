"use strict";

/* Choices of forms that are searched on the server (roster/admin/choosing.py).

   An element with data-choices="URL" has a list of the chosen rows, a search field and a list of others. A search
   replaces the others. What is checked stays: it moves to the chosen rows. Each <datalist data-choices-list="URL"> gets
   the choices that fit what is typed. */
(() => {
  const PAUSE = 200; // after the last key
  const DEADLINE = 10000;

  /* Call `show` with the choices for the text, when nobody has typed for a moment. Older answers are ignored. */
  function searcher(address, show, fail) {
    let timer = 0;
    let request = null;

    async function load(text) {
      request?.abort();
      const current = (request = new AbortController());
      const deadline = setTimeout(() => current.abort(), DEADLINE);
      try {
        const response = await fetch(`${address}?${new URLSearchParams({ q: text })}`, {
          headers: { "X-Live": "part" },
          redirect: "manual",
          signal: current.signal,
        });
        if (!response.ok || !response.headers.has("X-Live")) throw new Error("no choices");
        const html = await response.text();
        if (request === current) show(html, text);
      } catch {
        if (request === current) fail();
      } finally {
        clearTimeout(deadline);
      }
    }

    return (text) => {
      clearTimeout(timer);
      timer = setTimeout(() => load(text.trim()), PAUSE);
    };
  }

  function adopt(picker) {
    const field = picker.querySelector("input[type=search]");
    const [chosen, found] = [picker.querySelector(".chosen"), picker.querySelector(".found")];
    const status = picker.querySelector("[role=status]");
    const boxes = (list) => [...list.querySelectorAll("input[type=checkbox]")];

    function show(html, text) {
      for (const box of boxes(found)) if (box.checked) chosen.append(box.closest("li"));
      for (const box of boxes(chosen)) if (!box.checked) box.closest("li").remove();
      const values = new Set(boxes(chosen).map((box) => box.value));
      found.innerHTML = html;
      const count = boxes(found).length;
      for (const box of boxes(found)) {
        if (values.has(box.value)) box.closest("li").remove();
        else box.name = picker.dataset.name;
      }
      if (count >= Number(picker.dataset.max)) status.textContent = `The first ${count}. Type more to find others.`;
      else if (!count) status.textContent = "No matches.";
      else status.textContent = text ? `${count} ${count === 1 ? "match" : "matches"}.` : "";
    }

    const search = searcher(picker.dataset.choices, show, () => {
      status.textContent = "The hall does not respond. You may be logged out. Reload the page.";
    });

    field.hidden = false;
    field.addEventListener("input", () => search(field.value));
    field.addEventListener("change", (event) => event.stopPropagation());
    picker.addEventListener("keydown", (event) => {
      if (event.isComposing || event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.key === "Enter" && event.target === field) {
        event.preventDefault(); // otherwise it sends the form
        search(field.value);
      } else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
        const stops = [...boxes(chosen), field, ...boxes(found)];
        const index = stops.indexOf(event.target);
        if (index < 0) return;
        event.preventDefault();
        stops[Math.min(Math.max(index + (event.key === "ArrowDown" ? 1 : -1), 0), stops.length - 1)].focus();
      }
    });
  }

  for (const picker of document.querySelectorAll("[data-choices]")) adopt(picker);

  for (const list of document.querySelectorAll("datalist[data-choices-list]")) {
    const show = (html) => {
      const holder = document.createElement("template");
      holder.innerHTML = html;
      const values = [...holder.content.querySelectorAll("input")].map((box) => box.value);
      list.replaceChildren(...values.map((value) => Object.assign(document.createElement("option"), { value })));
    };
    const search = searcher(list.dataset.choicesList, show, () => {}); // a name can be typed without choices
    document.addEventListener("input", (event) => {
      if (event.target.list === list) search(event.target.value);
    });
  }
})();
