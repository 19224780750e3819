"""Queued calls as rows: queue, finish, cancel. Only this module and `statements` change the status of a row.

    queued -> running -> succeeded | failed | cancelled        queued -> cancelled | failed (unavailable)

Each arrow is one compare-and-set. A row is claimed at most once; one whose runtime died ends as `failed / lost`.
"""

from __future__ import annotations

import getpass
import logging
import uuid
from collections.abc import Collection, Iterable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from django.contrib.auth.models import User
from django.db import IntegrityError, connection, transaction
from django.db.models import Count, F, Value
from django.db.models.fields.json import KT
from django.utils import timezone

from mcp_runtime.calls import statements, statistics
from mcp_runtime.calls.statements import HELD, QUEUED, RUNNING_ELSEWHERE, RUNNING_UNDER, under_way
from mcp_runtime.client import quick_json
from mcp_runtime.protocol import jsonrpc, mcp
from mcp_runtime.protocol.errors import (
    ClientError,
    IdempotencyConflictError,
    InvalidArgumentsError,
    MemberDisabledError,
    NotCancellableError,
    ProtocolError,
    RemoteError,
    RequestCancelledError,
    RequestRefusedError,
    ToolDisabledError,
    ToolError,
    UnknownMemberError,
    UnknownToolError,
)
from mcp_runtime.rows import plain_sql
from mcp_runtime.rows.changes import CALL_ENDED, notify
from mcp_runtime.rows.kept_queries import KeptQuery, Slot
from mcp_runtime.schemas import schema_work, secrets, validation
from mcp_runtime.security import access, principals
from mcp_runtime.security.access import OPERATOR, Principal
from roster.models import CallTotal, GuildMember, Invocation, StatusChange, Tool

logger = logging.getLogger("guildhall.runtime")

Status = Invocation.Status
ErrorKind = Invocation.ErrorKind
_TABLE = Invocation._meta.db_table


@dataclass(frozen=True)
class Caller:
    """Who asks, and from which source. Without a user it is the operator, at the command line."""

    source: Invocation.Source
    user: User | None = None
    principal: Principal | None = None  # with a token; without one it is made of the user

    def who(self) -> Principal:
        """What decides what they may, as of now. Raises AccessError."""
        if self.principal is not None:
            return self.principal
        return OPERATOR if self.user is None else principals.principal_of_user(self.user)

    @property
    def name(self) -> str:
        if self.user is not None:
            token = self.principal.token_name if self.principal else ""
            return self.user.get_username() + (f" ({token})" if token else "")
        try:
            return f"{getpass.getuser()} (system user)"
        except (KeyError, OSError):  # a container's user without a name
            return "system user"


# Queue ------------------------------------------------------------------------------------------------------------


def queue(
    *, member_name: str, tool_name: str, arguments: Any, caller: Caller, idempotency_key: str | None = None
) -> tuple[Invocation, bool]:
    """Make the row of one call; True beside it when it is new, False when `idempotency_key` names an earlier one.

    A key belongs to the token that it comes with; without a token, to the user.

    Raises a RequestRefusedError for what will not be taken: unknown or disabled member or tool, arguments that do
    not fit the tool's input schema, a key that was used for another call. Raises an AccessError for who may not.
    """
    who = caller.who()
    access.require_invoke(who, member_name, tool_name)
    if idempotency_key is not None and (first := _earlier(caller, who, idempotency_key)):
        return _same_call(first, member_name, tool_name, arguments), False
    tool, schema = callable_tool(member_name, tool_name)
    member = tool.member
    with schema_work.paced(who.owner):
        _check_arguments(member, tool, schema, arguments)
        secret_paths = secrets.secret_paths(schema, arguments)
    invocation = Invocation(
        member=member,
        tool_name=tool.name,
        arguments=arguments,
        timeout=member.timeout_of(tool.name),
        source=caller.source,
        requested_by=caller.user,
        token_id=who.token_id,
        requester=caller.name,
        secret_paths=secret_paths,
        idempotency_key=idempotency_key,
    )
    if idempotency_key is None:
        statements.insert(invocation)
        return invocation, True
    try:
        with transaction.atomic():
            statements.insert(invocation)
    except IntegrityError:
        first = _earlier(caller, who, idempotency_key)
        if first is None:
            raise
        return _same_call(first, member_name, tool_name, arguments), False
    return invocation, True


def _earlier(caller: Caller, who: Principal, key: str) -> Invocation | None:
    """The call that this principal made with this key.

    The key of another token of the same user is another key: a narrowed token may not see what a wider one was given.
    """
    if caller.user is None:
        return None
    own = Invocation.objects.filter(requested_by=caller.user, token_id=who.token_id, idempotency_key=key)
    return own.select_related("member").first()


def _same_call(first: Invocation, member_name: str, tool_name: str, arguments: Any) -> Invocation:
    """`first`, if the call is the same. One that ended has masked secrets in its row, so both are compared masked."""
    masked = secrets.mask(arguments, first.secret_paths) if isinstance(arguments, dict) else arguments
    first_call = (first.member.name, first.tool_name, secrets.mask(first.arguments, first.secret_paths))
    if first_call != (member_name, tool_name, masked):
        raise IdempotencyConflictError(
            f"Idempotency-Key {first.idempotency_key!r} was used for another call (invocation {first.pk}, "
            f"{first.member.name} {first.tool_name}). Use a new key for a new call"
        )
    return first


# The database takes out of `definition` what is needed: it may be megabytes, and to read it holds the interpreter.
_TOOLS = KeptQuery(
    lambda: (
        Tool.objects.annotate(schema=KT("definition__inputSchema"), task=KT("definition__execution__taskSupport"))
        .filter(member__name=Slot("member"), name=Slot("tool"), listed=True)
        .order_by()
    ),
    columns=[field.attname for field in Tool._meta.concrete_fields if field.attname != "definition"],
    related={"member": ()},
    annotations=["schema", "task"],
)


def callable_tool(member_name: str, tool_name: str) -> tuple[Tool, str]:
    """The tool and its input schema as JSON, if it may be called now.

    Else raises a RequestRefusedError that says what is in the way.
    """
    tool: Any = _TOOLS.first(member=member_name, tool=tool_name)
    member = tool.member if tool else GuildMember.objects.filter(name=member_name).first()
    if member is None or member.removed_at:
        raise UnknownMemberError(f"no member {member_name!r} is in the roster")
    if not member.enabled:
        raise MemberDisabledError(f"member {member_name!r} is disabled; enable it first")
    if tool is None:
        # To whoever calls, so without what the member wrote last.
        error = member.error.partition(member.TAIL_MARK)[0]
        reason = f": {error}" if error else ""
        raise UnknownToolError(f"member {member_name!r} lists no tool {tool_name!r}{reason}")
    if not tool.enabled:
        raise ToolDisabledError(f"tool {tool_name!r} of member {member_name!r} is switched off")
    if tool.task == "required":
        raise RequestRefusedError(f"tool {tool_name!r} of member {member_name!r} {mcp.NEEDS_TASK}")
    is_object = isinstance(tool.schema, str) and tool.schema.startswith("{")
    return tool, tool.schema if is_object else "{}"


def _check_arguments(member: GuildMember, tool: Tool, schema: str, arguments: Any) -> None:
    place = f"arguments of {tool.name!r} of member {member.name!r}"
    if not isinstance(arguments, dict):
        raise InvalidArgumentsError(f"{place} must be a JSON object", "", "must be a JSON object")
    try:
        is_storable = quick_json.is_storable(arguments)
    except ProtocolError as error:
        raise InvalidArgumentsError(f"{place}: {error}", "", str(error)) from error
    if not is_storable:
        reason = "text with NUL characters or lone surrogates cannot be stored"
        raise InvalidArgumentsError(f"{place}: {reason}", "", reason)
    if tool.schema_error and tool.schema_error not in validation.PASSING_FAULTS:
        return  # said on the tool; the member checks its arguments itself
    fault = ""
    try:
        validation.validate(schema, arguments)
    except validation.ArgumentsError as error:
        errors = [(one.path, one.reason) for one in error.errors]
        raise InvalidArgumentsError(f"{place}: {error}", error.path, error.reason, errors) from error
    except validation.BrokenSchemaError as error:
        fault = str(error)
    if fault != tool.schema_error:
        # It passed the check at tools/list and broke in use: from now on this tool is not validated, and says so. Or
        # the check took too long then, and did not now.
        if fault:
            logger.warning("tool %r of member %r: %s; its arguments are not validated", tool.name, member.name, fault)
        Tool.objects.filter(pk=tool.pk).update(schema_error=fault)


# Claim and finish: the runtime's side -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """How a call ended, as the columns that say so; `result` and `error_data` as JSON text.

    The threads that read answers make them in parallel. One thread writes most of them, so they hold finished JSON that
    it need not encode.
    """

    status: Invocation.Status
    result: str | None = None
    error_kind: str = ""
    error_message: str = ""
    error_code: int | None = None
    error_data: str | None = None

    @property
    def size(self) -> int:
        """About how many characters are to be written."""
        return len(self.result or "") + len(self.error_data or "")

    @classmethod
    def succeeded(cls, result: dict[str, Any]) -> Outcome:
        return cls(Status.SUCCEEDED, result=_text(result))

    @classmethod
    def failed(cls, kind: Invocation.ErrorKind, message: str) -> Outcome:
        return cls(Status.FAILED, error_kind=kind, error_message=message)

    @classmethod
    def cancelled(cls, message: str = "") -> Outcome:
        return cls(Status.CANCELLED, error_message=message)

    @classmethod
    def of_error(cls, error: ClientError, *, member: str, tool: str) -> Outcome:
        """What a client's error means for the call (REQ-MCP-HTTP-29, 42 to 44): always with the member's name."""
        about = f"tool {tool!r} of member {member!r}"
        if isinstance(error, RequestCancelledError):
            return cls.cancelled(f"{about}: {error}")
        outcome = cls.failed(error.kind, f"{about}: {error.sentence}")
        if error.was_sent and isinstance(error, ToolError):
            return replace(outcome, result=_text(error.result))
        if error.was_sent and isinstance(error, RemoteError):
            return replace(
                outcome,
                error_code=error.code if -(2**31) <= error.code < 2**31 else None,
                error_data=None if error.data is None else _text(error.data),
            )
        return outcome


def _text(value: Any) -> str:
    return quick_json.encode(value).decode("utf-8", "surrogatepass")


def finish(invocation: Invocation, outcome: Outcome, lease_id: uuid.UUID) -> bool:
    """running -> finished. False: it is not this runtime's to finish any more."""
    return _finish(invocation, outcome, f"{RUNNING_UNDER} AND {HELD}", lease_id, lease_id)


def note_progress(invocation_id: int, progress: dict[str, Any], lease_id: uuid.UUID) -> None:
    """What the member says of a call that runs. A claim's row is the lease's, so no other condition is needed."""
    rows = Invocation.objects.filter(pk=invocation_id, status=Status.RUNNING, lease_id=lease_id)
    rows.update(progress=progress)


def refuse(invocation: Invocation, outcome: Outcome, lease_id: uuid.UUID) -> bool:
    """queued -> failed, for a call that was never claimed."""
    return _finish(invocation, outcome, f"{QUEUED} AND {HELD}", lease_id)


def _finish(invocation: Invocation, outcome: Outcome, condition: str, *leases: uuid.UUID) -> bool:
    changes: dict[str, Any] = {
        "status": outcome.status,
        "finished_at": timezone.now(),
        "result": outcome.result,
        "error_kind": outcome.error_kind,
        "error_message": jsonrpc.storable(outcome.error_message),  # a member's own words may be in it
        "error_code": outcome.error_code,
        "error_data": outcome.error_data,
    }
    if invocation.secret_paths:
        changes["arguments"] = _text(secrets.mask(invocation.arguments, invocation.secret_paths))
    # One commit: each one waits for the disk, a lone NOTIFY too. SQLite needs no transaction here.
    with transaction.atomic(savepoint=False) if connection.vendor == "postgresql" else nullcontext():
        if not statements.end(invocation.pk, changes, condition, *leases):
            return False
        notify(CALL_ENDED)
    return True


def end_lost(lease_id: uuid.UUID, message: str) -> int:
    """running -> failed / lost for every row that another lease than `lease_id` claimed; how many."""
    running = under_way(Status.RUNNING).exclude(lease_id=lease_id)
    count = 0
    for invocation in running.select_related("member"):
        text = f"tool {invocation.tool_name!r} of member {invocation.member.name!r}: {message}"
        outcome = Outcome.failed(ErrorKind.LOST, text)
        count += _finish(invocation, outcome, f"{RUNNING_ELSEWHERE} AND {HELD}", lease_id, lease_id)
    return count


def end_own(lease_id: uuid.UUID, message: str) -> None:
    """running -> failed / lost for what this runtime claimed and nobody finished: the last word of its stop."""
    for invocation in under_way(Status.RUNNING).filter(lease_id=lease_id).select_related("member"):
        text = f"tool {invocation.tool_name!r} of member {invocation.member.name!r}: {message}"
        finish(invocation, Outcome.failed(ErrorKind.LOST, text), lease_id)


# Cancel -----------------------------------------------------------------------------------------------------------


def cancel(invocation: Invocation) -> Invocation:
    """Cancel a queued call now, ask the runtime to cancel a running one. Raises NotCancellableError when it is over."""
    now = timezone.now()
    if not _finish(invocation, Outcome.cancelled("cancelled before it was started"), QUEUED):
        running = Invocation.objects.filter(pk=invocation.pk, status=Status.RUNNING)
        if not running.filter(cancel_requested_at=None).update(cancel_requested_at=now) and not running.exists():
            invocation.refresh_from_db()
            raise NotCancellableError(f"invocation {invocation.pk} is over: it has {invocation.get_status_display()}")
    invocation.refresh_from_db()
    return invocation


def cancel_calls_of_tokens(token_ids: Collection[int]) -> None:
    """Cancel the queued calls that were asked with these tokens. Those that run go on to their end."""
    rows = under_way(Status.QUEUED).filter(token__in=token_ids)
    outcome = Outcome.cancelled("its token was revoked before it was started")
    with transaction.atomic():
        for invocation in rows.exclude(secret_paths=[]):  # which are to be masked
            _finish(invocation, outcome, QUEUED)
        # One statement for the others, which may be thousands.
        rows.filter(secret_paths=[]).update(
            status=outcome.status, finished_at=timezone.now(), error_message=outcome.error_message
        )
        notify(CALL_ENDED)


# Prune ------------------------------------------------------------------------------------------------------------

PRUNE_BATCH = 500


def prune(*, days: int, keep: int) -> int:
    """Delete finished calls older than `days`, and the oldest beyond the newest `keep`; how many went.

    In small batches, so that writers never wait long. What goes is added to CallTotal first, so that /metrics counts
    on, and is in the rollups that plots are made of.
    """
    count = 0
    over = Invocation.objects.filter(status__in=Invocation.FINISHED)
    old = over.filter(finished_at__lt=timezone.now() - timedelta(days=days))
    newest_surplus = over.order_by("-id").values_list("id", flat=True)[keep : keep + 1].first()
    surplus = over.filter(id__lte=newest_surplus) if newest_surplus else over.none()
    for rows in (old, surplus):
        while ids := list(rows.order_by("id").values_list("id", flat=True)[:PRUNE_BATCH]):
            statistics.cover(ids)
            count += _prune_batch(ids)
    return count


def prune_status_changes(*, days: int) -> int:
    """Delete status changes older than `days`; how many went."""
    return StatusChange.objects.filter(created_at__lt=timezone.now() - timedelta(days=days)).delete()[0]


def _prune_batch(ids: list[int]) -> int:
    with transaction.atomic():
        # Locked, so that two who prune at once do not count a call twice.
        rows = Invocation.objects.select_for_update().filter(pk__in=ids, status__in=Invocation.FINISHED)
        batch = Invocation.objects.filter(pk__in=list(rows.order_by("id").values_list("id", flat=True)))
        for row in batch.order_by().values("member_id", "status", "error_kind").annotate(count=Count("id")):
            outcome = row["error_kind"] or row["status"]
            CallTotal.objects.get_or_create(member_id=row["member_id"], outcome=outcome)
            CallTotal.objects.filter(member_id=row["member_id"], outcome=outcome).update(
                count=F("count") + row["count"]
            )
        return batch.delete()[0]


def call_counts() -> dict[tuple[str, str], int]:
    """Finished calls since the hall exists, by member name and outcome (succeeded, cancelled, or the error kind)."""
    over = Invocation.objects.filter(status__in=Invocation.FINISHED).order_by()
    current = over.values("member__name", "error_kind", "status").annotate(count=Count("id"))
    totals = CallTotal.objects.annotate(kind=Value("")).values_list("member__name", "kind", "outcome", "count")
    counts: dict[tuple[str, str], int] = {}
    # One statement: between two, a prune would make the figures fall, which a scraper takes for a restart.
    rows = current.values_list("member__name", "error_kind", "status", "count").union(totals, all=True)
    for name, kind, outcome, count in rows:
        counts[name, kind or outcome] = counts.get((name, kind or outcome), 0) + count
    return counts


def ids_of_finished(invocation_ids: Iterable[int]) -> set[int]:
    """Those of the calls that are over. Asked hundreds of times a second, so in SQL: the ORM takes ten times longer."""
    ids = list(invocation_ids)
    if not ids:
        return set()
    places = ", ".join(["%s"] * len(ids))
    query = f"SELECT id FROM {_TABLE} WHERE finished_at IS NOT NULL AND id IN ({places})"  # noqa: S608
    return {row[0] for row in plain_sql.read(query, ids)}
