"""The items of a result that are text or JSON, each with what a page shows and what a person copies."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from django.utils.html import format_html
from django.utils.safestring import SafeString

from mcp_runtime.protocol import jsonrpc
from mcp_runtime.protocol.errors import ProtocolError
from roster.admin import present
from roster.admin.calls import ansi
from roster.admin.calls.json_view import bounded, json_tables, json_text, json_tree, tables_have_all

MAX_TEXT = 100_000
MAX_MARKDOWN = 30_000
MAX_SHORT_TEXT = 600
MAX_CELLS = 10_000
MAX_JSON = 5_000_000  # characters of a text that is read as JSON


@dataclass(frozen=True)
class Item:
    """One item of a result. `kind` is its name for people, `html` is safe, `source` is the text to copy.

    If `is_cut`, `source` is only the beginning. `address` is the one of the whole item as a file. Empty if it has none.
    `part` is its name in the form of a page that gets the file with another request to the member. A text that is
    copied `by_address` is not in the page a second time.
    """

    kind: str
    html: SafeString
    note: str = ""
    source: str = ""
    is_cut: bool = False
    is_json: bool = False
    address: str = ""
    part: str = ""
    by_address: bool = False

    @property
    def can_copy(self) -> bool:
        return self.kind != "link" and bool(self.source or self.by_address)

    @property
    def copy_address(self) -> str:
        """Where a copy gets the text. Empty if the page has all of it."""
        return self.address if self.is_cut or self.by_address else ""

    @property
    def shows_source(self) -> bool:
        """Whether `html` is the source itself."""
        return self.kind.rpartition(", ")[2] == "text"


def json_item(value: Any, kind: str = "JSON", note: str = "") -> Item:
    """`value` as a tree, and before it as tables if there are lists of objects in it."""
    source, is_cut = json_text(value, MAX_TEXT)
    html, tables = json_tree(value), json_tables(value)
    if tables:
        state = "" if tables_have_all(value) else " open"
        tree = format_html('<details class="result-source"{}><summary>As a tree</summary>{}</details>', state, html)
        html = format_html("{}{}", tables, tree)
    return Item(kind, html, note, source, is_cut, is_json=True)


def text_item(text: str, *, media_type: str = "", note: str = "", max_json: int = MAX_JSON) -> Item:
    """A text by its apparent format: JSON as a tree, Markdown as HTML, colours of a terminal, others unchanged."""
    value = json_value(text, max_json) if text[:1000].lstrip()[:1] in ("{", "[") else None
    if isinstance(value, (dict, list)) and value:
        return json_item(value, note=note)
    is_cut = len(text) > MAX_TEXT
    if ansi.has_codes(text[:MAX_TEXT]):
        words = ", ".join(filter(None, (note, "with the colours of a terminal")))
        return Item("text", _block(ansi.to_html(text[:MAX_TEXT])), words, ansi.without_codes(text[:MAX_TEXT]), is_cut)
    if not note and (media_type == "text/markdown" or looks_like_markdown(text)) and can_be_markdown(text):
        return Item("Markdown", markdown(text), note, text)
    return Item("text", _block(text[:MAX_TEXT]), note, text[:MAX_TEXT], is_cut)


def _block(content: SafeString | str) -> SafeString:
    return format_html('<pre class="block result-text" tabindex="0" data-source>{}</pre>', content)


def json_value(text: str, max_length: int = MAX_JSON) -> Any:
    """The JSON value of `text`. None if it is not JSON, or too long.

    Escapes such as `\\ud800` mean characters that no page can send. They are replaced, as in stored results.
    """
    if len(text) > max_length:
        return None
    try:
        value = json.loads(text)
        return jsonrpc.storable(value) if jsonrpc.is_unstorable(text.encode("utf-8", "replace")) else value
    except (ValueError, RecursionError, ProtocolError):
        return None


# Markdown ---------------------------------------------------------------------------------------------------------


_MARKDOWN_SIGNS = re.compile(
    r"^#{1,6} \S|^```|^ {0,3}[-*+] \S.*\n {0,3}[-*+] \S|^\|.+\|\n\|[ :|-]+\|$|\[[^\]\n]{1,200}\]\(https?://[^)\s]{1,500}\)"
    r"|\*\*\w[^*\n]{0,200}\*\*|^ {0,3}[-*+] \[[ xX]\] \S",
    re.MULTILINE,
)


def looks_like_markdown(text: str) -> bool:
    """Whether there is a heading, a list, a table, a block of code, a link or something bold."""
    return _MARKDOWN_SIGNS.search(text[:5000]) is not None


def can_be_markdown(text: str) -> bool:
    """Whether the text is short enough to be laid out."""
    return len(text) <= MAX_MARKDOWN and _cells(text) <= MAX_CELLS


def _cells(text: str) -> int:
    """The largest possible number of table cells, because short rows are filled up to the width of the header."""
    rows = [line.count("|") for line in text.split("\n") if "|" in line]
    return len(rows) * max(rows, default=0)


def markdown(text: str) -> SafeString:
    """`text` laid out."""
    from roster.admin.calls.markdown import to_html  # 4 MB that most halls never need

    return to_html(text)


_INLINE_SIGNS = re.compile(r"[`*_~\\<&]|\]\(")


def has_inline_markdown(text: str) -> bool:
    """Whether `text` may have emphasis, code or links."""
    return _INLINE_SIGNS.search(text) is not None


def short_prose(text: str) -> SafeString:
    """The description of a field by a member: emphasis, code and links in Markdown, and nothing larger than a line."""
    text = present.shown_text(present.bounded(text, MAX_SHORT_TEXT))
    if not has_inline_markdown(text):
        return format_html("{}", text)
    from roster.admin.calls.markdown import to_inline_html  # as above

    return to_inline_html(text)


def prose(text: str) -> SafeString:
    """A description by a member: Markdown laid out if it looks like it, otherwise its lines."""
    text = present.shown_text(bounded(text, MAX_TEXT))
    if looks_like_markdown(text) and can_be_markdown(text):
        return markdown(text)
    return format_html('<div class="prose-lines">{}</div>', text)
