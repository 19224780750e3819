"""The ways to members: whose large answers are read when, and what failures of one member cost the others."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from typing import Any

import pytest

from mcp_runtime.gateway import envelope
from mcp_runtime.gateway.upstream import routes
from mcp_runtime.gateway.upstream.routes import Upstream
from mcp_runtime.members.live import LiveMember
from mcp_runtime.members.process import NoProcess
from mcp_runtime.protocol.errors import ConnectError

LARGE = b"x" * (envelope.MAX_SMALL + 1)


def test_large_answers_of_one_owner_wait_for_each_other_and_those_of_another_go_between() -> None:
    read: list[str] = []

    def note(name: str, _: bytes) -> None:
        read.append(name)

    async def flood() -> None:
        upstream = Upstream(None, max_bytes=1)  # type: ignore[arg-type]
        try:
            greedy = [upstream.read_in_thread((1, 1), partial(note, f"greedy {number}"), LARGE) for number in range(5)]
            tasks = [asyncio.ensure_future(one) for one in greedy]
            await asyncio.sleep(0)  # all of them stand in line
            await upstream.read_in_thread((2, 2), partial(note, "another"), LARGE)
            await asyncio.gather(*tasks)
        finally:
            upstream.close()

    asyncio.run(flood())
    assert read.index("another") <= 2  # one of the others was being read, and one had its turn


class Lifecycle:
    def __init__(self) -> None:
        self.failures = 0
        self.may_go_on = threading.Event()

    def handle_connection_failure(self, live: LiveMember, error: ConnectError) -> None:
        self.failures += 1
        self.may_go_on.wait(10)


def broken_member() -> LiveMember:
    nobody: Any = None
    return LiveMember(1, "notes", 0, nobody, NoProcess(), "")


def test_calls_of_a_member_that_hangs_up_take_no_thread_that_others_need(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "EXIT_GRACE", 1.0)

    async def flood() -> None:
        live = broken_member()
        waiting = [asyncio.ensure_future(Upstream.exit_error(live)) for _ in range(64)]
        await asyncio.sleep(0)
        await asyncio.get_running_loop().run_in_executor(None, int)
        assert not any(task.done() for task in waiting)
        assert await asyncio.gather(*waiting) == [None] * 64

    asyncio.run(flood())


@pytest.mark.django_db(transaction=True)
def test_calls_that_fail_together_write_the_failure_down_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "EXIT_GRACE", 0.0)
    lifecycle = Lifecycle()

    async def flood() -> None:
        ways, live = Upstream(lifecycle, max_bytes=1), broken_member()  # type: ignore[arg-type]
        refused = ConnectError("connection refused", is_refusal=True)
        try:
            waiting = [asyncio.ensure_future(ways.explain(live, refused)) for _ in range(64)]
            async with asyncio.timeout(5):
                while sum(task.done() for task in waiting) < 63:
                    await asyncio.sleep(0.005)
            await asyncio.get_running_loop().run_in_executor(None, int)
        finally:
            lifecycle.may_go_on.set()
            ways.close()
        assert await asyncio.gather(*waiting) == [refused] * 64

    asyncio.run(flood())
    assert lifecycle.failures == 1
