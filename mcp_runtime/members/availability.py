"""Is there any use in waiting for a member that is not connected? For all who call: the queue and the gateway."""

from __future__ import annotations

import time
from collections.abc import Callable

from mcp_runtime.members.lifecycle import Lifecycle
from mcp_runtime.members.restarts import is_tried_slowly
from roster.models import GuildMember

Status = GuildMember.Status
Wanted = GuildMember.Wanted


class Availability:
    """Looks at members' rows for the runtime whose `lifecycle` it is. A member that a call needs is had started."""

    def __init__(self, lifecycle: Lifecycle, wake_supervisor: Callable[[], None]) -> None:
        self._lifecycle = lifecycle
        self._wake_supervisor = wake_supervisor

    def wish(self, member_id: int) -> None:
        """Somebody calls it: if it was stopped, it is wanted again (REQ-MCP-HTTP-19)."""
        if self._lifecycle.own_row(member_id).filter(wanted=Wanted.STOPPED).update(wanted=Wanted.RUNNING):
            self._wake_supervisor()

    def no_use_waiting(self, member: GuildMember, since: float, deadline: float) -> str:
        """Why the member will not come up for one who waits `since` then, until `deadline`; empty while it may.

        Both are moments of `time.monotonic()`.
        """
        self._lifecycle.awaited.add(member.pk)
        if member.removed_at:
            return "its folder is gone"
        if not member.enabled:
            return "it is disabled"
        if member.manifest_error and member.status != Status.STARTING:
            return member.manifest_error
        if member.status == Status.ERROR and member.wanted == Wanted.RUNNING:
            return self._no_use_in_error(member, since, deadline)
        return f"it was not connected within {deadline - since:.6g} s" if time.monotonic() > deadline else ""

    def _no_use_in_error(self, member: GuildMember, since: float, deadline: float) -> str:
        restarts = self._lifecycle.restarts
        due = restarts.due(member)
        if member.restart_requested_at is None and (due is None or is_tried_slowly(member)):
            if restarts.failed_at(member) > since:
                return member.last_reason  # it was tried for this call, and failed
            # A call wakes a member that nothing else will soon, though never sooner than its back-off allows.
            wanted = max(restarts.earliest(member), time.monotonic())
            if wanted <= deadline and (due is None or wanted < due):
                rows = self._lifecycle.own_row(member.pk).filter(status=member.status)
                rows = rows.filter(next_restart_at=member.next_restart_at)
                rows.update(next_restart_at=restarts.plan(member.pk, wanted))
                self._wake_supervisor()
            due = wanted if due is None else min(due, wanted)
        late = time.monotonic() > deadline or (due is not None and due > deadline)
        return member.last_reason if late else ""
