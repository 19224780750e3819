"""The tables of a first start, which come from a file, are those that the migrations make."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from django.db.migrations.loader import MigrationLoader

from roster import first_schema
from tests.conftest import ROOT

HOW = "see roster/first_schema.py for how the file is made again"


def database_after(command: list[str], folder: Path) -> sqlite3.Connection:
    environment = {**os.environ, "DATABASE_URL": "", "REDIS_URL": "", "GUILD_HALL_DATA_DIR": str(folder)}
    command = [sys.executable, "manage.py", *command]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return sqlite3.connect(folder / "guildhall.sqlite3")


def rows(database: sqlite3.Connection, query: str) -> list[Any]:
    return sorted(database.execute(query).fetchall(), key=repr)


def test_the_file_stands_for_the_migrations_there_are() -> None:
    names = set(MigrationLoader(None).disk_migrations)
    assert first_schema.migrations_of(first_schema.FILE.read_text()) == names, HOW


def test_an_empty_database_gets_the_very_tables_that_migrations_make(tmp_path: Path) -> None:
    migrated = database_after(["migrate", "-v0"], tmp_path / "migrated")
    prepared = database_after(["prepare"], tmp_path / "prepared")
    for query in (
        "SELECT type, name, tbl_name, sql FROM sqlite_master",
        "SELECT app, name FROM django_migrations",
        "SELECT app_label, model FROM django_content_type",
        "SELECT codename, p.name, app_label, model FROM auth_permission p JOIN django_content_type c"
        " ON c.id = p.content_type_id",
    ):
        assert rows(prepared, query) == rows(migrated, query), HOW
    # All in one moment: they come from the file.
    moments = rows(prepared, "SELECT DISTINCT applied FROM django_migrations")
    assert len(moments) == 1
    assert len(rows(migrated, "SELECT DISTINCT applied FROM django_migrations")) > 1
    filled = {name for (name,) in rows(migrated, "SELECT name FROM sqlite_master WHERE type = 'table'")}
    filled = {name for name in filled if migrated.execute(f'SELECT 1 FROM "{name}"').fetchone()}
    # No migration makes rows of its own, which the file would lack.
    assert filled == {"django_migrations", "django_content_type", "auth_permission", "sqlite_sequence"}


def test_a_database_that_has_some_of_its_migrations_gets_the_others(tmp_path: Path) -> None:
    database_after(["migrate", "roster", "0003", "-v0"], tmp_path).close()
    database = database_after(["prepare"], tmp_path)
    assert ("roster", "0005_no_answer_since") in rows(database, "SELECT app, name FROM django_migrations")


@pytest.mark.parametrize("spoilt", ["a migration is missing", "a statement fails"])
def test_a_file_that_does_not_fit_is_left_alone_and_migrations_do_it(tmp_path: Path, spoilt: str) -> None:
    script = first_schema.FILE.read_text()
    known = sorted(line for line in script.splitlines() if line.startswith("-- has: "))
    (tmp_path / "spoilt.sql").write_text(
        script.replace(known[0], "") if "missing" in spoilt else script + "CREATE TABLE auth_user (id);\n"
    )
    code = (
        "from pathlib import Path; from roster import first_schema; from django.core.management import call_command\n"
        f"first_schema.FILE = Path({str(tmp_path / 'spoilt.sql')!r})\n"
        "print(first_schema.load()); call_command('prepare', verbosity=0)"
    )
    database = database_after(["shell", "-v0", "-c", code], tmp_path / "data")
    assert len(rows(database, "SELECT DISTINCT applied FROM django_migrations")) > 1
    assert rows(database, "SELECT username FROM auth_user") == [("admin",)]
