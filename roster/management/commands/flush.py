from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.core.management.base import CommandError
from django.core.management.commands import flush
from django.db import connection, transaction

from roster.models import AuditEntry

QUESTION = "This deletes all rows of the hall, also its audit log, and cannot be undone. Type yes to continue: "


class Command(flush.Command):
    """Django's command, for a database whose triggers keep the audit log."""

    help = "Delete all rows of the hall, also those of the audit log."

    def handle(self, **options: Any) -> None:
        if options["interactive"] and input(QUESTION) != "yes":
            raise CommandError("Nothing was deleted.")
        with without_triggers():
            super().handle(**{**options, "interactive": False})


@contextmanager
def without_triggers() -> Iterator[None]:
    """A transaction in which the triggers of the audit log do not exist, or do nothing."""
    table = AuditEntry._meta.db_table
    with transaction.atomic(), connection.cursor() as cursor:
        triggers: list[tuple[str, str]] = []
        if connection.vendor == "sqlite":
            cursor.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger' AND tbl_name = %s", [table])
            triggers = cursor.fetchall()
            for name, _ in triggers:
                cursor.execute(f"DROP TRIGGER {connection.ops.quote_name(name)}")
        else:
            cursor.execute(f"ALTER TABLE {table} DISABLE TRIGGER USER")
        yield
        if connection.vendor == "sqlite":
            for _, sql in triggers:
                cursor.execute(sql)
        else:
            cursor.execute(f"ALTER TABLE {table} ENABLE TRIGGER USER")
