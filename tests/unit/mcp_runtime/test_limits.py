"""Calls a minute and running calls, with a clock that the test sets."""

from __future__ import annotations

import asyncio
import threading

import pytest

from mcp_runtime.protocol.errors import TooManyCallsError
from mcp_runtime.security.limits import (
    Account,
    BudgetError,
    ByteBudget,
    Limiter,
    Owner,
    Rounds,
    Slots,
    TimeShare,
    TokenLimits,
    in_turn,
)
from tests.support.resources import entries_in


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def calls(limiter: Limiter, count: int, key: int = 1, **limits: int) -> None:
    for _ in range(count):
        with limiter.call(key, TokenLimits(**limits)):
            pass


def test_the_calls_of_a_minute_can_come_at_once_and_then_one_by_one() -> None:
    clock = Clock()
    limiter = Limiter(clock)
    calls(limiter, 60, calls_per_minute=60)
    with pytest.raises(TooManyCallsError, match=r"calls a minute \(limit 60\)") as refusal:
        calls(limiter, 1, calls_per_minute=60)
    assert refusal.value.retry_after == pytest.approx(1.0)
    clock.now += 1.0
    calls(limiter, 1, calls_per_minute=60)
    with pytest.raises(TooManyCallsError):
        calls(limiter, 1, calls_per_minute=60)
    clock.now += 60.0
    calls(limiter, 60, calls_per_minute=60)


def test_a_refused_call_does_not_count() -> None:
    clock = Clock()
    limiter = Limiter(clock)
    calls(limiter, 2, calls_per_minute=2)
    for _ in range(5):
        with pytest.raises(TooManyCallsError):
            calls(limiter, 1, calls_per_minute=2)
    clock.now += 30.0
    calls(limiter, 1, calls_per_minute=2)


@pytest.mark.parametrize("rate", [1, 7, 6000, 1_000_000])
def test_rounding_loses_no_call(rate: int) -> None:
    limiter = Limiter(Clock())
    count = min(rate, 6000)
    calls(limiter, count, calls_per_minute=rate)


def test_zero_means_no_limit() -> None:
    limiter = Limiter(Clock())
    calls(limiter, 10_000)
    with limiter.call(1, TokenLimits()), limiter.call(1, TokenLimits()):
        pass


def test_running_calls_count_until_they_end_or_fail() -> None:
    limiter = Limiter()
    with limiter.call(1, TokenLimits(max_in_flight=1)):
        with pytest.raises(TooManyCallsError, match=r"concurrent calls \(limit 1\)"):
            calls(limiter, 1, max_in_flight=1)
        calls(limiter, 1, key=2, max_in_flight=1)
    with pytest.raises(ZeroDivisionError), limiter.call(1, TokenLimits(max_in_flight=1)):
        raise ZeroDivisionError
    calls(limiter, 1, max_in_flight=1)


def test_tokens_do_not_share_their_limits() -> None:
    limiter = Limiter(Clock())
    calls(limiter, 1, key=1, calls_per_minute=1)
    calls(limiter, 1, key=2, calls_per_minute=1)


def test_concurrent_calls_never_exceed_the_limit() -> None:
    limiter = Limiter()
    refusals: list[int] = []
    running, maximum = 0, 0
    lock, barrier = threading.Lock(), threading.Barrier(20)

    def call() -> None:
        nonlocal running, maximum
        barrier.wait()
        try:
            with limiter.call(1, TokenLimits(max_in_flight=5)):
                with lock:
                    running += 1
                    maximum = max(maximum, running)
                all_refused.wait(5)
                with lock:
                    running -= 1
        except TooManyCallsError:
            refusals.append(1)
            if len(refusals) == 15:
                all_refused.set()

    all_refused = threading.Event()
    threads = [threading.Thread(target=call) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (maximum, len(refusals)) == (5, 15)


# Slots ------------------------------------------------------------------------------------------------------------


def slots_by_owner(count: int, *owners: Owner) -> list[int]:
    """The number of slots of each owner if one after the other takes as many as it may."""
    slots = Slots(count)
    for owner in owners:
        while slots.may_take(owner):
            slots.take(owner)
    return [slots.count_of(owner) for owner in owners]


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (0, [0, 0, 0]),
        (1, [1, 0, 0]),
        (2, [1, 1, 0]),
        (3, [2, 1, 0]),
        (4, [3, 1, 0]),
        (16, [12, 3, 1]),
        (256, [192, 48, 12]),
    ],
)
def test_no_principal_takes_the_last_slots_while_others_have_none(count: int, expected: list[int]) -> None:
    assert slots_by_owner(count, (1, 1), (2, 2), (3, 3)) == expected


def test_tokens_of_one_user_leave_the_last_slot_to_another_user() -> None:
    assert slots_by_owner(16, *[(1, token) for token in range(10)], (2, 2)) == [12, 3, 0, 0, 0, 0, 0, 0, 0, 0, 1]


def test_busy_principals_get_about_equal_numbers_of_slots() -> None:
    slots, owners = Slots(16), [(1, 1), (2, 2), (3, 3)]
    for owner in owners:
        while slots.may_take(owner):
            slots.take(owner)
    for turn in range(100):
        if slots.count_of(owner := owners[turn % 3]):
            slots.give_back(owner)
        for waiting_owner in owners:
            if slots.may_take(waiting_owner):
                slots.take(waiting_owner)
    counts = [slots.count_of(owner) for owner in owners]
    assert min(counts) >= 3
    assert sum(counts) >= 14


def test_returned_slots_leave_no_data_about_their_owners() -> None:
    slots = Slots(100)
    for number in range(50):
        slots.take((number, number))
    for number in range(50):
        slots.give_back((number, number))
    assert (slots.free, entries_in(slots)) == (100, 0)


def test_in_turn_alternates_between_owners() -> None:
    items = ["a1", "a2", "b1", "a3", "c1", "b2"]
    assert in_turn(items, lambda item: (ord(item[0]), None)) == ["a1", "b1", "c1", "a2", "b2", "a3"]
    assert in_turn([], lambda item: (1, None)) == []


def test_each_principal_begins_one_request_a_round() -> None:
    async def scenario() -> list[str]:
        rounds, names = Rounds(), []

        async def request(owner: tuple[int, int], name: str) -> None:
            await rounds.turn(owner)
            names.append(name)

        tasks = [asyncio.create_task(request((1, 1), f"many {number}")) for number in range(50)]
        await asyncio.sleep(0)
        tasks[3].cancel()
        await request((2, 2), "other")
        await asyncio.wait(tasks)
        assert entries_in(rounds) == 0
        return names

    names = asyncio.run(scenario())
    assert names.index("other") <= 3
    other_names = [name for name in names if name != "other"]
    assert other_names == [f"many {number}" for number in range(50) if number != 3]


# Bytes and time ---------------------------------------------------------------------------------------------------


def test_bytes_count_for_the_token_its_user_and_the_total() -> None:
    budget = ByteBudget(of_token=10, of_user=15, in_all=20)
    budget.take((1, 1), 10)
    with pytest.raises(BudgetError, match="this token may have 10 bytes"):
        budget.take((1, 1), 1)
    with pytest.raises(BudgetError, match="one user may have 15 bytes"):
        budget.take((1, 2), 6)
    budget.take((2, 3), 10)
    with pytest.raises(BudgetError, match="together may have 20 bytes") as refusal:
        budget.take((3, 4), 1)
    assert refusal.value.is_full
    budget.give_back((1, 1), 10)
    budget.take((3, 4), 10)
    budget.give_back((2, 3), 10)
    budget.give_back((3, 4), 10)
    assert entries_in(budget) == 0
    budget.take((1, 1), 10)
    budget.take((2, 2), 10)  # there is memory for all again


def test_an_owner_that_spent_its_share_waits_until_it_is_refilled() -> None:
    clock = Clock()
    time_share = TimeShare(0.1, 0.5, clock)
    time_share.spend((1, 1), 0.5)
    assert time_share.wait((1, 1)) == 0
    time_share.spend((1, 1), 0.25)
    assert time_share.wait((1, 1)) == pytest.approx(2.5)
    assert time_share.wait((2, 2)) == 0
    clock.now += 2.5
    assert time_share.wait((1, 1)) == pytest.approx(0)
    clock.now += 1000
    time_share.spend((1, 1), 0.5)
    assert time_share.wait((1, 1)) == 0


def test_refilled_shares_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcp_runtime.security.limits.MAX_ENTRIES", 10)
    clock = Clock()
    time_share = TimeShare(0.1, 0.5, clock)
    for number in range(30):
        clock.now += 1
        time_share.spend((number, number), 0.001)
    assert 0 < entries_in(time_share) <= 10


def test_an_account_counts_bytes_beyond_its_free_ones_and_returns_all() -> None:
    budget = ByteBudget(of_token=100, of_user=150, in_all=1_000)
    first, second, third = Account(budget, (1, 1), 10), Account(budget, (1, 2), 10), Account(budget, (1, 1), 10)
    first.change(110)
    second.change(60)
    for account, size in ((first, 1), (second, 1), (third, 11)):
        with pytest.raises(BudgetError):
            account.change(size)
    third.change(10)
    first.change(-105)
    second.change(40)
    for account in (first, second, third, first):
        account.close()
    budget.take((1, 1), 100)
