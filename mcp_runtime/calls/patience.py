"""Queued calls of members that are not connected: how long they wait, and when they are refused."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable

from django.db import transaction
from django.utils import timezone

from mcp_runtime.calls import invocations
from mcp_runtime.calls.invocations import ErrorKind, Outcome
from mcp_runtime.calls.statements import under_way
from mcp_runtime.members.availability import Availability
from mcp_runtime.members.lifecycle import Lifecycle
from roster.models import GuildMember, Invocation

WAITING_BATCH = 500  # of one member

Status = Invocation.Status


class Patience:
    """For the runtime that holds `lease_id`. `notify_queue()` is called when a member is connected."""

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
        self._members: set[int] = set()  # whose calls wait
        # By the monotonic clock: when calls were first seen to wait for a member, and when each of them was queued.
        self._since: dict[int, float] = {}
        self._queue_times: dict[int, float] = {}

    @property
    def members(self) -> set[int]:
        """Those whose calls wait, as of now."""
        return set(self._members)

    def begin(self, member_id: int) -> None:
        """A call waits for it."""
        self._members.add(member_id)

    def member_changed(self, member_id: int) -> None:
        """Its status changed: calls that wait for it may go."""
        self._members.discard(member_id)
        if self._lifecycle.connected_member(member_id):
            self._since.pop(member_id, None)

    def serve(self) -> None:
        """Calls to members that are not connected: wait, have the member started, or fail as `unavailable`."""
        if not self._members:
            self._queue_times.clear()
            return
        members, self._members = self._members, set()
        queue_times, self._queue_times = self._queue_times, {}
        for member in GuildMember.objects.filter(pk__in=members):
            if self._lifecycle.connected_member(member.pk):
                self._notify_queue()
            elif self._serve_those_who_wait_for(member, queue_times):
                self._members.add(member.pk)
        self._since = {pk: since for pk, since in self._since.items() if pk in self._members}

    def _serve_those_who_wait_for(self, member: GuildMember, queue_times: dict[int, float]) -> bool:
        """Whether anybody waits for it. Its oldest calls only: one member's thousands must not delay the others'."""
        waiting = under_way(Status.QUEUED).filter(member=member).order_by("id")
        down_since = self._since.setdefault(member.pk, time.monotonic())
        rows = list(waiting[:WAITING_BATCH])
        hopeless = []
        for invocation in rows:
            queued_at = queue_times.get(invocation.pk)
            if queued_at is None:  # the wall clock is asked once: it may be set while the call waits
                queued_at = time.monotonic() - max((timezone.now() - invocation.queued_at).total_seconds(), 0.0)
            self._queue_times[invocation.pk] = queued_at
            since = max(queued_at, down_since)
            if reason := self._availability.no_use_waiting(member, since, since + invocation.timeout):
                hopeless.append((invocation, f"member {member.name!r} is unavailable: {reason}"))
        with transaction.atomic():
            for invocation, text in hopeless:
                invocations.refuse(invocation, Outcome.failed(ErrorKind.UNAVAILABLE, text), self._lease_id)
        return bool(rows)
