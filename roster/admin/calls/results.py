"""Show the result of a call by its content type: text, Markdown, JSON, images, audio, links, or an error with advice.

The content comes from a member, so it is not trusted. Text is escaped. Markdown is built from tokens (HTML in it stays
text) and then cleaned. Links may only be http or https. Only a few types of images and audio are shown. Every size is
bounded.

    view = results.result_view(call, output_schema)      in a view
    {% include "admin/roster/result.html" %}                   in its template, with `view` and roster/result.css
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.utils.html import escape, format_html
from django.utils.safestring import SafeString, mark_safe

from mcp_runtime.control.calls import output_validation_error
from roster.admin import present
from roster.models import Call

# The limits of one result on a page. The API has the whole result.
MAX_ITEMS = 50
MAX_TEXT = 100_000
MAX_MARKDOWN = 30_000
MAX_CELLS = 10_000
MAX_MEDIA_CHARACTERS = 6_000_000  # base64, of all images and audio of a result together
MAX_TREE_NODES = 2_000
MAX_TREE_DEPTH = 24
MAX_TREE_TEXT = 2_000
MAX_NAME = 300

# No SVG. In <img> its scripts do not run, but a small SVG can take hours to draw. Its source is shown instead.
IMAGE_TYPES: Mapping[str, Sequence[bytes]] = {
    "image/png": (b"\x89PNG\r\n\x1a\n",),
    "image/jpeg": (b"\xff\xd8\xff",),
    "image/gif": (b"GIF87a", b"GIF89a"),
    "image/webp": (b"RIFF",),
    "image/bmp": (b"BM",),
}
AUDIO_TYPES = frozenset(
    f"audio/{name}"
    for name in ("wav", "x-wav", "wave", "mpeg", "mp3", "ogg", "webm", "flac", "aac", "mp4", "x-m4a", "opus")
)


HINTS: Mapping[str, str] = {str(kind): kind.hint for kind in Call.ErrorKind}


@dataclass(frozen=True)
class Item:
    """One item of a result. `kind` is its name for people, `html` is safe, `source` is the text to copy."""

    kind: str
    html: SafeString
    note: str = ""
    source: str = ""


@dataclass(frozen=True)
class Failure:
    kind: str
    message: str
    hint: str
    code: int | None
    data: SafeString | None


@dataclass(frozen=True)
class Structured:
    """The structured content, and whether it matches the tool's output schema."""

    html: SafeString
    source: str
    has_schema: bool
    validation_error: str


@dataclass(frozen=True)
class ResultView:
    """What `admin/roster/result.html` shows."""

    failure: Failure | None
    items: list[Item]
    left_out: int
    structured: Structured | None
    extras: SafeString | None
    is_empty: bool
    whole: SafeString | str


def result_view(call: Call, output_schema: dict[str, Any] | None = None) -> ResultView | None:
    """The result of the call for the template. None before its end."""
    if not call.is_finished:
        return None
    result = call.result if isinstance(call.result, dict) else {}
    content = _list(result.get("content"))
    structured = _structured(result, output_schema)
    structured_text = structured.source if structured else ""
    drawing = _Drawing()
    items = [drawing.item(part) for part in content[:MAX_ITEMS] if not _repeats(part, result, structured_text)]
    extras = {key: value for key, value in result.items() if key not in ("content", "structuredContent", "isError")}
    return ResultView(
        failure=_failure(call),
        items=items,
        left_out=max(0, len(content) - MAX_ITEMS),
        structured=structured,
        extras=json_tree(extras) if extras else None,
        is_empty=call.status == Call.Status.SUCCEEDED and not (content or structured),
        whole=present.json_block(call.result),
    )


def _failure(call: Call) -> Failure | None:
    if not call.error_kind:
        return None
    return Failure(
        kind=call.error_kind,
        message=_bounded(call.error_message, MAX_TEXT),
        hint=HINTS.get(call.error_kind, ""),
        code=call.error_code,
        data=None if call.error_data is None else json_tree(call.error_data),
    )


def _structured(result: dict[str, Any], output_schema: dict[str, Any] | None) -> Structured | None:
    if "structuredContent" not in result:
        return None
    value = result["structuredContent"]
    validation_error = "" if output_schema is None else output_validation_error(output_schema, value)
    return Structured(json_tree(value), _json(value), output_schema is not None, validation_error)


def _repeats(part: Any, result: dict[str, Any], structured: str) -> bool:
    """Whether a text repeats the structured content, as MCP recommends for older clients."""
    if not structured or not isinstance(part, dict) or part.get("type") != "text":
        return False
    text = part.get("text")
    return (
        isinstance(text, str) and len(text) <= 2 * len(structured) and _json_value(text) == result["structuredContent"]
    )


def items_of(content: Sequence[Any]) -> list[Item]:
    """The items of a result's content, as in `result_view`."""
    drawing = _Drawing()
    return [drawing.item(part) for part in content[:MAX_ITEMS]]


# Items of a result ------------------------------------------------------------------------------------------------


@dataclass
class _Drawing:
    """Renders the items of one result, with one budget for all images and audio."""

    media_budget: int = field(default=MAX_MEDIA_CHARACTERS)

    def item(self, part: Any) -> Item:
        if not isinstance(part, dict):
            return Item("JSON", json_tree(part), source=_json(part))
        kind = part.get("type")
        if kind == "text" and isinstance(part.get("text"), str):
            return text_item(part["text"])
        if kind in ("image", "audio") and isinstance(part.get("data"), str):
            return self._media(part["data"], _media_type(part))
        if kind == "resource_link":
            return _resource_link(part)
        if kind == "resource" and isinstance(part.get("resource"), dict):
            return self._resource(part["resource"])
        return Item("JSON", json_tree(part), source=_json(part))

    def _media(self, data: str, media_type: str) -> Item:
        self.media_budget -= len(data)
        if self.media_budget < 0:
            return _note(media_type, f"too large to show here ({len(data):,} characters of base64)")
        try:
            content = base64.b64decode(data, validate=True)
        except (binascii.Error, ValueError):
            return _note(media_type, "the data is not valid base64")
        if media_type == "image/svg+xml":
            return text_item(content.decode("utf-8", "replace"), note="SVG, shown as source text")
        if any(content.startswith(signature) for signature in IMAGE_TYPES.get(media_type, ())):
            picture = format_html(
                '<img class="result-image" src="{}" alt="{}" decoding="async">', *_url_of(media_type, content)
            )
            return Item("image", picture, note=f"{media_type}, {len(content):,} bytes")
        if media_type in AUDIO_TYPES:
            sound = format_html(
                '<audio controls preload="metadata" src="{}" aria-label="{}"></audio>', *_url_of(media_type, content)
            )
            return Item("audio", sound, note=f"{media_type}, {len(content):,} bytes")
        return _note(media_type, f"{len(content):,} bytes of a type that is not shown here")

    def _resource(self, resource: dict[str, Any]) -> Item:
        place = present.one_line(str(resource.get("uri") or ""), MAX_NAME)
        media_type = _media_type(resource)
        if isinstance(resource.get("text"), str):
            item = text_item(resource["text"], media_type=media_type)
        elif isinstance(resource.get("blob"), str):
            item = self._media(resource["blob"], media_type)
        else:
            item = Item("JSON", json_tree(resource), source=_json(resource))
        note = ", ".join(word for word in (place, item.note or media_type) if word)
        return Item(f"resource, {item.kind}", item.html, note=note, source=item.source)


def _url_of(media_type: str, content: bytes) -> tuple[str, str]:
    """The data: URL, from the decoded content, and an alternative text."""
    return f"data:{media_type};base64,{base64.b64encode(content).decode()}", f"{media_type} from the member"


def _note(media_type: str, why: str) -> Item:
    kind = media_type or "data"
    return Item(kind, format_html('<p class="result-message">{}</p>', f"{kind}: {why}."))


def _media_type(part: dict[str, Any]) -> str:
    return present.one_line(str(part.get("mimeType") or ""), 100).partition(";")[0].strip().lower()


def _resource_link(part: dict[str, Any]) -> Item:
    uri = str(part.get("uri") or "")[:2048]
    name = present.one_line(str(part.get("title") or part.get("name") or uri), MAX_NAME) or "no name"
    facts = [word for word in (_media_type(part), _size(part.get("size"))) if word]
    description = present.one_line(str(part.get("description") or ""), MAX_NAME)
    where = (
        format_html('<a href="{}" rel="noopener noreferrer nofollow" target="_blank">{}</a>', uri, name)
        if present.leads_to_the_web(uri)
        else format_html("<strong>{}</strong>", name)
    )
    html = format_html('<p class="result-link">{} <code>{}</code></p>', where, present.one_line(uri, MAX_NAME))
    if description:
        html = format_html("{}<p>{}</p>", html, description)
    return Item("link", html, note=", ".join(facts), source=uri)


def _size(size: Any) -> str:
    return f"{size:,} bytes" if isinstance(size, int) and not isinstance(size, bool) else ""


# Text -------------------------------------------------------------------------------------------------------------


def text_item(text: str, *, media_type: str = "", note: str = "") -> Item:
    """A text by its apparent format: JSON as a tree, Markdown as HTML, others unchanged."""
    source = _bounded(text, MAX_TEXT)
    value = _json_value(text) if text[:1000].lstrip()[:1] in ("{", "[") else None
    if isinstance(value, (dict, list)) and value:
        return Item("JSON", json_tree(value), note=note, source=source)
    is_markdown = media_type == "text/markdown" or looks_like_markdown(text)
    if is_markdown and not note and len(text) <= MAX_MARKDOWN and _cells(text) <= MAX_CELLS:
        return Item("Markdown", markdown(text), note=note, source=source)
    return Item(
        "text", format_html('<pre class="block result-text" tabindex="0">{}</pre>', source), note=note, source=source
    )


_MARKDOWN_SIGNS = re.compile(
    r"^#{1,6} \S|^```|^ {0,3}[-*+] \S.*\n {0,3}[-*+] \S|^\|.+\|\n\|[ :|-]+\|$|\[[^\]\n]{1,200}\]\(https?://[^)\s]{1,500}\)"
    r"|\*\*\w[^*\n]{0,200}\*\*",
    re.MULTILINE,
)


def looks_like_markdown(text: str) -> bool:
    """Whether there is a heading, a list, a table, a block of code, a link or something bold."""
    return _MARKDOWN_SIGNS.search(text[:5000]) is not None


def _cells(text: str) -> int:
    """The largest possible number of table cells, because short rows are filled up to the width of the header."""
    rows = [line.count("|") for line in text.split("\n") if "|" in line]
    return len(rows) * max(rows, default=0)


def markdown(text: str) -> SafeString:
    """`text` laid out."""
    from roster.admin.calls.markdown import to_html  # 4 MB that most halls never need

    return to_html(text)


# JSON -------------------------------------------------------------------------------------------------------------


def json_tree(value: Any) -> SafeString:
    """`value` as nested <details>, which fold without a script. Nodes, depth and length of texts are bounded."""
    return mark_safe(f'<div class="json-tree">{"".join(_Tree().lines(value))}</div>')  # noqa: S308 - all escaped


@dataclass
class _Tree:
    node_budget: int = field(default=MAX_TREE_NODES)

    def lines(self, value: Any, label: str = "", depth: int = 0) -> Iterator[str]:
        self.node_budget -= 1
        if not isinstance(value, (dict, list)) or not value:
            yield f'<div class="json-leaf">{label}{_leaf(value)}</div>'
            return
        count = f"{len(value):,} {'key' if isinstance(value, dict) else 'item'}{'' if len(value) == 1 else 's'}"
        brackets = "{}" if isinstance(value, dict) else "[]"
        if depth >= MAX_TREE_DEPTH:
            note = f'<span class="json-more">{brackets} {count}, nested too deeply to show here</span>'
            yield f'<div class="json-leaf">{label}{note}</div>'
            return
        is_open = " open" if depth < 2 or (depth < 4 and len(value) <= 5) else ""
        summary = f'{label}<span class="json-count">{brackets[0]} {count} {brackets[1]}</span>'
        yield f"<details{is_open}><summary>{summary}</summary>"
        yield from self._children(value, depth)
        yield "</details>"

    def _children(self, value: dict[str, Any] | list[Any], depth: int) -> Iterator[str]:
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        for number, (key, item) in enumerate(pairs):
            if self.node_budget <= 0:
                yield f'<div class="json-leaf json-more">… and {len(value) - number:,} more</div>'
                return
            name = _bounded(str(key), 200)
            yield from self.lines(item, f'<span class="json-key">{escape(name)}</span>: ', depth + 1)


def _leaf(value: Any) -> str:
    if isinstance(value, str):
        return (
            f'<span class="json-string">{escape(json.dumps(_bounded(value, MAX_TREE_TEXT), ensure_ascii=False))}</span>'
        )
    word = "boolean" if isinstance(value, bool) else "null" if value is None else "number"
    return f'<span class="json-{word}">{escape(json.dumps(value))}</span>'


def _json(value: Any) -> str:
    return _bounded(json.dumps(value, indent=2, ensure_ascii=False), MAX_TEXT)


def _json_value(text: str) -> Any:
    """The JSON value of `text`. None if it is not JSON, or too long."""
    if len(text) > present.MAX_SHOWN:
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _bounded(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[:length]}… and {len(text) - length:,} more characters"


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
