"""What the rows say now, in the form of events. These functions read the database."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from operator import attrgetter
from typing import Any, NamedTuple

from django.db.models import Q, QuerySet

from mcp_runtime.protocol import jsonrpc
from mcp_runtime.rows import clock, lease
from mcp_runtime.security import access
from mcp_runtime.security.access import Principal
from mcp_runtime.security.limits import Owner, in_turn
from roster.models import Call, GuildMember, Node

# A row may have its time a moment before other transactions see it, and calls of agents are written late.
OVERLAP = timedelta(seconds=10)
# Active calls, calls that ended since the last look, and calls that ended while a client was away. All of them together
# fit into an outbox. If there are more, their owners get equal shares.
MAX_CALLS = 400
MAX_KEYS = 10_000  # of active calls, and of calls that ended shortly before
MAX_MESSAGE = 2_000  # characters of an error
LONGEST_ABSENCE = timedelta(hours=1)
MEMBER_COLUMNS = (
    *("name", "status", "status_changed_at", "enabled", "desired_state"),
    *("last_error", "manifest_error", "node"),
)
CALL_COLUMNS = (
    *("member__name", "tool_name", "status", "source", "queued_at", "started_at", "finished_at", "progress"),
    *("error_kind", "error_message", "requested_by", "token"),
)


@dataclass(frozen=True)
class MemberState:
    """A member as everybody sees it who may know that it exists."""

    name: str
    facts: dict[str, Any] = field(compare=False)
    data: bytes  # `facts` in JSON

    @cached_property
    def digest(self) -> int:
        """64 bits that stand for it in the id of an event."""
        return int.from_bytes(hashlib.blake2b(self.data, digest_size=8).digest())


@dataclass(frozen=True)
class CallState:
    """A call, and whose it is. The ids are not in `data`, which is what is sent."""

    pk: int
    member: str
    requester_id: int | None
    token_id: int | None
    finished_at: datetime | None
    data: bytes

    @property
    def is_finished(self) -> bool:
        return self.finished_at is not None


class CallKey(NamedTuple):
    """A call, without its state, and whose it is."""

    pk: int
    requester_id: int | None
    token_id: int | None

    @property
    def owner(self) -> Owner:
        return self.requester_id, self.token_id


@dataclass(frozen=True)
class Snapshot:
    """All members of the roster, and the calls that run, wait or have just ended, at the time `at`.

    `ended` are all calls that ended shortly before, also if `calls` does not have them any more. `missing` are the
    users of calls that are left out. If `is_cut`, there are so many calls that those of any user may be missing.
    """

    at: datetime
    members: dict[str, MemberState]
    calls: dict[int, CallState]
    ended: frozenset[int] = frozenset()
    missing: frozenset[int | None] = frozenset()
    is_cut: bool = False

    def may_lack_calls_of(self, principal: Principal) -> bool:
        """Whether a call that the principal may see is left out."""
        sees_all = principal.views_calls and not principal.is_narrowed
        return self.is_cut or (bool(self.missing) and (sees_all or principal.user_id in self.missing))


def take(since: datetime, before: Snapshot | None = None, selected: Iterable[int] = ()) -> Snapshot:
    """Read the rows, with the calls that ended since the last snapshot, or since then if there is none.

    A call that has become visible late counts as one of them. `selected` are the ids of calls that are never left out.
    """
    at = clock.now()
    ended_since = (before.at if before else since) - OVERLAP
    active = _keys(Call.objects.filter(status__in=Call.ACTIVE).order_by("id"))
    ended = _keys(Call.objects.filter(finished_at__gte=ended_since).order_by("-finished_at"))
    known = before.ended if before else frozenset()
    chosen, missing = _share(active)
    chosen_ended, missing_ended = _share([key for key in ended if key.pk not in known])
    calls = _still_recent(before, ended_since) if before else {}
    rows = Call.objects.filter(pk__in={*chosen, *chosen_ended, *selected}).order_by("id")
    calls |= {call.pk: call for call in _calls(rows)}
    is_cut = max(len(active), len(ended)) > MAX_KEYS
    return Snapshot(at, _members(), calls, frozenset(key.pk for key in ended), missing | missing_ended, is_cut)


def _keys(rows: QuerySet[Call]) -> list[CallKey]:
    """The first MAX_KEYS, and one more if there are more."""
    return [CallKey(*row) for row in rows.values_list("pk", "requested_by_id", "token_id")[: MAX_KEYS + 1]]


def _share(keys: list[CallKey]) -> tuple[list[int], frozenset[int | None]]:
    """The calls that fit, the same number for each owner, and the users of those that do not fit."""
    if len(keys) > MAX_CALLS:
        keys = in_turn(keys, attrgetter("owner"))
    return [key.pk for key in keys[:MAX_CALLS]], frozenset(key.requester_id for key in keys[MAX_CALLS:])


def _still_recent(before: Snapshot, ended_since: datetime) -> dict[int, CallState]:
    """The calls that ended shortly before, for streams that begin now."""
    ended = [call for call in before.calls.values() if call.finished_at is not None and call.finished_at >= ended_since]
    return {call.pk: call for call in sorted(ended, key=attrgetter("finished_at"))[-MAX_CALLS:]}


def calls_since(since: datetime, principal: Principal, only: Q) -> list[CallState] | None:
    """The calls that ended since then and that the principal may see, oldest first. None if they are too many."""
    readable = access.readable_calls(principal)
    if not -OVERLAP < clock.now() - since < LONGEST_ABSENCE:
        return None
    rows = Call.objects.filter(readable, only, finished_at__gte=since - OVERLAP).order_by("id")
    calls = _calls(rows[: MAX_CALLS + 1])
    return None if len(calls) > MAX_CALLS else calls


def call_of(pk: int) -> CallState | None:
    """The call, whoever may see it."""
    return next(iter(_calls(Call.objects.filter(pk=pk))), None)


def has_member(name: str) -> bool:
    return GuildMember.objects.filter(name=name, removed_at=None).exists()


def _members() -> dict[str, MemberState]:
    live_ids = frozenset(node.pk for node in Node.objects.all() if lease.is_alive(node))
    rows = GuildMember.objects.filter(removed_at=None).only(*MEMBER_COLUMNS)
    return {row.name: _member_state(row, live_ids) for row in rows}


def _member_state(row: GuildMember, live_ids: frozenset[int]) -> MemberState:
    status = row.true_status(live_ids)
    error = row.manifest_error or (row.last_reason if status == GuildMember.Status.ERROR else "")
    facts = {
        "name": row.name,
        "status": status,
        "status_changed_at": _text(row.status_changed_at),
        "enabled": row.enabled,
        "desired_state": row.desired_state,
        "error": error[:MAX_MESSAGE],
    }
    return MemberState(row.name, facts, jsonrpc.encode(facts))


def _calls(rows: QuerySet[Call]) -> list[CallState]:
    return [_call_state(row) for row in rows.select_related("member").only(*CALL_COLUMNS)]


def _call_state(row: Call) -> CallState:
    error = {"kind": row.error_kind, "message": row.error_message[:MAX_MESSAGE]} if row.error_kind else None
    facts = {
        "id": row.pk,
        "member": row.member.name,
        "tool": row.tool_name,
        "status": row.status,
        "source": row.source,
        "queued_at": _text(row.queued_at),
        "started_at": _text(row.started_at),
        "finished_at": _text(row.finished_at),
        "progress": row.progress,
        "error": error,
    }
    return CallState(row.pk, row.member.name, row.requested_by_id, row.token_id, row.finished_at, jsonrpc.encode(facts))


def _text(moment: datetime | None) -> str | None:
    return moment.isoformat().replace("+00:00", "Z") if moment is not None else None
