"""Queued calls of members that are not connected: let them wait, or refuse them."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable

from django.db import connection
from django.db.models import Exists, OuterRef, Q

from mcp_runtime.calls import transitions
from mcp_runtime.calls.statements import active_calls
from mcp_runtime.calls.transitions import ErrorKind, Outcome
from mcp_runtime.members.availability import Availability
from mcp_runtime.members.lifecycle import Lifecycle
from mcp_runtime.rows import clock
from mcp_runtime.rows.database import short_transaction
from mcp_runtime.rows.lease import held_by_none
from roster.models import Call, GuildMember

MAX_CHECKED_CALLS = 500  # of one member, at each check
MAX_CHECKED_MEMBERS = 100  # of those without a runtime, at each check

Status = Call.Status


class WaitingCalls:
    """The members whose queued calls wait, in the runtime that holds `lease_id`.

    `notify_queue()` is called when such a member is connected.
    """

    def __init__(
        self,
        *,
        lease_id: uuid.UUID,
        lifecycle: Lifecycle,
        availability: Availability,
        notify_queue: Callable[[], None],
    ) -> None:
        self._lease_id = lease_id
        self._lifecycle = lifecycle
        self._availability = availability
        self._notify_queue = notify_queue
        self._members: set[int] = set()
        # Both are times of the monotonic clock: the first check at which calls waited for the member, by member id, and
        # the time at which the call was queued, by call id.
        self._wait_starts: dict[int, float] = {}
        self._queue_times: dict[int, float] = {}

    @property
    def members(self) -> set[int]:
        """A copy of the ids of the members whose calls wait."""
        return set(self._members)

    def add_member(self, member_id: int) -> None:
        """Note that a queued call waits for this member."""
        self._members.add(member_id)

    def member_changed(self, member_id: int) -> None:
        """Let the calls of a member whose status changed be claimed again."""
        self._members.discard(member_id)
        if self._lifecycle.connected_member(member_id):
            self._wait_starts.pop(member_id, None)

    def check(self) -> None:
        """Check all waiting calls. Each waits on, has its member started, or fails as `unavailable`."""
        self._members |= members_without_runtime()
        if not self._members:
            self._queue_times.clear()
            return
        members, self._members = self._members, set()
        queue_times, self._queue_times = self._queue_times, {}
        rows = GuildMember.objects.filter(pk__in=members)
        for member in rows.filter(Q(lease_id=self._lease_id) | held_by_none()):  # other nodes check the others
            if self._lifecycle.connected_member(member.pk):
                self._notify_queue()
            elif self._check_calls_of(member, queue_times):
                self._members.add(member.pk)
        self._wait_starts = {pk: start for pk, start in self._wait_starts.items() if pk in self._members}

    def _check_calls_of(self, member: GuildMember, queue_times: dict[int, float]) -> bool:
        """Check the oldest queued calls of one member. Return whether there were any.

        Only the oldest MAX_CHECKED_CALLS, because thousands of one member must not delay those of another.
        """
        queued_calls = active_calls(Status.QUEUED).filter(member=member).order_by("id")
        wait_start = self._wait_starts.setdefault(member.pk, time.monotonic())
        rows = list(queued_calls[:MAX_CHECKED_CALLS])
        refusals = []
        for call in rows:
            queued_at = queue_times.get(call.pk)
            if queued_at is None:  # read the wall clock only once, because it may be changed while the call waits
                queued_at = time.monotonic() - max((clock.now() - call.queued_at).total_seconds(), 0.0)
            self._queue_times[call.pk] = queued_at
            since = max(queued_at, wait_start)
            if reason := self._availability.no_use_waiting(member, since, since + call.timeout):
                refusals.append((call, f"member {member.name!r} is unavailable: {reason}"))
        with short_transaction():
            for call, text in refusals:
                transitions.refuse(call, Outcome.failed(ErrorKind.UNAVAILABLE, text), self._lease_id)
        return bool(rows)


def members_without_runtime() -> set[int]:
    """Members with queued calls whose node has no runtime. Every node checks these calls, so none waits for ever.

    With SQLite the only runtime owns all members.
    """
    if connection.vendor == "sqlite":
        return set()
    queued_calls = Call.objects.filter(member=OuterRef("pk"), status=Status.QUEUED)
    members = GuildMember.objects.filter(held_by_none(), Exists(queued_calls)).order_by()
    return set(members.values_list("pk", flat=True)[:MAX_CHECKED_MEMBERS])
