from __future__ import annotations

import sqlite3
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from mcp_runtime.members.supervisor import unfulfilled
from mcp_runtime.rows.changes import PostgresNotices, SqliteChanges, notify
from roster.models import GuildMember

sqlite_only = pytest.mark.skipif("connection.vendor != 'sqlite'", reason="it reads SQLite's own counter")


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    with sqlite3.connect(tmp_path / "some.sqlite3", isolation_level=None) as writer:
        writer.execute("PRAGMA journal_mode=WAL")
        writer.execute("CREATE TABLE t (x)")
        yield writer
    writer.close()


@pytest.fixture
def changes(tmp_path: Path, writer: sqlite3.Connection) -> Iterator[SqliteChanges]:
    changes = SqliteChanges(tmp_path / "some.sqlite3")
    yield changes
    changes.close()


def test_a_commit_of_another_connection_is_reported_once(changes: SqliteChanges, writer: sqlite3.Connection) -> None:
    assert not changes.look()
    writer.execute("INSERT INTO t VALUES (1)")
    assert changes.look()
    assert not changes.look()


def test_a_transaction_is_a_change_when_it_commits(changes: SqliteChanges, writer: sqlite3.Connection) -> None:
    writer.execute("BEGIN IMMEDIATE")
    writer.execute("INSERT INTO t VALUES (1)")
    assert not changes.look()
    writer.execute("COMMIT")
    assert changes.look()


def test_a_transaction_that_is_rolled_back_is_no_change(changes: SqliteChanges, writer: sqlite3.Connection) -> None:
    writer.execute("BEGIN IMMEDIATE")
    writer.execute("INSERT INTO t VALUES (1)")
    writer.execute("ROLLBACK")
    assert not changes.look()


def test_many_commits_between_two_checks_are_one_change(changes: SqliteChanges, writer: sqlite3.Connection) -> None:
    for number in range(50):
        writer.execute("INSERT INTO t VALUES (?)", [number])
    assert changes.look()
    assert not changes.look()


def test_a_check_never_delays_a_writer(changes: SqliteChanges, writer: sqlite3.Connection) -> None:
    writer.execute("PRAGMA busy_timeout=0")
    for number in range(20):
        changes.look()
        writer.execute("INSERT INTO t VALUES (?)", [number])
        writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()


def test_another_thread_can_use_the_object(changes: SqliteChanges, writer: sqlite3.Connection) -> None:
    writer.execute("INSERT INTO t VALUES (1)")
    results: list[bool] = []
    thread = threading.Thread(target=lambda: results.append(changes.look()))
    thread.start()
    thread.join(10)
    assert results == [True]


@sqlite_only
@pytest.mark.django_db(transaction=True)
def test_exists_gives_the_same_answer_as_the_orm() -> None:
    changes = SqliteChanges(str(connection.settings_dict["NAME"]))
    members, members_by_name = (
        unfulfilled(uuid.uuid4()),
        GuildMember.objects.filter(name="100%", status_changed_at__lte=timezone.now()),
    )
    try:
        assert not changes.exists(members)
        assert not changes.exists(members_by_name)
        GuildMember.objects.create(name="100%", directory="anna")
        assert changes.look()
        assert changes.exists(members)
        GuildMember.objects.update(desired_state="stopped", status_changed_at="2020-01-01T00:00:00Z")
        assert not changes.exists(members)
        assert changes.exists(members_by_name)
    finally:
        changes.close()


@pytest.fixture
def postgres_notices(transactional_db: None) -> Iterator[PostgresNotices]:
    if connection.vendor != "postgresql":
        pytest.skip("for PostgreSQL")
    notices = PostgresNotices("some_channel")
    yield notices
    notices.close()


def test_a_notification_is_received_once_after_its_transaction_is_committed(postgres_notices: PostgresNotices) -> None:
    with transaction.atomic():
        notify("some_channel")
        notify("some_channel")
        assert not postgres_notices.wait(0.05)
    assert postgres_notices.wait(5)
    assert not postgres_notices.wait(0.05)


def test_a_notification_on_another_channel_or_of_a_rolled_back_transaction_is_not_received(
    postgres_notices: PostgresNotices,
) -> None:
    notify("another_channel")
    with transaction.atomic():
        notify("some_channel")
        transaction.set_rollback(True)
    assert not postgres_notices.wait(0.1)


@pytest.mark.django_db
def test_sqlite_needs_no_notification() -> None:
    with CaptureQueriesContext(connection) as queries:
        notify("some_channel")
    assert len(queries) == (1 if connection.vendor == "postgresql" else 0)
