"""When the dispatcher looks at the queue: after a notification, after a change in the database, and at each sweep."""

from __future__ import annotations

import math
import threading
import time
import uuid
from collections.abc import Callable

from django.db import connection
from django.db.models import QuerySet

from mcp_runtime.calls.statements import active_calls
from mcp_runtime.members.supervisor import unfulfilled
from mcp_runtime.rows.changes import SqliteChanges
from roster.models import Call

SWEEP_SECONDS = 1.0
# Seconds between two looks at SQLite's change counter, by the seconds since the last work. A wake-up costs more than
# the look.
SQLITE_INTERVALS = ((1.0, 0.0015), (5.0, 0.02), (math.inf, 0.05))
# With PostgreSQL and no broker, the dispatcher must query the queue. PostgreSQL has no change counter.
QUERY_INTERVAL = 0.05

Status = Call.Status


def cancellations(lease_id: uuid.UUID) -> QuerySet[Call]:
    """Return the running calls of this runtime whose cancellation was requested."""
    return active_calls(Status.RUNNING).filter(lease_id=lease_id, cancel_requested_at__isnull=False)


class QueueWatch:
    """Tell the dispatcher when to work. Any thread may notify. Only the dispatcher's thread waits.

    Call `open` before the first wait, and `close` after the last.
    """

    def __init__(self, *, lease_id: uuid.UUID, wake_supervisor: Callable[[], None], has_broker: bool) -> None:
        self._wake_supervisor = wake_supervisor
        self._has_broker = has_broker
        self._notification = threading.Event()
        self._has_queue_change = True
        self._last_sweep = -math.inf
        self._last_work = 0.0
        self._unfulfilled_members = unfulfilled(lease_id)
        self._queued_calls = active_calls(Status.QUEUED)
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
        """End the current wait, or the next one."""
        self._notification.set()

    def note_queue_change(self) -> None:
        """Let the next iteration look at the queue. Does not wake the dispatcher."""
        self._has_queue_change = True

    def request_sweep(self) -> None:
        """Let the next iteration sweep. Does not wake the dispatcher."""
        self._last_sweep = -math.inf

    # In an iteration ----------------------------------------------------------------------------------------------

    @property
    def sweep_is_due(self) -> bool:
        return time.monotonic() >= self._last_sweep + SWEEP_SECONDS

    def note_sweep(self) -> None:
        self._last_sweep = time.monotonic()

    def pop_queue_change(self) -> bool:
        """Return whether a change of the queue was noted, and clear the note. A look at the queue must follow."""
        if not self._has_queue_change:
            return False
        self._has_queue_change = False
        return True

    def may_have_queued_calls(self) -> bool:
        return self.may_exist(self._queued_calls)

    def may_exist(self, rows: QuerySet[Call]) -> bool:
        """Return False only if a cheap check finds no such rows. An idle hall calls this once a second."""
        return self._changes is None or self._changes.exists(rows)

    # Waiting ------------------------------------------------------------------------------------------------------

    def wait(self, is_stopping: Callable[[], bool]) -> None:
        """Wait until there is work, a sweep is due, or `is_stopping()` is true."""
        changes = self._changes
        while not is_stopping() and not self.sweep_is_due:
            if self._notification.wait(self._interval()):
                self._notification.clear()
                return
            if (changes is None and not self._has_broker) or (changes and changes.look() and self._has_work(changes)):
                self._has_queue_change = True
                return

    def _has_work(self, changes: SqliteChanges) -> bool:
        """Return whether a change in the database is work for the dispatcher. Wake the supervisor if it is for it."""
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
        """Return the seconds until the next look."""
        if connection.vendor != "sqlite":
            return SWEEP_SECONDS if self._has_broker else QUERY_INTERVAL
        idle_seconds = time.monotonic() - self._last_work
        return next(interval for limit, interval in SQLITE_INTERVALS if idle_seconds < limit)
