"""Wait for the end of calls. One thread of the process watches the rows for all threads that wait."""

from __future__ import annotations

import logging
import sqlite3
import threading
import time

from django.db import Error, connection

from mcp_runtime.calls.transitions import ids_of_finished
from mcp_runtime.rows.changes import CALL_ENDED, PostgresNotices, SqliteChanges
from mcp_runtime.rows.database import give_connection_back

logger = logging.getLogger("guildhall.control")

SQLITE_INTERVAL = 0.0015
# The longest time between two queries, for changes that are not noticed: on SQLite if the file was moved, on PostgreSQL
# if a connection pooler drops the notification.
SQLITE_MAX_AGE = 1.0
POSTGRES_MAX_AGE = 0.05
RETRY_INTERVAL = 0.5
LINGER_SECONDS = 5.0


class CallWatch:
    """Let threads wait for calls. The thread that watches the rows runs while any of them waits, and then sleeps."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self.is_over = threading.Event()
        self._events: dict[int, list[threading.Event]] = {}
        self._thread: threading.Thread | None = None

    def wait(self, call_id: int, timeout: float) -> bool:
        """Return whether the call ended within `timeout` seconds. Returns False at once when this process must end."""
        give_connection_back()
        event = threading.Event()
        with self._condition:
            if self.is_over.is_set():
                return False
            self._events.setdefault(call_id, []).append(event)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._watch, name="call-watch", daemon=True)
                self._thread.start()
            self._condition.notify()
        try:
            return event.wait(timeout) and not self.is_over.is_set()
        finally:
            with self._condition:
                self._remove(call_id, event)

    def end(self) -> None:
        """End all waits, and refuse new ones, because this process must end."""
        with self._condition:
            self.is_over.set()
            for events in self._events.values():
                for event in events:
                    event.set()

    def _remove(self, call_id: int, event: threading.Event) -> None:
        events = self._events.get(call_id, [])
        if event in events:
            events.remove(event)
        if not events:
            self._events.pop(call_id, None)

    def _watch(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._events)
            try:
                self._watch_while_threads_wait()
            except (Error, sqlite3.Error) as error:
                logger.warning("cannot look for finished calls (%s); trying again", error)
                time.sleep(RETRY_INTERVAL)
            finally:
                connection.close()

    def _watch_while_threads_wait(self) -> None:
        is_sqlite = connection.vendor == "sqlite"
        changes = SqliteChanges(str(connection.settings_dict["NAME"])) if is_sqlite else PostgresNotices(CALL_ENDED)
        max_age = SQLITE_MAX_AGE if is_sqlite else POSTGRES_MAX_AGE
        last_ids: set[int] = set()
        last_look = 0.0
        is_changed = True
        try:
            while ids := self._awaited_ids():
                if is_changed or not ids <= last_ids or time.monotonic() - last_look > max_age:
                    last_look, last_ids = time.monotonic(), ids
                    self._notify(ids_of_finished(ids))
                # With many calls each of them takes longer anyway, and fewer queries leave more time for them.
                is_changed = changes.wait(SQLITE_INTERVAL * (1 + len(ids) / 8) if is_sqlite else POSTGRES_MAX_AGE)
        finally:
            changes.close()

    def _awaited_ids(self) -> set[int]:
        """Return the ids of the calls that threads wait for. If there are none, wait a little for the next thread."""
        with self._condition:
            self._condition.wait_for(lambda: self._events, LINGER_SECONDS)
            return set(self._events)

    def _notify(self, call_ids: set[int]) -> None:
        with self._condition:
            for call_id in call_ids:
                for event in self._events.get(call_id, []):
                    event.set()


calls = CallWatch()
