"""Queue, cancel, wait for, show and count tool calls."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from django.conf import settings
from django.db import connection
from django.db.models import Count, Subquery

from mcp_runtime.calls import pruning, statistics, text_index, transitions, waiting
from mcp_runtime.calls.statements import active_calls
from mcp_runtime.calls.transitions import Requester
from mcp_runtime.control.members import set_desired_state
from mcp_runtime.control.notify import notify_runtime
from mcp_runtime.protocol import mcp
from mcp_runtime.schemas import secrets, validation
from mcp_runtime.security import access
from roster.models import Call, GuildMember, Tool

# Calls in progress that `calls_version` compares.
MAX_COMPARED = 1000
ERASE_SECONDS = 10.0
ERASE_INTERVAL = 0.5  # so that writers, who wait during an attempt, can write between two of them


def queue_call(
    member_name: str, tool_name: str, arguments: Any, *, requester: Requester, idempotency_key: str | None = None
) -> tuple[Call, bool]:
    """Queue one call (see `transitions.queue`). It is accepted even if no runtime is alive, and waits for one."""
    call, created = transitions.queue(
        member_name=member_name,
        tool_name=tool_name,
        arguments=arguments,
        requester=requester,
        idempotency_key=idempotency_key,
    )
    if created:
        if call.member.desired_state != GuildMember.DesiredState.RUNNING:
            set_desired_state(call.member, desired_state=GuildMember.DesiredState.RUNNING)
        notify_runtime()
    return call, created


def check_call(member_name: str, tool_name: str, arguments: Any, *, requester: Requester) -> None:
    """Raise what `queue_call` raises for this call, and queue nothing."""
    transitions.check(member_name=member_name, tool_name=tool_name, arguments=arguments, requester=requester)


def cancel_call(call: Call) -> Call:
    cancelled = transitions.cancel(call)
    notify_runtime(members=True)
    return cancelled


def wait_for_call(call_id: int, timeout: float) -> bool:
    """Wait for the end of the call, at most `timeout` seconds, and not after `end_waiting`. Returns if it has ended."""
    return waiting.calls.wait(call_id, timeout)


def wait_between_looks(seconds: float) -> bool:
    """Wait between two checks. Returns True after `end_waiting`. Then check no more."""
    return waiting.calls.is_over.wait(seconds)


def end_waiting() -> None:
    """End all waits in this process, now and later, because it must answer the clients before it ends."""
    waiting.calls.end()


def calls_version() -> tuple[Any, ...]:
    """A value that changes when a call is queued, started, cancelled or ends. Costs the same for a million calls."""
    last_end = Call.objects.filter(finished_at__isnull=False).order_by("-finished_at").values("finished_at")[:1]
    newest = Call.objects.order_by("-id").annotate(last_end=Subquery(last_end)).values_list("id", "last_end").first()
    active = active_calls().order_by("status", "id").values_list("id", "status", "cancel_requested_at")
    return newest, list(active[:MAX_COMPARED])


def prune_calls(*, days: int, keep: int) -> tuple[int, bool]:
    """Delete finished calls older than `days`, and all but the newest `keep`.

    Returns how many it deleted, and whether the database's files have no words of deleted calls any more. If others
    read the database all the time, it gives up after ERASE_SECONDS. A repeated call erases the words.
    """
    return pruning.prune_calls(days=days, keep=keep), _erase_deleted()


def _erase_deleted() -> bool:
    eraser = text_index.Eraser()
    eraser.note_deletions()  # also if there were none now, because an earlier attempt may have given up
    deadline = time.monotonic() + ERASE_SECONDS
    while not eraser.erase():
        if time.monotonic() > deadline or connection.in_atomic_block:
            return False
        time.sleep(ERASE_INTERVAL)
    return True


# Arguments and results without secrets ----------------------------------------------------------------------------


def why_not_again(call: Call) -> str:
    """Why a call cannot be repeated, because its arguments are unknown. Empty if it can."""
    if call.secret_paths:
        return "its arguments held secrets, which are masked"
    return why_arguments_unknown(call)


def why_arguments_unknown(call: Call) -> str:
    """Why the arguments of a call are unknown. Empty if they are known, except for secrets."""
    if mcp.CUT in call.arguments:
        return "its arguments were too long to be kept whole"
    if call.source == Call.Source.GATEWAY and not settings.GUILD_HALL_RECORD_BYTES:
        return "arguments of calls through the gateway are not stored in the database"
    return ""


def masked_arguments(call: Call) -> dict[str, Any]:
    """The arguments with their secrets masked. The call may be in progress."""
    return secrets.mask(call.arguments, call.secret_paths)


def without_secrets(tool: Tool, arguments: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The part of `arguments` that may be stored or shown, and the places of the secrets in the rest ("login.key")."""
    paths = secrets.secret_paths(tool.input_schema, arguments)
    return secrets.without(arguments, paths), _places(paths)


def masked_secrets(tool: Tool, arguments: dict[str, Any]) -> dict[str, Any]:
    """`arguments` with a mask in place of the values that the tool's schema marks as secret."""
    return secrets.mask(arguments, secrets.secret_paths(tool.input_schema, arguments))


def unmasked_arguments(call: Call) -> tuple[dict[str, Any], list[str]]:
    """The arguments of an earlier call without its secrets, and the places of the secrets."""
    paths = call.secret_paths
    return secrets.without(call.arguments, paths), _places(paths)


def _places(paths: list[list[str | int]]) -> list[str]:
    return [".".join(map(str, path)) or "all arguments" for path in paths]


def output_validation_errors(output_schema: dict[str, Any], value: Any) -> list[str]:
    """Where the structured content of a result does not fit its tool's output schema, and why. Empty if it fits.

    At most `validation.MAX_ERRORS`, the most relevant first.
    """
    try:
        validation.validate(output_schema, value)
    except validation.ArgumentsError as error:
        texts = [
            f"{'.'.join(map(str, each.path))}: {each.reason}" if each.path else each.reason for each in error.errors
        ]
        return [text.replace("the tool's input schema", "the output schema") for text in texts]
    except validation.BrokenSchemaError as error:
        return [str(error).replace("the input schema", "the output schema")]
    return []


# Statistics -------------------------------------------------------------------------------------------------------


SPANS = tuple(statistics.SPANS)  # the names of the time spans. The first is the default
SPARK_POINTS = statistics.SPARK_POINTS


def call_counts() -> dict[tuple[str, str], int]:
    """Finished calls since the hall exists, by member name and outcome (succeeded, cancelled, or the error kind)."""
    return transitions.call_counts()


def call_series(
    span: str, *, member: GuildMember | None = None, tool_name: str = "", without: Iterable[str] = ()
) -> statistics.Series:
    """How many calls ended and failed, and how long they took, over the last `hour`, `day` or `week`.

    For a member's tool, for a member, or for all members except those in `without`. Raises KeyError for another span.
    """
    member_id = None if member is None else member.pk
    return statistics.series(statistics.SPANS[span], member_id=member_id, tool_name=tool_name, without=[*without])


def calls_of_last_hour() -> dict[int, list[tuple[int, int]]]:
    """(calls, failed) for twelve times five minutes, oldest first, by member id. Members without calls are left out."""
    return statistics.last_hour()


def queue_depth(principal: access.Principal) -> dict[str, int]:
    """How many calls wait and run, by status, for the members that `principal` can reach. Without calls it is 0."""
    active = active_calls().exclude(member__name__in=principal.closed_members).order_by()
    if principal.members is not None:
        active = active.filter(member__name__in=principal.members)
    counts = dict(active.values_list("status").annotate(count=Count("id")))
    return {status.value: counts.get(status.value, 0) for status in Call.ACTIVE}
