"""Statements of many calls a second, as text. On SQLite they bypass Django's layers, which take longer than SQLite."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from django.db import DEFAULT_DB_ALIAS, connections
from django.db.backends.base.base import BaseDatabaseWrapper

CACHED_STATEMENTS = 512


def read(sql: str, parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
    """All rows. `%s` in `sql` is a placeholder for a parameter in the form of the database."""
    database = connections[DEFAULT_DB_ALIAS]
    if _is_plain(database):
        with database.wrap_database_errors:
            rows: list[tuple[Any, ...]] = _execute(database, sql, parameters).fetchall()
            return rows
    with database.cursor() as cursor:
        cursor.execute(sql, parameters)
        return list(cursor.fetchall())


def change(sql: str, parameters: Sequence[Any]) -> int:
    """Execute a statement. Returns how many rows it changed."""
    database = connections[DEFAULT_DB_ALIAS]
    if _is_plain(database):
        with database.wrap_database_errors:
            return int(_execute(database, sql, parameters).rowcount)
    with database.cursor() as cursor:
        cursor.execute(sql, parameters)
        return int(cursor.rowcount)


def insert(table: str, columns: tuple[str, ...], parameters: Sequence[Any]) -> int:
    """Insert a row and return its id. Raises IntegrityError."""
    database = connections[DEFAULT_DB_ALIAS]
    sql = insert_sql(table, columns)
    if _is_plain(database):
        with database.wrap_database_errors:
            return int(_execute(database, sql, parameters).lastrowid)
    with database.cursor() as cursor:
        if database.vendor == "sqlite":  # before 3.35 it has no RETURNING
            return int(cursor.execute(sql, parameters).lastrowid)
        cursor.execute(f"{sql} RETURNING id", parameters)
        return int(cursor.fetchone()[0])


@lru_cache(CACHED_STATEMENTS)
def insert_sql(table: str, columns: tuple[str, ...], rows: int = 1) -> str:
    places = f"({', '.join(['%s'] * len(columns))})"
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES {', '.join([places] * rows)}"  # noqa: S608 - names of ours


def _is_plain(database: BaseDatabaseWrapper) -> bool:
    """Whether Django's layers can be bypassed. Not if queries are logged, because then they must be visible."""
    return database.vendor == "sqlite" and not database.queries_logged


def _execute(database: BaseDatabaseWrapper, sql: str, parameters: Sequence[Any]) -> Any:
    database.ensure_connection()
    return database.connection.execute(_with_question_marks(sql), parameters)


@lru_cache(CACHED_STATEMENTS)
def _with_question_marks(sql: str) -> str:
    return sql.replace("%s", "?").replace("%%", "%")
