"""The worker's side of the fence. The tests of the guard run both sides as real processes."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

from mcp_runtime.runtime import guard
from mcp_runtime.runtime.fence import Fence, now


@pytest.fixture
def descriptor() -> Iterator[int]:
    number = guard.create_fence_file()
    yield number
    os.close(number)


@pytest.fixture
def signals(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The signals that the worker sends, each with the pid. The parent of this process is its guard."""
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append((pid, number)))
    monkeypatch.setenv("GUILD_HALL_GUARD_PID", str(os.getppid()))
    return sent


def test_the_guard_gets_no_signal_before_it_is_ready_and_none_after_it_watches(
    descriptor: int, signals: list[tuple[int, int]]
) -> None:
    """A signal that comes before its handler exists would kill the guard."""
    fence, guard_side = Fence(descriptor), guard.Fence(descriptor)
    fence.note_renewal(now())
    fence.turn_on()
    fence.note_renewal(now())
    assert signals == []
    guard_side.write_state(guard.READY)
    fence.note_renewal(now())
    assert signals == [(os.getppid(), guard.FENCE_SIGNAL)]
    fence.note_renewal(now())  # the first signal may have been lost
    assert len(signals) == 2
    assert not fence.is_watched
    guard_side.turn_on()
    fence.note_renewal(now())
    assert len(signals) == 2
    assert fence.is_watched


def test_a_guard_that_is_ready_gets_no_signal_while_the_fence_is_off(
    descriptor: int, signals: list[tuple[int, int]]
) -> None:
    guard.Fence(descriptor).write_state(guard.READY)
    Fence(descriptor).note_renewal(now())
    assert signals == []


def test_a_process_that_is_not_the_guard_gets_no_signal(
    descriptor: int, signals: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GUILD_HALL_GUARD_PID", str(os.getpid()))  # it is dead, and another process is the parent
    guard.Fence(descriptor).write_state(guard.READY)
    Fence(descriptor).turn_on()
    assert signals == []


def test_the_guard_counts_from_the_renewal(descriptor: int) -> None:
    fence, guard_side = Fence(descriptor), guard.Fence(descriptor)
    fence.note_renewal(now() - 2)
    assert guard_side.seconds_left() == float("inf")
    guard_side.turn_on()
    assert guard_side.seconds_left() == pytest.approx(guard.FENCE_SECONDS - 2, abs=1)
    fence.note_renewal(now() - guard.FENCE_SECONDS)
    assert guard_side.seconds_left() <= 0


def test_members_do_not_inherit_the_file(descriptor: int) -> None:
    os.set_inheritable(descriptor, True)
    Fence(descriptor)
    assert not os.get_inheritable(descriptor)


def test_a_system_without_a_clock_that_counts_sleep_uses_the_monotonic_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(time, "CLOCK_BOOTTIME", raising=False)
    assert guard.boot_time() == pytest.approx(time.monotonic(), abs=1)
