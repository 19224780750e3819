from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import InterfaceError, OperationalError, connection, connections
from django.utils import timezone

from mcp_runtime.calls import transitions, waiting
from mcp_runtime.calls.waiting import CallWatch
from mcp_runtime.control.calls import wait_for_call
from mcp_runtime.rows.changes import notify
from roster.models import Call, GuildMember
from tests.conftest import eventually
from tests.support.machine import Stopwatch

pytestmark = pytest.mark.django_db(transaction=True)


class RecordingWatch(CallWatch):
    """`queries`: the ids of calls in each query to the database."""

    def __init__(self) -> None:
        super().__init__()
        self.queries: list[set[int]] = []

    def has_queried(self, call: Call) -> bool:
        return any(call.pk in ids for ids in self.queries)


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Iterator[RecordingWatch]:
    """A watch that closes its database connection soon after nobody waits."""
    monkeypatch.setattr(waiting, "LINGER_SECONDS", 0.1)
    monkeypatch.setattr(waiting, "RETRY_INTERVAL", 0.01)
    watch, original = RecordingWatch(), waiting.ids_of_finished

    def ids_of_finished(ids: set[int]) -> set[int]:
        watch.queries.append(set(ids))
        return original(ids)

    monkeypatch.setattr(waiting, "ids_of_finished", ids_of_finished)
    yield watch

    def has_only_own_query() -> bool:
        notify(waiting.CALL_ENDED)  # the watch may listen for a minute
        watch.wait(0, 0.05)  # wakes the watch if it lingers
        return watch.queries[-1:] == [{0}]

    eventually(has_only_own_query)
    notify(waiting.CALL_ENDED)  # nobody waits now, so the watch closes its connection
    time.sleep(0.2)  # no other test may see its connection


@pytest.fixture
def call() -> Call:
    member = GuildMember.objects.create(name="anna", directory="anna")
    return Call.objects.create(member=member, tool_name="echo", timeout=1, source="rest", status="running")


def add_call(call: Call) -> Call:
    return Call.objects.create(member=call.member, tool_name="echo", timeout=1, source="rest", status="running")


def finish(*calls: Call) -> None:
    pks = [call.pk for call in calls]
    Call.objects.filter(pk__in=pks).update(status="succeeded", finished_at=timezone.now())


class Waiter:
    """A thread that waits."""

    def __init__(self, watch: RecordingWatch, call: Call, timeout: float = 20) -> None:
        self.results: list[bool] = []
        self.returned_at = 0.0
        self._thread = threading.Thread(target=self._wait, args=(watch, call.pk, timeout))
        self._thread.start()
        eventually(lambda: watch.has_queried(call))

    def _wait(self, watch: CallWatch, pk: int, timeout: float) -> None:
        try:
            self.results.append(watch.wait(pk, timeout))
            self.returned_at = time.monotonic()
        finally:
            connection.close()

    def result(self) -> bool:
        self._thread.join(20)
        (result,) = self.results
        return result


def listener_pids() -> list[int]:
    """The pids of the database's processes that listen for finished calls."""
    if connection.vendor == "sqlite":
        return []
    with connection.cursor() as cursor:
        cursor.execute("SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN %%'")
        return [pid for (pid,) in cursor.fetchall()]


def watch_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "call-watch"]


def test_waiting_ends_when_the_call_does(watch: RecordingWatch, call: Call) -> None:
    waiter = Waiter(watch, call)
    assert waiter.results == []
    finished_at = time.monotonic()
    finish(call)
    assert waiter.result()
    assert waiter.returned_at - finished_at < 10  # of 20


def test_the_database_reports_a_finished_call_without_a_query(
    watch: RecordingWatch, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "SQLITE_MAX_AGE", 60.0)
    monkeypatch.setattr(waiting, "POSTGRES_MAX_AGE", 60.0)
    Call.objects.update(status="queued")
    waiter = Waiter(watch, call)
    eventually(lambda: listener_pids() or connection.vendor == "sqlite")
    transitions.cancel(call)
    assert waiter.result()


@pytest.mark.skipif("connection.vendor != 'postgresql'", reason="only PostgreSQL has a listener")
def test_a_listener_that_is_disconnected_costs_little_time(watch: RecordingWatch, call: Call) -> None:
    waiter = Waiter(watch, call)
    (listener,) = eventually(listener_pids)  # type: ignore[misc]
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s)", [listener])
    eventually(lambda: listener_pids() and listener_pids() != [listener])
    finish(call)
    assert waiter.result()


def test_nobody_waits_for_a_call_that_has_already_ended(watch: RecordingWatch, call: Call) -> None:
    finish(call)
    clock = Stopwatch()
    assert watch.wait(call.pk, 20)
    assert clock.seconds < 10


def test_a_wait_ends_at_its_timeout_if_the_call_still_runs(watch: RecordingWatch, call: Call) -> None:
    clock = Stopwatch()
    assert not watch.wait(call.pk, 0.2)
    assert clock.elapsed >= 0.2
    assert clock.seconds < 10


def test_a_call_that_does_not_exist_has_not_ended(watch: RecordingWatch, call: Call) -> None:
    assert not watch.wait(call.pk + 1000, 0.1)


@pytest.mark.parametrize("status", Call.FINISHED)
def test_every_final_status_ends_the_wait(watch: RecordingWatch, call: Call, status: str) -> None:
    waiter = Waiter(watch, call)
    Call.objects.update(status=status, finished_at=timezone.now())
    assert waiter.result()


def test_all_waiters_for_one_call_are_notified(watch: RecordingWatch, call: Call) -> None:
    waiters = [Waiter(watch, call) for _ in range(8)]
    finish(call)
    assert all(waiter.result() for waiter in waiters)


def test_each_waiter_is_notified_of_its_own_call(watch: RecordingWatch, call: Call) -> None:
    other_call = add_call(call)
    first, second = Waiter(watch, call), Waiter(watch, other_call)
    finish(call)
    assert first.result()
    assert second.results == []
    finish(other_call)
    assert second.result()


def test_one_thread_watches_for_all_waiters(watch: RecordingWatch, call: Call) -> None:
    before = len(watch_threads())
    calls = [add_call(call) for _ in range(10)]
    waiters = [Waiter(watch, new_call) for new_call in calls]
    assert len(watch_threads()) == before + 1
    finish(*calls)
    assert all(waiter.result() for waiter in waiters)


def test_the_watch_works_again_after_a_pause(watch: RecordingWatch, call: Call) -> None:
    finish(call)
    assert watch.wait(call.pk, 20)
    time.sleep(0.3)  # longer than it lingers
    other_call = add_call(call)
    waiter = Waiter(watch, other_call)
    finish(other_call)
    assert waiter.result()


def test_a_watch_without_waiters_has_no_connection(
    watch: RecordingWatch, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_closed = threading.Event()
    original = type(connections["default"]).close

    def close(self: Any) -> None:
        original(self)
        if threading.current_thread().name == "call-watch":
            is_closed.set()

    monkeypatch.setattr(type(connections["default"]), "close", close)
    finish(call)
    assert watch.wait(call.pk, 20)
    assert is_closed.wait(5)


@pytest.mark.parametrize(
    "error", [OperationalError("gone"), InterfaceError("closed"), sqlite3.OperationalError("disk I/O error")]
)
def test_a_database_that_fails_once_costs_little_time(
    watch: RecordingWatch, call: Call, error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    errors, original = [error], waiting.ids_of_finished

    def ids_of_finished(ids: Any) -> set[int]:
        if errors:
            raise errors.pop()
        return original(ids)

    monkeypatch.setattr(waiting, "ids_of_finished", ids_of_finished)
    waiter = Waiter(watch, call)
    finish(call)
    assert waiter.result()
    assert caplog.text.count("cannot look for finished calls") == 1


def test_a_waiting_thread_keeps_no_connection_of_a_pool(watch: RecordingWatch, call: Call) -> None:
    connection_states: list[bool] = []

    def wait() -> None:
        Call.objects.count()
        watch.wait(call.pk, 0.2)
        connection_states.append(connection.connection is not None)
        connection.close()

    thread = threading.Thread(target=wait)
    thread.start()
    thread.join(10)
    assert connection_states == [connection.vendor == "sqlite"]


def test_control_waits_with_the_one_watch_of_the_process(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "LINGER_SECONDS", 0.1)
    finish(call)
    assert wait_for_call(call.pk, 20)
    assert not wait_for_call(add_call(call).pk, 0.05)
    time.sleep(0.2)
