"""Long work leaves the interpreter to others; short work does not wait for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from mcp_runtime.schemas import schema_work
from mcp_runtime.schemas.schema_work import TooMuchWorkError, Work, paced


def work_of(seconds: float, owner: Any = None) -> float:
    """Works so many seconds of CPU, looking at the clock now and then; how long it took."""
    began, until = time.monotonic(), time.thread_time() + seconds
    with paced(owner), Work(10) as work:
        while time.thread_time() < until:
            work.look()
    return time.monotonic() - began


def side_by_side(*works: Callable[[], float]) -> list[float]:
    with ThreadPoolExecutor(len(works)) as threads:
        return [under_way.result() for under_way in [threads.submit(work) for work in works]]


def test_work_that_takes_long_sleeps_most_of_the_time() -> None:
    # SHARE says a quarter. A machine that stands still for a moment counts as CPU time, the last step is not paid for.
    seconds = schema_work.QUICK_SECONDS + 0.1
    assert work_of(seconds) > 2 * seconds


def test_ten_long_works_together_take_no_more_than_one() -> None:
    began = time.monotonic()
    side_by_side(*[lambda: work_of(schema_work.QUICK_SECONDS + 0.03)] * 10)
    assert time.monotonic() - began > 0.2 / schema_work.SHARE  # each for itself would be done after 0.03 / SHARE


def test_a_step_waits_while_others_compute_and_not_for_ever() -> None:
    token = schema_work.others_compute.set(lambda: True)
    try:
        took = work_of(schema_work.QUICK_SECONDS + 3 * schema_work.STEP_SECONDS)
    finally:
        schema_work.others_compute.reset(token)
    assert 3 * schema_work.YIELD_SECONDS < took < schema_work.PATIENCE_SECONDS


def test_work_that_is_done_in_a_calm_moment_is_done_in_a_busy_one_too() -> None:
    token = schema_work.others_compute.set(lambda: True)
    try:
        took = work_of(0.3)
    finally:
        schema_work.others_compute.reset(token)
    assert schema_work.MAX_YIELDED_SECONDS < took < schema_work.PATIENCE_SECONDS


def test_short_work_never_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_work.time, "sleep", lambda _: pytest.fail("slept"))
    work_of(schema_work.QUICK_SECONDS / 2)


def test_long_work_of_one_owner_waits_little_for_ten_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """It begins with their first pause, has as much to do, and is done before any of them."""
    monkeypatch.setattr(schema_work, "PATIENCE_SECONDS", 60.0)
    seconds = schema_work.QUICK_SECONDS + 0.03
    all_step_aside = threading.Barrier(11, timeout=30)

    def hostile() -> None:
        schema_work.about_to_wait.set(all_step_aside.wait)
        work_of(seconds, "hostile")

    threads = [threading.Thread(target=hostile) for _ in range(10)]
    for thread in threads:
        thread.start()
    try:
        all_step_aside.wait()
        work_of(seconds, "honest")
        assert all(thread.is_alive() for thread in threads)
    finally:
        for thread in threads:
            thread.join()


def test_a_users_many_tokens_share_what_one_user_has() -> None:
    owners = {(1, token) for token in range(24)} | {(2, 7), ("member", 1), ("member", 2)}
    shares = {owner: schema_work.share_of(owner, owners) for owner in owners}
    assert shares[2, 7] == shares["member", 1] == pytest.approx(schema_work.SHARE / 4)
    assert shares[1, 5] == pytest.approx(schema_work.SHARE / 4 / 24)
    assert sum(shares.values()) == pytest.approx(schema_work.SHARE)


def test_what_belongs_together_is_one_piece_of_work() -> None:
    """A list of many schemas, each of which is checked soon."""
    began = time.monotonic()
    with paced("a"):
        for _ in range(10):
            work_of(schema_work.QUICK_SECONDS / 2)
    assert time.monotonic() - began > schema_work.QUICK_SECONDS * 4 * 0.9 / schema_work.SHARE


def test_nobody_waits_longer_than_their_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_work, "PATIENCE_SECONDS", 0.2)
    began = time.monotonic()
    with pytest.raises(TooMuchWorkError):
        work_of(5)
    assert time.monotonic() - began < 5  # all of it would take 20


def test_who_serves_others_is_told_once_that_work_steps_aside() -> None:
    told: list[None] = []
    token = schema_work.about_to_wait.set(lambda: told.append(None))
    try:
        work_of(schema_work.QUICK_SECONDS / 2)
        assert told == []
        work_of(schema_work.QUICK_SECONDS + 0.01)
        assert told == [None]
    finally:
        schema_work.about_to_wait.reset(token)


def test_a_panic_of_the_librarys_rust_is_a_recursion_that_went_too_deep() -> None:
    """It is no Exception, so whoever catches those would die of it."""
    panic = type("PanicException", (BaseException,), {})
    with pytest.raises(RecursionError), Work(1):
        raise panic("__eq__ failed!")
