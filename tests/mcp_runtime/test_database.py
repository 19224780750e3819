from __future__ import annotations

import threading
from typing import Any

import pytest
from django.db import DataError, InterfaceError, OperationalError, connection, transaction

from mcp_runtime import database
from mcp_runtime.database import persistently, unit_of_work
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
def test_what_trying_again_cannot_mend_is_raised_at_once(error: Exception) -> None:
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
