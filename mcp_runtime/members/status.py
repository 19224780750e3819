"""The only writer of a member's status.

    DISCONNECTED -> STARTING -> CONNECTED -> STOPPING -> DISCONNECTED          (`stop` is allowed in STARTING too)
    STARTING, CONNECTED -> ERROR -> STARTING | DISCONNECTED

Each arrow is one compare-and-set by the owner of the member, and one StatusChange row in the same transaction. A
runtime that takes over a member puts its row back to DISCONNECTED.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterable
from typing import Any

from django.db.models import F, QuerySet

from mcp_runtime.members import contracts, tools
from mcp_runtime.members.live import LiveMember
from mcp_runtime.members.readiness import Introduction
from mcp_runtime.members.restarts import SLOW_DELAY, Restarts, is_tried_slowly, next_try_after
from mcp_runtime.protocol.jsonrpc import storable
from mcp_runtime.rows import clock
from mcp_runtime.rows.database import persistently, short_transaction
from roster.models import GuildMember, PortAllocation, StatusChange

logger = logging.getLogger("guildhall.runtime")

Status = GuildMember.Status

SLOWLY = f"it failed {{}} times in a row, and is tried every {SLOW_DELAY / 60:g} minutes"


class Statuses:
    """The changes of status, for the runtime with `lease_id`. Each method returns whether the status changed."""

    def __init__(self, lease_id: uuid.UUID) -> None:
        self.lease_id = lease_id
        self.restarts = Restarts()
        self.ending: set[int] = set()  # members whose end is being written to the database

    def own_row(self, member_id: int) -> QuerySet[GuildMember]:
        """The member's row, as long as this runtime owns the member. Every write to it uses this."""
        return GuildMember.objects.filter(pk=member_id, lease_id=self.lease_id)

    def to_starting(self, member: GuildMember, *, automatic: bool) -> bool:
        """DISCONNECTED | ERROR -> STARTING"""
        # With the old epoch, nobody can give away the member any more (`ownership.give_away`).
        facts: dict[str, Any] = {"next_restart_at": None, "warnings": [], "epoch": F("epoch") + 1}
        facts |= {"restarts_total": member.restarts_total + 1} if automatic else {}
        cause = "restart" if automatic else "start"
        sources = [Status.DISCONNECTED, Status.ERROR]
        return self._move(member.pk, sources, Status.STARTING, cause=cause, epoch_before=member.epoch, **facts)

    def to_connected(self, live_member: LiveMember, introduction: Introduction) -> bool:
        """STARTING -> CONNECTED, with its tools"""
        return persistently(lambda: self._write_connected(live_member, introduction))

    def _write_connected(self, live_member: LiveMember, introduction: Introduction) -> bool:
        handshake = introduction.handshake
        with short_transaction():
            is_moved = self._move(
                live_member.member_id,
                [Status.STARTING],
                Status.CONNECTED,
                cause="handshake",
                last_error="",
                warnings=introduction.warnings,
                pid=live_member.process.pid,
                last_port=live_member.port or None,
                started_at=clock.now(),
                protocol_version=handshake.protocol_version,
                server_info=handshake.server_info,
                capabilities=handshake.capabilities,
                instructions=handshake.instructions,
            )
            if is_moved:
                live_member.held_tools = tools.write(live_member.member_id, introduction.tools, introduction.contracts)
                if contracts.write(live_member.member_id, introduction.instructions):
                    self.own_row(live_member.member_id).update(instructions="")  # until somebody approves them
            return is_moved

    def to_error(
        self,
        member_id: int,
        sources: Iterable[str],
        cause: str,
        message: str,
        *,
        tail: str = "",
        exit_code: int | None = None,
        was_stable: bool = False,
        may_retry: bool = True,
    ) -> bool:
        """STARTING | CONNECTED, as far as they are in `sources`, -> ERROR. It also plans the next try."""
        message = storable(message)  # it may quote the member

        def write() -> bool:
            with short_transaction():
                member = GuildMember.objects.get(pk=member_id)
                member.restarts = 1 if was_stable else member.restarts + 1
                again = may_retry and member.manifest.get("restart") != "never"
                next_try = time.monotonic() + next_try_after(member)
                slowly = f" ({SLOWLY.format(member.restarts)})" if again and is_tried_slowly(member) else ""
                reason = message + slowly
                is_moved = self._move(
                    member_id,
                    sources,
                    Status.ERROR,
                    cause=cause,
                    message=reason,
                    log_tail=tail,
                    last_error=f"{reason}{GuildMember.TAIL_MARK}{tail}" if tail else reason,
                    pid=None,
                    exit_code=exit_code,
                    restarts=member.restarts,
                    next_restart_at=self.restarts.plan(member_id, next_try) if again else None,
                )
                self._free_port(member_id)  # after the row of the member, as in `ownership.take_over`
                return is_moved

        self.ending.add(member_id)
        try:
            is_written = persistently(write)
        finally:
            self.ending.discard(member_id)
        if is_written:
            logger.error("%s", message)
        return is_written

    def to_stopping(self, member_id: int, cause: str) -> bool:
        """STARTING | CONNECTED -> STOPPING"""
        return self._move(member_id, [Status.STARTING, Status.CONNECTED], Status.STOPPING, cause=cause)

    def to_disconnected(self, member_id: int, cause: str, live_member: LiveMember | None) -> bool:
        """Any status except DISCONNECTED -> DISCONNECTED, after `live_member` has ended."""
        facts: dict[str, Any] = {"pid": None, "next_restart_at": None, "restarts": 0, "warnings": []}
        facts |= {"exit_code": live_member.process.exit_code} if live_member else {}
        sources = [Status.STOPPING, Status.ERROR, Status.CONNECTED, Status.STARTING]

        def write() -> bool:
            with short_transaction():
                is_moved = self._move(member_id, sources, Status.DISCONNECTED, cause=cause, **facts)
                self._free_port(member_id)
                return is_moved

        return persistently(write)

    def _free_port(self, member_id: int) -> None:
        PortAllocation.objects.filter(member_id=member_id, lease_id=self.lease_id).delete()

    def _move(
        self,
        member_id: int,
        sources: Iterable[str],
        new: Status,
        *,
        cause: str,
        message: str = "",
        exit_code: int | None = None,
        log_tail: str = "",
        epoch_before: int | None = None,
        **facts: Any,
    ) -> bool:
        """Change a member's status, and write a StatusChange, by compare-and-set as its owner."""
        unchanged = {} if epoch_before is None else {"epoch": epoch_before}
        now = clock.now()
        if exit_code is not None:
            facts["exit_code"] = exit_code
        with short_transaction():
            for old in sources:
                row = self.own_row(member_id).filter(status=old, **unchanged)
                if row.update(status=new, status_changed_at=now, progress="", no_answer_since=None, **facts):
                    StatusChange.objects.create(
                        member_id=member_id,
                        old=old,
                        new=new,
                        cause=cause,
                        message=message,
                        exit_code=facts.get("exit_code"),
                        log_tail=log_tail,
                        created_at=now,
                    )
                    self.restarts.note_change(member_id, now)
                    return True
        return False
