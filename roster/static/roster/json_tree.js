"use strict";

/* Search, expand and collapse the JSON of a .result-item.

   The server draws the beginning of a large value. The first use of a tool replaces it by a tree of the whole value, whose
   places are drawn when they open. The value comes from a member: its texts become text nodes, and what is drawn at once
   is bounded. */
(() => {
  const PAUSE = 150; // after the last key
  const MAX_MATCHES = 1000;
  const MAX_OPEN = 2000; // places that one press of Expand opens
  const MAX_TEXT = 20_000;
  const MAX_KEY = 200;
  const CHUNK = 200; // entries of one place that are drawn at once
  const DEADLINE = 30_000;

  /* A number with more digits than JavaScript keeps, or written in another way. */
  class Digits {
    constructor(text) {
      this.text = text;
    }
  }

  function parse(text) {
    return JSON.parse(text, (_, value, context) => {
      const isOther = typeof value === "number" && context?.source !== undefined && context.source !== String(value);
      return isOther ? new Digits(context.source) : value;
    });
  }

  const isBranch = (value) => typeof value === "object" && value !== null && !(value instanceof Digits) && Object.keys(value).length > 0;
  const textOf = (value) => (value instanceof Digits ? value.text : typeof value === "string" ? value : JSON.stringify(value));
  const keysOf = (value) => (Array.isArray(value) ? [...value.keys()] : Object.keys(value));

  function shorten(text, length) {
    return text.length > length ? `${text.slice(0, length)}… and ${(text.length - length).toLocaleString("en")} more characters` : text;
  }

  function element(tag, className, ...children) {
    const node = document.createElement(tag);
    if (className) node.className = className;
    node.append(...children);
    return node;
  }

  // The tree --------------------------------------------------------------------------------------------------------

  class Tree {
    #box;
    #value;
    #drawers = new WeakMap(); // what draws the entries of a place when it opens
    #places = new WeakMap(); // of the entries of a place, by key

    constructor(box, value) {
      this.#box = box;
      this.#value = value;
      box.addEventListener("toggle", (event) => event.target.open && this.#draw(event.target), { capture: true });
      box.replaceChildren(this.#node(value, null));
      this.open(box.firstElementChild);
    }

    #node(value, key) {
      const label = key === null ? [] : [element("span", "json-key", shorten(String(key), MAX_KEY)), ": "];
      if (!isBranch(value)) return element("div", "json-leaf", ...label, this.#leaf(value));
      const keys = keysOf(value);
      const [opening, closing] = Array.isArray(value) ? ["[", "]"] : ["{", "}"];
      const word = Array.isArray(value) ? "item" : "key";
      const count = `${opening} ${keys.length.toLocaleString("en")} ${word}${keys.length === 1 ? "" : "s"} ${closing}`;
      return this.#branch([...label, element("span", "json-count", count)], value, keys);
    }

    #leaf(value) {
      const isText = typeof value === "string";
      const kind = value instanceof Digits ? "number" : value === null ? "null" : typeof value;
      return element("span", `json-${kind}`, isText ? JSON.stringify(shorten(value, MAX_TEXT)) : textOf(value));
    }

    #branch(label, value, keys) {
      const place = element("details", "", element("summary", "", ...label));
      this.#drawers.set(place, () => this.#entries(value, keys));
      return place;
    }

    /* The entries, or parts of them if there are many. */
    #entries(value, keys) {
      const places = new Map();
      if (keys.length <= CHUNK) {
        for (const key of keys) places.set(key, this.#node(value[key], key));
        return places;
      }
      const size = CHUNK ** Math.max(1, Math.ceil(Math.log(keys.length) / Math.log(CHUNK)) - 1);
      for (let start = 0; start < keys.length; start += size) {
        const part = keys.slice(start, start + size);
        const label = element("span", "json-count", `${start.toLocaleString("en")} … ${(start + part.length - 1).toLocaleString("en")}`);
        const place = this.#branch([label], value, part);
        for (const key of part) places.set(key, place);
      }
      return places;
    }

    #draw(place) {
      const drawer = this.#drawers.get(place);
      if (!drawer) return;
      this.#drawers.delete(place);
      const places = drawer();
      this.#places.set(place, places);
      place.append(...new Set(places.values()));
    }

    open(place) {
      if (!place.matches("details")) return;
      this.#draw(place);
      place.open = true;
    }

    /* Open what leads to the place at `path`, and return it. */
    reveal(path) {
      let place = this.#box.firstElementChild;
      let depth = 0;
      while (depth < path.length) {
        this.open(place);
        const next = this.#places.get(place).get(path[depth]);
        const isPart = next.matches("details") && next.querySelector(":scope > summary > .json-key") === null;
        place = next;
        if (!isPart) depth += 1;
      }
      return place;
    }

    expand() {
      const places = [this.#box.firstElementChild];
      for (let count = 0; places.length && count < MAX_OPEN; count += 1) {
        const place = places.shift();
        this.open(place);
        places.push(...place.querySelectorAll(":scope > details"));
      }
    }

    collapse() {
      for (const place of this.#box.querySelectorAll("details")) place.open = place === this.#box.firstElementChild;
    }

    /* The paths of the first entries whose key or text contains the words, in their order. */
    find(words) {
      const wanted = words.toLowerCase();
      const contains = (text) => String(text).toLowerCase().includes(wanted);
      const paths = [];
      const stack = [{ value: this.#value, path: [] }];
      while (stack.length && paths.length < MAX_MATCHES) {
        const { value, path } = stack.pop();
        const hasKey = path.length > 0 && typeof path.at(-1) === "string" && contains(path.at(-1));
        if (hasKey || (!isBranch(value) && contains(textOf(value)))) paths.push(path);
        if (isBranch(value)) for (const key of keysOf(value).reverse()) stack.push({ value: value[key], path: [...path, key] });
      }
      return paths;
    }
  }

  // The tools of an item --------------------------------------------------------------------------------------------

  const trees = new WeakMap(); // by the box of the tree
  const searches = new WeakMap(); // by the field: { words, paths, index }
  let timer = 0;

  async function treeOf(item) {
    const box = item.querySelector(".json-tree");
    box.closest("details.result-source")?.setAttribute("open", "");
    if (!trees.has(box)) trees.set(box, new Tree(box, parse(await sourceOf(item))));
    return trees.get(box);
  }

  async function sourceOf(item) {
    const address = item.querySelector("[data-copy-item]")?.dataset.copyItem;
    if (!address) return item.querySelector("[data-source]").textContent;
    const response = await fetch(address, { redirect: "error", signal: AbortSignal.timeout(DEADLINE) });
    if (!response.ok) throw new Error(response.status);
    return response.text();
  }

  async function search(field, step = 0) {
    const item = field.closest(".result-item");
    const matches = item.querySelector("[data-json-matches]");
    const words = field.value.trim();
    mark(item, null);
    if (!words) {
      matches.textContent = "";
      return;
    }
    try {
      const tree = await treeOf(item);
      let state = searches.get(field);
      if (state?.words === words) state.index = (state.index + step + state.paths.length) % Math.max(1, state.paths.length);
      else searches.set(field, (state = { words, paths: tree.find(words), index: 0 }));
      const total = `${state.paths.length.toLocaleString("en")}${state.paths.length === MAX_MATCHES ? " or more" : ""}`;
      matches.textContent = state.paths.length ? `${state.index + 1} of ${total}` : "no matches";
      if (state.paths.length) mark(item, tree.reveal(state.paths[state.index]));
    } catch {
      matches.textContent = "cannot be searched here";
    }
  }

  function mark(item, place) {
    item.querySelector(".json-hit")?.classList.remove("json-hit");
    if (!place) return;
    const line = place.matches("details") ? place.firstElementChild : place;
    line.classList.add("json-hit");
    const box = place.closest(".json-tree");
    box.scrollIntoView({ block: "nearest" });
    const distance = line.getBoundingClientRect().top - box.getBoundingClientRect().top;
    if (distance < 0 || distance > box.clientHeight - 30) box.scrollTop += distance - box.clientHeight / 3;
  }

  document.addEventListener("input", (event) => {
    const field = event.target.closest("[data-json-find]");
    if (!field) return;
    clearTimeout(timer);
    timer = setTimeout(() => search(field), PAUSE);
  });

  document.addEventListener("keydown", (event) => {
    const field = event.target.closest("[data-json-find]");
    if (!field || event.key !== "Enter" || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    clearTimeout(timer);
    search(field, event.shiftKey ? -1 : 1);
  });

  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-json-fold]");
    if (!button) return;
    const item = button.closest(".result-item");
    const isOpen = button.dataset.jsonFold === "open";
    try {
      const tree = await treeOf(item);
      if (isOpen) tree.expand();
      else tree.collapse();
    } catch {
      for (const place of item.querySelectorAll(".json-tree details")) place.open = isOpen; // of the server's tree
    }
  });
})();
