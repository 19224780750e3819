"""The descriptions of the fields of a form, laid out for static/roster/schema_form.js, which never makes HTML."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.utils.safestring import SafeString

from roster.admin.calls.items import has_inline_markdown, prose, short_prose

MAX_SHORT = 280  # characters. The form hides the rest of a longer description, as MAX_SHORT_TEXT there says
MAX_LONG = 4_000
MAX_ALL = 30_000  # characters of all descriptions. Those after them are shown as plain text
MAX_DEPTH = 60


def field_texts(schema: dict[str, Any]) -> list[tuple[str, SafeString]]:
    """Each description of the schema that has Markdown, with its safe HTML."""
    texts: dict[str, SafeString] = {}
    budget = MAX_ALL
    for description in _descriptions(schema, 0):
        text = description.replace("\r\n", "\n").replace("\r", "\n").strip()
        if text in texts or not has_inline_markdown(text):
            continue
        budget -= len(text)
        if budget < 0:
            break
        texts[text] = short_prose(text) if len(text) <= MAX_SHORT else prose(text[:MAX_LONG])
    return list(texts.items())


def _descriptions(part: Any, depth: int) -> Iterator[str]:
    if depth > MAX_DEPTH:
        return
    if isinstance(part, dict) and isinstance(part.get("description"), str):
        yield part["description"]
    for below in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
        yield from _descriptions(below, depth + 1)
