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


class Failing:
    """Work that fails with these errors, one a time, and then is done."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.tries = 0

    def __call__(self) -> str:
        self.tries += 1
        if self.errors:
            raise self.errors.pop(0)
        return "done"


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "RETRY_INTERVAL", 0.001)


@pytest.mark.django_db(transaction=True)
def test_work_is_repeated_until_the_database_is_back(caplog: pytest.LogCaptureFixture) -> None:
    work = Failing(OperationalError("gone\n"), InterfaceError("closed"), OperationalError("still gone"))
    assert persistently(work) == "done"
    assert work.tries == 4
    assert [record.getMessage() for record in caplog.records] == [
        f"the database cannot be reached ({reason}); trying again" for reason in ("gone", "closed", "still gone")
    ]


@pytest.mark.django_db(transaction=True)
def test_each_try_gets_a_connection_of_its_own() -> None:
    seen: list[Any] = []

    def work() -> None:
        Hall.objects.count()
        seen.append(connection.connection)
        if len(seen) == 1:
            raise OperationalError("gone")

    persistently(work)
    assert seen[0] is not seen[1]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("error", [DataError("too long"), ValueError("a bug")])
def test_an_error_that_another_try_cannot_fix_is_raised_at_once(error: Exception) -> None:
    work = Failing(error)
    with pytest.raises(type(error)):
        persistently(work)
    assert work.tries == 1


@pytest.mark.django_db(transaction=True)
def test_patience_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "RETRY_SECONDS", 0.05)
    work = Failing(*[OperationalError("gone")] * 10_000)
    with pytest.raises(OperationalError):
        persistently(work)
    assert work.tries > 2


@pytest.mark.django_db(transaction=True)
def test_half_a_transaction_is_not_repeated() -> None:
    work = Failing(OperationalError("gone"))
    with pytest.raises(OperationalError), transaction.atomic():
        persistently(work)
    assert work.tries == 1


# A start --------------------------------------------------------------------------------------------------------------


def by_sqlite(code: int) -> OperationalError:
    cause = sqlite3.OperationalError("as SQLite says")
    cause.sqlite_errorcode = code
    return caused_by(cause)


def caused_by(cause: Exception) -> OperationalError:
    error = OperationalError("as the driver says")
    error.__cause__ = cause
    return error


PASSING = [
    pytest.param(by_sqlite(sqlite3.SQLITE_FULL), id="no space"),
    pytest.param(by_sqlite(sqlite3.SQLITE_IOERR_SHMSIZE), id="no space for the memory that connections share"),
    pytest.param(by_sqlite(sqlite3.SQLITE_BUSY), id="locked"),
    pytest.param(caused_by(psycopg.errors.DiskFull()), id="PostgreSQL has no space"),
    pytest.param(caused_by(psycopg.errors.AdminShutdown()), id="PostgreSQL is stopped"),
    pytest.param(caused_by(psycopg.errors.CannotConnectNow()), id="PostgreSQL starts"),
    pytest.param(caused_by(psycopg_pool.PoolTimeout()), id="PostgreSQL is away"),
]
LASTING = [
    pytest.param(by_sqlite(sqlite3.SQLITE_ERROR), id="no such table"),
    pytest.param(by_sqlite(sqlite3.SQLITE_CANTOPEN), id="no such folder"),
    pytest.param(caused_by(psycopg.errors.InvalidPassword()), id="wrong password"),
]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("error", PASSING)
def test_a_start_waits_for_what_passes_and_says_so_once(
    error: OperationalError, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(database, "START_RETRY_SECONDS", 0.001)
    caplog.set_level("INFO")
    work = Failing(*[error] * 3)
    assert patiently(work, lambda: False) == "done"
    assert work.tries == 4
    assert [record.getMessage() for record in caplog.records] == [
        "the database cannot be used (as the driver says); the start waits until it can be used",
        "the database can be used again; the start continues",
    ]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("error", LASTING)
def test_a_start_does_not_wait_for_a_fault_that_somebody_must_fix(error: OperationalError) -> None:
    work = Failing(error)
    with pytest.raises(OperationalError):
        patiently(work, lambda: False)
    assert work.tries == 1


@pytest.mark.django_db(transaction=True)
def test_a_start_that_waits_ends_soon_when_it_is_asked() -> None:
    over = threading.Event()
    threading.Timer(0.1, over.set).start()
    began = time.monotonic()
    with pytest.raises(OperationalError):
        patiently(Failing(*[by_sqlite(sqlite3.SQLITE_FULL)] * 10), over.is_set)
    assert time.monotonic() - began < database.START_RETRY_SECONDS


@pytest.mark.skipif("postgres" in os.environ.get("DATABASE_URL", ""), reason="of SQLite's lock")
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("fails", [False, True])
def test_after_a_start_locks_are_waited_for_as_long_as_before(fails: bool) -> None:
    def patience() -> int:
        with connection.cursor() as cursor:
            return int(cursor.execute("PRAGMA busy_timeout").fetchone()[0])

    before = patience()
    with pytest.raises(OperationalError) if fails else contextlib.nullcontext():
        patiently(Failing(by_sqlite(sqlite3.SQLITE_FULL)) if fails else patience, lambda: fails)
    assert patience() == before


# Servers that answer, and refuse -------------------------------------------------------------------------------------

WAIT = [
    pytest.param("57P03", "the database system is starting up", id="starts"),
    pytest.param("53300", "sorry, too many clients already", id="full"),
]
MEND = [
    pytest.param("28P01", 'password authentication failed for user "hall"', id="wrong password"),
    pytest.param("3D000", 'database "hall" does not exist', id="no such database"),
    pytest.param("28000", 'role "hall" does not exist', id="no such role"),
    pytest.param("28000", 'no pg_hba.conf entry for host "127.0.0.1", user "hall"', id="not let in"),
]


@pytest.fixture
def refusing(request: pytest.FixtureRequest) -> Iterator[None]:
    """The database is a PostgreSQL that refuses every connection with this code and message; there is a pool."""
    code, message = request.param
    fields = b"".join(f"{field}\0".encode() for field in ("SFATAL", "VFATAL", f"C{code}", f"M{message}", ""))
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=_refuse, args=[server, fields], daemon=True).start()
        port = server.getsockname()[1]
        url = f"postgres://hall:wrong@127.0.0.1:{port}/hall?sslmode=disable&gssencmode=disable"
        settings = dj_database_url.parse(url)
        settings["OPTIONS"]["pool"] = {"min_size": 0, "max_size": 1, "timeout": 0.2, "reconnect_timeout": 0.1}
        before = connections["default"]
        # Pools are kept by the alias: with another one it does not get that of the tests' own database.
        connections["default"] = own = ConnectionHandler({"default": {}, "refusing": settings})["refusing"]
        try:
            yield
        finally:
            connections["default"] = before
            own.close_pool()  # type: ignore[attr-defined]


def _refuse(server: socket.socket, fields: bytes) -> None:
    with contextlib.suppress(OSError):  # closed: the test is over
        while True:
            client, _ = server.accept()
            with client:
                client.recv(10_000)
                client.sendall(b"E" + struct.pack("!I", len(fields) + 4) + fields)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("refusing", [param.values for param in MEND], ids=[p.id for p in MEND], indirect=True)
@pytest.mark.parametrize("is_pooled", [True, False])
@pytest.mark.usefixtures("refusing")
def test_a_start_that_a_server_refuses_for_good_ends_and_says_what_the_server_said(*, is_pooled: bool) -> None:
    if not is_pooled:
        del connection.settings_dict["OPTIONS"]["pool"]
    over = threading.Event()
    threading.Timer(5, over.set).start()
    with pytest.raises(OperationalError, match="FATAL: "):
        patiently(connection.ensure_connection, over.is_set)
    assert not over.is_set()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("refusing", [param.values for param in WAIT], ids=[p.id for p in WAIT], indirect=True)
@pytest.mark.usefixtures("refusing")
def test_a_start_that_waits_says_what_the_server_said(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(OperationalError):
        patiently(connection.ensure_connection, lambda: "the start waits" in caplog.text)
    [said] = [record.getMessage() for record in caplog.records if record.name == "guildhall.runtime"]
    assert "FATAL: " in said


# Connections ----------------------------------------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("fails", [False, True])
def test_a_unit_of_work_gives_its_connection_back_to_a_pool_and_keeps_an_own_one(fails: bool) -> None:
    """How long a connection is kept is a setting: for ever on SQLite, until the end of the unit on PostgreSQL."""
    held: list[bool] = []

    def work() -> None:
        Hall.objects.count()
        if fails:
            raise ValueError

    def run() -> None:
        try:
            unit_of_work(work)
        except ValueError:
            assert fails
        held.append(connection.connection is not None)
        connection.close()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(10)
    assert held == [connection.vendor == "sqlite"]


@pytest.mark.django_db(transaction=True)
def test_a_unit_of_work_gives_what_its_work_gives() -> None:
    assert unit_of_work(lambda: 7) == 7


@pytest.mark.django_db(transaction=True)
def test_a_unit_of_work_replaces_a_connection_that_went_bad() -> None:
    Hall.objects.count()
    bad = connection.connection
    connection.errors_occurred = True
    connection.is_usable = lambda: False  # type: ignore[method-assign]
    try:
        unit_of_work(lambda: Hall.objects.count())
        assert connection.connection is not bad
    finally:
        del connection.is_usable


def _error_of(query: str) -> BaseException:
    with contextlib.closing(sqlite3.connect(":memory:")) as own, pytest.raises(sqlite3.Error) as caught:
        own.execute(query).fetchall()
    return caught.value


def test_a_text_that_is_none_is_damage_and_other_errors_are_not() -> None:
    """Python's own errors have no code of SQLite's."""
    assert "is damaged (Could not decode" in database.damage(_error_of("SELECT CAST(x'ff41' AS TEXT)"))
    assert database.damage(_error_of("SELECT nothing")) == ""
    assert database.damage(sqlite3.ProgrammingError("Cannot operate on a closed database.")) == ""
    assert database.damage(ValueError("a bug")) == ""
