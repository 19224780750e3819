"""The contents of a member's page: its fault, process, tools, calls, changes and log. `screens` has the views."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import QuerySet, TextField
from django.db.models.functions import Cast, Left, Length, Right
from django.http import HttpRequest, HttpResponse, JsonResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.utils.text import get_valid_filename

from mcp_runtime.control.logs import log_after, whole_log
from mcp_runtime.control.members import folder_notes
from mcp_runtime.control.packages import package_report
from mcp_runtime.control.sandboxes import sandbox_report
from mcp_runtime.control.ways_in import report_of
from mcp_runtime.members.logs import plain
from mcp_runtime.protocol import mcp
from mcp_runtime.protocol.errors import LogUnavailableError, describe_exit
from mcp_runtime.rows.database import give_connection_back
from mcp_runtime.schemas.secrets import mask
from mcp_runtime.secrets.references import is_reference
from roster import addresses
from roster.admin import live, present
from roster.admin.members.verbs import current_row, diagnosis_of, visible_since, word_of
from roster.admin.rows import principal_of
from roster.calls import without_names
from roster.diagnosis import Diagnosis
from roster.models import Call, GuildMember, StatusChange, Tool

SHOWN_CHANGES = 20
SHOWN_CALLS = 20
SHOWN_TOOLS = 500
SHOWN_LOG_LINES = 200
SHOWN_MESSAGE = 2_000
SHOWN_LAST_LINES = 6_000  # of each change, because a member's last lines may have 80,000 characters
SHOWN_DESCRIPTION = 300

Status = GuildMember.Status


# Why, and what to do ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fault:
    """Why a member does not run: one sentence, the line of its output that says most, its last lines, what to do.

    `repeats` is how many automatic restarts failed in the same way, the last one at `repeated_at`.
    """

    reason: str
    remedy: str
    key: str
    last_words: str = ""
    last_lines: str = ""
    repeats: int = 0
    repeated_at: datetime | None = None


def fault_of(member: Any, status: str) -> Fault | None:
    """None if nothing is wrong. A member with a faulty manifest may still run."""
    if not member.manifest_error and status != Status.ERROR:
        return None
    diagnosis = diagnosis_of(member) or Diagnosis("", "")
    change = None if member.manifest_error else changes_of(member).filter(new=Status.ERROR).first()
    if change is None:
        message = present.bounded(member.manifest_error or member.last_error, SHOWN_MESSAGE)
        return Fault(message, diagnosis.remedy, diagnosis.key)
    return Fault(
        diagnosis.cause if member.last_error and diagnosis.cause else change.short_text,
        diagnosis.remedy,
        diagnosis.key,
        last_words=diagnosis.last_words,
        last_lines=change.last_lines,
        repeats=change.repeats,
        repeated_at=change.repeated_at,
    )


# Parts ------------------------------------------------------------------------------------------------------------


def head(member: Any, status: str, progress: str, verbs: list[Any]) -> dict[str, Any]:
    """Status, reason, buttons, process."""
    row = current_row(member)
    return {
        "member": member,
        "status": status,
        "word": word_of(row),
        "sign_in": report_of(member),
        "needs_sign_in": row.needs_sign_in,
        "since": visible_since(member),
        "fault": fault_of(member, status),
        "progress": progress,
        "verbs": verbs,
        "warnings": [*_node_warnings(member), *row.all_warnings, *folder_notes(member)],
        "endpoint": row.endpoint or "",
        "gateway_address": "" if member.removed_at else addresses.address_of_member(member.name),
        "pid": row.pid,
        "port": member.port if member.runtime_is_alive else None,
        "last_exit": "" if member.exit_code is None else describe_exit(member.exit_code),
        "next_try_at": row.next_restart_at,
        "sandbox": sandbox_report(member),
        "packages": package_report(member),
        "groups": sorted(group.name for group in member.groups.all()),
    }


def _node_warnings(member: Any) -> list[str]:
    diagnosis = diagnosis_of(member) if member.dead_node and not member.manifest_error else None
    return [f"{diagnosis.cause} {diagnosis.remedy}"] if diagnosis and member.enabled else []


def tools(request: HttpRequest, member: Any) -> dict[str, Any]:
    """The tools that the user may see, in the member's order. Tools that left its list come last."""
    principal = principal_of(request)
    rows = list(tools_of(request, member)[: SHOWN_TOOLS + 1])
    return {
        "member": member,
        "tools": [_with(tool, needs_task=mcp.needs_task(tool.definition)) for tool in rows[:SHOWN_TOOLS]],
        "has_more": len(rows) > SHOWN_TOOLS,
        "may_call": principal.invokes and member.enabled and member.removed_at is None,
        "may_control_tools": principal.controls,
        "may_list": request.user.has_perm("roster.view_tool"),
    }


def tools_of(request: HttpRequest, member: Any) -> QuerySet[Tool]:
    if not (request.user.has_perm("roster.view_tool") or principal_of(request).invokes):
        return Tool.objects.none()
    return Tool.objects.filter(member=member).order_by("-listed", "position")


def tools_tag(request: HttpRequest, member: Any) -> str:
    """Changes when any tool changes. It does not read definitions, and compares only their lengths."""
    definition = Length(Cast("definition", TextField()))
    rows = tools_of(request, member).values_list(
        "pk", "enabled", "listed", "is_held", "version", "position", definition
    )
    principal = principal_of(request)
    state = (
        member.enabled,
        member.removed_at,
        principal.invokes,
        principal.controls,
        request.user.has_perm("roster.view_tool"),
    )
    return live.etag("tools", member.pk, *state, list(rows[: SHOWN_TOOLS + 1]))


def activity(request: HttpRequest, member: Any) -> dict[str, Any]:
    """The last calls and the last changes of status."""
    views_calls = request.user.has_perm("roster.view_call")
    calls = Call.objects.filter(member=member).defer("arguments", "result", "error_data")
    if not views_calls:
        calls = calls.filter(requested_by=request.user.pk)
    rows = calls.annotate(short_text=Left("error_message", SHOWN_MESSAGE)).defer("error_message")
    return {
        "member": member,
        "calls": [
            _with(
                call,
                duration_text=present.seconds(call.duration),
                short_text=without_names(call.short_text, call.tool_name),
            )
            for call in rows[:SHOWN_CALLS]
        ],
        "may_choose": _has_a_tool_to_call(request, member),
        "may_list_calls": views_calls or principal_of(request).invokes,
        "views_all_calls": views_calls,
        "changes": [
            _with(change, exit_words="" if change.exit_code is None else describe_exit(change.exit_code))
            for change in changes_of(member)[:SHOWN_CHANGES]
        ],
        "may_list_changes": request.user.has_perm("roster.view_statuschange"),
    }


def _has_a_tool_to_call(request: HttpRequest, member: Any) -> bool:
    may_call = principal_of(request).invokes and member.enabled and member.removed_at is None
    return may_call and tools_of(request, member).filter(listed=True, enabled=True, is_held=False).exists()


def _with(row: Any, **words: Any) -> Any:
    """The row with more for a template."""
    for name, text in words.items():
        setattr(row, name, text)
    return row


def changes_of(member: Any) -> QuerySet[Any]:
    """Changes, newest first, with the shown parts of their texts: `short_text` and `last_lines`."""
    changes = StatusChange.objects.filter(member=member).defer("message", "log_tail")
    return changes.annotate(short_text=Left("message", SHOWN_MESSAGE), last_lines=Right("log_tail", SHOWN_LAST_LINES))


def still(member: Any) -> dict[str, Any]:
    """Facts that change only with the folder or the next start."""
    # People keep API keys in `env`. The page does not show them, but references to secrets.
    variables = member.manifest.get("env", {})
    manifest = mask(member.manifest, [["env", key] for key, value in variables.items() if not is_reference(value)])
    return {
        "manifest": present.json_block(_filled(manifest | {"oauth": _filled(manifest.get("oauth") or {})})),
        "server_info": present.json_block(member.server_info),
        "capabilities": present.json_block(member.capabilities),
        "instructions": present.text_block(member.instructions),
    }


def _filled(record: dict[str, Any]) -> dict[str, Any]:
    """The record without its empty keys. A manifest has many of them, and variables in `env` may be empty."""
    return {key: value for key, value in record.items() if value not in ("", None, [], {})}


# The log ----------------------------------------------------------------------------------------------------------


def log(member: GuildMember, cursor: str = "") -> dict[str, Any]:
    """The last lines, or those after the cursor, for the page. `note` says why there are none."""
    try:
        part = log_after(member, cursor, SHOWN_LOG_LINES)
    except LogUnavailableError as error:
        return {"lines": [], "cursor": cursor, "gap": False, "note": str(error)}
    return {"lines": [plain(line) for line in part.lines], "cursor": part.cursor, "gap": part.is_gap}


def log_answer(member: GuildMember, cursor: str) -> HttpResponse:
    return JsonResponse(log(member, cursor))


def log_file(member: GuildMember) -> HttpResponseBase:
    """The whole log as a download, which no browser may show as a page."""
    try:
        chunks = whole_log(member)
    except LogUnavailableError as error:
        return HttpResponse(f"{error}\n", status=502, content_type="text/plain; charset=utf-8")
    give_connection_back()  # a slow client must not hold a connection of the pool
    response = StreamingHttpResponse(chunks, content_type="text/plain; charset=utf-8")
    name = get_valid_filename(member.name)
    response.headers["Content-Disposition"] = f'attachment; filename="{name}.log"'
    response.headers["X-Content-Type-Options"] = "nosniff"
    return response
