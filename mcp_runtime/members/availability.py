"""Decides whether a call may wait for a member that is not connected. For the queue and the gateway."""

from __future__ import annotations

import time
from collections.abc import Callable

from mcp_runtime.members.lifecycle import Lifecycle
from mcp_runtime.members.restarts import is_tried_slowly
from roster.models import GuildMember

Status = GuildMember.Status
DesiredState = GuildMember.DesiredState


class Availability:
    """Checks members' rows for the runtime of `lifecycle`, and requests the start of a member that a call needs."""

    def __init__(self, lifecycle: Lifecycle, wake_supervisor: Callable[[], None]) -> None:
        self._lifecycle = lifecycle
        self._wake_supervisor = wake_supervisor

    def ask_for_start(self, member_id: int) -> None:
        """Request that a stopped member runs again, because of a call (REQ-MCP-HTTP-19)."""
        if (
            self._lifecycle.own_row(member_id)
            .filter(desired_state=DesiredState.STOPPED)
            .update(desired_state=DesiredState.RUNNING)
        ):
            self._wake_supervisor()

    def no_use_waiting(self, member: GuildMember, since: float, deadline: float) -> str:
        """The reason why the member will not start for a call that waits from `since` until `deadline`.

        It is empty if the member may still start. `since` and `deadline` are moments of `time.monotonic()`.
        """
        self._lifecycle.awaited_ids.add(member.pk)
        if member.removed_at:
            return "its folder is gone"
        if not member.enabled:
            return "it is disabled"
        if member.manifest_error and member.status != Status.STARTING:
            return member.manifest_error
        if member.status == Status.ERROR and member.desired_state == DesiredState.RUNNING:
            return self._no_use_in_error(member, since, deadline)
        return f"it was not connected within {deadline - since:.6g} s" if time.monotonic() > deadline else ""

    def _no_use_in_error(self, member: GuildMember, since: float, deadline: float) -> str:
        if member.needs_sign_in and member.restart_requested_at is None:
            return member.last_reason  # only a person can help
        restarts = self._lifecycle.restarts
        next_try = restarts.next_try(member)
        if member.restart_requested_at is None and (next_try is None or is_tried_slowly(member)):
            if restarts.failed_at(member) > since:
                return member.last_reason  # it was started for this call, and failed
            # A call starts a member that nothing else starts soon, but never sooner than its back-off allows.
            moment = max(restarts.earliest(member), time.monotonic())
            if moment <= deadline and (next_try is None or moment < next_try):
                rows = self._lifecycle.own_row(member.pk).filter(status=member.status)
                rows = rows.filter(next_restart_at=member.next_restart_at)
                rows.update(next_restart_at=restarts.plan(member.pk, moment))
                self._wake_supervisor()
            next_try = moment if next_try is None else min(next_try, moment)
        is_late = time.monotonic() > deadline or (next_try is not None and next_try > deadline)
        return member.last_reason if is_late else ""
