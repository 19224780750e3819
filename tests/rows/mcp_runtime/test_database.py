from __future__ import annotations

import contextlib
import os
import socket
import sqlite3
import struct
import threading
import time
from collections.abc import Iterator
from typing import Any

import dj_database_url
import psycopg
import psycopg_pool
import pytest
from django.db import DataError, InterfaceError, OperationalError, connection, connections, transaction
from django.db.utils import ConnectionHandler

from mcp_runtime.rows import database
from mcp_runtime.rows.database import patiently, persistently, unit_of_work
from roster.models import Hall


class FailingWork:
    """A function that raises these errors, one in each call, and then returns "done"."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.calls = 0

    def __call__(self) -> str:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return "done"


@pytest.fixture(autouse=True)
def _short_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "RETRY_INTERVAL", 0.001)


@pytest.mark.django_db(transaction=True)
def test_work_is_repeated_until_the_database_is_available(caplog: pytest.LogCaptureFixture) -> None:
    work = FailingWork(OperationalError("gone\n"), InterfaceError("closed"), OperationalError("still gone"))
    assert persistently(work) == "done"
    assert work.calls == 4
    assert [record.getMessage() for record in caplog.records] == [
        f"the database cannot be reached ({reason}); trying again" for reason in ("gone", "closed", "still gone")
    ]


@pytest.mark.django_db(transaction=True)
def test_each_attempt_gets_its_own_connection() -> None:
    driver_connections: list[Any] = []

    def work() -> None:
        Hall.objects.count()
        driver_connections.append(connection.connection)
        if len(driver_connections) == 1:
            raise OperationalError("gone")

    persistently(work)
    assert driver_connections[0] is not driver_connections[1]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("error", [DataError("too long"), ValueError("a bug")])
def test_an_error_that_a_repetition_cannot_fix_is_raised_at_once(error: Exception) -> None:
    work = FailingWork(error)
    with pytest.raises(type(error)):
        persistently(work)
    assert work.calls == 1


@pytest.mark.django_db(transaction=True)
def test_the_repetitions_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "RETRY_SECONDS", 0.05)
    work = FailingWork(*[OperationalError("gone")] * 10_000)
    with pytest.raises(OperationalError):
        persistently(work)
    assert work.calls > 2


@pytest.mark.django_db(transaction=True)
def test_work_inside_a_transaction_is_not_repeated() -> None:
    work = FailingWork(OperationalError("gone"))
    with pytest.raises(OperationalError), transaction.atomic():
        persistently(work)
    assert work.calls == 1


# A start --------------------------------------------------------------------------------------------------------------


def sqlite_error(code: int) -> OperationalError:
    cause = sqlite3.OperationalError("as SQLite says")
    cause.sqlite_errorcode = code
    return error_with_cause(cause)


def error_with_cause(cause: Exception) -> OperationalError:
    error = OperationalError("as the driver says")
    error.__cause__ = cause
    return error


TEMPORARY_ERRORS = [
    pytest.param(sqlite_error(sqlite3.SQLITE_FULL), id="no space"),
    pytest.param(sqlite_error(sqlite3.SQLITE_IOERR_SHMSIZE), id="no space for the memory that connections share"),
    pytest.param(sqlite_error(sqlite3.SQLITE_BUSY), id="locked"),
    pytest.param(error_with_cause(psycopg.errors.DiskFull()), id="PostgreSQL has no space"),
    pytest.param(error_with_cause(psycopg.errors.AdminShutdown()), id="PostgreSQL is stopped"),
    pytest.param(error_with_cause(psycopg.errors.CannotConnectNow()), id="PostgreSQL starts"),
    pytest.param(error_with_cause(psycopg_pool.PoolTimeout()), id="PostgreSQL is away"),
]
PERMANENT_ERRORS = [
    pytest.param(sqlite_error(sqlite3.SQLITE_ERROR), id="no such table"),
    pytest.param(sqlite_error(sqlite3.SQLITE_CANTOPEN), id="no such folder"),
    pytest.param(error_with_cause(psycopg.errors.InvalidPassword()), id="wrong password"),
]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("error", TEMPORARY_ERRORS)
def test_a_start_waits_during_a_temporary_error_and_logs_it_once(
    error: OperationalError, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(database, "START_RETRY_SECONDS", 0.001)
    caplog.set_level("INFO")
    work = FailingWork(*[error] * 3)
    assert patiently(work, lambda: False) == "done"
    assert work.calls == 4
    assert [record.getMessage() for record in caplog.records] == [
        "the database cannot be used (as the driver says); the start waits until it can be used",
        "the database can be used again; the start continues",
    ]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("error", PERMANENT_ERRORS)
def test_a_start_does_not_wait_during_a_permanent_error(error: OperationalError) -> None:
    work = FailingWork(error)
    with pytest.raises(OperationalError):
        patiently(work, lambda: False)
    assert work.calls == 1


@pytest.mark.django_db(transaction=True)
def test_a_start_that_waits_ends_soon_after_a_stop() -> None:
    is_over = threading.Event()
    threading.Timer(0.1, is_over.set).start()
    start_time = time.monotonic()
    with pytest.raises(OperationalError):
        patiently(FailingWork(*[sqlite_error(sqlite3.SQLITE_FULL)] * 10), is_over.is_set)
    assert time.monotonic() - start_time < database.START_RETRY_SECONDS


@pytest.mark.skipif("postgres" in os.environ.get("DATABASE_URL", ""), reason="this is about SQLite's lock")
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("fails", [False, True])
def test_after_a_start_the_timeout_of_locks_is_the_same_as_before(fails: bool) -> None:
    def busy_timeout() -> int:
        with connection.cursor() as cursor:
            return int(cursor.execute("PRAGMA busy_timeout").fetchone()[0])

    before = busy_timeout()
    with pytest.raises(OperationalError) if fails else contextlib.nullcontext():
        patiently(FailingWork(sqlite_error(sqlite3.SQLITE_FULL)) if fails else busy_timeout, lambda: fails)
    assert busy_timeout() == before


# Servers that refuse -------------------------------------------------------------------------------------------------

TEMPORARY_REFUSALS = [
    pytest.param("57P03", "the database system is starting up", id="starts"),
    pytest.param("53300", "sorry, too many clients already", id="full"),
]
PERMANENT_REFUSALS = [
    pytest.param("28P01", 'password authentication failed for user "hall"', id="wrong password"),
    pytest.param("3D000", 'database "hall" does not exist', id="no such database"),
    pytest.param("28000", 'role "hall" does not exist', id="no such role"),
    pytest.param("28000", 'no pg_hba.conf entry for host "127.0.0.1", user "hall"', id="not allowed"),
]


@pytest.fixture
def refusing_server(request: pytest.FixtureRequest) -> Iterator[None]:
    """The database is a PostgreSQL server that refuses every connection with this code and message. There is a pool."""
    code, message = request.param
    fields = b"".join(f"{field}\0".encode() for field in ("SFATAL", "VFATAL", f"C{code}", f"M{message}", ""))
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=_refuse, args=[server, fields], daemon=True).start()
        port = server.getsockname()[1]
        url = f"postgres://hall:wrong@127.0.0.1:{port}/hall?sslmode=disable&gssencmode=disable"
        settings = dj_database_url.parse(url)
        settings["OPTIONS"]["pool"] = {"min_size": 0, "max_size": 1, "timeout": 0.2, "reconnect_timeout": 0.1}
        before = connections["default"]
        # Django stores pools by alias. With another alias, the connection does not use the pool of the tests' database.
        connections["default"] = own_connection = ConnectionHandler({"default": {}, "refusing": settings})["refusing"]
        try:
            yield
        finally:
            connections["default"] = before
            own_connection.close_pool()  # type: ignore[attr-defined]


def _refuse(server: socket.socket, fields: bytes) -> None:
    with contextlib.suppress(OSError):  # the socket is closed after the test
        while True:
            client, _ = server.accept()
            with client:
                client.recv(10_000)
                client.sendall(b"E" + struct.pack("!I", len(fields) + 4) + fields)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    "refusing_server",
    [param.values for param in PERMANENT_REFUSALS],
    ids=[p.id for p in PERMANENT_REFUSALS],
    indirect=True,
)
@pytest.mark.parametrize("is_pooled", [True, False])
@pytest.mark.usefixtures("refusing_server")
def test_a_start_with_a_permanent_refusal_ends_with_the_text_of_the_server(*, is_pooled: bool) -> None:
    if not is_pooled:
        del connection.settings_dict["OPTIONS"]["pool"]
    is_over = threading.Event()
    threading.Timer(5, is_over.set).start()
    with pytest.raises(OperationalError, match="FATAL: "):
        patiently(connection.ensure_connection, is_over.is_set)
    assert not is_over.is_set()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    "refusing_server",
    [param.values for param in TEMPORARY_REFUSALS],
    ids=[p.id for p in TEMPORARY_REFUSALS],
    indirect=True,
)
@pytest.mark.usefixtures("refusing_server")
def test_a_start_that_waits_logs_the_text_of_the_server(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(OperationalError):
        patiently(connection.ensure_connection, lambda: "the start waits" in caplog.text)
    [message] = [record.getMessage() for record in caplog.records if record.name == "guildhall.runtime"]
    assert "FATAL: " in message


# Connections ----------------------------------------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("fails", [False, True])
def test_a_unit_of_work_returns_its_connection_to_the_pool(fails: bool) -> None:
    """A setting decides how long a connection lives: forever on SQLite, until the end of the unit on PostgreSQL."""
    connection_states: list[bool] = []

    def work() -> None:
        Hall.objects.count()
        if fails:
            raise ValueError

    def run() -> None:
        try:
            unit_of_work(work)
        except ValueError:
            assert fails
        connection_states.append(connection.connection is not None)
        connection.close()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(10)
    assert connection_states == [connection.vendor == "sqlite"]


@pytest.mark.django_db(transaction=True)
def test_a_unit_of_work_returns_the_result_of_its_function() -> None:
    assert unit_of_work(lambda: 7) == 7


@pytest.mark.django_db(transaction=True)
def test_a_unit_of_work_replaces_a_broken_connection() -> None:
    Hall.objects.count()
    broken_connection = connection.connection
    connection.errors_occurred = True
    connection.is_usable = lambda: False  # type: ignore[method-assign]
    try:
        unit_of_work(lambda: Hall.objects.count())
        assert connection.connection is not broken_connection
    finally:
        del connection.is_usable


def _error_of(query: str) -> BaseException:
    with contextlib.closing(sqlite3.connect(":memory:")) as own_connection, pytest.raises(sqlite3.Error) as error:
        own_connection.execute(query).fetchall()
    return error.value


def test_text_that_is_not_utf_8_is_damage_and_other_errors_are_not() -> None:
    """Python's own errors have no error code of SQLite."""
    assert "is damaged (Could not decode" in database.damage(_error_of("SELECT CAST(x'ff41' AS TEXT)"))
    assert database.damage(_error_of("SELECT nothing")) == ""
    assert database.damage(sqlite3.ProgrammingError("Cannot operate on a closed database.")) == ""
    assert database.damage(ValueError("a bug")) == ""
