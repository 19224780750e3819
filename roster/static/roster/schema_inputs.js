"use strict";

/* Controls of the schema form that are more than an element: a file as base64, and a date and time with its offset. */
(() => {
  const MAX_FILE = 1_500_000; // bytes. Forms with longer texts are refused by the server

  /* Whether the text is binary data: contentEncoding of JSON Schema, or `format: byte` of OpenAPI. */
  function isBinary({ contentEncoding, format }) {
    return String(contentEncoding).toLowerCase() === "base64" || format === "byte";
  }

  /* A button that asks for a file. `onText` gets its base64, `onProblem` the reason why it cannot be used. */
  function filePicker(schema, label, onText, onProblem) {
    const picker = document.createElement("input");
    picker.type = "file";
    picker.className = "sf-file";
    picker.setAttribute("aria-label", `File for ${label}`);
    if (typeof schema.contentMediaType === "string") picker.accept = schema.contentMediaType;
    picker.addEventListener("change", async () => {
      const [file] = picker.files;
      if (!file) return;
      if (file.size > MAX_FILE) {
        onProblem(`the file has ${file.size.toLocaleString("en")} bytes, and a form may have ${MAX_FILE.toLocaleString("en")}`);
        return;
      }
      try {
        onText(await base64Of(file));
      } catch {
        onProblem("the file cannot be read");
      }
    });
    return picker;
  }

  async function base64Of(file) {
    const bytes = new Uint8Array(await file.arrayBuffer());
    let text = "";
    for (let start = 0; start < bytes.length; start += 32_768) text += String.fromCharCode(...bytes.subarray(start, start + 32_768));
    return btoa(text);
  }

  const two = (number) => String(number).padStart(2, "0");

  /* `2026-01-31T13:30:00Z` as a value of datetime-local, in the zone of the browser. null if it would lose something. */
  function localTime(text) {
    if (text === "") return "";
    if (!/^\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}:\d{2}(\.0+)?(Z|[+-]\d{2}:\d{2})$/i.test(text)) return null;
    const moment = new Date(text.replace(" ", "T"));
    if (Number.isNaN(moment.valueOf())) return null;
    const date = [String(moment.getFullYear()).padStart(4, "0"), two(moment.getMonth() + 1), two(moment.getDate())].join("-");
    return `${date}T${[moment.getHours(), moment.getMinutes(), moment.getSeconds()].map(two).join(":")}`;
  }

  /* The value of datetime-local with the offset of the browser's zone at that time. Empty if there is none. */
  function offsetTime(value) {
    const moment = new Date(value);
    if (!value || Number.isNaN(moment.valueOf())) return "";
    const minutes = -moment.getTimezoneOffset();
    const offset = `${minutes < 0 ? "-" : "+"}${two(Math.floor(Math.abs(minutes) / 60))}:${two(Math.abs(minutes) % 60)}`;
    return `${value.length === 16 ? `${value}:00` : value.slice(0, 19)}${offset}`;
  }

  window.SchemaInputs = { isBinary, filePicker, localTime, offsetTime };
})();
