"""Long work leaves the interpreter to other threads, and short work does not wait."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from mcp_runtime.schemas import schema_work
from mcp_runtime.schemas.schema_work import TooMuchWorkError, Work, paced


def work_for(seconds: float, owner: Any = None) -> float:
    """Work for these seconds of CPU time and look at the clock now and then. Return the elapsed time."""
    started_at, ends_at = time.monotonic(), time.thread_time() + seconds
    with paced(owner), Work(10) as work:
        while time.thread_time() < ends_at:
            work.look()
    return time.monotonic() - started_at


def run_concurrently(*works: Callable[[], float]) -> list[float]:
    with ThreadPoolExecutor(len(works)) as threads:
        return [future.result() for future in [threads.submit(work) for work in works]]


def test_long_work_sleeps_most_of_the_time() -> None:
    # SHARE is a quarter. A short halt of the machine counts as CPU time, and no sleep follows the last step.
    seconds = schema_work.QUICK_SECONDS + 0.1
    assert work_for(seconds) > 2 * seconds


def test_ten_pieces_of_long_work_share_the_time_of_one() -> None:
    started_at = time.monotonic()
    run_concurrently(*[lambda: work_for(schema_work.QUICK_SECONDS + 0.03)] * 10)
    assert time.monotonic() - started_at > 0.2 / schema_work.SHARE  # independent work would end after 0.03 / SHARE


def test_a_step_waits_a_limited_time_for_other_threads() -> None:
    token = schema_work.others_compute.set(lambda: True)
    try:
        elapsed = work_for(schema_work.QUICK_SECONDS + 3 * schema_work.STEP_SECONDS)
    finally:
        schema_work.others_compute.reset(token)
    assert 3 * schema_work.YIELD_SECONDS < elapsed < schema_work.PATIENCE_SECONDS


def test_work_is_finished_while_other_threads_compute() -> None:
    token = schema_work.others_compute.set(lambda: True)
    try:
        elapsed = work_for(0.3)
    finally:
        schema_work.others_compute.reset(token)
    assert schema_work.MAX_YIELDED_SECONDS < elapsed < schema_work.PATIENCE_SECONDS


def test_short_work_never_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_work.time, "sleep", lambda _: pytest.fail("short work slept"))
    work_for(schema_work.QUICK_SECONDS / 2)


def test_long_work_of_one_owner_finishes_before_ten_pieces_of_another_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    """It begins at their first pause with the same amount of work, and ends before any of them."""
    monkeypatch.setattr(schema_work, "PATIENCE_SECONDS", 60.0)
    seconds = schema_work.QUICK_SECONDS + 0.03
    barrier = threading.Barrier(11, timeout=30)

    def hostile() -> None:
        schema_work.about_to_wait.set(barrier.wait)
        work_for(seconds, "hostile")

    threads = [threading.Thread(target=hostile) for _ in range(10)]
    for thread in threads:
        thread.start()
    try:
        barrier.wait()
        work_for(seconds, "honest")
        assert all(thread.is_alive() for thread in threads)
    finally:
        for thread in threads:
            thread.join()


def test_the_tokens_of_a_user_share_the_time_of_one_user() -> None:
    owners = {(1, token) for token in range(24)} | {(2, 7), ("member", 1), ("member", 2)}
    shares = {owner: schema_work.share_of(owner, owners) for owner in owners}
    assert shares[2, 7] == shares["member", 1] == pytest.approx(schema_work.SHARE / 4)
    assert shares[1, 5] == pytest.approx(schema_work.SHARE / 4 / 24)
    assert sum(shares.values()) == pytest.approx(schema_work.SHARE)


def test_a_group_of_short_work_counts_as_one_piece_of_work() -> None:
    """For example a list of many schemas, each of which is checked quickly."""
    started_at = time.monotonic()
    with paced("a"):
        for _ in range(10):
            work_for(schema_work.QUICK_SECONDS / 2)
    assert time.monotonic() - started_at > schema_work.QUICK_SECONDS * 4 * 0.9 / schema_work.SHARE


def test_work_that_exceeds_the_patience_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_work, "PATIENCE_SECONDS", 0.2)
    started_at = time.monotonic()
    with pytest.raises(TooMuchWorkError):
        work_for(5)
    assert time.monotonic() - started_at < 5  # all of the work would take 20 s


def test_about_to_wait_is_called_once_before_work_waits() -> None:
    notifications: list[None] = []
    token = schema_work.about_to_wait.set(lambda: notifications.append(None))
    try:
        work_for(schema_work.QUICK_SECONDS / 2)
        assert notifications == []
        work_for(schema_work.QUICK_SECONDS + 0.01)
        assert notifications == [None]
    finally:
        schema_work.about_to_wait.reset(token)


def test_a_panic_of_the_rust_library_becomes_a_recursion_error() -> None:
    """The panic is not an Exception, so code that catches exceptions would not catch it."""
    panic_exception = type("PanicException", (BaseException,), {})
    with pytest.raises(RecursionError), Work(1):
        raise panic_exception("__eq__ failed!")
