"""The time of rows, with a clock of the database that differs from the clock of this machine."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest
from django.db import OperationalError

from mcp_runtime.rows import clock


class Database:
    """The clock of the database. It is `ahead` of the real one."""

    def __init__(self) -> None:
        self.ahead = 0.0
        self.is_away = False
        self.read_count = 0

    def read(self) -> datetime:
        if self.is_away:
            raise OperationalError("no connection")
        self.read_count += 1
        return self.time()

    def time(self) -> datetime:
        return datetime.now(UTC) + timedelta(seconds=self.ahead)


@pytest.fixture
def database(monkeypatch: pytest.MonkeyPatch) -> Database:
    database = Database()
    monkeypatch.setattr(clock, "read", database.read)
    return database


def difference(own: clock.DatabaseClock, database: Database) -> float:
    return abs((own.now() - database.time()).total_seconds())


@pytest.mark.parametrize(("ahead", "words"), [(6.0, "6.0 s behind"), (-6.0, "6.0 s ahead of")])
def test_a_machine_with_a_wrong_clock_uses_the_time_of_the_database_and_says_so_once(
    database: Database, caplog: pytest.LogCaptureFixture, ahead: float, words: str
) -> None:
    database.ahead = ahead
    own = clock.DatabaseClock()
    assert difference(own, database) < 0.5
    own.measure_at = 0.0
    assert difference(own, database) < 0.5
    assert [words in record.getMessage() for record in caplog.records] == [True]


def test_a_small_difference_is_not_reported(database: Database, caplog: pytest.LogCaptureFixture) -> None:
    database.ahead = 1.5
    assert difference(clock.DatabaseClock(), database) < 0.5
    assert not caplog.records


def test_the_database_is_asked_only_now_and_then(database: Database) -> None:
    own = clock.DatabaseClock()
    for _ in range(100):
        own.now()
    assert database.read_count == 1


def test_setting_the_clock_of_the_machine_changes_no_row_times(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = clock.DatabaseClock()
    before = own.now()
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 3600)
    assert abs((own.now() - before).total_seconds()) < 5


def test_the_last_reading_counts_while_the_database_is_away(database: Database) -> None:
    database.ahead = 100.0
    own = clock.DatabaseClock()
    database.is_away = True
    with pytest.raises(OperationalError):
        own.now()
    database.is_away = False
    own.now()
    database.is_away, own.measure_at = True, 0.0
    assert difference(own, database) < 0.5


def test_with_sqlite_the_clock_of_the_machine_is_that_of_the_database(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock.connection, "vendor", "sqlite")
    seconds = time.time()
    assert clock.of_local(seconds) == datetime.fromtimestamp(seconds, UTC)
    assert abs(clock.now().timestamp() - seconds) < 5
