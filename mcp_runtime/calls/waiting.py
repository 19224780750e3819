"""Waiting for calls to end: one thread of a process watches the rows for all who wait in it."""

from __future__ import annotations

import logging
import sqlite3
import threading
import time

from django.db import Error, connection

from mcp_runtime.calls.invocations import ids_of_finished
from mcp_runtime.rows.changes import CALL_ENDED, PostgresNotices, SqliteChanges
from mcp_runtime.rows.database import give_connection_back

logger = logging.getLogger("guildhall.control")

SQLITE_INTERVAL = 0.0015
# A look without news is trusted this long: on SQLite a moved file, on PostgreSQL a pooler may keep news from us.
SQLITE_UNSEEN = 1.0
POSTGRES_UNSEEN = 0.05
RETRY_INTERVAL = 0.5
LINGER_SECONDS = 5.0


class CallWatch:
    """Threads wait for their calls; the watching thread lives while anybody waits and sleeps when nobody does."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self.is_over = threading.Event()
        self._waiting: dict[int, list[threading.Event]] = {}
        self._thread: threading.Thread | None = None

    def wait(self, invocation_id: int, timeout: float) -> bool:
        """Whether the call is over within `timeout` seconds. False at once when this process must end."""
        give_connection_back()
        over = threading.Event()
        with self._condition:
            if self.is_over.is_set():
                return False
            self._waiting.setdefault(invocation_id, []).append(over)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._watch, name="call-watch", daemon=True)
                self._thread.start()
            self._condition.notify()
        try:
            return over.wait(timeout) and not self.is_over.is_set()
        finally:
            with self._condition:
                self._forget(invocation_id, over)

    def end(self) -> None:
        """End all waits, and refuse new ones, because this process must end."""
        with self._condition:
            self.is_over.set()
            for events in self._waiting.values():
                for over in events:
                    over.set()

    def _forget(self, invocation_id: int, over: threading.Event) -> None:
        events = self._waiting.get(invocation_id, [])
        if over in events:
            events.remove(over)
        if not events:
            self._waiting.pop(invocation_id, None)

    def _watch(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._waiting)
            try:
                self._watch_while_anybody_waits()
            except (Error, sqlite3.Error) as error:
                logger.warning("cannot look for finished calls (%s); trying again", error)
                time.sleep(RETRY_INTERVAL)
            finally:
                connection.close()

    def _watch_while_anybody_waits(self) -> None:
        is_sqlite = connection.vendor == "sqlite"
        changes = SqliteChanges(str(connection.settings_dict["NAME"])) if is_sqlite else PostgresNotices(CALL_ENDED)
        max_age = SQLITE_UNSEEN if is_sqlite else POSTGRES_UNSEEN
        last_awaited: set[int] = set()
        last_look = 0.0
        is_changed = True
        try:
            while awaited := self._awaited():
                if is_changed or not awaited <= last_awaited or time.monotonic() - last_look > max_age:
                    last_look, last_awaited = time.monotonic(), awaited
                    self._announce(ids_of_finished(awaited))
                # Many wait for longer anyway, and looking less often is more work done.
                is_changed = changes.wait(SQLITE_INTERVAL * (1 + len(awaited) / 8) if is_sqlite else POSTGRES_UNSEEN)
        finally:
            changes.close()

    def _awaited(self) -> set[int]:
        """The calls that somebody waits for. It lingers when there is none, because the next one mostly comes soon."""
        with self._condition:
            self._condition.wait_for(lambda: self._waiting, LINGER_SECONDS)
            return set(self._waiting)

    def _announce(self, invocation_ids: set[int]) -> None:
        with self._condition:
            for invocation_id in invocation_ids:
                for over in self._waiting.get(invocation_id, []):
                    over.set()


calls = CallWatch()
