"""How a stop ends when it hangs. The rest of the worker is tested as a process, in tests/system."""

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
from mcp_runtime.control.notify import queue_name
from mcp_runtime.http1 import listeners
from mcp_runtime.rows import database, lease
from mcp_runtime.runtime import bootstep, heartbeat, processes, stopping, worker
from mcp_runtime.runtime import runtime as runtime_module
from mcp_runtime.runtime.runtime import Runtime
from tests.conftest import ROOT, eventually

pytestmark = pytest.mark.django_db

Ends = list[object]


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Ends:
    """What the hard end did, in its order: "killed", and the code it exited with."""
    ends: Ends = []
    monkeypatch.setattr(stopping, "STOP_BOUND", 0.3)
    monkeypatch.setattr(stopping, "GUARD_LOOK", 0.05)
    monkeypatch.setenv("GUILD_HALL_GUARD_PID", str(os.getppid()))
    return ends


@pytest.fixture
def runtime(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> Runtime:
    made = Runtime(uuid.uuid4(), [], exit_process=ends.append)
    monkeypatch.setattr(made.parts.lifecycle, "kill_everything", lambda: ends.append("killed"))
    return made


def watched(runtime: Runtime) -> threading.Thread:
    thread = threading.Thread(target=runtime.stopping.limit_stop)
    thread.start()
    return thread


def lose_the_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GUILD_HALL_GUARD_PID", str(os.getpid()))


def test_a_stop_that_hangs_ends_hard_the_members_first(runtime: Runtime, ends: Ends) -> None:
    thread = watched(runtime)
    thread.join(0.4)
    assert ends == []  # nobody asked for a stop
    runtime.ask_to_stop()
    thread.join(5)
    assert ends == ["killed", stopping.EX_SOFTWARE]


def test_a_stop_that_was_asked_for_because_of_the_lease_keeps_its_exit_code(runtime: Runtime, ends: Ends) -> None:
    runtime.stopping.exit_code = stopping.EX_TEMPFAIL
    runtime.ask_to_stop()
    watched(runtime).join(5)
    assert ends == ["killed", stopping.EX_TEMPFAIL]


def test_a_stop_that_ends_in_time_is_left_alone(runtime: Runtime, ends: Ends) -> None:
    runtime.ask_to_stop()
    thread = watched(runtime)
    runtime.stopping.is_over.set()
    thread.join(5)
    assert not thread.is_alive()
    assert ends == []


def test_a_stop_has_more_time_the_more_members_there_are_and_less_than_the_patience_of_up() -> None:
    bound = stopping.stop_seconds
    assert bound(0) == stopping.STOP_BOUND < bound(20) < bound(80) < 7.0
    assert bound(100_000) < processes.PATIENCE_SECONDS


def test_without_its_guard_a_stop_has_less_time_also_when_the_guard_goes_later(
    runtime: Runtime, ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stopping, "STOP_BOUND", 60)
    monkeypatch.setattr(stopping, "ORPHANED_STOP_BOUND", 0.2)
    runtime.ask_to_stop()
    thread = watched(runtime)
    thread.join(0.4)
    assert ends == []
    lose_the_guard(monkeypatch)
    thread.join(5)
    assert ends == ["killed", stopping.EX_SOFTWARE]


class GaveUp(Exception):
    """What hung is over."""


def hang_until(over: threading.Event) -> Callable[..., None]:
    def hang(*_: object) -> None:
        over.wait(10)
        raise GaveUp

    return hang


def test_a_start_that_hangs_can_be_stopped(runtime: Runtime, ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()
    monkeypatch.setattr(runtime.stopping, "end_parts", lambda: None)
    monkeypatch.setattr(runtime.heartbeat, "start", lambda: None)
    monkeypatch.setattr(runtime.parts.supervisor, "start", hang_until(over))

    def start() -> None:
        with contextlib.suppress(GaveUp):
            runtime.start_members()

    thread = threading.Thread(target=start)
    thread.start()
    runtime.ask_to_stop()
    eventually(lambda: ends == ["killed", stopping.EX_SOFTWARE])
    over.set()
    thread.join(5)


def test_a_start_adds_nothing_to_a_runtime_that_is_being_stopped(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[object] = []
    monkeypatch.setattr(dispatcher, "Dispatcher", lambda **about: built.append(about["run_in_pool"]) or give_up())
    with pytest.raises(GaveUp):
        runtime.start("a pool")  # type: ignore[arg-type]
    runtime.ask_to_stop()
    runtime.start("a pool")  # type: ignore[arg-type]
    assert built == ["a pool"]


@pytest.mark.django_db(transaction=True)
def test_a_stop_waits_for_the_parts_that_are_being_built(
    held: Runtime, ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it does not see it would not end."""
    building, over = threading.Event(), threading.Event()

    def build(**_: object) -> None:
        building.set()
        hang_until(over)()

    def start() -> None:
        with contextlib.suppress(GaveUp):
            held.start("a pool")  # type: ignore[arg-type]

    monkeypatch.setattr(dispatcher, "Dispatcher", build)
    thread = threading.Thread(target=start)
    thread.start()
    assert building.wait(5)
    held.ask_to_stop()
    assert not held.stopping.is_over.wait(0.3)
    assert ends == []
    over.set()
    thread.join(5)
    assert held.stopping.is_over.wait(5)


@pytest.fixture
def dispossessed(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> Iterator[Runtime]:
    """A runtime whose lease is somebody else's, and what it is sent for that."""
    lease.take()
    monkeypatch.setattr(heartbeat, "HEARTBEAT_SECONDS", 0.01)
    threads = set(threading.enumerate())
    yield runtime
    runtime.stopping.is_over.set()
    eventually(lambda: set(threading.enumerate()) <= threads)


@pytest.mark.django_db(transaction=True)
def test_a_runtime_that_lost_its_lease_ends_its_members_and_itself(
    dispossessed: Runtime, ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime_module.os, "kill", lambda *about: ends.append(about))
    dispossessed.heartbeat.start()
    eventually(lambda: ends == ["killed", (os.getpid(), signal.SIGTERM)])
    assert dispossessed.stopping.exit_code == stopping.EX_TEMPFAIL


@pytest.mark.django_db(transaction=True)
def test_a_lease_that_is_lost_during_a_stop_changes_nothing_of_the_stop(
    dispossessed: Runtime, ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stop ends the members in peace, and gives the lease back itself."""
    looks, renew = [], lease.renew

    def look(lease_id: uuid.UUID) -> bool:
        looks.append(renew(lease_id))
        return looks[-1]

    monkeypatch.setattr(lease, "renew", look)
    monkeypatch.setattr(runtime_module.os, "kill", lambda *about: ends.append(about))
    dispossessed.ask_to_stop()
    dispossessed.heartbeat.start()
    eventually(lambda: len(looks) > 2, what="it goes on looking")
    assert not any(looks)
    assert ends == []
    assert dispossessed.stopping.exit_code == 0


def step_of(runtime: object, monkeypatch: pytest.MonkeyPatch) -> bootstep.RuntimeStep:
    step = bootstep.RuntimeStep.__new__(bootstep.RuntimeStep)
    monkeypatch.setattr(step, "runtime", runtime, raising=False)
    monkeypatch.setattr(bootstep.signal, "signal", lambda *_: None)
    return step


WORKER = SimpleNamespace(pool=SimpleNamespace(apply_async=None))


def give_up(*_: object, **__: object) -> None:
    raise GaveUp


@pytest.fixture
def held(runtime: Runtime, ends: Ends, monkeypatch: pytest.MonkeyPatch) -> Iterator[Runtime]:
    """A runtime that holds the lease, its threads those that end it."""
    monkeypatch.setattr(stopping, "CELERY_GRACE", 0)
    runtime.parts.lease_id = lease.take()
    monkeypatch.setattr(runtime.stopping, "limit_stop", lambda: None)
    monkeypatch.setattr(runtime.heartbeat, "start", lambda: None)
    monkeypatch.setattr(runtime.parts.supervisor, "start", lambda: None)
    monkeypatch.setattr(runtime.parts.supervisor, "stop", lambda: None)
    runtime.start_members()
    yield runtime
    runtime.ask_to_stop()
    eventually(lambda: len(ends) == 2, what="it exits, while that is not our own exit")


@pytest.mark.django_db(transaction=True)
def test_an_error_in_the_start_ends_what_was_started_before_it_is_told(
    held: Runtime, ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatcher, "Dispatcher", give_up)
    with pytest.raises(GaveUp):
        step_of(held, monkeypatch).start(WORKER)
    assert lease.hall().lease_id is None
    eventually(lambda: ends == ["killed", stopping.EX_SOFTWARE])


@pytest.mark.django_db(transaction=True)
def test_an_error_in_the_start_that_comes_of_a_stop_is_a_stop(
    held: Runtime, ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    def give_up_stopped(**_: object) -> None:
        held.ask_to_stop()
        raise GaveUp

    monkeypatch.setattr(dispatcher, "Dispatcher", give_up_stopped)
    step_of(held, monkeypatch).start(WORKER)
    assert lease.hall().lease_id is None
    eventually(lambda: ends == ["killed", 0])


@pytest.fixture
def taken(held: Runtime, monkeypatch: pytest.MonkeyPatch) -> Iterator[Runtime]:
    """What `run` makes of the hall that it took."""
    monkeypatch.setattr(worker, "take_the_hall", lambda _: (held.parts.lease_id, []))
    monkeypatch.setattr(runtime_module, "Runtime", lambda *_: held)
    monkeypatch.setattr(held, "start_members", lambda: None)
    monkeypatch.setattr(bootstep.gc, "freeze", lambda: None)
    queue_name.cache_clear()
    yield held
    queue_name.cache_clear()


@pytest.mark.django_db(transaction=True)
def test_an_error_before_there_is_a_worker_ends_what_was_started_before_it_is_told(
    taken: Runtime, ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bootstep, "celery_app", give_up)
    with pytest.raises(GaveUp):
        worker.run()
    assert lease.hall().lease_id is None
    eventually(lambda: ends == ["killed", stopping.EX_SOFTWARE])


@pytest.mark.django_db(transaction=True)
def test_a_database_that_is_away_before_there_is_a_worker_is_waited_for(
    taken: Runtime, ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = [OperationalError("the server is away"), lease.hall()]

    def answer() -> object:
        if isinstance(answered := tries.pop(0), Exception):
            raise answered
        return answered

    served: list[object] = []
    monkeypatch.setattr(database, "START_RETRY_SECONDS", 0)
    monkeypatch.setattr(lease, "hall", answer)
    monkeypatch.setattr(bootstep, "celery_app", lambda: served.append(queue_name()) or give_up())
    with pytest.raises(GaveUp):
        worker.run()
    assert len(served) == 1


@pytest.mark.django_db(transaction=True)
def test_a_lease_whose_commit_was_not_answered_is_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    take, lost = lease.take, [OperationalError("the connection was lost")]

    def take_unanswered(*about: object) -> uuid.UUID:
        taken = take(*about)  # type: ignore[arg-type]
        if lost:
            raise lost.pop()
        return taken

    monkeypatch.setattr(database, "START_RETRY_SECONDS", 0)
    monkeypatch.setattr(listeners, "bind", lambda *_: [])
    monkeypatch.setattr(worker.signal, "signal", lambda *_: None)
    monkeypatch.setattr(lease, "take", take_unanswered)
    assert worker.take_the_hall(threading.Event())[0] == lease.hall().lease_id
    assert lost == []


@pytest.mark.django_db(transaction=True)
def test_garbage_is_collected_while_a_start_waits_for_the_database(
    taken: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    collected: list[bool] = []

    def ask() -> None:
        collected.append(gc.isenabled())
        raise GaveUp

    monkeypatch.setattr(lease, "hall", ask)
    gc.disable()  # as `main` does
    try:
        with pytest.raises(GaveUp):
            worker.run()
    finally:
        gc.enable()
    assert collected == [True]


def test_the_garbage_collector_passes_over_what_is_there_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would hold the interpreter for 40 ms each time."""
    done: list[str] = []
    monkeypatch.setattr(bootstep.gc, "freeze", lambda: done.append("freeze"))
    step_of(SimpleNamespace(start=lambda _: done.append("start")), monkeypatch).start(WORKER)
    assert done == ["start", "freeze"]


def test_a_log_that_hangs_does_not_keep_it_from_ending(
    runtime: Runtime, ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = threading.Event()
    monkeypatch.setattr(stopping.logger, "error", lambda *_: over.wait(10))
    runtime.stopping.end_hard()
    assert not over.is_set()
    assert ends == ["killed", stopping.EX_SOFTWARE]
    over.set()


def test_a_failure_to_kill_does_not_keep_it_from_ending(
    runtime: Runtime, ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise OSError

    monkeypatch.setattr(runtime.parts.lifecycle, "kill_everything", fail)
    with pytest.raises(OSError):  # which nobody sees: the process has ended
        runtime.stopping.end_hard()
    assert ends == [stopping.EX_SOFTWARE]


def test_the_runtime_imports_nothing_of_the_web() -> None:
    """It would take longer than all the rest, each time that a runtime was killed."""
    script = "from mcp_runtime.runtime import worker; worker.set_up_django(); import sys, mcp_runtime.gateway.server; "
    script += (
        "print([name for name in ('rest_framework', 'roster.api.members', 'roster.admin') if name in sys.modules])"
    )
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "guildhall.settings"}
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr
