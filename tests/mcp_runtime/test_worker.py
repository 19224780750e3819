"""How a stop ends when it hangs. The rest of the worker is tested as a process, in tests/end_to_end."""

from __future__ import annotations

import contextlib
import os
import threading
import uuid
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from mcp_runtime import worker
from tests.conftest import eventually

pytestmark = pytest.mark.django_db

Ends = list[object]


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Ends:
    """What the hard end did, in its order: "killed", and the code it exited with."""
    ends: Ends = []
    monkeypatch.setattr(worker.os, "_exit", ends.append)
    monkeypatch.setattr(worker, "STOP_BOUND", 0.3)
    monkeypatch.setattr(worker, "GUARD_LOOK", 0.05)
    monkeypatch.setenv("GUILD_HALL_GUARD_PID", str(os.getppid()))
    return ends


@pytest.fixture
def runtime(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> worker.Runtime:
    made = worker.Runtime(uuid.uuid4(), [])
    monkeypatch.setattr(made.lifecycle, "kill_everything", lambda: ends.append("killed"))
    return made


def watched(runtime: worker.Runtime) -> threading.Thread:
    thread = threading.Thread(target=runtime._bound_the_stop)
    thread.start()
    return thread


def lose_the_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GUILD_HALL_GUARD_PID", str(os.getpid()))


def test_a_stop_that_hangs_ends_hard_the_members_first(runtime: worker.Runtime, ends: Ends) -> None:
    thread = watched(runtime)
    thread.join(0.4)
    assert ends == []  # nobody asked for a stop
    runtime.ask_to_stop()
    thread.join(5)
    assert ends == ["killed", worker.EX_SOFTWARE]


def test_a_stop_that_was_asked_for_because_of_the_lease_keeps_its_exit_code(
    runtime: worker.Runtime, ends: Ends
) -> None:
    runtime.exit_code = worker.EX_TEMPFAIL
    runtime.ask_to_stop()
    watched(runtime).join(5)
    assert ends == ["killed", worker.EX_TEMPFAIL]


def test_a_stop_that_ends_in_time_is_left_alone(runtime: worker.Runtime, ends: Ends) -> None:
    runtime.ask_to_stop()
    thread = watched(runtime)
    runtime._stopped.set()
    thread.join(5)
    assert not thread.is_alive()
    assert ends == []


def test_without_its_guard_a_stop_has_less_time_also_when_the_guard_goes_later(
    runtime: worker.Runtime, ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "STOP_BOUND", 60)
    monkeypatch.setattr(worker, "ORPHANED_STOP_BOUND", 0.2)
    runtime.ask_to_stop()
    thread = watched(runtime)
    thread.join(0.4)
    assert ends == []
    lose_the_guard(monkeypatch)
    thread.join(5)
    assert ends == ["killed", worker.EX_SOFTWARE]


class GaveUp(Exception):
    """What hung is over."""


def hang_until(over: threading.Event) -> Callable[..., None]:
    def hang(*_: object) -> None:
        over.wait(10)
        raise GaveUp

    return hang


def test_a_start_that_hangs_can_be_stopped(
    runtime: worker.Runtime, ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = threading.Event()
    monkeypatch.setattr(runtime.lifecycle, "reset_rows", hang_until(over))

    def start() -> None:
        with contextlib.suppress(GaveUp):
            runtime.start(lambda *_: None)

    thread = threading.Thread(target=start)
    thread.start()
    runtime.ask_to_stop()
    eventually(lambda: ends == ["killed", worker.EX_SOFTWARE])
    over.set()
    thread.join(5)


def test_the_garbage_collector_passes_over_what_is_there_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would hold the interpreter for 40 ms each time."""
    done: list[str] = []
    step = worker.RuntimeStep.__new__(worker.RuntimeStep)
    monkeypatch.setattr(step, "runtime", SimpleNamespace(start=lambda _: done.append("start")), raising=False)
    monkeypatch.setattr(worker.signal, "signal", lambda *_: None)
    monkeypatch.setattr(worker.gc, "freeze", lambda: done.append("freeze"))
    step.start(SimpleNamespace(pool=SimpleNamespace(apply_async=None)))
    assert done == ["start", "freeze"]


def test_a_log_that_hangs_does_not_keep_it_from_ending(
    runtime: worker.Runtime, ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = threading.Event()
    monkeypatch.setattr(worker.logger, "error", lambda *_: over.wait(10))
    runtime._end_hard()
    assert not over.is_set()
    assert ends == ["killed", worker.EX_SOFTWARE]
    over.set()


def test_a_failure_to_kill_does_not_keep_it_from_ending(
    runtime: worker.Runtime, ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise OSError

    monkeypatch.setattr(runtime.lifecycle, "kill_everything", fail)
    with pytest.raises(OSError):  # which nobody sees: the process has ended
        runtime._end_hard()
    assert ends == [worker.EX_SOFTWARE]
