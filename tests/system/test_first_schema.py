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

HINT = "see roster/first_schema.py for how the file is made again"


def database_after(command: list[str], folder: Path) -> sqlite3.Connection:
    environment = {**os.environ, "DATABASE_URL": "", "REDIS_URL": "", "GUILD_HALL_DATA_DIR": str(folder)}
    command = [sys.executable, "manage.py", *command]
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=150)
    assert result.returncode == 0, result.stderr
    return sqlite3.connect(folder / "guildhall.sqlite3")


def rows(database: sqlite3.Connection, query: str) -> list[Any]:
    return sorted(database.execute(query).fetchall(), key=repr)


def test_the_file_contains_all_migrations() -> None:
    names = set(MigrationLoader(None).disk_migrations)
    assert first_schema.migrations_of(first_schema.FILE.read_text()) == names, HINT


def test_an_empty_database_gets_the_same_tables_as_from_migrations(tmp_path: Path) -> None:
    migrated = database_after(["migrate", "-v0"], tmp_path / "migrated")
    prepared = database_after(["prepare"], tmp_path / "prepared")
    for query in (
        "SELECT type, name, tbl_name, sql FROM sqlite_master",
        "SELECT app, name FROM django_migrations",
        "SELECT app_label, model FROM django_content_type",
        "SELECT codename, p.name, app_label, model FROM auth_permission p JOIN django_content_type c"
        " ON c.id = p.content_type_id",
        "SELECT r.name, g.name FROM roster_role r JOIN auth_group g ON g.id = r.group_id",
        "SELECT g.name, codename FROM auth_group_permissions l JOIN auth_group g ON g.id = l.group_id"
        " JOIN auth_permission p ON p.id = l.permission_id",
    ):
        assert rows(prepared, query) == rows(migrated, query), HINT
    # All have the same time, because they come from the file.
    times = rows(prepared, "SELECT DISTINCT applied FROM django_migrations")
    assert len(times) == 1
    assert len(rows(migrated, "SELECT DISTINCT applied FROM django_migrations")) > 1
    tables = {name for (name,) in rows(migrated, "SELECT name FROM sqlite_master WHERE type = 'table'")}
    tables -= {name for name in tables if name.startswith("roster_call_text")}  # FTS5 writes rows of its own
    tables = {name for name in tables if migrated.execute(f'SELECT 1 FROM "{name}"').fetchone()}
    # No migration makes other rows, because the file would not have them. These are made after each migration.
    after_migrations = {"django_content_type", "auth_permission", "auth_group", "auth_group_permissions", "roster_role"}
    assert tables == {"django_migrations", "sqlite_sequence", *after_migrations}


def test_a_database_that_has_some_of_its_migrations_gets_the_others(tmp_path: Path) -> None:
    database_after(["migrate", "roster", "0003", "-v0"], tmp_path).close()
    database = database_after(["prepare"], tmp_path)
    assert set(MigrationLoader(None).disk_migrations) <= set(rows(database, "SELECT app, name FROM django_migrations"))


def test_rows_are_kept_where_tables_and_columns_change_their_names(tmp_path: Path) -> None:
    database = database_after(["migrate", "roster", "0005", "-v0"], tmp_path)
    member = insert(database, "roster_guildmember", name="notes", wanted="stopped", status="disconnected")
    insert(database, "roster_invocation", member_id=member, tool_name="echo", door="gateway", status="queued")
    insert(database, "roster_callsum", member_id=member, tool_name="echo", seconds=60, begins=120, calls=7)
    tool = insert(database, "roster_tool", member_id=member, name="echo")
    user = insert(database, "auth_user", username="ada")
    token = insert(database, "roster_apitoken", user_id=user, name="laptop", digest="d", scope="members")
    insert(database, "roster_apitoken_members", apitoken_id=token, guildmember_id=member)
    insert(database, "roster_argumentset", tool_id=tool, user_id=user, name="mine", arguments='{"text": "hi"}')
    session = insert(database, "roster_agentsession", name="talk", created_by_id=user)
    insert(database, "roster_agentsession_members", agentsession_id=session, guildmember_id=member)
    insert(database, "roster_agentmessage", session_id=session, prompt="hello", door="rest", status="queued")
    hall = {"hall_id": "b" * 32, "summed_until": "2026-01-02 03:04:05"}
    insert(database, "roster_hall", id=1, lease_id="a" * 32, lease_host="box", lease_pid=7, **hall)
    database.commit()
    database.close()
    database = database_after(["prepare"], tmp_path)
    assert rows(database, "SELECT name, desired_state FROM roster_guildmember") == [("notes", "stopped")]
    assert rows(database, "SELECT member_id, tool_name, source FROM roster_call") == [(member, "echo", "gateway")]
    assert rows(database, "SELECT member_id, begins, calls FROM roster_callrollup") == [(member, 120, 7)]
    assert rows(database, "SELECT tool_id, user_id, name, arguments FROM roster_preset") == [
        (tool, user, "mine", '{"text": "hi"}')
    ]
    assert rows(database, "SELECT token_id, guildmember_id FROM roster_token_members") == [(token, member)]
    assert rows(database, "SELECT name, created_by_id FROM roster_agent") == [("talk", user)]
    assert rows(database, "SELECT agent_id, guildmember_id FROM roster_agent_members") == [(session, member)]
    assert rows(database, "SELECT agent_id, prompt FROM roster_agentmessage") == [(session, "hello")]
    assert rows(database, "SELECT rolled_up_until FROM roster_hall") == [("2026-01-02 03:04:05",)]
    assert rows(database, "SELECT name, lease_id, host, pid FROM roster_node") == [("main", "a" * 32, "box", 7)]


def insert(database: sqlite3.Connection, table: str, **values: Any) -> int:
    """Insert a row and return its id. Columns that must not be null get a value that fits every type."""
    for _, name, _, is_needed, default, is_key in database.execute(f"PRAGMA table_info({table})"):
        if is_needed and default is None and not is_key:
            values.setdefault(name, "0")  # valid JSON too
    names, placeholders = ", ".join(f'"{name}"' for name in values), ", ".join("?" * len(values))
    return int(
        database.execute(f"INSERT INTO {table} ({names}) VALUES ({placeholders})", [*values.values()]).lastrowid or 0
    )


@pytest.mark.parametrize("damage", ["a migration is missing", "a statement fails"])
def test_a_file_that_does_not_match_is_ignored_and_migrations_make_the_tables(tmp_path: Path, damage: str) -> None:
    script = first_schema.FILE.read_text()
    header_lines = sorted(line for line in script.splitlines() if line.startswith("-- has: "))
    (tmp_path / "spoilt.sql").write_text(
        script.replace(header_lines[0], "") if "missing" in damage else script + "CREATE TABLE auth_user (id);\n"
    )
    code = (
        "from pathlib import Path; from roster import first_schema; from django.core.management import call_command\n"
        f"first_schema.FILE = Path({str(tmp_path / 'spoilt.sql')!r})\n"
        "print(first_schema.load()); call_command('prepare', verbosity=0)"
    )
    database = database_after(["shell", "-v0", "-c", code], tmp_path / "data")
    assert len(rows(database, "SELECT DISTINCT applied FROM django_migrations")) > 1
    assert rows(database, "SELECT username FROM auth_user") == [("admin",)]
