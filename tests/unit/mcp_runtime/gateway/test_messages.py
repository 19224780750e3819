"""Deadlines that pause and end early, streams that free their resources, and places in a member."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from mcp_runtime.gateway.messages import CANCEL_GRACE, Deadline, Event, Stream
from mcp_runtime.security.limits import Owner, Places

ANA: Owner = (1, 1)


def seconds_left(deadline: Deadline) -> float:
    """The remaining seconds, rounded, because the tests take almost no time."""
    return round((deadline.timeout.when() or 0) - asyncio.get_running_loop().time())


def test_a_deadline_is_paused_while_a_question_is_open() -> None:
    async def run_steps() -> list[float]:
        deadline = Deadline(30)
        async with deadline.timeout:
            deadline.set(20, "a call", "notes")
            values = [seconds_left(deadline)]
            for step in (deadline.pause, deadline.pause, deadline.resume, deadline.resume):
                step()
                values.append(seconds_left(deadline))
        return values

    assert asyncio.run(run_steps()) == [20, 600, 600, 600, 20]


def test_a_cancelled_deadline_is_not_extended() -> None:
    async def run_steps() -> list[float]:
        deadline = Deadline(30)
        async with deadline.timeout:
            deadline.pause()
            deadline.cancel()
            values = []
            for step in (deadline.resume, deadline.pause, lambda: deadline.set(30, "", ""), deadline.resume):
                step()
                values.append(seconds_left(deadline))
        return values

    assert asyncio.run(run_steps()) == [CANCEL_GRACE] * 4


def test_changes_of_an_ended_deadline_have_no_effect() -> None:
    async def run_steps() -> bool:
        deadline = Deadline(30)
        async with deadline.timeout:
            pass
        deadline.cancel()  # its response is still being sent to a slow client
        deadline.pause()
        deadline.resume()
        return deadline.timeout.expired()

    assert asyncio.run(run_steps()) is False


def test_closing_an_unread_stream_frees_its_resources_once() -> None:
    names: list[str] = []

    async def events() -> AsyncGenerator[Event]:
        yield Event(b"1")

    async def run_steps() -> None:
        inner = Stream(events(), lambda: names.append("inner"))
        outer = Stream(events(), lambda: names.append("outer"), inner)
        outer.on_close(lambda: names.append("place"))
        await outer.aclose()
        await outer.aclose()

    asyncio.run(run_steps())
    assert names == ["inner", "place", "outer"]


def test_a_free_place_goes_to_the_longest_waiting_task_that_was_not_cancelled() -> None:
    order: list[int] = []

    async def run_steps() -> None:
        places = Places(1)
        await places.take(ANA)

        async def wait(number: int) -> None:
            await places.take(ANA)
            order.append(number)

        tasks = [asyncio.create_task(wait(number)) for number in range(4)]
        await asyncio.sleep(0)
        tasks[0].cancel()
        await asyncio.sleep(0)
        places.give_back(ANA)
        await tasks[1]
        places.give_back(ANA)
        tasks[2].cancel()  # at the moment when it got its place
        await tasks[3]
        with pytest.raises(asyncio.CancelledError):
            await tasks[2]
        places.give_back(ANA)
        await asyncio.wait_for(places.take(ANA), 1)

    asyncio.run(run_steps())
    assert order == [1, 3]


def test_a_free_place_goes_to_the_principal_with_the_fewest_places() -> None:
    order: list[int | None] = []

    async def run_steps() -> None:
        places = Places(4)

        async def wait(owner: Owner) -> None:
            await places.take(owner)
            order.append(owner[1])

        tasks = [asyncio.create_task(wait((token, token))) for token in (1, 1, 1, 1, 1, 2, 2, 3)]
        for returning_owner, owners in ((None, [1, 1, 1, 2]), (1, [3]), (1, []), (2, [2])):
            count_before = len(order)
            if returning_owner:
                places.give_back((returning_owner, returning_owner))
            for _ in range(3):
                await asyncio.sleep(0)
            assert order[count_before:] == owners
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(run_steps())


def test_cancelled_waiting_tasks_leave_no_data() -> None:
    async def run_steps() -> None:
        places = Places(1)
        await places.take(ANA)
        tasks = [asyncio.create_task(places.take((2, number))) for number in range(100)]
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert places._waiting == {}

    asyncio.run(run_steps())


def test_the_number_of_places_can_change() -> None:
    async def run_steps() -> list[int]:
        places = Places(0)
        tasks = [asyncio.create_task(places.take((number, number))) for number in range(4)]
        values = []
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
            values.append(sum(task.done() for task in tasks))
        places.allow(2)
        await asyncio.wait_for(tasks[3], 1)
        for number in (2, 3):
            places.give_back((number, number))
            await asyncio.wait_for(places.take((number, number)), 1)
        return values

    assert asyncio.run(run_steps()) == [0, 2, 2, 2, 3]
