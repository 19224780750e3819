"""Create all tables of an empty SQLite database from one script, so that a first start is fast.

`migrate` still runs, and creates content types, permissions and roles. After adding migrations, write the script again:

    export GUILD_HALL_DATA_DIR=$(mktemp -d) && python manage.py migrate -v0 &&
      python manage.py shell -v0 -c "from roster import first_schema; first_schema.write()"
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from django.db import OperationalError, connection
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder

FILE = Path(__file__).with_name("first_schema.sql")
_LEADS_A_MIGRATION = "-- has: "


def load() -> bool:
    """Create the tables. False if some exist, or if the script is not that of these migrations."""
    if connection.vendor != "sqlite" or connection.introspection.table_names():
        return False
    script = FILE.read_text()
    if migrations_of(script) != set(MigrationLoader(None).disk_migrations):
        return False
    connection.ensure_connection()
    sqlite_connection: sqlite3.Connection = connection.connection
    try:
        sqlite_connection.executescript(f"BEGIN IMMEDIATE;\n{script}\nCOMMIT;")
    except sqlite3.Error as error:  # another first start was faster, or the disk is full. `migrate` reports it
        if sqlite_connection.in_transaction:
            sqlite_connection.rollback()
        if not isinstance(error, sqlite3.OperationalError):
            raise OperationalError(str(error)) from error
        return False
    return True


def migrations_of(script: str) -> set[tuple[str, str]]:
    """App and name of each migration that the script contains."""
    lines = [line for line in script.splitlines() if line.startswith(_LEADS_A_MIGRATION)]
    return {(app, name) for app, name in (line.removeprefix(_LEADS_A_MIGRATION).split() for line in lines)}


def write() -> None:
    """Write the script from a database that has just been migrated."""
    from mcp_runtime.control.call_search import INDEX  # tests import this module before there are models

    applied = sorted(MigrationRecorder(connection).applied_migrations())
    with connection.cursor() as cursor:
        cursor.execute(
            # Those of the text index are made after `migrate`, if this SQLite has FTS5.
            "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%' AND name NOT LIKE %s "
            "ORDER BY rowid",
            [f"{INDEX}%"],
        )
        statements = [f"{row[0]};" for row in cursor.fetchall()]
    notes = [f"{_LEADS_A_MIGRATION}{app} {name}" for app, name in applied]
    # One statement, in which the time does not change.
    rows = ",\n".join(f"('{app}', '{name}', datetime('now'))" for app, name in applied)
    insert = f"INSERT INTO django_migrations (app, name, applied) VALUES\n{rows};"
    FILE.write_text("\n".join([*notes, *statements, insert, ""]))
