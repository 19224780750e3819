"""Pings members whose calls time out. Records that there was no answer, and restarts members that want that.

Only timeouts of calls start a ping (`Silence`). While nobody calls a member, it gets no ping (REQ-MCP-HTTP-21).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial

from django.db import connections
from django.utils import timezone

from mcp_runtime.members.lifecycle import Lifecycle
from mcp_runtime.members.live import LiveMember
from mcp_runtime.protocol.errors import ClientError, ConnectError, RequestTimeoutError
from mcp_runtime.rows.database import unit_of_work
from roster.models import GuildMember

logger = logging.getLogger("guildhall.runtime")

Status = GuildMember.Status

PING_TIMEOUT = 5.0
MAX_PINGS = 8  # at the same time, each in a thread. Other members wait for the next turn
ENOUGH_TIMEOUTS = 3  # of calls in a row, before a member is restarted


class SignsOfLife:
    """Pings members in threads. The supervisor calls `turn` each turn.

    `run_apart(work)` runs `work` in a thread. It raises RuntimeError if the system gives no thread.
    """

    def __init__(self, lifecycle: Lifecycle, run_apart: Callable[[Callable[[], None]], object]) -> None:
        self._lifecycle = lifecycle
        self._run_apart = run_apart
        # Member id -> the begin of the silence and the number of timeouts, at the last ping.
        self._last_pings: dict[int, tuple[float, int]] = {}
        self._pings_in_progress: set[int] = set()

    def turn(self) -> None:
        """Ping members with another call that timed out, and clear the rows of those that answer again."""
        last_pings, self._last_pings = self._last_pings, {}
        for member in self._lifecycle.live_members():
            silence = member.silence
            if not member.connected_at or not silence.timeouts:
                continue
            reason = silence.began_at, silence.timeouts
            may_ping = member.member_id not in self._pings_in_progress and len(self._pings_in_progress) < MAX_PINGS
            if last_pings.get(member.member_id) != reason and may_ping and self._begin_ping(member):
                last_pings[member.member_id] = reason
            if member.member_id in last_pings:
                self._last_pings[member.member_id] = last_pings[member.member_id]
        self.note_answers()

    def _begin_ping(self, member: LiveMember) -> bool:
        self._pings_in_progress.add(member.member_id)
        try:
            self._run_apart(partial(self._ping_apart, member))
        except RuntimeError as error:  # the system gives no thread
            logger.warning("member %r cannot be pinged (%s); trying again", member.name, error)
            self._pings_in_progress.discard(member.member_id)
            return False
        return True

    def _ping_apart(self, member: LiveMember) -> None:
        try:
            unit_of_work(partial(self.ping, member))
        except Exception:
            logger.exception("the ping of member %r failed", member.name)
        finally:
            connections.close_all()  # the thread ends here
            self._pings_in_progress.discard(member.member_id)

    def ping(self, member: LiveMember) -> None:
        """Ping the member, for at most PING_TIMEOUT seconds, and record it if there was no answer."""
        timeouts = member.silence.timeouts
        try:
            member.client.ping(PING_TIMEOUT)
        except (RequestTimeoutError, ConnectError):
            since = timezone.now() - timedelta(seconds=time.monotonic() - member.silence.began_at)
            if member.silence.timeouts and not member.stop_requested.is_set() and not member.process.exited.is_set():
                self._record_no_answer(member, timeouts, since)
        except ClientError:
            member.silence.note_answer()  # an error is an answer
        else:
            member.silence.note_answer()

    def _record_no_answer(self, member: LiveMember, timeouts: int, since: datetime) -> None:
        calls = f"{timeouts} calls" if timeouts > 1 else "a call"
        message = (
            f"member {member.name!r} has given no answer since {since:%Y-%m-%d %H:%M:%S} UTC: {calls} timed out, "
            f"and a ping had no answer within {PING_TIMEOUT:g} s"
        )
        row = self._lifecycle.own_row(member.member_id).filter(status=Status.CONNECTED)
        if row.filter(no_answer_since=None).update(no_answer_since=since):
            logger.warning("%s", message)
        if timeouts >= ENOUGH_TIMEOUTS and row.filter(manifest__unresponsive="restart").exists():
            self._lifecycle.fail(member, "no answer", message)

    def note_answers(self) -> None:
        """Clear the rows of members that have answered again."""
        rows = GuildMember.objects.filter(status=Status.CONNECTED, no_answer_since__isnull=False)
        silent = {member.member_id for member in self._lifecycle.live_members() if member.silence.timeouts}
        for member_id in rows.exclude(pk__in=silent).values_list("pk", flat=True):
            self._lifecycle.own_row(member_id).update(no_answer_since=None)
