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


class Watch(CallWatch):
    """What it asks the database for: the ids of calls, at each look."""

    def __init__(self) -> None:
        super().__init__()
        self.looks: list[set[int]] = []

    def has_looked_for(self, call: Call) -> bool:
        return any(call.pk in look for look in self.looks)


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    """A watch that lets go of its database connection soon after the last one waited."""
    monkeypatch.setattr(waiting, "LINGER_SECONDS", 0.1)
    monkeypatch.setattr(waiting, "RETRY_INTERVAL", 0.01)
    watch, real = Watch(), waiting.ids_of_finished

    def ids_of_finished(ids: set[int]) -> set[int]:
        watch.looks.append(set(ids))
        return real(ids)

    monkeypatch.setattr(waiting, "ids_of_finished", ids_of_finished)
    yield watch

    def has_forgotten_all_others() -> bool:
        notify(waiting.CALL_ENDED)  # it may listen for a minute
        watch.wait(0, 0.05)  # wakes it, in case it lingers
        return watch.looks[-1:] == [{0}]

    eventually(has_forgotten_all_others)
    notify(waiting.CALL_ENDED)  # nobody waits now: it lets go
    time.sleep(0.2)  # no other test must meet its connection


@pytest.fixture
def call() -> Call:
    member = GuildMember.objects.create(name="anna", directory="anna")
    return Call.objects.create(member=member, tool_name="echo", timeout=1, source="rest", status="running")


def another(call: Call) -> Call:
    return Call.objects.create(member=call.member, tool_name="echo", timeout=1, source="rest", status="running")


def finish(*calls: Call) -> None:
    pks = [call.pk for call in calls]
    Call.objects.filter(pk__in=pks).update(status="succeeded", finished_at=timezone.now())


class Waiter:
    """A thread that waits."""

    def __init__(self, watch: Watch, call: Call, timeout: float = 20) -> None:
        self.answers: list[bool] = []
        self.answered_at = 0.0
        self._thread = threading.Thread(target=self._wait, args=(watch, call.pk, timeout))
        self._thread.start()
        eventually(lambda: watch.has_looked_for(call))

    def _wait(self, watch: CallWatch, pk: int, timeout: float) -> None:
        try:
            self.answers.append(watch.wait(pk, timeout))
            self.answered_at = time.monotonic()
        finally:
            connection.close()

    def answer(self) -> bool:
        self._thread.join(20)
        (answer,) = self.answers
        return answer


def listeners() -> list[int]:
    """The pids of the database's processes that listen for ends of calls."""
    if connection.vendor == "sqlite":
        return []
    with connection.cursor() as cursor:
        cursor.execute("SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN %%'")
        return [pid for (pid,) in cursor.fetchall()]


def watchers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "call-watch"]


def test_waiting_ends_when_the_call_does(watch: Watch, call: Call) -> None:
    waiter = Waiter(watch, call)
    assert waiter.answers == []
    finished_at = time.monotonic()
    finish(call)
    assert waiter.answer()
    assert waiter.answered_at - finished_at < 10  # of 20


def test_the_database_itself_tells_of_an_end_without_being_asked(
    watch: Watch, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "SQLITE_MAX_AGE", 60.0)
    monkeypatch.setattr(waiting, "POSTGRES_MAX_AGE", 60.0)
    Call.objects.update(status="queued")
    waiter = Waiter(watch, call)
    eventually(lambda: listeners() or connection.vendor == "sqlite")
    transitions.cancel(call)
    assert waiter.answer()


@pytest.mark.skipif("connection.vendor != 'postgresql'", reason="only PostgreSQL has one that listens")
def test_a_listener_that_is_cut_off_costs_a_moment(watch: Watch, call: Call) -> None:
    waiter = Waiter(watch, call)
    (listener,) = eventually(listeners)  # type: ignore[misc]
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s)", [listener])
    eventually(lambda: listeners() and listeners() != [listener])
    finish(call)
    assert waiter.answer()


def test_a_call_that_is_over_already_is_not_waited_for(watch: Watch, call: Call) -> None:
    finish(call)
    clock = Stopwatch()
    assert watch.wait(call.pk, 20)
    assert clock.seconds < 10


def test_a_call_that_does_not_end_in_time_is_not_over(watch: Watch, call: Call) -> None:
    clock = Stopwatch()
    assert not watch.wait(call.pk, 0.2)
    assert clock.elapsed >= 0.2
    assert clock.seconds < 10


def test_a_call_that_is_not_there_is_not_over(watch: Watch, call: Call) -> None:
    assert not watch.wait(call.pk + 1000, 0.1)


@pytest.mark.parametrize("status", Call.FINISHED)
def test_any_end_is_an_end(watch: Watch, call: Call, status: str) -> None:
    waiter = Waiter(watch, call)
    Call.objects.update(status=status, finished_at=timezone.now())
    assert waiter.answer()


def test_many_wait_for_one_call_and_all_are_notified(watch: Watch, call: Call) -> None:
    waiters = [Waiter(watch, call) for _ in range(8)]
    finish(call)
    assert all(waiter.answer() for waiter in waiters)


def test_each_is_notified_of_its_own_call(watch: Watch, call: Call) -> None:
    other = another(call)
    one, two = Waiter(watch, call), Waiter(watch, other)
    finish(call)
    assert one.answer()
    assert two.answers == []
    finish(other)
    assert two.answer()


def test_one_thread_watches_for_all_who_wait(watch: Watch, call: Call) -> None:
    before = len(watchers())
    calls = [another(call) for _ in range(10)]
    waiters = [Waiter(watch, each) for each in calls]
    assert len(watchers()) == before + 1
    finish(*calls)
    assert all(waiter.answer() for waiter in waiters)


def test_the_watch_serves_again_after_nobody_waited_for_a_while(watch: Watch, call: Call) -> None:
    finish(call)
    assert watch.wait(call.pk, 20)
    time.sleep(0.3)  # longer than it lingers
    other = another(call)
    waiter = Waiter(watch, other)
    finish(other)
    assert waiter.answer()


def test_a_watch_that_nobody_needs_holds_no_connection(
    watch: Watch, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = threading.Event()
    real = type(connections["default"]).close

    def close(self: Any) -> None:
        real(self)
        if threading.current_thread().name == "call-watch":
            closed.set()

    monkeypatch.setattr(type(connections["default"]), "close", close)
    finish(call)
    assert watch.wait(call.pk, 20)
    assert closed.wait(5)


@pytest.mark.parametrize(
    "error", [OperationalError("gone"), InterfaceError("closed"), sqlite3.OperationalError("disk I/O error")]
)
def test_a_database_that_goes_away_costs_a_moment(
    watch: Watch, call: Call, error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    errors, real = [error], waiting.ids_of_finished

    def ids_of_finished(ids: Any) -> set[int]:
        if errors:
            raise errors.pop()
        return real(ids)

    monkeypatch.setattr(waiting, "ids_of_finished", ids_of_finished)
    waiter = Waiter(watch, call)
    finish(call)
    assert waiter.answer()
    assert caplog.text.count("cannot look for finished calls") == 1


def test_a_waiting_thread_keeps_no_connection_of_a_pool(watch: Watch, call: Call) -> None:
    held: list[bool] = []

    def wait() -> None:
        Call.objects.count()
        watch.wait(call.pk, 0.2)
        held.append(connection.connection is not None)
        connection.close()

    thread = threading.Thread(target=wait)
    thread.start()
    thread.join(10)
    assert held == [connection.vendor == "sqlite"]


def test_control_waits_with_the_processes_one_watch(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "LINGER_SECONDS", 0.1)
    finish(call)
    assert wait_for_call(call.pk, 20)
    assert not wait_for_call(another(call).pk, 0.05)
    time.sleep(0.2)
