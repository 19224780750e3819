"""The share of a gateway in the calls of a token. The row is replaced by a counter."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from django.db import OperationalError

from mcp_runtime.gateway import shares
from mcp_runtime.gateway.peers import Peer, Peers
from mcp_runtime.gateway.shares import Shares
from mcp_runtime.protocol.errors import TooManyCallsError
from mcp_runtime.security.access import Principal
from mcp_runtime.security.limits import TokenLimits

LIMIT = 600
ANN = Principal(1, "ann", token_id=10, limits=TokenLimits(calls_per_minute=LIMIT))


class Bucket:
    """The row, without a refill."""

    def __init__(self) -> None:
        self.calls = LIMIT
        self.borrowed: list[int] = []
        self.is_away = False
        self.shares: dict[uuid.UUID, int] = {}
        self.changes = 0

    def borrow(self, token_id: int, limit: int, wanted: int, unused: int) -> tuple[int, float]:
        if self.is_away:
            raise OperationalError("no connection")
        self.calls += unused
        granted = min(wanted, self.calls)
        self.calls -= granted
        self.borrowed.append(granted)
        return granted, 0.0 if granted else 3.0

    def give_back(self, token_id: int, limit: int, unused: int) -> None:
        self.calls += unused

    def set_share(self, token_id: int, limit: int, lease_id: uuid.UUID, wanted: int) -> int:
        if self.is_away:
            raise OperationalError("no connection")
        self.changes += 1
        taken = sum(calls for lease, calls in self.shares.items() if lease != lease_id)
        self.shares[lease_id] = min(wanted, limit - taken)
        return self.shares[lease_id]


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Bucket:
    bucket = Bucket()
    monkeypatch.setattr(shares, "token_buckets", bucket)
    monkeypatch.setattr(shares, "unit_of_work", lambda work: work())
    return bucket


def run(test: Callable[[list[Shares]], Coroutine[Any, Any, None]]) -> None:
    """Run the test with the shares of three gateways."""

    async def main() -> None:
        await test([make_shares() for _ in range(3)])

    asyncio.run(main())


def make_shares() -> Shares:
    peers = Peers(uuid.uuid4())
    peers.by_lease = {name: Peer(name, name, "") for name in ("b", "c")}
    return Shares(peers)


async def count_calls(gateways: list[Shares], most: int) -> int:
    """Call through all gateways in turn until one refuses."""
    for number in range(most):
        try:
            assert await gateways[number % len(gateways)].take(ANN)
        except TooManyCallsError:
            return number
    return most


def test_all_gateways_together_accept_between_nine_tenths_and_the_whole_limit(bucket: Bucket) -> None:
    async def use(gateways: list[Shares]) -> None:
        accepted = 0
        for gateway in gateways:
            accepted += await count_calls([gateway], 10 * LIMIT)
        assert accepted == LIMIT
        with pytest.raises(TooManyCallsError) as refusal:
            await gateways[0].take(ANN)
        assert refusal.value.retry_after == pytest.approx(3.0, abs=0.5)

    run(use)


def test_a_gateway_refuses_before_less_than_a_tenth_is_borrowed_and_unused(bucket: Bucket) -> None:
    async def use(gateways: list[Shares]) -> None:
        assert LIMIT * 0.9 <= await count_calls(gateways, 10 * LIMIT) <= LIMIT
        assert max(bucket.borrowed) == LIMIT // 30

    run(use)


def test_a_client_that_insists_after_a_refusal_does_not_cost_the_database(bucket: Bucket) -> None:
    async def use(gateways: list[Shares]) -> None:
        await count_calls(gateways[:1], 10 * LIMIT)
        count = len(bucket.borrowed)
        for _ in range(50):
            with pytest.raises(TooManyCallsError):
                await gateways[0].take(ANN)
        assert len(bucket.borrowed) == count
        await gateways[0].give_back()
        bucket.calls = 1
        assert await gateways[0].take(ANN)

    run(use)


def test_calls_at_the_same_time_as_a_return_lose_nothing(bucket: Bucket) -> None:
    async def use(gateways: list[Shares]) -> None:
        shares = gateways[0]
        for _ in range(20):
            takes = [shares.take(ANN) for _ in range(5)]
            await asyncio.gather(*takes, shares.give_back(), shares.give_back())
        await shares.give_back()
        assert bucket.calls == LIMIT - 100

    run(use)


def test_a_changed_limit_counts_at_once(bucket: Bucket) -> None:
    async def use(gateways: list[Shares]) -> None:
        await gateways[0].take(ANN)
        other = Principal(1, "ann", token_id=10, limits=TokenLimits(calls_per_minute=30))
        await gateways[0].take(other)
        assert bucket.borrowed == [LIMIT // 30, 1]

    run(use)


def test_calls_that_were_not_made_are_given_back(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    async def use(gateways: list[Shares]) -> None:
        await gateways[0].take(ANN)
        assert bucket.calls == LIMIT - LIMIT // 30
        await gateways[0].give_back()
        assert bucket.calls == LIMIT - 1
        await gateways[1].take(ANN)
        monkeypatch.setattr(shares, "BORROWED_SECONDS", 0.001)
        giving_back = asyncio.ensure_future(gateways[1].give_back_regularly())
        while bucket.calls != LIMIT - 2:
            await asyncio.sleep(0.001)
            for share in gateways[1].shares_by_token.values():
                share.until = 0.0
        giving_back.cancel()

    run(use)


def test_calls_are_counted_by_this_gateway_alone_while_the_database_is_away(
    bucket: Bucket, caplog: pytest.LogCaptureFixture
) -> None:
    async def use(gateways: list[Shares]) -> None:
        bucket.is_away = True
        assert await gateways[0].take(ANN) is False
        assert "cannot be counted together (no connection)" in caplog.text
        bucket.is_away = False
        assert await gateways[0].take(ANN) is True

    run(use)


def test_a_token_without_a_limit_needs_no_share(bucket: Bucket) -> None:
    async def use(gateways: list[Shares]) -> None:
        assert await gateways[0].take(Principal(1, "ann", token_id=10)) is False
        assert bucket.borrowed == []

    run(use)


def test_only_a_hall_with_several_gateways_needs_shares() -> None:
    assert make_shares().are_needed
    assert not Shares(Peers(uuid.uuid4())).are_needed


# Concurrent calls -------------------------------------------------------------------------------------------------

BOB = Principal(1, "ann", token_id=11, limits=TokenLimits(max_in_flight=10))


async def begin_calls(gateway: Shares, most: int, principal: Principal = BOB) -> int:
    """Begin calls until one is refused."""
    for number in range(most):
        try:
            assert await gateway.begin(principal)
        except TooManyCallsError:
            return number
    return most


async def reduce(gateway: Shares) -> None:
    """Let the seconds pass after which a gateway gives back what it does not need."""
    await gateway.reduce()
    await gateway.reduce()


def test_all_gateways_together_have_as_many_concurrent_calls_as_the_token_may(bucket: Bucket) -> None:
    async def use(gateways: list[Shares]) -> None:
        assert [await begin_calls(gateway, 4) for gateway in gateways] == [4, 4, 2]
        with pytest.raises(TooManyCallsError, match=r"Too many concurrent calls \(limit 10\)"):
            await gateways[0].begin(BOB)

    run(use)


def test_one_gateway_alone_may_have_all_of_them(bucket: Bucket) -> None:
    async def use(gateways: list[Shares]) -> None:
        assert await begin_calls(gateways[1], 20) == 10

    run(use)


def test_what_a_gateway_does_not_need_goes_to_the_others(bucket: Bucket) -> None:
    async def use(gateways: list[Shares]) -> None:
        first, second, _ = gateways
        await begin_calls(first, 10)
        for _ in range(7):
            first.end(11)
        assert await begin_calls(second, 1) == 0  # the first one has not given them back yet
        await reduce(first)
        await asyncio.sleep(shares.REFUSED_SECONDS)
        assert await begin_calls(second, 20) == 7
        assert await begin_calls(first, 1) == 0

    run(use)


def test_a_call_waits_until_another_gateway_gives_back_what_it_does_not_need(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shares, "ROOM_SECONDS", 30)  # on a busy machine nothing is given back in time

    async def use(gateways: list[Shares]) -> None:
        first, second, third = gateways
        regularly = [asyncio.ensure_future(gateway.reduce_regularly()) for gateway in gateways]
        one_call = Principal(1, "ann", token_id=11, limits=TokenLimits(max_in_flight=1))
        for gateway in (first, second, third, first):
            assert await gateway.begin(one_call)
            gateway.end(11)
        for task in regularly:
            task.cancel()

    run(use)


def test_calls_in_turn_cost_the_database_nothing_after_the_first(bucket: Bucket) -> None:
    async def use(gateways: list[Shares]) -> None:
        for _ in range(50):
            await gateways[0].begin(BOB)
            gateways[0].end(11)
        assert bucket.changes == 1
        await reduce(gateways[0])
        assert list(bucket.shares.values()) == [0]
        assert gateways[0].concurrency_by_token == {}

    run(use)


def test_concurrent_calls_that_begin_together_ask_once(bucket: Bucket) -> None:
    async def use(gateways: list[Shares]) -> None:
        results = await asyncio.gather(*(gateways[0].begin(BOB) for _ in range(12)), return_exceptions=True)
        assert results.count(True) == 10
        assert sum(isinstance(result, TooManyCallsError) for result in results) == 2
        assert bucket.changes <= 3

    run(use)


def test_a_changed_limit_of_concurrent_calls_counts_at_once(bucket: Bucket) -> None:
    async def use(gateways: list[Shares]) -> None:
        await begin_calls(gateways[0], 10)
        narrow = Principal(1, "ann", token_id=11, limits=TokenLimits(max_in_flight=3))
        assert await begin_calls(gateways[0], 1, narrow) == 0
        for _ in range(8):
            gateways[0].end(11)
        await asyncio.sleep(shares.REFUSED_SECONDS)
        assert await begin_calls(gateways[0], 5, narrow) == 1

    run(use)


def test_without_the_database_the_gateway_counts_concurrent_calls_itself(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shares, "BORROWED_SECONDS", 0.0)

    async def use(gateways: list[Shares]) -> None:
        await begin_calls(gateways[0], 2)
        bucket.is_away = True
        assert await gateways[0].begin(BOB) is False
        gateways[0].end(11)
        await reduce(gateways[0])
        assert await gateways[0].begin(BOB) is False  # it has what one call needs, and asks for more in vain
        bucket.is_away = False
        assert await gateways[0].begin(BOB)

    run(use)


def test_a_client_that_goes_away_while_the_row_changes_leaves_no_share(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_go_on = threading.Event()
    monkeypatch.setattr(shares, "unit_of_work", lambda work: may_go_on.wait(10) and work())

    async def use(gateways: list[Shares]) -> None:
        call = asyncio.ensure_future(gateways[0].begin(BOB))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        call.cancel()
        await asyncio.sleep(0)
        may_go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert list(bucket.shares.values()) == [1]
        await reduce(gateways[0])
        assert list(bucket.shares.values()) == [0]
        assert gateways[0].concurrency_by_token == {}

    run(use)


def test_a_change_whose_answer_is_lost_leaves_no_share(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    def lose_answer(work: Callable[[], Any]) -> None:
        work()
        raise OperationalError("the connection is lost")

    async def use(gateways: list[Shares]) -> None:
        monkeypatch.setattr(shares, "unit_of_work", lose_answer)
        assert await gateways[0].begin(BOB) is False
        assert list(bucket.shares.values()) == [1]
        monkeypatch.setattr(shares, "unit_of_work", lambda work: work())
        await reduce(gateways[0])
        assert list(bucket.shares.values()) == [0]

    run(use)


def test_a_token_without_this_limit_is_not_counted(bucket: Bucket) -> None:
    async def use(gateways: list[Shares]) -> None:
        assert await gateways[0].begin(ANN) is False
        assert bucket.changes == 0

    run(use)
