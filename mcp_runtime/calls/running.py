"""The calls that run in members now: their progress, their cancellation, and rows that only seem to run."""

from __future__ import annotations

import contextlib
import math
import threading
import time
import uuid
from functools import partial
from typing import Any

from mcp_runtime.calls import transitions
from mcp_runtime.calls.outcomes import explain
from mcp_runtime.calls.queue_watch import QueueWatch
from mcp_runtime.calls.statements import active_calls
from mcp_runtime.calls.transitions import ErrorKind, Outcome
from mcp_runtime.client.exchanges import Exchange
from mcp_runtime.members.live import LiveMember
from mcp_runtime.protocol import mcp
from mcp_runtime.protocol.errors import SignInNeededError
from mcp_runtime.rows.database import short_transaction
from roster.models import Call

STRAY_SECONDS = 5.0  # between two searches for strays


class RunningCalls:
    """Calls from their claim until their outcome is written. Safe for several threads."""

    def __init__(self, lease_id: uuid.UUID) -> None:
        self._lease_id = lease_id
        self._lock = threading.Lock()
        self._calls: dict[int, tuple[Call, LiveMember, Exchange]] = {}
        self._progress: dict[int, dict[str, Any]] = {}  # by call id: the last progress that is not written yet

    def __len__(self) -> int:
        return len(self._calls)

    def __contains__(self, pk: int) -> bool:
        return pk in self._calls

    def add(self, call: Call, member: LiveMember) -> Exchange:
        """Add a call, and return the exchange to call the member with."""
        exchange = Exchange(partial(self._write_progress, call.pk))
        with self._lock:
            self._calls[call.pk] = (call, member, exchange)
            member.calls += 1
        return exchange

    def remove(self, call: Call) -> int:
        """Remove a call whose outcome is written. Return the number of running calls."""
        with self._lock:
            self._calls.pop(call.pk)[1].calls -= 1
            return len(self._calls)

    def in_member(self, member_id: int) -> list[int]:
        """Return the ids of the calls that run in this member."""
        with self._lock:
            return [pk for pk, (call, _, _) in self._calls.items() if call.member_id == member_id]

    def cancel(self, pk: int, reason: str) -> None:
        """Send the member one notification that the call is cancelled. Do nothing if the call is not running."""
        with self._lock:
            call = self._calls.get(pk)
        if call is None:
            return
        row, member, exchange = call
        if not exchange.is_aborted:
            # In a thread, because sending to a member that hangs takes until the timeout.
            with contextlib.suppress(SignInNeededError):  # then nothing was sent
                cancel = member.client_of(row.requested_by_id).cancel
                threading.Thread(target=cancel, args=(exchange, reason), daemon=True).start()

    def _write_progress(self, call_id: int, params: dict[str, Any]) -> None:
        if progress := mcp.progress_of(params):
            self._progress[call_id] = progress

    def write_progress(self) -> None:
        """Write the last progress of each call. Called once a second, however often members report progress."""
        latest, self._progress = self._progress, {}
        if not latest:
            return
        with short_transaction():
            for call_id, progress in latest.items():
                transitions.write_progress(call_id, progress, self._lease_id)


class Strays:
    """Rows that are running although no thread runs the call.

    Rows of another lease are lost. A row of this lease is a stray: the database committed its claim, and the response
    to that was lost.
    """

    def __init__(self, lease_id: uuid.UUID, running: RunningCalls, watch: QueueWatch) -> None:
        self._lease_id = lease_id
        self._running = running
        self._watch = watch
        self._running_rows = active_calls(Call.Status.RUNNING)
        self._found: set[int] = set()  # ids of the strays that the last search found
        self._searched_at = -math.inf

    def end_if_due(self) -> None:
        """Once in STRAY_SECONDS, end lost calls, and strays that the last search found as well."""
        if time.monotonic() < self._searched_at + STRAY_SECONDS:
            return
        self._searched_at = time.monotonic()
        if self._watch.may_exist(self._running_rows):
            transitions.end_lost_calls(self._lease_id, transitions.RUNTIME_ENDED)
            self._end()

    def _end(self) -> None:
        own_rows = Call.objects.filter(status=Call.Status.RUNNING, lease_id=self._lease_id).select_related("member")
        strays = {call.pk: call for call in own_rows if call.pk not in self._running}
        for pk in self._found & set(strays):
            reason = "the call was claimed, but the response of the database was lost; the call was not sent"
            outcome = Outcome.failed(ErrorKind.UNAVAILABLE, explain(strays[pk], reason))
            transitions.finish(strays[pk], outcome, self._lease_id)
        self._found = set(strays)
