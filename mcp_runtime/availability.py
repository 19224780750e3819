"""Is there any use in waiting for a member that is not connected? For all who call: the queue and the gateway."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from django.utils import timezone

from mcp_runtime.lifecycle import Lifecycle, earliest_start
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

    def no_use_waiting(self, member: GuildMember, since: datetime, deadline: datetime) -> str:
        """Why the member will not come up within the patience of one who waits `since`; empty while it may."""
        if member.removed_at:
            return "its folder is gone"
        if not member.enabled:
            return "it is disabled"
        if member.manifest_error and member.status != Status.STARTING:
            return member.manifest_error
        if member.status == Status.ERROR and member.wanted == Wanted.RUNNING:
            return self._no_use_in_error(member, since, deadline)
        patience = (deadline - since).total_seconds()
        return f"it was not connected within {patience:g} s" if timezone.now() > deadline else ""

    def _no_use_in_error(self, member: GuildMember, since: datetime, deadline: datetime) -> str:
        due = member.next_restart_at
        if due is None and member.restart_requested_at is None:
            if member.status_changed_at > since:
                return member.last_reason  # it was tried for this call, and failed
            # A call wakes a member that nothing else will, though never sooner than its back-off allows.
            due = max(earliest_start(member), timezone.now())
            if due <= deadline:
                rows = self._lifecycle.own_row(member.pk).filter(status=member.status, next_restart_at=None)
                rows.update(next_restart_at=due)
                self._wake_supervisor()
        late = timezone.now() > deadline or (due is not None and due > deadline)
        return member.last_reason if late else ""
