"""Checks whether the database has changed, so cheaply that it can check every few milliseconds.

SQLite counts the commits of other connections (`PRAGMA data_version`, a few microseconds on a separate connection).
PostgreSQL has no such counter, but sends notifications to listeners (NOTIFY).
"""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path
from typing import Any

from django.db import connection
from django.db.models import QuerySet

CALL_ENDED = "guildhall_call_ended"


class SqliteChanges:
    """Detects commits to a SQLite file, with a separate connection. One thread at a time."""

    def __init__(self, path: str | Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._sql: dict[int, tuple[str, tuple[Any, ...], QuerySet[Any]]] = {}
        self._last_version = self._version()

    def _version(self) -> int:
        return int(self._connection.execute("PRAGMA data_version").fetchone()[0])

    def wait(self, seconds: float) -> bool:
        """Wait, then check whether there was a commit since the last check."""
        time.sleep(seconds)
        return self.look()

    def look(self) -> bool:
        """Whether there was a commit since the last check."""
        version = self._version()
        has_changed, self._last_version = version != self._last_version, version
        return has_changed

    def exists(self, rows: QuerySet[Any]) -> bool:
        """Whether `rows` has any row. Takes a hundredth of the time of the ORM."""
        sql, parameters = self._query_of(rows)
        return self._connection.execute(sql, parameters).fetchone() is not None

    def _query_of(self, rows: QuerySet[Any]) -> tuple[str, tuple[Any, ...]]:
        if id(rows) not in self._sql:
            sql, parameters = rows.order_by().values("pk")[:1].query.sql_with_params()
            # Store `rows` too, so that no other queryset can get its id.
            self._sql[id(rows)] = (sql.replace("%s", "?"), tuple(parameters), rows)
        sql, parameters, _ = self._sql[id(rows)]
        return sql, parameters

    def close(self) -> None:
        self._connection.close()


class PostgresNotices:
    """Receives NOTIFY on `channel`, with a separate connection. One thread at a time.

    A pooler before the database (pgbouncer by transaction) passes no notification on, so never rely on one. Raises
    Django's OperationalError if the database is not available.
    """

    def __init__(self, channel: str) -> None:
        import psycopg

        parameters: dict[str, Any] = connection.get_connection_params()
        with connection.wrap_database_errors:
            self._connection = psycopg.connect(**parameters, autocommit=True)
            self._connection.execute(f"LISTEN {channel}")

    def wait(self, seconds: float) -> bool:
        """Wait for a notification, `seconds` at most. Returns whether one came."""
        with connection.wrap_database_errors:
            return bool(list(self._connection.notifies(timeout=seconds, stop_after=1)))

    def close(self) -> None:
        self._connection.close()


def notify(channel: str) -> None:
    """Notify the listeners on `channel` when the transaction commits. Only PostgreSQL needs that."""
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute(f"NOTIFY {channel}")
