"""The lines of the list of calls."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest
from django.utils.safestring import SafeString

from roster.admin import present
from roster.admin.rows import principal_of
from roster.calls import own_words
from roster.models import Call, Tool

HIDDEN = "hidden until the call ends, because there are secrets"
MAX_ARGUMENTS = 200  # characters of a line
BEGINNING = 400  # characters of the arguments, as JSON, that a line is made of


@dataclass(frozen=True)
class Row:
    """A line of the list."""

    call: Call
    badge: SafeString
    error: str
    requester: str
    tool_set: str
    duration: str
    is_running: bool
    arguments: str
    tool_page: int | None  # the id of the tool, if the user may see its page
    queued_at: str


def row_of(call: Call, tool_set: str | None, tool_id: int | None) -> Row:
    return Row(
        call=call,
        badge=present.badge(call.status),
        error=present.one_line(own_words(call), 160),
        requester=present.one_line(call.requester, 60) or present.NOTHING,
        tool_set=tool_set or "",
        duration=present.seconds(call.duration),
        is_running=call.status == Call.Status.RUNNING and call.started_at is not None,
        arguments=arguments_in_line(call),
        tool_page=tool_id,
        queued_at=present.when(call.queued_at),
    )


def arguments_in_line(call: Any) -> str:
    """The beginning of the masked arguments on one line, as JSON without the outer braces. Empty without arguments.

    `call` has `arguments_beginning`. The secrets of a call in progress are not masked yet.
    """
    if call.secret_paths and not call.is_finished:
        return HIDDEN
    text = call.arguments_beginning or ""
    if len(text) < BEGINNING:
        try:
            text = json.dumps(json.loads(text), ensure_ascii=False)
        except (ValueError, RecursionError):
            return ""
        text = text[1:-1]
    else:
        text = f"{text[1:]}…"
    text = escaped(text)
    return text if len(text) <= MAX_ARGUMENTS else f"{text[: MAX_ARGUMENTS - 1]}…"


def escaped(text: str) -> str:
    """The text with JSON's escapes of characters that change the order of the text on the screen, or hide parts."""
    if text.isprintable():
        return text
    return "".join([char if char.isprintable() else f"\\u{ord(char):04x}" for char in text])


def tool_ids_of(request: HttpRequest, calls: Iterable[Call]) -> dict[tuple[int, str], int]:
    """The ids of the listed tools of the calls, by member and name, if the user may see the pages of tools."""
    user: Any = request.user
    names: dict[int, set[str]] = defaultdict(set)
    if user.has_perm("roster.view_tool") or user.has_perm("roster.change_tool"):
        closed_names = principal_of(request).closed_members
        for call in calls:
            if call.member.name not in closed_names:
                names[call.member_id].add(call.tool_name)
    tools = Tool.objects.filter(member__in=names, name__in=set().union(*names.values()), listed=True).values_list(
        "member_id", "name", "pk"
    )
    return {(member_id, name): pk for member_id, name, pk in tools} if names else {}
