"use strict";

/* A form for a JSON Schema: `new SchemaForm(box, schema, onChange, texts)`. `texts` has the safe HTML of descriptions.

   The value is a plain JSON value. Fields read and write places in it. Schemas come from members and are not trusted.
   Texts become text nodes. References are resolved only inside the schema. Patterns are not tried, because one could
   hang the page. The server tries them safely. Fields, depth, choices and texts are bounded. Places without a field (too
   deep, any JSON, a rule that fields cannot show) are edited as JSON. A schema that is too large throws CannotShow. */
(() => {
  const MAX_FIELDS = 400;
  const MAX_DEPTH = 8;
  const MAX_CHOICES = 300;
  const MAX_TEXT = 4000;
  const MAX_SHORT_TEXT = 280;
  const MAX_LABEL = 120;
  const MAX_PARTS = 200; // of one allOf, references included
  const MAX_HOPS = 20;
  const MAX_WORK = 20_000; // schemas visited for one drawing
  const MAX_INITIAL = 300; // initial values of one new place
  const MAX_CHECKBOXES = 12; // choices that are shown as checkboxes

  const FORMATS = {
    date: { type: "date", pattern: /^\d{4}-\d{2}-\d{2}$/, hint: "a date: 2026-01-31" },
    time: { type: "text", pattern: /^\d{2}:\d{2}:\d{2}(\.\d+)?(Z|[+-]\d{2}:\d{2})$/i, hint: "a time: 13:30:00Z" },
    "date-time": {
      type: "text",
      pattern: /^\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}:\d{2}(\.\d+)?(Z|[+-]\d{2}:\d{2})$/i,
      hint: "a date and time: 2026-01-31T13:30:00Z",
    },
    email: { type: "email", pattern: /^[^\s@]+@[^\s@]+$/, hint: "an e-mail address: name@example.org" },
    uri: { type: "url", pattern: /^[a-z][a-z0-9+.-]*:\S+$/i, hint: "an address: https://example.org/" },
    url: { type: "url", pattern: /^[a-z][a-z0-9+.-]*:\S+$/i, hint: "an address: https://example.org/" },
    uuid: { type: "text", pattern: /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i, hint: "a UUID" },
    ipv4: { type: "text", pattern: /^\d{1,3}(\.\d{1,3}){3}$/, hint: "an address: 192.0.2.1" },
    password: { type: "password", pattern: null, hint: "" },
  };

  class CannotShow extends Error {}

  // Small things ----------------------------------------------------------------------------------------------------

  const has = (object, key) => Object.prototype.hasOwnProperty.call(object, key);
  const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);
  const asObject = (value) => (isObject(value) ? value : {});
  const asList = (value) => (Array.isArray(value) ? value : []);
  const same = (one, other) => JSON.stringify(one) === JSON.stringify(other);
  const copy = (value) => JSON.parse(JSON.stringify(value));

  /* An assignment to "__proto__" would not create a property. */
  function put(holder, key, value) {
    if (Array.isArray(holder)) holder[key] = value;
    else Object.defineProperty(holder, key, { value, writable: true, enumerable: true, configurable: true });
  }

  function shorten(value, length) {
    const text = typeof value === "string" ? value : String(JSON.stringify(value));
    return text.length > length ? `${text.slice(0, length - 1)}…` : text;
  }

  function element(tag, className, ...children) {
    const node = document.createElement(tag);
    if (className) node.className = className;
    node.append(...children.filter((child) => child !== null));
    return node;
  }

  function button(text, className, onClick, label) {
    const node = element("button", className, text);
    node.type = "button";
    if (label) node.setAttribute("aria-label", label);
    node.addEventListener("click", onClick);
    return node;
  }

  // Schemas ---------------------------------------------------------------------------------------------------------

  class Schemas {
    #flattened = new Map();
    #work = 0;

    constructor(root) {
      this.root = root;
    }

    /* Begin a drawing, with a new budget. */
    begin() {
      this.#work = 0;
    }

    /* Charge one visit of a schema, because small schemas can branch without end. Throws CannotShow. */
    spend(steps = 1) {
      this.#work += steps;
      if (this.#work > MAX_WORK) throw new CannotShow("the schema has too many alternatives");
    }

    /* The schema with its references and allOf merged. `unsupported` is the reason why a part could not be merged. */
    flat(schema) {
      this.spend();
      if (!isObject(schema)) return this.#flat(schema, { parts: 0 }, 0);
      if (!this.#flattened.has(schema)) this.#flattened.set(schema, this.#flat(schema, { parts: 0 }, 0));
      return this.#flattened.get(schema);
    }

    /* `count` is shared by all parts of one schema. */
    #flat(schema, count, hops) {
      this.spend();
      count.parts += 1;
      if (schema === false) return { unsupported: "the schema allows no value here" };
      if (!isObject(schema)) return {};
      if (count.parts > MAX_PARTS || hops > MAX_HOPS) return { unsupported: "the schema has too many references" };
      const { $ref: reference, allOf: parts, ...own } = schema;
      let flat = {};
      if (typeof reference === "string") {
        const target = this.#target(reference);
        if (target === undefined) return { ...own, unsupported: `the schema refers to ${shorten(reference, 60)}, which it does not contain` };
        flat = this.#flat(target, count, hops + 1);
      }
      for (const part of asList(parts)) {
        if (flat.unsupported) break;
        flat = merge(flat, this.#flat(part, count, hops + 1));
      }
      return merge(flat, own);
    }

    /* Charge each of them, because the shared part may be long. */
    #joined(base, part) {
      this.spend(1 + Object.keys(asObject(base.properties)).length / 10);
      return merge(base, part);
    }

    #target(reference) {
      if (reference === "#") return this.root;
      if (!reference.startsWith("#/")) return undefined;
      let place = this.root;
      for (const part of reference.slice(2).split("/")) {
        const key = unescapePart(part);
        if (key === undefined || typeof place !== "object" || place === null || !has(place, key)) return undefined;
        place = place[key];
      }
      return place;
    }

    /* The alternatives of anyOf or oneOf, each merged with the shared part. Empty if there are none. */
    alternatives(schema) {
      const { anyOf, oneOf, ...base } = schema;
      const alternatives = asList(anyOf).length ? anyOf : asList(oneOf);
      if (alternatives.length) return alternatives.slice(0, MAX_CHOICES).map((part) => this.#joined(base, this.flat(part)));
      const types = asList(schema.type).filter((type) => typeof type === "string");
      return types.length > 1 ? types.map((type) => ({ ...schema, type })) : [];
    }
  }

  function unescapePart(part) {
    try {
      return decodeURIComponent(part).replaceAll("~1", "/").replaceAll("~0", "~");
    } catch {
      return undefined;
    }
  }

  function merge(one, other) {
    const properties = { ...asObject(one.properties), ...asObject(other.properties) };
    const required = [...asList(one.required), ...asList(other.required)];
    return {
      ...one,
      ...other,
      ...(Object.keys(properties).length && { properties }),
      ...(required.length && { required }),
    };
  }

  function typeOf(schema) {
    const types = asList(schema.type);
    if (types.length) return types[0];
    if (typeof schema.type === "string") return schema.type;
    if (isObject(schema.properties) || isObject(schema.additionalProperties)) return "object";
    if (schema.items !== undefined || Array.isArray(schema.prefixItems)) return "array";
    return "";
  }

  const isOfType = {
    object: isObject,
    array: Array.isArray,
    string: (value) => typeof value === "string",
    number: (value) => typeof value === "number",
    integer: Number.isInteger,
    boolean: (value) => typeof value === "boolean",
    null: (value) => value === null,
  };

  const isNull = (schema) => typeOf(schema) === "null" || (has(schema, "const") && schema.const === null);

  /* Why a scalar is outside its type or bounds. Empty if the browser finds nothing. The server validates again. */
  function boundsError(schema, value) {
    if (typeof value === "number") {
      if (typeOf(schema) === "integer" && !Number.isInteger(value)) return "must be a whole number";
      if (value < schema.minimum) return `must be ${schema.minimum} or more`;
      if (value > schema.maximum) return `must be ${schema.maximum} or less`;
      if (value <= schema.exclusiveMinimum) return `must be more than ${schema.exclusiveMinimum}`;
      if (value >= schema.exclusiveMaximum) return `must be less than ${schema.exclusiveMaximum}`;
    }
    if (typeof value === "string") {
      const length = [...value].length;
      if (length < schema.minLength) return `must have ${schema.minLength} characters or more`;
      if (length > schema.maxLength) return `must have ${schema.maxLength} characters or less`;
    }
    return "";
  }

  /* What to write instead. A format is only a hint, because the server does not check it and tools may take more. */
  function formatHint(schema, value) {
    if (typeof value !== "string" || !value || value.length >= 1000 || !has(FORMATS, schema.format)) return "";
    const { pattern, hint } = FORMATS[schema.format];
    return pattern && !pattern.test(value) ? `must be ${hint}` : "";
  }

  /* Whether the text is a whole number that would be rounded. Exponents such as 1e300 are not checked. */
  function losesDigits({ value, valueAsNumber }) {
    return Number.isInteger(valueAsNumber) && !Number.isSafeInteger(valueAsNumber) && !/e/i.test(value);
  }

  // The form --------------------------------------------------------------------------------------------------------

  class SchemaForm {
    #box;
    #onChange;
    #texts;
    #schemas;
    #root;
    #places = new Map(); // by path as JSON: what can show an error there
    #fieldsLeft = MAX_FIELDS;
    #number = 0;
    value = {};

    constructor(box, schema, onChange, texts = new Map()) {
      this.#box = box;
      this.#onChange = onChange;
      this.#texts = texts;
      this.#schemas = new Schemas(schema);
      this.#root = this.#schemas.flat(schema);
      if (this.#root.unsupported) throw new CannotShow(this.#root.unsupported);
      if (!["object", ""].includes(typeOf(this.#root))) throw new CannotShow("the schema does not describe an object");
    }

    /* Draw the form again, for this value. Throws CannotShow. */
    show(value) {
      if (!isObject(value)) throw new CannotShow("the arguments are not a JSON object");
      this.value = value;
      this.#redraw();
    }

    /* Show each error at its field, or at the nearest one around it. Returns the errors without a field. */
    showErrors(errors) {
      for (const place of this.#places.values()) place.setError("");
      const remaining = [];
      let first = null;
      for (const { path, reason } of errors) {
        const place = this.#nearest(path);
        if (!place) remaining.push({ path, reason });
        else place.setError([place.error, place.hasPath(path) ? reason : `${path.join(".")}: ${reason}`].filter(Boolean).join("; "));
        first ??= place;
      }
      return { remaining, first };
    }

    /* What seems wrong: required fields that are empty, lists that are too short, values outside their bounds.

       Each is { path, reason, isEmpty }. If `isEmpty`, the server may accept the empty text, but a person forgot it. Ask
       the server about all others, because the form knows only the common rules of schemas. */
    get faults() {
      return [...this.#places.values()].map((place) => ({ path: place.path, ...place.fault() })).filter(({ reason }) => reason);
    }

    /* The number of places with an error that is shown. */
    get errorCount() {
      return [...this.#places.values()].filter((place) => place.error).length;
    }

    /* The first field whose text is not a value. */
    get invalidPlace() {
      return [...this.#places.values()].find((place) => place.isInvalid) ?? null;
    }

    focusFirst() {
      this.#box.querySelector("input, select, textarea, button")?.focus({ preventScroll: true });
    }

    #nearest(path) {
      for (let length = path.length; length > 0; length -= 1) {
        const place = this.#places.get(JSON.stringify(path.slice(0, length)));
        if (place) return place;
      }
      return null;
    }

    #redraw(focus, errors = []) {
      this.#schemas.begin();
      this.#places.clear();
      this.#fieldsLeft = MAX_FIELDS;
      this.#number = 0;
      try {
        this.#box.replaceChildren(...this.#members({ schema: this.#root, path: [], depth: 0 }));
      } catch (error) {
        this.#places.clear(); // of hidden fields
        throw error;
      }
      for (const { path, text } of errors) this.#places.get(path)?.setError(text);
      if (focus) this.#focus(focus);
    }

    /* The errors that are shown, with the values of their places as JSON. */
    #shownErrors() {
      const shown = [...this.#places.entries()].filter(([, place]) => place.error);
      return shown.map(([path, place]) => ({ path, text: place.error, value: JSON.stringify(this.#at(place.path)) }));
    }

    #focus(path) {
      const place = this.#nearest(path);
      if (!place) return;
      const [first] = place.box.matches("button, input, select, textarea")
        ? [place.box]
        : place.box.querySelectorAll("input, select, textarea, button");
      first?.focus();
    }

    /* Add or remove something, draw it again, and put the focus there. */
    #rebuild(focus, change) {
      const errors = this.#shownErrors();
      try {
        this.#schemas.begin();
        change();
        this.#redraw(focus, errors.filter(({ path, value }) => JSON.stringify(this.#at(JSON.parse(path))) === value));
      } catch (error) {
        if (!(error instanceof CannotShow)) throw error;
        this.#onChange(this.value, error.message);
        return;
      }
      this.#onChange(this.value);
    }

    // Places of the value

    #at(path) {
      return path.reduce((place, key) => (typeof place === "object" && place !== null && has(place, key) ? place[key] : undefined), this.value);
    }

    #put(path, value) {
      const holder = this.#at(path.slice(0, -1));
      if (typeof holder === "object" && holder !== null) put(holder, path.at(-1), value);
    }

    #remove(path) {
      const holder = this.#at(path.slice(0, -1));
      if (Array.isArray(holder)) holder.splice(path.at(-1), 1);
      else if (isObject(holder)) delete holder[path.at(-1)];
    }

    /* The initial value of a new place. */
    #initialValue(schema, depth = 0, left = { values: MAX_INITIAL }) {
      left.values -= 1;
      const flat = this.#schemas.flat(schema);
      for (const key of ["default", "const"]) if (has(flat, key)) return copy(flat[key]);
      if (asList(flat.enum).length) return copy(flat.enum[0]);
      const [alternative] = this.#schemas.alternatives(flat);
      if (alternative && depth < MAX_DEPTH) return this.#initialValue(alternative, depth + 1, left);
      const type = typeOf(flat);
      if (type === "object") return this.#initialObject(flat, depth, left);
      if (type === "array") return [];
      if (type === "number" || type === "integer") return typeof flat.minimum === "number" ? flat.minimum : 0;
      return { string: "", boolean: false }[type] ?? null;
    }

    #initialObject(flat, depth, left) {
      const object = {};
      for (const [key, part] of Object.entries(asObject(flat.properties)).slice(0, MAX_CHOICES)) {
        const isExample = isObject(part) && has(part, "examples") && ["number", "integer"].includes(typeOf(part)) && !has(part, "const");
        const isIncluded = (asList(flat.required).includes(key) && !isExample) || (isObject(part) && has(part, "default"));
        if (depth >= MAX_DEPTH || left.values <= 0) break;
        if (isIncluded) put(object, key, this.#initialValue(part, depth + 1, left));
      }
      return object;
    }

    /* A list that the user adds gets a first item. */
    #initialGroup(schema) {
      const first = this.#initialValue(schema);
      if (typeOf(schema) !== "array") return isObject(first) ? first : {};
      if (Array.isArray(first) && (first.length || schema.maxItems === 0)) return first;
      return [this.#initialValue(this.#itemSchema(schema, 0))];
    }

    #itemSchema(schema, index) {
      const prefix = Array.isArray(schema.prefixItems) ? schema.prefixItems : asList(schema.items);
      const rest = Array.isArray(schema.items) ? schema.additionalItems : schema.items;
      return this.#schemas.flat(index < prefix.length ? prefix[index] : (rest ?? {}));
    }

    #fits(schema, value, depth = 0) {
      const flat = this.#schemas.flat(schema);
      if (has(flat, "const") && !same(flat.const, value)) return false;
      if (Array.isArray(flat.enum) && !flat.enum.some((choice) => same(choice, value))) return false;
      const type = typeOf(flat);
      if (has(isOfType, type) && !isOfType[type](value)) return false;
      if (!isObject(value) || depth > 2) return true;
      if (asList(flat.required).some((key) => !has(value, key))) return false;
      const properties = asObject(flat.properties);
      if (flat.additionalProperties === false && Object.keys(value).some((key) => !has(properties, key))) return false;
      return Object.entries(properties).every(([key, part]) => !has(value, key) || this.#fits(part, value[key], depth + 1));
    }

    // Drawing. A spot is { schema, path, label, required, depth, extra }: `schema` is flat.

    #members(spot) {
      const { schema, path, depth } = spot;
      const properties = asObject(schema.properties);
      const required = asList(schema.required);
      const others = isObject(schema.additionalProperties) ? schema.additionalProperties : {};
      const fields = [];
      for (const [key, part] of Object.entries(properties)) {
        const spot = { schema: this.#schemas.flat(part), path: [...path, key], label: key, required: required.includes(key), depth: depth + 1 };
        if (!this.#isFixed(spot)) fields.push(this.#field(spot));
      }
      for (const key of Object.keys(asObject(this.#at(path)))) {
        if (has(properties, key)) continue;
        fields.push(this.#field({ schema: this.#schemas.flat(others), path: [...path, key], label: key, required: false, depth: depth + 1, extra: true }));
      }
      const takesMore = isObject(schema.additionalProperties) || (schema.additionalProperties !== false && !Object.keys(properties).length);
      if (takesMore) fields.push(this.#newEntry(path, others));
      return fields;
    }

    /* There is nothing to choose: the value is required, fixed, and present. */
    #isFixed({ schema, path, required }) {
      return required && has(schema, "const") && same(schema.const, this.#at(path));
    }

    #newEntry(path, schema) {
      const name = element("input", "sf-key");
      name.type = "text";
      name.placeholder = "name";
      name.setAttribute("aria-label", "Name of the new entry");
      const add = () => {
        if (!name.value || has(asObject(this.#at(path)), name.value)) {
          name.focus();
          return;
        }
        const place = [...path, name.value];
        this.#rebuild(place, () => this.#put(place, this.#initialValue(schema)));
      };
      return element("div", "sf-new-entry", name, button("Add entry", "sf-button", add));
    }

    #field(spot) {
      this.#fieldsLeft -= 1;
      if (this.#fieldsLeft < 0) throw new CannotShow(`it would have more than ${MAX_FIELDS} fields`);
      const { schema, depth, path } = spot;
      const value = this.#at(path);
      if (schema.unsupported) return this.#json(spot, `This value has no field: ${schema.unsupported}.`);
      if (depth > MAX_DEPTH) return this.#json(spot, "This value is nested too deeply for fields.");
      if (has(schema, "const")) return this.#choice(spot, [schema.const]);
      if (Array.isArray(schema.enum)) return this.#choice(spot, schema.enum);
      const alternatives = this.#schemas.alternatives(schema);
      if (alternatives.length) return this.#alternatives(spot, alternatives);
      const type = typeOf(schema);
      const isEmpty = value === undefined || (value === null && (spot.nullable || type === "object" || type === "array"));
      const fitsField = isEmpty || !has(isOfType, type) || isOfType[type](value);
      // The field of an integer can contain 1.5 and show that it is wrong.
      if (!fitsField && !(type === "integer" && typeof value === "number")) return this.#json(spot, `The current value does not have the type ${type}.`);
      switch (type) {
        case "object":
          return this.#isAnyObject(schema) ? this.#json(spot) : this.#group(spot, () => this.#members(spot));
        case "array":
          return this.#hasFewChoices(schema) ? this.#boxes(spot) : this.#group(spot, () => this.#items(spot));
        case "string":
          return this.#text(spot);
        case "number":
        case "integer":
          return this.#numeric(spot);
        case "boolean":
          return this.#choice(spot, [true, false]);
        case "null":
          return this.#choice(spot, [null]);
        default:
          return this.#json(spot);
      }
    }

    #isAnyObject(schema) {
      return !Object.keys(asObject(schema.properties)).length && !isObject(schema.additionalProperties);
    }

    #hasFewChoices(schema) {
      const choices = asList(this.#schemas.flat(schema.items).enum);
      return schema.uniqueItems === true && choices.length > 0 && choices.length <= MAX_CHECKBOXES;
    }

    // Frames

    #frame(spot, control, { target = control, note = "" } = {}) {
      const id = this.#newId();
      control.id = id;
      const label = element("label", "sf-label", ...this.#labels(spot));
      label.htmlFor = id;
      return this.#framed(spot, "div", label, control, target, note);
    }

    #labels({ schema, label, required, extra, path }) {
      const isItem = typeof path.at(-1) === "number";
      const title = typeof schema.title === "string" && schema.title.trim() ? shorten(schema.title, MAX_LABEL) : "";
      const name = shorten(label, MAX_LABEL);
      return [
        element("span", "sf-title", title || name),
        title && title !== name ? element("code", "sf-name", name) : null,
        required && !isItem ? element("span", "sf-required", "required") : null,
        extra ? element("span", "sf-optional", "additional") : null,
        schema.deprecated === true ? element("span", "sf-optional", "deprecated") : null,
      ]
        .filter(Boolean)
        .flatMap((part) => [part, " "]); // separate words for screen readers
    }

    #framed(spot, tag, head, body, target, note) {
      const { schema, path, extra } = spot;
      const id = this.#newId();
      const help = this.#help(schema, note, id);
      const error = element("p", "sf-error");
      error.id = `${id}-error`;
      error.hidden = true;
      target.setAttribute("aria-describedby", [help && help.id, error.id].filter(Boolean).join(" "));
      const frame = element(tag, tag === "div" ? "sf-field" : "sf-group", head, help, body, error);
      if (extra) frame.append(this.#removeButton(path, "Remove"));
      const place = {
        box: target,
        error: "",
        path,
        isInvalid: false,
        fault: () => this.#faultOf(spot),
        hasPath: (errorPath) => errorPath.length === path.length, // of the errors at or below this place
        setError: (text) => {
          place.error = text;
          error.textContent = shorten(text, MAX_TEXT);
          error.hidden = !text;
          target.setAttribute("aria-invalid", String(Boolean(text)));
          frame.classList.toggle("sf-wrong", Boolean(text));
        },
      };
      this.#places.set(JSON.stringify(path), place);
      target.place = place;
      return frame;
    }

    /* One of the `faults`, without its path. The reason is empty if the value may be right. */
    #faultOf({ schema, path, required, nullable, extra }) {
      const value = this.#at(path);
      if (value === undefined) return { reason: required && !extra ? "is required" : "", isEmpty: false };
      if (Array.isArray(value)) {
        const isShort = value.length < schema.minItems;
        return { reason: isShort ? `must have ${schema.minItems} ${schema.minItems === 1 ? "item" : "items"} or more` : "", isEmpty: false };
      }
      const isEmpty = value === "" && required && !nullable && Boolean((has(FORMATS, schema.format) && FORMATS[schema.format].pattern) || schema.minLength > 0);
      return { reason: isEmpty ? "is required" : boundsError(schema, value), isEmpty };
    }

    #help(schema, note, id) {
      const description = typeof schema.description === "string" ? schema.description.trim() : "";
      if (!description && !note) return null;
      const help = element("div", "sf-help");
      help.id = `${id}-help`;
      if (description.length > MAX_SHORT_TEXT) {
        const prose = this.#prose(description);
        const beginning = prose.textContent.replaceAll(/\s+/g, " ").trim();
        help.append(element("details", "", element("summary", "", shorten(beginning, 160)), prose));
      } else if (description) help.append(this.#prose(description));
      if (note) help.append(element("p", "sf-note", note));
      return help;
    }

    /* The server has laid out the descriptions with Markdown. */
    #prose(description) {
      const html = this.#texts.get(SchemaForm.keyOf(description));
      return html ? element("div", "sf-prose", html.cloneNode(true)) : element("p", "", shorten(description, MAX_TEXT));
    }

    /* A parser of HTML changes the ends of lines. */
    static keyOf(description) {
      return description.replaceAll(/\r\n?/g, "\n").trim();
    }

    #newId() {
      this.#number += 1;
      return `sf-${this.#number}`;
    }

    #removeButton(path, text) {
      return button(`${text} ${shorten(path.at(-1), 60)}`, "sf-button sf-remove", () => {
        this.#rebuild(path.slice(0, -1), () => this.#remove(path));
      });
    }

    // Scalars

    /* The user changed the value: store it, validate it, notify. `undefined` removes it. */
    #set(spot, control, value) {
      if (value !== undefined) this.#put(spot.path, value);
      else if (typeof spot.path.at(-1) === "number") this.#put(spot.path, spot.nullable ? null : "");
      else this.#remove(spot.path);
      control.place.isInvalid = false;
      control.place.setError(value === undefined ? "" : boundsError(spot.schema, value) || formatHint(spot.schema, value));
      this.#onChange(this.value);
    }

    #nothing(spot) {
      if (!spot.required && typeof spot.path.at(-1) !== "number") return undefined;
      return spot.nullable ? null : undefined;
    }

    #placeholder(schema) {
      if (has(schema, "default") && schema.default !== null && schema.default !== "") return `default: ${shorten(schema.default, 60)}`;
      if (asList(schema.examples).length) return `for example ${shorten(schema.examples[0], 60)}`;
      return "";
    }

    #text(spot) {
      const { schema, path } = spot;
      const value = this.#at(path) ?? "";
      const local = schema.format === "date-time" ? SchemaInputs.localTime(value) : null;
      if (local !== null) return this.#dateTime(spot, local);
      const isSecret = schema.writeOnly === true || schema.format === "password";
      const format = isSecret ? FORMATS.password : has(FORMATS, schema.format) ? FORMATS[schema.format] : null;
      const isDate = format?.type === "date" && (value === "" || format.pattern.test(value));
      const control = element(format ? "input" : "textarea", "sf-text");
      if (format) control.type = format.type === "date" && !isDate ? "text" : format.type;
      else control.rows = value.includes("\n") ? Math.min(12, value.split("\n").length) : 1;
      control.autocomplete = isSecret ? "new-password" : "off";
      control.spellcheck = false;
      control.value = value;
      control.placeholder = this.#placeholder(schema) || (format && control.type === "text" ? format.hint : "");
      control.addEventListener("input", () => this.#set(spot, control, control.value || (spot.required && !spot.nullable ? "" : this.#nothing(spot))));
      const frame = this.#frame(spot, control);
      if (SchemaInputs.isBinary(schema)) frame.append(this.#file(spot, control));
      return frame;
    }

    /* A button that fills the text with the base64 of a file. */
    #file(spot, control) {
      const take = (text) => {
        control.value = text;
        this.#set(spot, control, text);
      };
      return SchemaInputs.filePicker(spot.schema, shorten(spot.label, 60), take, (reason) => control.place.setError(reason));
    }

    /* A picker in the zone of the browser. The value has the offset. */
    #dateTime(spot, local) {
      const control = element("input", "sf-text");
      control.type = "datetime-local";
      control.step = "1";
      control.value = local;
      const sent = element("p", "sf-note sf-sent");
      const show = () => (sent.textContent = this.#at(spot.path) ? `sent as ${this.#at(spot.path)}` : "");
      control.addEventListener("input", () => {
        this.#set(spot, control, SchemaInputs.offsetTime(control.value) || (spot.required && !spot.nullable ? "" : this.#nothing(spot)));
        show();
      });
      show();
      const frame = this.#frame(spot, control);
      frame.append(sent);
      return frame;
    }

    #numeric(spot) {
      const { schema, path } = spot;
      const control = element("input", "sf-number");
      control.type = "number";
      control.step = typeOf(schema) === "integer" ? "1" : "any";
      for (const [attribute, keyword] of [["min", "minimum"], ["max", "maximum"]]) {
        if (typeof schema[keyword] === "number") control[attribute] = String(schema[keyword]);
      }
      control.value = this.#at(path) ?? "";
      control.placeholder = this.#placeholder(schema);
      control.addEventListener("input", () => {
        if (control.validity.badInput || (control.value && !Number.isFinite(control.valueAsNumber))) {
          control.place.isInvalid = true;
          control.place.setError("must be a number");
          return;
        }
        if (losesDigits(control)) {
          control.place.isInvalid = true;
          control.place.setError("has more digits than a field can hold. Change it in the JSON");
          return;
        }
        this.#set(spot, control, control.value === "" ? this.#nothing(spot) : control.valueAsNumber);
      });
      return this.#frame(spot, control, { note: this.#bounds(schema) });
    }

    #bounds({ minimum, maximum, exclusiveMinimum, exclusiveMaximum }) {
      const low = typeof minimum === "number" ? `from ${minimum}` : typeof exclusiveMinimum === "number" ? `more than ${exclusiveMinimum}` : "";
      const high = typeof maximum === "number" ? `to ${maximum}` : typeof exclusiveMaximum === "number" ? `less than ${exclusiveMaximum}` : "";
      return [low, high].filter(Boolean).join(low && high && low.startsWith("from") && high.startsWith("to") ? " " : ", ");
    }

    #choice(spot, values, titles = []) {
      const { schema, path, required, nullable } = spot;
      const current = this.#at(path);
      const control = element("select", "sf-select");
      const choices = values.slice(0, MAX_CHOICES);
      const index = current === undefined ? -1 : choices.findIndex((choice) => same(choice, current));
      const isOptional = !required && typeof path.at(-1) !== "number";
      if (isOptional || index < 0 || nullable) {
        const byDefault = has(schema, "default") && schema.default !== null ? ` (default: ${shorten(schema.default, 60)})` : "";
        control.append(new Option(index < 0 && current !== undefined && current !== null ? shorten(current, MAX_LABEL) : `not sent${byDefault}`, ""));
      }
      choices.forEach((choice, position) => {
        const word = choice === true ? "yes" : choice === false ? "no" : typeof choice === "string" && choice ? choice : JSON.stringify(choice);
        control.append(new Option(titles[position] || shorten(word, MAX_LABEL), String(position), false, position === index));
      });
      control.addEventListener("change", () => this.#set(spot, control, control.value === "" ? this.#nothing(spot) : copy(choices[Number(control.value)])));
      const note = values.length > choices.length ? `The first ${MAX_CHOICES} of ${values.length} choices. Enter other values in the JSON.` : "";
      return this.#frame(spot, control, { note });
    }

    /* Any JSON, in its place. */
    #json(spot, note = "") {
      const { path } = spot;
      const value = this.#at(path);
      const control = element("textarea", "sf-json json");
      control.spellcheck = false;
      control.value = value === undefined ? "" : JSON.stringify(value, null, 2);
      control.rows = Math.min(10, Math.max(2, control.value.split("\n").length));
      control.placeholder = this.#placeholder(spot.schema) || "JSON";
      control.addEventListener("input", () => {
        try {
          this.#set(spot, control, control.value.trim() ? JSON.parse(control.value) : this.#nothing(spot));
        } catch {
          control.place.isInvalid = true;
          control.place.setError("is not valid JSON");
        }
      });
      return this.#frame(spot, control, { note: note || "Any JSON value." });
    }

    // Groups

    /* A fieldset. If it is optional and absent, a button that adds it. */
    #group(spot, members) {
      const { path, schema, required, label } = spot;
      const legend = element("legend", "sf-legend", ...this.#labels(spot));
      const isOptional = !required && typeof path.at(-1) !== "number" && !spot.extra;
      const isPresent = this.#at(path) !== undefined && this.#at(path) !== null;
      if (!isPresent) {
        const name = typeof schema.title === "string" && schema.title.trim() ? schema.title : label;
        const add = button(`Add ${shorten(name, 60)}`, "sf-button", () => {
          this.#rebuild(path, () => this.#put(path, this.#initialGroup(schema)));
        });
        return this.#framed(spot, "fieldset", legend, element("div", "sf-members", add), add, "");
      }
      const body = element("div", "sf-members", ...members());
      const frame = this.#framed(spot, "fieldset", legend, body, body, "");
      if (isOptional) frame.append(this.#removeButton(path, "Remove"));
      return frame;
    }

    #items({ schema, path, depth }) {
      const items = asList(this.#at(path));
      const fields = items.map((_, index) => {
        const spot = { schema: this.#itemSchema(schema, index), path: [...path, index], label: `${index + 1}`, required: true, depth: depth + 1 };
        const tools = element("div", "sf-item-tools");
        if (index > 0) tools.append(button("↑", "sf-button", () => this.#swap(path, index - 1), `Move ${index + 1} up`));
        if (items.length > (Number(schema.minItems) || 0)) tools.append(this.#removeItemButton(path, index));
        return element("div", "sf-item", this.#field(spot), tools);
      });
      const isFull = items.length >= schema.maxItems || this.#itemSchema(schema, items.length).unsupported;
      const add = button("Add an item", "sf-button", () => {
        const place = [...path, items.length];
        this.#rebuild(place, () => this.#put(place, this.#initialValue(this.#itemSchema(schema, items.length))));
      });
      return [...fields, ...(isFull ? [] : [add])];
    }

    #removeItemButton(path, index) {
      return button("×", "sf-button", () => {
        this.#rebuild(path, () => this.#remove([...path, index]));
      }, `Remove ${index + 1}`);
    }

    #swap(path, index) {
      const items = this.#at(path);
      this.#rebuild([...path, index], () => {
        [items[index], items[index + 1]] = [items[index + 1], items[index]];
      });
    }

    #boxes(spot) {
      const { schema, path } = spot;
      const choices = this.#schemas.flat(schema.items).enum;
      const body = element("div", "sf-boxes");
      for (const choice of choices) {
        const box = element("input");
        box.type = "checkbox";
        box.checked = asList(this.#at(path)).some((item) => same(item, choice));
        box.addEventListener("change", () => {
          const boxes = [...body.querySelectorAll("input")];
          const selection = choices.filter((_, index) => boxes[index].checked);
          this.#set(spot, body, selection.length || spot.required ? selection : undefined);
        });
        body.append(element("label", "sf-box", box, shorten(choice, MAX_LABEL)));
      }
      const legend = element("legend", "sf-legend", ...this.#labels(spot));
      return this.#framed(spot, "fieldset", legend, body, body, "");
    }

    // anyOf, oneOf, several types

    #alternatives(spot, alternatives) {
      const others = alternatives.filter((part) => !isNull(part));
      const nullable = others.length < alternatives.length;
      if (alternatives.every((part) => has(part, "const"))) {
        return this.#choice(spot, alternatives.map((part) => part.const), alternatives.map((part) => (typeof part.title === "string" ? shorten(part.title, MAX_LABEL) : "")));
      }
      if (others.length === 1) {
        // "Something or null" is a field that may be empty. Its own title comes first.
        const { anyOf, oneOf, type, ...around } = spot.schema;
        return this.#field({ ...spot, schema: { ...others[0], ...around }, nullable });
      }
      return this.#branches(spot, alternatives);
    }

    #branches(spot, alternatives) {
      const { path, depth, required, extra } = spot;
      const value = this.#at(path);
      const isPresent = value !== undefined;
      const isOptional = !required && typeof path.at(-1) !== "number" && !extra;
      const selectedIndex = isPresent ? Math.max(0, alternatives.findIndex((part) => this.#fits(part, value))) : -1;
      const control = element("select", "sf-select sf-branch");
      control.setAttribute("aria-label", `Type of ${shorten(spot.label, 60)}`);
      if (isOptional || !isPresent) control.append(new Option("not sent", ""));
      alternatives.forEach((part, index) => control.append(new Option(branchName(part, index), String(index), false, index === selectedIndex)));
      control.addEventListener("change", () => {
        this.#rebuild(path, () => {
          if (control.value === "") this.#remove(path);
          else this.#put(path, this.#initialValue(alternatives[Number(control.value)]));
        });
      });
      const body = element("div", "sf-members", control);
      const legend = element("legend", "sf-legend", ...this.#labels(spot));
      const frame = this.#framed(spot, "fieldset", legend, body, control, "");
      if (selectedIndex >= 0) body.append(...this.#branch(spot, alternatives[selectedIndex], depth));
      return frame;
    }

    /* The properties of an object are directly in the fieldset. Anything else is a field in it. */
    #branch(spot, schema, depth) {
      const value = this.#at(spot.path);
      if (depth >= MAX_DEPTH || typeOf(schema) !== "object" || !isObject(value) || this.#isAnyObject(schema)) {
        const place = this.#places.get(JSON.stringify(spot.path));
        const field = this.#field({ ...spot, schema: { ...schema, title: "Value", description: undefined }, required: true, extra: false, depth: depth + 1 });
        if (isNull(schema)) this.#places.set(JSON.stringify(spot.path), place);
        return isNull(schema) ? [] : [field];
      }
      const description = typeof schema.description === "string" && schema.description !== spot.schema.description;
      return [...(description ? [element("p", "sf-note", shorten(schema.description, MAX_SHORT_TEXT))] : []), ...this.#members({ ...spot, schema, depth })];
    }
  }

  function branchName(schema, index) {
    if (typeof schema.title === "string" && schema.title.trim()) return shorten(schema.title, MAX_LABEL);
    if (has(schema, "const")) return shorten(schema.const, MAX_LABEL);
    const kind = Object.values(asObject(schema.properties)).find((part) => isObject(part) && has(part, "const"));
    if (kind) return shorten(kind.const, MAX_LABEL);
    const type = typeOf(schema);
    return type ? `${index + 1}: ${shorten(schema.format ?? type, 40)}` : `choice ${index + 1}`;
  }

  window.SchemaForm = SchemaForm;
  window.SchemaForm.CannotShow = CannotShow;
})();
