"""Queue, finish and cancel calls. Only this module and `statements` change the status of a row.

    queued -> running -> succeeded | failed | cancelled        queued -> cancelled | failed (unavailable)

Each arrow is one compare-and-set. A row is claimed at most once. If its runtime dies, the call ends as `failed / lost`.
"""

from __future__ import annotations

import getpass
import logging
import uuid
from collections.abc import Collection, Iterable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

from django.contrib.auth.models import User
from django.db import IntegrityError, connection
from django.db.models import Count, Value
from django.db.models.fields.json import KT

from mcp_runtime.calls import search_texts, statements
from mcp_runtime.calls.statements import (
    HOLDS_LEASE,
    QUEUED,
    RUNNING_UNDER_LEASE,
    RUNNING_UNDER_NO_LEASE,
    active_calls,
)
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
    ToolHeldError,
    UnknownMemberError,
    UnknownToolError,
)
from mcp_runtime.rows import clock, plain_sql
from mcp_runtime.rows.changes import CALL_ENDED, notify
from mcp_runtime.rows.compiled_queries import CompiledQuery, Placeholder
from mcp_runtime.rows.database import short_transaction
from mcp_runtime.rows.lease import held_by_none
from mcp_runtime.schemas import schema_work
from mcp_runtime.security import access, principals
from mcp_runtime.security.access import OPERATOR, Principal
from roster.models import Call, CallTotal, Contract, GuildMember, Tool

logger = logging.getLogger("guildhall.runtime")

Status = Call.Status
ErrorKind = Call.ErrorKind
_TABLE = Call._meta.db_table

RUNTIME_ENDED = "the runtime ended during the call; the call is not repeated automatically"


@dataclass(frozen=True)
class Requester:
    """Who makes a call, and from which source. Without a user it is the operator, at the command line."""

    source: Call.Source
    user: User | None = None
    principal: Principal | None = None  # None stands for the principal of the user without a token

    def current_principal(self) -> Principal:
        """Return the principal whose current rights decide whether the call is allowed. Raises AccessError."""
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
        except (KeyError, OSError):  # a user of a container may have no name
            return "system user"


# Queue ------------------------------------------------------------------------------------------------------------


def queue(
    *, member_name: str, tool_name: str, arguments: Any, requester: Requester, idempotency_key: str | None = None
) -> tuple[Call, bool]:
    """Create the row of a call. Return the call, and whether this request created it.

    If an earlier request used `idempotency_key`, return the call of that request and False. A key belongs to the token
    of the request. If there is no token, it belongs to the user.

    Raises RequestRefusedError if the member or the tool is unknown or disabled, if the arguments do not match the input
    schema of the tool, or if the key was used for another call. Raises AccessError if the principal may not call the
    tool.
    """
    from mcp_runtime.schemas import secrets  # late, as in `_check_arguments`

    principal = requester.current_principal()
    access.require_invoke(principal, member_name, tool_name)
    if idempotency_key is not None and (first := _first_call(requester, principal, idempotency_key)):
        _require_same_call(first, member_name, tool_name, arguments)
        return first, False
    tool, schema = callable_tool(member_name, tool_name)
    member = tool.member
    with schema_work.paced(principal.owner):
        _check_arguments(member, tool, schema, arguments)
        secret_paths = secrets.secret_paths(schema, arguments)
    call = Call(
        member=member,
        tool_name=tool.name,
        tool_version=tool.version,
        arguments=arguments,
        timeout=member.timeout_of(tool.name),
        source=requester.source,
        requested_by=requester.user,
        token_id=principal.token_id,
        requester=requester.name,
        secret_paths=secret_paths,
        idempotency_key=idempotency_key,
        queued_at=clock.now(),
    )
    if idempotency_key is None:
        statements.insert(call)
        return call, True
    try:
        with short_transaction():
            statements.insert(call)
    except IntegrityError:
        first = _first_call(requester, principal, idempotency_key)
        if first is None:
            raise
        _require_same_call(first, member_name, tool_name, arguments)
        return first, False
    return call, True


def _first_call(requester: Requester, principal: Principal, key: str) -> Call | None:
    """Return the call that this principal made with this key.

    Tokens of one user do not share keys. A token with fewer rights must not see the result of a call of a token with
    more rights.
    """
    if requester.user is None:
        return None
    rows = Call.objects.filter(requested_by=requester.user, token=principal.token_id, idempotency_key=key)
    return rows.select_related("member").first()


def _require_same_call(first: Call, member_name: str, tool_name: str, arguments: Any) -> None:
    """Raise IdempotencyConflictError if the call differs from `first`.

    The row of a call that ended has masked secrets, so the masked arguments are compared.
    """
    from mcp_runtime.schemas import secrets  # late, as in `_check_arguments`

    masked_arguments = secrets.mask(arguments, first.secret_paths) if isinstance(arguments, dict) else arguments
    first_call = (first.member.name, first.tool_name, secrets.mask(first.arguments, first.secret_paths))
    if first_call != (member_name, tool_name, masked_arguments):
        raise IdempotencyConflictError(
            f"Idempotency-Key {first.idempotency_key!r} was used for a different request (call {first.pk}, "
            f"{first.member.name} {first.tool_name}). Use a new key for a new call"
        )


# The database extracts the necessary parts of `definition`. A definition may have megabytes, and all other threads
# would wait while this thread decodes it.
_TOOLS = CompiledQuery(
    lambda: (
        Tool.objects.annotate(schema=KT("definition__inputSchema"), task=KT("definition__execution__taskSupport"))
        .filter(member__name=Placeholder("member"), name=Placeholder("tool"), listed=True)
        .order_by()
    ),
    columns=[field.attname for field in Tool._meta.concrete_fields if field.attname != "definition"],
    related={"member": ()},
    annotations=["schema", "task"],
)


def callable_tool(member_name: str, tool_name: str) -> tuple[Tool, str]:
    """Return the tool and its input schema as JSON. Raises RequestRefusedError if it cannot be called now."""
    tool: Any = _TOOLS.first(member=member_name, tool=tool_name)
    member = tool.member if tool else GuildMember.objects.filter(name=member_name).first()
    if member is None or member.removed_at:
        raise UnknownMemberError(f"no member {member_name!r} is in the roster")
    if not member.enabled:
        raise MemberDisabledError(f"member {member_name!r} is disabled; enable it first")
    if tool is None:
        # Clients see this text, so it leaves out the last output of the member.
        error = member.error.partition(member.TAIL_MARK)[0]
        reason = f": {error}" if error else ""
        raise UnknownToolError(f"member {member_name!r} lists no tool {tool_name!r}{reason}")
    if not tool.enabled:
        raise ToolDisabledError(f"tool {tool_name!r} of member {member_name!r} is disabled")
    if tool.is_held:
        raise ToolHeldError(member_name, tool_name, reason_for_hold(tool))
    if tool.task == "required":
        raise RequestRefusedError(f"tool {tool_name!r} of member {member_name!r} {mcp.NEEDS_TASK}")
    is_object = isinstance(tool.schema, str) and tool.schema.startswith("{")
    return tool, tool.schema if is_object else "{}"


def check(*, member_name: str, tool_name: str, arguments: Any, requester: Requester) -> None:
    """Raise what `queue` raises for this call, except for keys. Queue nothing."""
    principal = requester.current_principal()
    access.require_invoke(principal, member_name, tool_name)
    tool, schema = callable_tool(member_name, tool_name)
    with schema_work.paced(principal.owner):
        _check_arguments(tool.member, tool, schema, arguments)


def reason_for_hold(tool: Tool) -> str:
    """Return why a tool waits for an approval. Empty if that is not known."""
    contract = Contract.objects.filter(member=tool.member_id, kind=Contract.Kind.TOOL, name=tool.name).first()
    return contract.reason if contract else ""


def refusal_of_held(member_id: int, member: str, tool_name: str) -> str:
    """Return why an accepted call cannot be sent, because its tool waits for an approval by now. Empty if it can."""
    tool = Tool.objects.filter(member=member_id, name=tool_name, is_held=True).first()
    return "" if tool is None else str(ToolHeldError(member, tool_name, reason_for_hold(tool)))


def _check_arguments(member: GuildMember, tool: Tool, schema: str, arguments: Any) -> None:
    # Imported late, because most commands call no tool, and the library of schemas takes a tenth of their start.
    from mcp_runtime.schemas import validation

    subject = f"arguments of {tool.name!r} of member {member.name!r}"
    if not isinstance(arguments, dict):
        raise InvalidArgumentsError(f"{subject} must be a JSON object", "", "must be a JSON object")
    try:
        is_storable = quick_json.is_storable(arguments)
    except ProtocolError as error:
        raise InvalidArgumentsError(f"{subject}: {error}", "", str(error)) from error
    if not is_storable:
        reason = "text with NUL characters or lone surrogates cannot be stored"
        raise InvalidArgumentsError(f"{subject}: {reason}", "", reason)
    if tool.schema_error and tool.schema_error not in validation.TEMPORARY_FAULTS:
        return  # the schema cannot be used. The page of the tool shows why, and the member validates the arguments
    fault = ""
    try:
        validation.validate(schema, arguments)
    except validation.ArgumentsError as error:
        errors = [(each.path, each.reason) for each in error.errors]
        raise InvalidArgumentsError(f"{subject}: {error}", error.path, error.reason, errors) from error
    except validation.BrokenSchemaError as error:
        fault = str(error)
    if fault != tool.schema_error:
        # `tool.schema_error` is empty or a temporary fault here. If `fault` is not empty, the schema cannot be used
        # now, and the page of the tool shows the fault. If it is not temporary, the hall does not validate the
        # arguments of later calls. If `fault` is empty, the temporary fault is gone.
        if fault:
            logger.warning("tool %r of member %r: %s; its arguments are not validated", tool.name, member.name, fault)
        Tool.objects.filter(pk=tool.pk).update(schema_error=fault)


# Claim and finish: the runtime's side -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """How a call ended. Its fields are the values of columns of Call. `result` and `error_data` are JSON text.

    A single thread writes most outcomes, so the threads that run the calls encode the JSON, in parallel.
    """

    status: Call.Status
    result: str | None = None
    error_kind: str = ""
    error_message: str = ""
    error_code: int | None = None
    error_data: str | None = None
    result_text: str = ""
    """The searchable text of the result. It is no column, but a part of `search_text`."""

    @property
    def size(self) -> int:
        """The approximate number of characters to write."""
        return len(self.result or "") + len(self.error_data or "")

    @classmethod
    def succeeded(cls, result: dict[str, Any]) -> Outcome:
        return cls(Status.SUCCEEDED, _encode_json(result), result_text=search_texts.text_of_result(result))

    @classmethod
    def failed(cls, kind: Call.ErrorKind, message: str) -> Outcome:
        return cls(Status.FAILED, error_kind=kind, error_message=message)

    @classmethod
    def cancelled(cls, message: str = "") -> Outcome:
        return cls(Status.CANCELLED, error_message=message)

    @classmethod
    def of_error(cls, error: ClientError, *, member: str, tool: str) -> Outcome:
        """Return the outcome for an error of the MCP client (REQ-MCP-HTTP-29, 42 to 44). Its text names the member."""
        subject = f"tool {tool!r} of member {member!r}"
        if isinstance(error, RequestCancelledError):
            return cls.cancelled(f"{subject}: {error}")
        outcome = cls.failed(error.kind, f"{subject}: {error.sentence}")
        if error.was_sent and isinstance(error, ToolError):
            text = search_texts.text_of_result(error.result)
            return replace(outcome, result=_encode_json(error.result), result_text=text)
        if error.was_sent and isinstance(error, RemoteError):
            return replace(
                outcome,
                error_code=error.code if -(2**31) <= error.code < 2**31 else None,
                error_data=None if error.data is None else _encode_json(error.data),
            )
        return outcome


def _encode_json(value: Any) -> str:
    return quick_json.encode(value).decode("utf-8", "surrogatepass")


def finish(call: Call, outcome: Outcome, lease_id: uuid.UUID) -> bool:
    """Change the call from running to the status of `outcome`. Return False if this runtime no longer owns the call."""
    return _finish(call, outcome, f"{RUNNING_UNDER_LEASE} AND {HOLDS_LEASE}", lease_id, lease_id)


def write_progress(call_id: int, progress: dict[str, Any], lease_id: uuid.UUID) -> None:
    """Write the progress of a running call, if the runtime with `lease_id` claimed it."""
    rows = Call.objects.filter(pk=call_id, status=Status.RUNNING, lease_id=lease_id)
    rows.update(progress=progress)


def refuse(call: Call, outcome: Outcome, lease_id: uuid.UUID) -> bool:
    """Change the status from queued to failed, for a call that was never claimed.

    Return False if it is no longer queued, or if this runtime lost the lease.
    """
    return _finish(call, outcome, f"{QUEUED} AND {HOLDS_LEASE}", lease_id)


def _finish(call: Call, outcome: Outcome, condition: str, *lease_ids: uuid.UUID) -> bool:
    """End the call if `condition` is true, and return whether it was true. `lease_ids` are its parameters."""
    changes: dict[str, Any] = {
        "status": outcome.status,
        "finished_at": clock.now(),
        "result": outcome.result,
        "error_kind": outcome.error_kind,
        "error_message": jsonrpc.storable(outcome.error_message),  # it may contain text of the member
        "error_code": outcome.error_code,
        "error_data": outcome.error_data,
    }
    changes["search_text"] = _search_text(call, outcome, changes)
    # With PostgreSQL, the change and the notification have one transaction, because each commit waits for the disk.
    # SQLite needs no transaction here, and a caller's transaction needs no savepoint.
    needs_transaction = connection.vendor == "postgresql" and not connection.in_atomic_block
    with short_transaction() if needs_transaction else nullcontext():
        if not statements.end(call.pk, changes, condition, *lease_ids):
            return False
        notify(CALL_ENDED)
    return True


def _search_text(call: Call, outcome: Outcome, changes: dict[str, Any]) -> str:
    """Return the searchable text of the call. If it has secrets, mask them first, and add the arguments to `changes`.

    Then the text has no words of the outcome, because a member may repeat a secret in it.
    """
    if not call.secret_paths:
        return search_texts.searchable(call.arguments, outcome.result_text, changes["error_message"])
    from mcp_runtime.schemas import secrets  # late, as in `_check_arguments`

    masked_arguments = secrets.mask(call.arguments, call.secret_paths)
    changes["arguments"] = _encode_json(masked_arguments)
    return search_texts.searchable(masked_arguments, "", "")


def end_lost_calls(lease_id: uuid.UUID, message: str) -> int:
    """Change the status from running to failed / lost, for calls whose lease no node has. Return how many.

    The runtime with `lease_id` does this for the whole hall.
    """
    rows = active_calls(Status.RUNNING).filter(held_by_none())
    count = 0
    for call in rows.select_related("member"):
        text = f"tool {call.tool_name!r} of member {call.member.name!r}: {message}"
        outcome = Outcome.failed(ErrorKind.LOST, text)
        count += _finish(call, outcome, f"{RUNNING_UNDER_NO_LEASE} AND {HOLDS_LEASE}", lease_id)
    return count


def end_calls_of_lease(lease_id: uuid.UUID, message: str) -> None:
    """Change the status from running to failed / lost, for calls that run under this lease: the runtime is stopping."""
    for call in active_calls(Status.RUNNING).filter(lease_id=lease_id).select_related("member"):
        text = f"tool {call.tool_name!r} of member {call.member.name!r}: {message}"
        finish(call, Outcome.failed(ErrorKind.LOST, text), lease_id)


# Cancel -----------------------------------------------------------------------------------------------------------


def cancel(call: Call) -> Call:
    """Cancel a queued call, or request the cancellation of a running call.

    Raises NotCancellableError if the call has ended.
    """
    now = clock.now()
    if not _finish(call, Outcome.cancelled("cancelled before the call started"), QUEUED):
        rows = Call.objects.filter(pk=call.pk, status=Status.RUNNING)
        if not rows.filter(cancel_requested_at=None).update(cancel_requested_at=now) and not rows.exists():
            call.refresh_from_db()
            raise NotCancellableError(f"call {call.pk} has ended: {call.get_status_display()}")
    call.refresh_from_db()
    return call


def cancel_calls_of_tokens(token_ids: Collection[int]) -> None:
    """Cancel the queued calls of these tokens. Running calls continue."""
    rows = active_calls(Status.QUEUED).filter(token__in=token_ids)
    outcome = Outcome.cancelled("its token was revoked before the call started")
    with short_transaction():
        for call in rows.exclude(secret_paths=[]):  # these calls have secrets, which must be masked
            _finish(call, outcome, QUEUED)
        # One statement for the others, because they may be thousands.
        rows.filter(secret_paths=[]).update(
            status=outcome.status, finished_at=clock.now(), error_message=outcome.error_message
        )
        notify(CALL_ENDED)


# Counts -----------------------------------------------------------------------------------------------------------


def call_counts() -> dict[tuple[str, str], int]:
    """Return the number of ended calls by member name and outcome (succeeded, cancelled, or the error kind)."""
    finished_calls = Call.objects.filter(status__in=Call.FINISHED).order_by()
    current = finished_calls.values("member__name", "error_kind", "status").annotate(count=Count("id"))
    totals = CallTotal.objects.annotate(kind=Value("")).values_list("member__name", "kind", "outcome", "count")
    counts: dict[tuple[str, str], int] = {}
    # One statement reads both tables. A prune between two statements would lower the counters, which
    # Prometheus would interpret as a restart.
    rows = current.values_list("member__name", "error_kind", "status", "count").union(totals, all=True)
    for name, kind, outcome, count in rows:
        counts[name, kind or outcome] = counts.get((name, kind or outcome), 0) + count
    return counts


def ids_of_finished(call_ids: Iterable[int]) -> set[int]:
    """Return the ids of those calls that have ended.

    This runs often, so it is written in SQL. The ORM is ten times slower.
    """
    ids = list(call_ids)
    if not ids:
        return set()
    placeholders = ", ".join(["%s"] * len(ids))
    query = f"SELECT id FROM {_TABLE} WHERE finished_at IS NOT NULL AND id IN ({placeholders})"  # noqa: S608
    return {row[0] for row in plain_sql.read(query, ids)}
