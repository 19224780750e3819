"""The only writer of a member's status.

    DISCONNECTED -> STARTING -> CONNECTED -> STOPPING -> DISCONNECTED          (`stop` is allowed in STARTING too)
    STARTING, CONNECTED -> ERROR -> STARTING | DISCONNECTED

Each arrow is one compare-and-set by the owner of the member, and one StatusChange row in the same transaction. A
runtime that takes over a member puts its row back to DISCONNECTED.

An automatic restart that fails as the last one did adds no rows. The row of the first failure counts it instead, so
that one cause is one row, however often the hall tries.
"""

from __future__ import annotations

import logging
import re
import time
import uuid
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from django.db.models import F, QuerySet

from mcp_runtime.members import contracts, tools
from mcp_runtime.members.last_words import last_words
from mcp_runtime.members.live import LiveMember
from mcp_runtime.members.readiness import Introduction
from mcp_runtime.members.restarts import SLOW_DELAY, Restarts, is_tried_slowly, next_try_after
from mcp_runtime.protocol.jsonrpc import storable
from mcp_runtime.rows import clock
from mcp_runtime.rows.database import persistently, short_transaction
from roster.models import GuildMember, PortAllocation, StatusChange

logger = logging.getLogger("guildhall.runtime")

Status = GuildMember.Status

# What differs between two failures with one cause: ids and times that a server writes into its answers, ports, pids.
# Statuses and exit codes have at most three digits.
_WORD = re.compile(r"[\w.:+-]{4,}")
_COMPARED = 2_000  # characters of a message. A server decides on its length

RESTART = "restart"  # the cause of an automatic start
SLOWLY = f"it failed {{}} times in a row, and is tried every {SLOW_DELAY / 60:g} minutes"
_SLOWLY_TRIED = re.compile(r" \(it failed \d+ times in a row, [^()]*\)$")
MAX_COMPARED = 200  # characters of a line of output


class Statuses:
    """The changes of status, for the runtime with `lease_id`. Each method returns whether the status changed."""

    def __init__(self, lease_id: uuid.UUID) -> None:
        self.lease_id = lease_id
        self.restarts = Restarts()
        self.ending: set[int] = set()  # members whose end is being written to the database
        # Automatic restarts in progress, by member id, with the time when they began. Their rows are not written yet.
        self._unwritten_restarts: dict[int, datetime] = {}

    def own_row(self, member_id: int) -> QuerySet[GuildMember]:
        """The member's row, as long as this runtime owns the member. Every write to it uses this."""
        return GuildMember.objects.filter(pk=member_id, lease_id=self.lease_id)

    def to_starting(self, member: GuildMember, *, automatic: bool) -> bool:
        """DISCONNECTED | ERROR -> STARTING"""
        # With the old epoch, nobody can give away the member any more (`ownership.give_away`).
        facts: dict[str, Any] = {"next_restart_at": None, "warnings": [], "epoch": F("epoch") + 1}
        facts |= {"restarts_total": member.restarts_total + 1} if automatic else {}
        cause = RESTART if automatic else "start"
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
        needs_sign_in: bool = False,
    ) -> bool:
        """STARTING | CONNECTED, as far as they are in `sources`, -> ERROR. It also plans the next try.

        With `needs_sign_in` it plans none, and counts no failure, because only a person can help.
        """
        # It may quote the member, which must not write the mark before its output there.
        message = storable(message).replace("\n", " ")

        def write() -> tuple[bool, bool]:
            with short_transaction():
                member = GuildMember.objects.get(pk=member_id)
                member.restarts = 0 if needs_sign_in else 1 if was_stable else member.restarts + 1
                again = may_retry and not needs_sign_in and member.manifest.get("restart") != "never"
                next_try = time.monotonic() + next_try_after(member)
                slowly = f" ({SLOWLY.format(member.restarts)})" if again and is_tried_slowly(member) else ""
                reason = message + slowly
                first_failure = self._first_failure(member_id, cause, exit_code, reason, tail)
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
                    first_failure=first_failure,
                    needs_sign_in=needs_sign_in,
                )
                self._free_port(member_id)  # after the row of the member, as in `ownership.take_over`
                return is_moved, first_failure is not None

        self.ending.add(member_id)
        try:
            is_written, is_repeated = persistently(write)
        finally:
            self.ending.discard(member_id)
        if is_written:
            level = logging.DEBUG if is_repeated else logging.WARNING if needs_sign_in else logging.ERROR
            logger.log(level, "%s", message)
        return is_written

    def _first_failure(
        self, member_id: int, cause: str, exit_code: int | None, message: str, tail: str
    ) -> StatusChange | None:
        """The row of the failure that an automatic restart in progress now repeats. None if this is another one."""
        if member_id not in self._unwritten_restarts:
            return None
        last = StatusChange.objects.filter(member=member_id).first()
        if last is None or (last.new, last.cause, last.exit_code) != (Status.ERROR, cause, exit_code):
            return None
        is_same = _what_stays(last.message, last.log_tail) == _what_stays(message, tail)
        return last if is_same else None

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
        first_failure: StatusChange | None = None,
        **facts: Any,
    ) -> bool:
        """Change a member's status by compare-and-set as its owner, and record it in a StatusChange."""
        unchanged = {} if epoch_before is None else {"epoch": epoch_before}
        now = clock.now()
        since = first_failure.created_at if first_failure else now
        if exit_code is not None:
            facts["exit_code"] = exit_code
        if new != Status.STARTING:  # until it is known, the last answer counts
            facts.setdefault("needs_sign_in", False)
        with short_transaction():
            for old in sources:
                row = self.own_row(member_id).filter(status=old, **unchanged)
                if row.update(status=new, status_changed_at=since, progress="", no_answer_since=None, **facts):
                    change = StatusChange(
                        member_id=member_id,
                        old=old,
                        new=new,
                        cause=cause,
                        message=message,
                        exit_code=facts.get("exit_code"),
                        log_tail=log_tail,
                        created_at=now,
                    )
                    self._record(change, first_failure)
                    self.restarts.note_change(member_id, since)
                    return True
        return False

    def _record(self, change: StatusChange, first_failure: StatusChange | None) -> None:
        """Write the row of a change. An automatic restart is only written when its outcome is something new."""
        member_id, is_start = change.member_id, change.new == Status.STARTING
        began_at = self._unwritten_restarts.get(member_id)
        if is_start and change.old == Status.ERROR and change.cause == RESTART:
            self._unwritten_restarts[member_id] = change.created_at
            return
        if first_failure is not None and change.old == Status.STARTING:
            StatusChange.objects.filter(pk=first_failure.pk).update(
                repeats=F("repeats") + 1,
                repeated_at=change.created_at,
                message=change.message,
                log_tail=change.log_tail,
            )
            return
        if change.old == Status.STARTING and began_at is not None:
            StatusChange.objects.create(
                member_id=member_id, old=Status.ERROR, new=Status.STARTING, cause=RESTART, created_at=began_at
            )
        elif is_start:
            self._unwritten_restarts.pop(member_id, None)
        change.save()


def _what_stays(message: str, tail: str) -> tuple[str, str]:
    """What two failures with one cause have in common. The message alone is often only an exit code."""
    line = last_words(tail)[: 2 * MAX_COMPARED]  # the changing parts may be longer than what stands for them
    return without_changing_parts(message), without_changing_parts(line)[:MAX_COMPARED]


def without_changing_parts(message: str) -> str:
    """The message with `#` for each word with a digit, so that ports, times and ids make no difference."""
    text = _SLOWLY_TRIED.sub("", message[:_COMPARED])
    return _WORD.sub(lambda word: "#" if any(map(str.isdigit, word[0])) else word[0], text)
