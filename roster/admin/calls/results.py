"""Show the result of a call by its content type: text, Markdown, JSON, images, audio, links, or an error with advice.

The content comes from a member, so it is not trusted. Text is escaped. Markdown is built from tokens (HTML in it stays
text) and then cleaned. Links in it may only be http or https. A link to a resource leads to the page on which the hall
reads it, and never to its URI. Only a few types of images and audio are shown. Every size is bounded.

    view = results.result_view(call, output_schema, principal_of(request))      in a view
    {% include "admin/roster/result.html" %}                   in its template, with `view`, roster/result.css, and the
                                                         scripts roster/copy.js and roster/json_tree.js
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from django.urls import reverse
from django.utils.safestring import SafeString

from mcp_runtime.control.calls import output_validation_errors
from mcp_runtime.security.access import Principal
from roster.admin.calls import advice, files
from roster.admin.calls.drawing import Drawing
from roster.admin.calls.items import MAX_TEXT, Item, json_item, json_value
from roster.admin.calls.json_view import json_text, json_tree
from roster.calls import own_words
from roster.models import Call

MAX_ITEMS = 50  # of one result on a page. The file of the whole result has all of them

HINTS: Mapping[str, str] = {str(kind): kind.hint for kind in Call.ErrorKind}


@dataclass(frozen=True)
class Failure:
    """Why a call failed. `message` is empty if the items of the result say it."""

    kind: str
    message: str
    hint: str
    code: int | None
    data: SafeString | None
    is_cut: bool = False
    address: str = ""


@dataclass(frozen=True)
class Structured:
    """The structured content, and where it does not match the tool's output schema."""

    item: Item
    has_schema: bool
    validation_errors: Sequence[str]


@dataclass(frozen=True)
class ResultView:
    """What `admin/roster/result.html` shows."""

    failure: Failure | None
    items: Sequence[Item] = ()
    left_out: int = 0
    structured: Structured | None = None
    extras: SafeString | None = None
    is_empty: bool = False
    whole: Item | None = None


def result_view(
    call: Call, output_schema: dict[str, Any] | None = None, principal: Principal | None = None
) -> ResultView | None:
    """The result of the call for the template. None before its end. `principal` is who looks at it, for the advice."""
    if not call.is_finished:
        return None
    result = call.result if isinstance(call.result, dict) else {}
    content = result["content"] if isinstance(result.get("content"), list) else []
    items = _items(call, result, content)
    structured = _structured(call, result, output_schema)
    extras = {key: value for key, value in result.items() if key not in ("content", "structuredContent", "isError")}
    return ResultView(
        failure=_failure(call, principal, has_own_words=bool(items)),
        items=items,
        left_out=max(0, len(content) - MAX_ITEMS),
        structured=structured,
        extras=json_tree(extras) if extras else None,
        is_empty=call.status == Call.Status.SUCCEEDED and not (content or structured),
        whole=_whole(call),
    )


def _address(call: Call, part: str) -> str:
    return "" if call.pk is None else reverse("admin:roster_call_file", args=[call.pk, part])


def _items(call: Call, result: dict[str, Any], content: list[Any]) -> list[Item]:
    drawing = Drawing(call.member_id)
    return [
        replace(drawing.item(part), address=_address(call, str(number)))
        for number, part in enumerate(content[:MAX_ITEMS])
        if not _repeats(part, result, drawing)
    ]


def _failure(call: Call, principal: Principal | None, *, has_own_words: bool) -> Failure | None:
    if not call.error_kind:
        return None
    is_told = has_own_words and call.error_kind == Call.ErrorKind.TOOL
    message = "" if is_told else own_words(call)
    return Failure(
        kind=call.error_kind,
        message=message[:MAX_TEXT],
        hint=_hint(call, principal),
        code=call.error_code,
        data=None if call.error_data is None else json_tree(call.error_data),
        is_cut=len(message) > MAX_TEXT,
        address=_address(call, files.ERROR),
    )


def _hint(call: Call, principal: Principal | None) -> str:
    general = HINTS.get(call.error_kind, "")
    if principal is None or call.error_kind != Call.ErrorKind.UNAVAILABLE:
        return general
    user = call.requested_by
    is_requester = user is not None and user.pk == principal.user_id
    viewer = advice.Viewer(principal, user.get_username() if user else "", is_requester)
    return advice.hint_of(call.error_kind, call.error_message, call.member, viewer, general)


def _structured(call: Call, result: dict[str, Any], output_schema: dict[str, Any] | None) -> Structured | None:
    if "structuredContent" not in result:
        return None
    value = result["structuredContent"]
    errors = [] if output_schema is None else output_validation_errors(output_schema, value)
    item = replace(json_item(value, "structured content"), address=_address(call, files.STRUCTURED))
    return Structured(item, output_schema is not None, errors)


def _repeats(part: Any, result: dict[str, Any], drawing: Drawing) -> bool:
    """Whether a text repeats the structured content, as MCP recommends for older clients."""
    if "structuredContent" not in result or not isinstance(part, dict) or part.get("type") != "text":
        return False
    text = part.get("text")
    if not isinstance(text, str):
        return False
    value = json_value(text, drawing.json_budget)
    repeats = value is not None and value == result["structuredContent"]
    if repeats:
        drawing.json_budget -= len(text)
    return repeats


def _whole(call: Call) -> Item | None:
    return None if call.result in (None, {}, []) else whole_item(call.result, _address(call, files.WHOLE))


def whole_item(result: Any, address: str = "") -> Item:
    """All of a result as JSON."""
    source, is_cut = json_text(result, MAX_TEXT)
    return Item("whole result", SafeString(""), "", source, is_cut, address=address, part=files.WHOLE)


def items_of(content: Sequence[Any]) -> list[Item]:
    """The items of a result's content, as in `result_view`."""
    drawing = Drawing()
    return [drawing.item(part) for part in content[:MAX_ITEMS]]
