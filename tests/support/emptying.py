"""Empties the database after a test that commits. Django's own way makes all permissions again, which takes longer than
most of these tests.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection, transaction
from django.test import TransactionTestCase

from roster.management.commands.flush import without_triggers
from roster.models import AuditEntry


class FirstRows:
    """The rows of a database that has only what `migrate` makes for each: permissions, content types and roles."""

    def __init__(self) -> None:
        call_command("flush", verbosity=0, interactive=False)
        self._tables = connection.introspection.django_table_names(only_existing=True, include_views=False)
        self._rows = {table: _read(table) for table in self._not_empty()}

    def restore(self) -> None:
        """Delete all rows but these. What changed or is gone is made again, with the same ids."""
        with transaction.atomic(), connection.cursor() as cursor:
            tables = {*self._not_empty(), *self._rows}
            changed = {table for table in tables if table not in self._rows or self._rows[table] != _read(table)}
            has_audit_entries = AuditEntry._meta.db_table in changed
            with without_triggers() if has_audit_entries else contextlib.nullcontext():
                for table in changed:
                    cursor.execute(f"DELETE FROM {connection.ops.quote_name(table)}")
            for table in changed & self._rows.keys():
                _write(table, self._rows[table])

    def _not_empty(self) -> list[str]:
        quote = connection.ops.quote_name
        questions = (f"SELECT '{table}' WHERE EXISTS (SELECT 1 FROM {quote(table)})" for table in self._tables)
        with connection.cursor() as cursor:
            cursor.execute(" UNION ALL ".join(questions))
            return [name for (name,) in cursor.fetchall()]


def _read(table: str) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT * FROM {connection.ops.quote_name(table)} ORDER BY 1")
        return list(cursor.fetchall())


def _write(table: str, rows: list[tuple[Any, ...]]) -> None:
    places = ", ".join(["%s"] * len(rows[0]))
    with connection.cursor() as cursor:
        cursor.executemany(f"INSERT INTO {connection.ops.quote_name(table)} VALUES ({places})", rows)


@contextlib.contextmanager
def quick_emptying(first_rows: FirstRows) -> Iterator[None]:
    """Within it, tests that commit end by `first_rows.restore()`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TransactionTestCase, "_fixture_teardown", lambda test: first_rows.restore())
        yield
