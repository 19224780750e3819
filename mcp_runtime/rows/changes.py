"""Has the database changed? Asked so cheaply that it can be asked every few milliseconds.

SQLite counts the commits of other connections (`PRAGMA data_version`, a few microseconds on a connection of its own).
PostgreSQL has no such counter, but tells those who listen (NOTIFY) what they were promised to be told.
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
    """Commits to a SQLite file, seen from a connection of its own. One thread at a time."""

    def __init__(self, path: str | Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._sql: dict[int, tuple[str, tuple[Any, ...], QuerySet[Any]]] = {}
        self._last_version = self._version()

    def _version(self) -> int:
        return int(self._connection.execute("PRAGMA data_version").fetchone()[0])

    def wait(self, seconds: float) -> bool:
        """Whether anybody committed since the last look, this long from now."""
        time.sleep(seconds)
        return self.look()

    def look(self) -> bool:
        """Whether anybody committed since the last look."""
        version = self._version()
        has_changed, self._last_version = version != self._last_version, version
        return has_changed

    def exists(self, rows: QuerySet[Any]) -> bool:
        """Whether `rows` holds any; a hundredth of the price of asking through the ORM."""
        sql, parameters = self._query_of(rows)
        return self._connection.execute(sql, parameters).fetchone() is not None

    def _query_of(self, rows: QuerySet[Any]) -> tuple[str, tuple[Any, ...]]:
        if id(rows) not in self._sql:
            sql, parameters = rows.order_by().values("pk")[:1].query.sql_with_params()
            # `rows` is kept too, so that its id is not used again.
            self._sql[id(rows)] = (sql.replace("%s", "?"), tuple(parameters), rows)
        sql, parameters, _ = self._sql[id(rows)]
        return sql, parameters

    def close(self) -> None:
        self._connection.close()


class PostgresNotices:
    """NOTIFY on `channel`, heard on a connection of its own. One thread at a time.

    A pooler between us and the database (pgbouncer by transaction) lets none through: never trust that one will come.
    Raises Django's OperationalError when the database is away.
    """

    def __init__(self, channel: str) -> None:
        import psycopg

        parameters: dict[str, Any] = connection.get_connection_params()
        with connection.wrap_database_errors:
            self._connection = psycopg.connect(**parameters, autocommit=True)
            self._connection.execute(f"LISTEN {channel}")

    def wait(self, seconds: float) -> bool:
        """Whether one came within `seconds`."""
        with connection.wrap_database_errors:
            return bool(list(self._connection.notifies(timeout=seconds, stop_after=1)))

    def close(self) -> None:
        self._connection.close()


def notify(channel: str) -> None:
    """Tell who listens on `channel`, when the transaction is committed. Only PostgreSQL needs telling."""
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute(f"NOTIFY {channel}")
