"""A stop that hangs, and how it ends. The rest of the worker is tested as a process, in tests/system."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
from django.db import OperationalError

from mcp_runtime.calls import dispatcher
from mcp_runtime.control.notify import hall_exchange
from mcp_runtime.http1 import listeners
from mcp_runtime.rows import database, lease
from mcp_runtime.runtime import bootstep, heartbeat, processes, stopping, worker
from mcp_runtime.runtime import runtime as runtime_module
from mcp_runtime.runtime.runtime import Runtime
from tests.conftest import ROOT, eventually
from tests.support.leases import current_lease_id

pytestmark = pytest.mark.django_db

Events = list[object]


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> Events:
    """The steps of the hard end in order: "killed", and the exit code."""
    events: Events = []
    monkeypatch.setattr(stopping, "STOP_BOUND", 0.3)
    monkeypatch.setattr(stopping, "GUARD_LOOK", 0.05)
    monkeypatch.setenv("GUILD_HALL_GUARD_PID", str(os.getppid()))
    return events


@pytest.fixture
def runtime(events: Events, monkeypatch: pytest.MonkeyPatch) -> Runtime:
    runtime = Runtime(uuid.uuid4(), [], exit_process=events.append)
    monkeypatch.setattr(runtime.parts.lifecycle, "kill_everything", lambda: events.append("killed"))
    return runtime


def start_watcher(runtime: Runtime) -> threading.Thread:
    thread = threading.Thread(target=runtime.stopping.limit_stop)
    thread.start()
    return thread


def lose_the_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GUILD_HALL_GUARD_PID", str(os.getpid()))


def test_a_stop_that_hangs_kills_the_members_and_then_exits(runtime: Runtime, events: Events) -> None:
    thread = start_watcher(runtime)
    thread.join(0.4)
    assert events == []  # nobody requested a stop
    runtime.ask_to_stop()
    thread.join(5)
    assert events == ["killed", stopping.EX_SOFTWARE]


def test_a_stop_after_a_lost_lease_keeps_its_exit_code(runtime: Runtime, events: Events) -> None:
    runtime.stopping.exit_code = stopping.EX_TEMPFAIL
    runtime.ask_to_stop()
    start_watcher(runtime).join(5)
    assert events == ["killed", stopping.EX_TEMPFAIL]


def test_a_stop_that_ends_in_time_is_not_killed(runtime: Runtime, events: Events) -> None:
    runtime.ask_to_stop()
    thread = start_watcher(runtime)
    runtime.stopping.is_over.set()
    thread.join(5)
    assert not thread.is_alive()
    assert events == []


def test_a_stop_has_more_time_for_more_members_and_less_time_than_up_waits() -> None:
    bound = stopping.stop_seconds
    assert bound(0) == stopping.STOP_BOUND < bound(20) < bound(80) < 7.0
    assert bound(100_000) < processes.PATIENCE_SECONDS


def test_a_stop_has_less_time_without_its_guard_even_if_the_guard_ends_later(
    runtime: Runtime, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stopping, "STOP_BOUND", 60)
    monkeypatch.setattr(stopping, "ORPHANED_STOP_BOUND", 0.2)
    runtime.ask_to_stop()
    thread = start_watcher(runtime)
    thread.join(0.4)
    assert events == []
    lose_the_guard(monkeypatch)
    thread.join(5)
    assert events == ["killed", stopping.EX_SOFTWARE]


class GaveUpError(Exception):
    """Ends a function that hangs."""


def hang_until(is_over: threading.Event) -> Callable[..., None]:
    def hang(*_: object) -> None:
        is_over.wait(10)
        raise GaveUpError

    return hang


def test_a_start_that_hangs_can_be_stopped(runtime: Runtime, events: Events, monkeypatch: pytest.MonkeyPatch) -> None:
    is_over = threading.Event()
    monkeypatch.setattr(runtime.stopping, "end_parts", lambda: None)
    monkeypatch.setattr(runtime.heartbeat, "start", lambda: None)
    monkeypatch.setattr(runtime.parts.supervisor, "start", hang_until(is_over))

    def start() -> None:
        with contextlib.suppress(GaveUpError):
            runtime.start_members()

    thread = threading.Thread(target=start)
    thread.start()
    runtime.ask_to_stop()
    eventually(lambda: events == ["killed", stopping.EX_SOFTWARE])
    is_over.set()
    thread.join(5)


def test_a_start_after_a_stop_builds_no_parts(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    pools: list[object] = []
    monkeypatch.setattr(dispatcher, "Dispatcher", lambda **options: pools.append(options["run_in_pool"]) or give_up())
    with pytest.raises(GaveUpError):
        runtime.start("a pool")  # type: ignore[arg-type]
    runtime.ask_to_stop()
    runtime.start("a pool")  # type: ignore[arg-type]
    assert pools == ["a pool"]


@pytest.mark.django_db(transaction=True)
def test_a_stop_waits_for_parts_that_are_being_built(
    leased_runtime: Runtime, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stop would not end parts that it does not know."""
    is_building, is_over = threading.Event(), threading.Event()

    def build(**_: object) -> None:
        is_building.set()
        hang_until(is_over)()

    def start() -> None:
        with contextlib.suppress(GaveUpError):
            leased_runtime.start("a pool")  # type: ignore[arg-type]

    monkeypatch.setattr(dispatcher, "Dispatcher", build)
    thread = threading.Thread(target=start)
    thread.start()
    assert is_building.wait(5)
    leased_runtime.ask_to_stop()
    assert not leased_runtime.stopping.is_over.wait(0.3)
    assert events == []
    is_over.set()
    thread.join(5)
    assert leased_runtime.stopping.is_over.wait(5)


@pytest.fixture
def runtime_without_lease(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> Iterator[Runtime]:
    """A runtime whose lease belongs to another runtime."""
    lease.take()
    monkeypatch.setattr(heartbeat, "HEARTBEAT_SECONDS", 0.01)
    threads = set(threading.enumerate())
    yield runtime
    runtime.stopping.is_over.set()
    eventually(lambda: set(threading.enumerate()) <= threads)


@pytest.mark.django_db(transaction=True)
def test_a_runtime_that_lost_its_lease_ends_its_members_and_itself(
    runtime_without_lease: Runtime, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime_module.os, "kill", lambda *arguments: events.append(arguments))
    runtime_without_lease.heartbeat.start()
    eventually(lambda: events == ["killed", (os.getpid(), signal.SIGTERM)])
    assert runtime_without_lease.stopping.exit_code == stopping.EX_TEMPFAIL


@pytest.mark.django_db(transaction=True)
def test_a_lease_that_is_lost_during_a_stop_does_not_change_the_stop(
    runtime_without_lease: Runtime, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stop ends the members normally and releases the lease itself."""
    results, renew = [], lease.renew

    def record_renewal(lease_id: uuid.UUID, **_: bool) -> bool:
        results.append(renew(lease_id))
        return results[-1]

    monkeypatch.setattr(lease, "renew", record_renewal)
    monkeypatch.setattr(runtime_module.os, "kill", lambda *arguments: events.append(arguments))
    runtime_without_lease.ask_to_stop()
    runtime_without_lease.heartbeat.start()
    eventually(lambda: len(results) > 2, what="the heartbeat continues")
    assert not any(results)
    assert events == []
    assert runtime_without_lease.stopping.exit_code == 0


def make_step(runtime: object, monkeypatch: pytest.MonkeyPatch) -> bootstep.RuntimeStep:
    step = bootstep.RuntimeStep.__new__(bootstep.RuntimeStep)
    monkeypatch.setattr(step, "runtime", runtime, raising=False)
    monkeypatch.setattr(bootstep.signal, "signal", lambda *_: None)
    return step


WORKER = SimpleNamespace(pool=SimpleNamespace(apply_async=None))


def give_up(*_: object, **__: object) -> None:
    raise GaveUpError


@pytest.fixture
def leased_runtime(runtime: Runtime, events: Events, monkeypatch: pytest.MonkeyPatch) -> Iterator[Runtime]:
    """A runtime with the lease. Of its threads, only those of the stop run."""
    monkeypatch.setattr(stopping, "CELERY_GRACE", 0)
    runtime.parts.lease_id = lease.take()
    monkeypatch.setattr(runtime.stopping, "limit_stop", lambda: None)
    monkeypatch.setattr(runtime.heartbeat, "start", lambda: None)
    monkeypatch.setattr(runtime.parts.supervisor, "start", lambda: None)
    monkeypatch.setattr(runtime.parts.supervisor, "stop", lambda: None)
    runtime.start_members()
    yield runtime
    runtime.ask_to_stop()
    eventually(lambda: len(events) == 2, what="the runtime exits while its exit is replaced")


@pytest.mark.django_db(transaction=True)
def test_an_error_in_the_start_ends_the_parts_before_it_is_raised(
    leased_runtime: Runtime, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatcher, "Dispatcher", give_up)
    with pytest.raises(GaveUpError):
        make_step(leased_runtime, monkeypatch).start(WORKER)
    assert current_lease_id() is None
    eventually(lambda: events == ["killed", stopping.EX_SOFTWARE])


@pytest.mark.django_db(transaction=True)
def test_an_error_in_the_start_because_of_a_stop_is_a_stop(
    leased_runtime: Runtime, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop_and_give_up(**_: object) -> None:
        leased_runtime.ask_to_stop()
        raise GaveUpError

    monkeypatch.setattr(dispatcher, "Dispatcher", stop_and_give_up)
    make_step(leased_runtime, monkeypatch).start(WORKER)
    assert current_lease_id() is None
    eventually(lambda: events == ["killed", 0])


@pytest.fixture
def runtime_of_worker(leased_runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> Iterator[Runtime]:
    """The runtime that `run` creates."""
    monkeypatch.setattr(worker, "take_the_hall", lambda _: (leased_runtime.parts.lease_id, []))
    monkeypatch.setattr(runtime_module, "Runtime", lambda *_: leased_runtime)
    monkeypatch.setattr(leased_runtime, "start_members", lambda: None)
    monkeypatch.setattr(bootstep.gc, "freeze", lambda: None)
    hall_exchange.cache_clear()
    yield leased_runtime
    hall_exchange.cache_clear()


@pytest.mark.django_db(transaction=True)
def test_an_error_before_the_worker_exists_ends_the_parts_before_it_is_raised(
    runtime_of_worker: Runtime, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bootstep, "celery_app", give_up)
    with pytest.raises(GaveUpError):
        worker.run()
    assert current_lease_id() is None
    eventually(lambda: events == ["killed", stopping.EX_SOFTWARE])


@pytest.mark.django_db(transaction=True)
def test_a_start_waits_for_a_database_that_is_unavailable(
    runtime_of_worker: Runtime, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = [OperationalError("the server is away"), lease.hall()]

    def next_result() -> object:
        if isinstance(result := results.pop(0), Exception):
            raise result
        return result

    exchanges: list[object] = []
    monkeypatch.setattr(database, "START_RETRY_SECONDS", 0)
    monkeypatch.setattr(lease, "hall", next_result)
    monkeypatch.setattr(bootstep, "celery_app", lambda: exchanges.append(hall_exchange()) or give_up())
    with pytest.raises(GaveUpError):
        worker.run()
    assert len(exchanges) == 1


@pytest.mark.django_db(transaction=True)
def test_a_lease_whose_commit_was_not_confirmed_is_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    take, errors = lease.take, [OperationalError("the connection was lost")]

    def take_and_fail(*arguments: object, **options: bool) -> uuid.UUID:
        lease_id = take(*arguments, **options)  # type: ignore[arg-type]
        if errors:
            raise errors.pop()
        return lease_id

    monkeypatch.setattr(database, "START_RETRY_SECONDS", 0)
    monkeypatch.setattr(listeners, "bind", lambda *_: [])
    monkeypatch.setattr(worker.signal, "signal", lambda *_: None)
    monkeypatch.setattr(lease, "take", take_and_fail)
    assert worker.take_the_hall(threading.Event())[0] == current_lease_id()
    assert errors == []


@pytest.mark.django_db(transaction=True)
def test_garbage_is_collected_while_a_start_waits_for_the_database(
    runtime_of_worker: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    gc_states: list[bool] = []

    def record_gc_state() -> None:
        gc_states.append(gc.isenabled())
        raise GaveUpError

    monkeypatch.setattr(lease, "hall", record_gc_state)
    gc.disable()  # as `main` does
    try:
        with pytest.raises(GaveUpError):
            worker.run()
    finally:
        gc.enable()
    assert gc_states == [True]


def test_the_garbage_collector_skips_the_objects_of_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """A collection of them would hold the interpreter for 40 ms each time."""
    steps: list[str] = []
    monkeypatch.setattr(bootstep.gc, "freeze", lambda: steps.append("freeze"))
    make_step(SimpleNamespace(start=lambda _: steps.append("start")), monkeypatch).start(WORKER)
    assert steps == ["start", "freeze"]


def test_a_log_that_hangs_does_not_keep_the_runtime_from_ending(
    runtime: Runtime, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_over = threading.Event()
    monkeypatch.setattr(stopping.logger, "error", lambda *_: is_over.wait(10))
    runtime.stopping.end_hard()
    assert not is_over.is_set()
    assert events == ["killed", stopping.EX_SOFTWARE]
    is_over.set()


def test_a_failure_to_kill_does_not_keep_the_runtime_from_ending(
    runtime: Runtime, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise OSError

    monkeypatch.setattr(runtime.parts.lifecycle, "kill_everything", fail)
    with pytest.raises(OSError):  # nobody sees it, because the process has ended
        runtime.stopping.end_hard()
    assert events == [stopping.EX_SOFTWARE]


def test_the_runtime_imports_nothing_of_the_web() -> None:
    """These imports would take longer than all others at each start after a kill."""
    script = "from mcp_runtime.runtime import worker; worker.set_up_django(); import sys, mcp_runtime.gateway.server; "
    script += (
        "print([name for name in ('rest_framework', 'roster.api.members', 'roster.admin') if name in sys.modules])"
    )
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "guildhall.settings"}
    process = subprocess.run([sys.executable, "-c", script], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert process.stdout == "[]\n", process.stderr
