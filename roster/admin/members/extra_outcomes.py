"""What a member answered to `prompts/get` and `resources/read`, for the page: a conversation, contents, or an error.

All of it comes from the member. `roster.admin.calls.results` shows it safely.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from django.utils.safestring import SafeString

from mcp_runtime.protocol.errors import ErrorKind, InvalidArgumentsError, McpRuntimeError, MemberFailedError
from mcp_runtime.security.access import Principal
from roster.admin import present
from roster.admin.calls import advice
from roster.admin.calls.drawing import MAX_NAME, Drawing
from roster.admin.calls.files import File, file_in, name_of_uri
from roster.admin.calls.items import MAX_TEXT, Item
from roster.admin.calls.json_view import json_tree
from roster.admin.calls.results import MAX_ITEMS, Failure, ResultView, whole_item
from roster.admin.downloads import filename
from roster.models import GuildMember

MAX_MESSAGES = 50
MAX_ROLE = 40
# What differs from the hints for calls of tools. These requests change nothing, so they may be repeated.
HINTS: Mapping[ErrorKind, str] = {
    ErrorKind.PROTOCOL: (
        "The member answered with an error, or with something else than a result. A name or a value may be wrong. "
        "Otherwise its author has to fix it."
    ),
    ErrorKind.TIMEOUT: 'No answer in time. Try again, or raise "timeout" in the manifest of the member.',
    ErrorKind.TRANSPORT: "The connection broke, or the member ended. Its page and its log may say why. Try again.",
    ErrorKind.UNAVAILABLE: "The member was not asked. Its page says why it is not available.",
}


@dataclass(frozen=True)
class Message:
    """One message of a conversation. `side` is one of three words for the style."""

    role: str
    side: str
    item: Item


@dataclass(frozen=True)
class Outcome:
    """What `admin/roster/guildmember/outcome.html` shows. Errors of the form have their places."""

    errors: list[tuple[str, str]] = field(default_factory=list)
    failure: ResultView | None = None
    description: str = ""
    messages: list[Message] = field(default_factory=list)
    contents: list[Item] = field(default_factory=list)
    left_out: int = 0
    is_empty: bool = False
    extras: SafeString | None = None
    whole: Item | None = None
    uri: str = ""


def of_prompt(result: dict[str, Any], member_id: int) -> Outcome:
    """The messages as a conversation."""
    drawing, listed = Drawing(member_id), result["messages"]
    return Outcome(
        description=_text(result.get("description")),
        messages=[_message(drawing, number, each) for number, each in enumerate(listed[:MAX_MESSAGES])],
        left_out=max(0, len(listed) - MAX_MESSAGES),
        is_empty=not listed,
        extras=_extras(result, "messages", "description"),
        whole=whole_item(result),
    )


def _message(drawing: Drawing, number: int, message: Any) -> Message:
    item = replace(drawing.item(_content_of(message)), part=str(number))
    role = str(message.get("role") or "") if isinstance(message, dict) and "content" in message else ""
    role = present.one_line(role or "no role", MAX_ROLE)
    return Message(role, role if role in ("user", "assistant") else "other", item)


def _content_of(message: Any) -> Any:
    return message["content"] if isinstance(message, dict) and "content" in message else message


def of_resource(result: dict[str, Any], member_id: int, uri: str) -> Outcome:
    """The contents of a resource."""
    drawing, listed = Drawing(member_id), result["contents"]
    return Outcome(
        contents=[
            replace(drawing.resource(each) if isinstance(each, dict) else drawing.item(each), part=str(number))
            for number, each in enumerate(listed[:MAX_ITEMS])
        ],
        left_out=max(0, len(listed) - MAX_ITEMS),
        is_empty=not listed,
        extras=_extras(result, "contents"),
        whole=whole_item(result),
        uri=uri,
    )


def _extras(result: dict[str, Any], *known: str) -> SafeString | None:
    others = {key: value for key, value in result.items() if key not in known}
    return json_tree(others) if others else None


def _text(value: Any) -> str:
    return present.bounded(value, MAX_NAME) if isinstance(value, str) else ""


def of_error(error: McpRuntimeError, member: GuildMember, principal: Principal) -> Outcome:
    """What the page shows to the person who asked."""
    if isinstance(error, InvalidArgumentsError):
        return Outcome(errors=[(".".join(map(str, place)), reason) for place, reason in error.errors])
    if not isinstance(error, MemberFailedError):
        return Outcome(errors=[("", str(error))])
    viewer = advice.Viewer(principal, principal.name, is_requester=True)
    hint = advice.hint_of(error.kind, str(error), member, viewer, HINTS.get(error.kind, error.kind.hint))
    text = present.bounded(str(error), MAX_TEXT)
    failure = Failure(kind=str(error.kind), message=text, hint=hint, code=error.code, data=None)
    return Outcome(failure=ResultView(failure))


# The parts of an answer as files. `part` is that of an item -------------------------------------------------------


def file_of_prompt(result: dict[str, Any], name: str, part: str) -> File | None:
    """A message, or the whole answer. None if there is none."""
    return file_in(filename(name, "prompt"), part, result, [_content_of(each) for each in result["messages"]])


def file_of_resource(result: dict[str, Any], uri: str, part: str) -> File | None:
    """One of the contents, or the whole answer. None if there is none."""
    contents = [
        {"type": "resource", "resource": each} if isinstance(each, dict) else each for each in result["contents"]
    ]
    return file_in(name_of_uri(uri, "resource"), part, result, contents)
