"""Has the database changed? Asked so cheaply that it can be asked every few milliseconds.

SQLite counts the commits of other connections (`PRAGMA data_version`, a few microseconds on a connection of its own).
PostgreSQL has no such counter: there a broker's bell, or a query, has to tell.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

from django.db.models import QuerySet


class SqliteChanges:
    """Commits to a SQLite file, seen from a connection of its own. One thread at a time."""

    def __init__(self, path: str | Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._sql: dict[int, tuple[str, tuple[Any, ...], QuerySet[Any]]] = {}
        self._seen = self._version()

    def _version(self) -> int:
        return int(self._connection.execute("PRAGMA data_version").fetchone()[0])

    def look(self) -> bool:
        """Whether anybody committed since the last look."""
        version = self._version()
        changed, self._seen = version != self._seen, version
        return changed

    def exists(self, rows: QuerySet[Any]) -> bool:
        """Whether `rows` holds any; a hundredth of the price of asking through the ORM."""
        sql, parameters = self._compiled(rows)
        return self._connection.execute(sql, parameters).fetchone() is not None

    def _compiled(self, rows: QuerySet[Any]) -> tuple[str, tuple[Any, ...]]:
        if id(rows) not in self._sql:
            sql, parameters = rows.order_by().values("pk")[:1].query.sql_with_params()
            # `rows` is kept too, so that its id is not used again.
            self._sql[id(rows)] = (sql.replace("%s", "?"), tuple(parameters), rows)
        sql, parameters, _ = self._sql[id(rows)]
        return sql, parameters

    def close(self) -> None:
        self._connection.close()
