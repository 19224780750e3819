"""When the dispatcher looks: it was notified, the database says that there is work, or a sweep is due."""

from __future__ import annotations

import math
import threading
import time
import uuid
from collections.abc import Callable

from django.db import connection
from django.db.models import QuerySet

from mcp_runtime.calls.statements import under_way
from mcp_runtime.members.supervisor import unfulfilled
from mcp_runtime.rows.changes import SqliteChanges
from roster.models import Invocation

SWEEP_SECONDS = 1.0
# How long the dispatcher sleeps between two looks at SQLite's change counter, by how long ago there was work. Each time
# it wakes costs more than the look.
LOOKS = ((1.0, 0.0015), (5.0, 0.02), (math.inf, 0.05))
# PostgreSQL without a broker has nothing cheap to look at.
QUERY_LOOK = 0.05

Status = Invocation.Status


def cancellations(lease_id: uuid.UUID) -> QuerySet[Invocation]:
    """The calls of this runtime that run though somebody asked for their end."""
    return under_way(Status.RUNNING).filter(lease_id=lease_id, cancel_requested_at__isnull=False)


class QueueWatch:
    """Any thread may notify it; the dispatcher's alone waits, between `open` and `close`."""

    def __init__(self, *, lease_id: uuid.UUID, wake_supervisor: Callable[[], None], has_broker: bool) -> None:
        self._wake_supervisor = wake_supervisor
        self._has_broker = has_broker
        self._notified = threading.Event()
        self._has_queue_change = True
        self._last_sweep = -math.inf
        self._last_work = 0.0
        self._unfulfilled_members = unfulfilled()
        self._queued_calls = under_way(Status.QUEUED)
        self._cancellations = cancellations(lease_id)
        self._changes: SqliteChanges | None = None

    def open(self) -> None:
        if connection.vendor == "sqlite":
            self._changes = SqliteChanges(str(connection.settings_dict["NAME"]))

    def close(self) -> None:
        if self._changes is not None:
            self._changes.close()

    # Notifications ------------------------------------------------------------------------------------------------

    def notify(self) -> None:
        """There is something to do: whoever waits goes on."""
        self._notified.set()

    def note_queue_change(self) -> None:
        """The next turn looks at the queue, whenever it comes."""
        self._has_queue_change = True

    def sweep_soon(self) -> None:
        """The next turn looks at everything, whenever it comes."""
        self._last_sweep = -math.inf

    # What a turn does ---------------------------------------------------------------------------------------------

    @property
    def sweep_is_due(self) -> bool:
        return time.monotonic() >= self._last_sweep + SWEEP_SECONDS

    def note_sweep(self) -> None:
        self._last_sweep = time.monotonic()

    def take_queue_change(self) -> bool:
        """Whether the queue may hold other calls than at the last look, as far as anybody said so."""
        if not self._has_queue_change:
            return False
        self._has_queue_change = False  # never without a look that follows: it may be set again in between
        return True

    def queue_may_hold_any(self) -> bool:
        return self.may_hold_any(self._queued_calls)

    def may_hold_any(self, rows: QuerySet[Invocation]) -> bool:
        """False only where that is cheap to know: an idle hall asks every second."""
        return self._changes is None or self._changes.exists(rows)

    # Waiting ------------------------------------------------------------------------------------------------------

    def wait(self, is_over: Callable[[], bool]) -> None:
        """Until there is something to do, or `is_over` says so."""
        changes = self._changes
        while not is_over() and not self.sweep_is_due:
            if self._notified.wait(self._interval()):
                self._notified.clear()
                return
            if (changes is None and not self._has_broker) or (changes and changes.look() and self._is_for_us(changes)):
                self._has_queue_change = True
                return

    def _is_for_us(self, changes: SqliteChanges) -> bool:
        if changes.exists(self._unfulfilled_members):
            self._wake_supervisor()
        if changes.exists(self._cancellations):
            self._last_sweep = -math.inf
            return True
        if changes.exists(self._queued_calls):
            self._last_work = time.monotonic()
            return True
        return False

    def _interval(self) -> float:
        """Seconds between two looks."""
        if connection.vendor != "sqlite":
            return SWEEP_SECONDS if self._has_broker else QUERY_LOOK
        idle_for = time.monotonic() - self._last_work
        return next(look for until, look in LOOKS if idle_for < until)
