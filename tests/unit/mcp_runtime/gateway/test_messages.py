"""Deadlines that stand still and end early, streams that free what they hold, places in a member."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from mcp_runtime.gateway.messages import CANCEL_GRACE, Deadline, Event, Stream
from mcp_runtime.security.limits import Owner, Places

ANA: Owner = (1, 1)


def left(deadline: Deadline) -> float:
    """Seconds, rounded: the tests take none."""
    return round((deadline.timeout.when() or 0) - asyncio.get_running_loop().time())


def test_a_deadline_stands_still_while_a_question_is_open() -> None:
    async def use() -> list[float]:
        deadline = Deadline(30)
        async with deadline.timeout:
            deadline.set(20, "a call", "notes")
            told = [left(deadline)]
            for step in (deadline.pause, deadline.pause, deadline.resume, deadline.resume):
                step()
                told.append(left(deadline))
        return told

    assert asyncio.run(use()) == [20, 600, 600, 600, 20]


def test_a_cancelled_deadline_is_never_put_off_again() -> None:
    async def use() -> list[float]:
        deadline = Deadline(30)
        async with deadline.timeout:
            deadline.pause()
            deadline.cancel()
            told = []
            for step in (deadline.resume, deadline.pause, lambda: deadline.set(30, "", ""), deadline.resume):
                step()
                told.append(left(deadline))
        return told

    assert asyncio.run(use()) == [CANCEL_GRACE] * 4


def test_a_deadline_that_is_over_takes_no_more_requests() -> None:
    async def use() -> bool:
        deadline = Deadline(30)
        async with deadline.timeout:
            pass
        deadline.cancel()  # its answer is on the way to a client that reads slowly
        deadline.pause()
        deadline.resume()
        return deadline.timeout.expired()

    assert asyncio.run(use()) is False


def test_a_stream_that_nobody_read_frees_what_it_holds() -> None:
    freed: list[str] = []

    async def events() -> AsyncGenerator[Event]:
        yield Event(b"1")

    async def use() -> None:
        inner = Stream(events(), lambda: freed.append("inner"))
        outer = Stream(events(), lambda: freed.append("outer"), inner)
        outer.on_close(lambda: freed.append("place"))
        await outer.aclose()
        await outer.aclose()

    asyncio.run(use())
    assert freed == ["inner", "place", "outer"]


def test_places_go_to_who_waits_longest_and_to_nobody_who_left() -> None:
    order: list[int] = []

    async def use() -> None:
        places = Places(1)
        await places.take(ANA)

        async def wait(number: int) -> None:
            await places.take(ANA)
            order.append(number)

        waiting = [asyncio.create_task(wait(number)) for number in range(4)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        await asyncio.sleep(0)
        places.give_back(ANA)
        await waiting[1]
        places.give_back(ANA)
        waiting[2].cancel()  # in the moment in which it got its place
        await waiting[3]
        with pytest.raises(asyncio.CancelledError):
            await waiting[2]
        places.give_back(ANA)
        await asyncio.wait_for(places.take(ANA), 1)

    asyncio.run(use())
    assert order == [1, 3]


def test_a_place_goes_to_the_principal_that_holds_the_fewest() -> None:
    order: list[int | None] = []

    async def use() -> None:
        places = Places(4)

        async def wait(owner: Owner) -> None:
            await places.take(owner)
            order.append(owner[1])

        tasks = [asyncio.create_task(wait((token, token))) for token in (1, 1, 1, 1, 1, 2, 2, 3)]
        for free, served in ((None, [1, 1, 1, 2]), (1, [3]), (1, []), (2, [2])):
            before = len(order)
            if free:
                places.give_back((free, free))
            for _ in range(3):
                await asyncio.sleep(0)
            assert order[before:] == served
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(use())


def test_who_leaves_the_line_of_a_member_that_hangs_leaves_nothing_behind() -> None:
    async def use() -> None:
        places = Places(1)
        await places.take(ANA)
        waiting = [asyncio.create_task(places.take((2, number))) for number in range(100)]
        await asyncio.sleep(0)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        assert places._waiting == {}

    asyncio.run(use())


def test_places_may_become_more_or_fewer() -> None:
    async def use() -> list[int]:
        places = Places(0)
        waiting = [asyncio.create_task(places.take((number, number))) for number in range(4)]
        told = []
        for step in (
            lambda: None,
            lambda: places.allow(2),
            lambda: places.allow(1),
            lambda: places.give_back((0, 0)),
            lambda: places.give_back((1, 1)),
        ):
            step()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            told.append(sum(task.done() for task in waiting))
        places.allow(2)
        await asyncio.wait_for(waiting[3], 1)
        for number in (2, 3):
            places.give_back((number, number))
            await asyncio.wait_for(places.take((number, number)), 1)
        return told

    assert asyncio.run(use()) == [0, 2, 2, 2, 3]
