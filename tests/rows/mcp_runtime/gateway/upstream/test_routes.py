"""Routes to members: the order in which large responses are read, and the effect of one member's failures on others."""

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


def test_large_responses_of_one_owner_do_not_delay_those_of_another() -> None:
    names: list[str] = []

    def note(name: str, _: bytes) -> None:
        names.append(name)

    async def flood() -> None:
        upstream = Upstream(None, max_bytes=1)  # type: ignore[arg-type]
        try:
            coroutines = [
                upstream.read_in_thread((1, 1), partial(note, f"greedy {number}"), LARGE) for number in range(5)
            ]
            tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
            await asyncio.sleep(0)  # all of them are in the queue
            await upstream.read_in_thread((2, 2), partial(note, "another"), LARGE)
            await asyncio.gather(*tasks)
        finally:
            upstream.close()

    asyncio.run(flood())
    assert names.index("another") <= 2  # one response was being read, and one more had its turn


class Lifecycle:
    def __init__(self) -> None:
        self.failures = 0
        self.may_continue = threading.Event()

    def handle_connection_failure(self, live: LiveMember, error: ConnectError) -> None:
        self.failures += 1
        self.may_continue.wait(10)


def broken_member() -> LiveMember:
    client: Any = None
    return LiveMember(1, "notes", 0, client, NoProcess(), "")


def test_calls_of_a_member_that_disconnects_take_no_thread_from_other_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "EXIT_GRACE", 1.0)

    async def flood() -> None:
        live_member = broken_member()
        tasks = [asyncio.ensure_future(Upstream.exit_error(live_member)) for _ in range(64)]
        await asyncio.sleep(0)
        await asyncio.get_running_loop().run_in_executor(None, int)
        assert not any(task.done() for task in tasks)
        assert await asyncio.gather(*tasks) == [None] * 64

    asyncio.run(flood())


@pytest.mark.django_db(transaction=True)
def test_calls_that_fail_together_record_the_failure_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "EXIT_GRACE", 0.0)
    lifecycle = Lifecycle()

    async def flood() -> None:
        upstream, live_member = Upstream(lifecycle, max_bytes=1), broken_member()  # type: ignore[arg-type]
        error = ConnectError("connection refused", is_refusal=True)
        try:
            tasks = [asyncio.ensure_future(upstream.explain(live_member, error)) for _ in range(64)]
            async with asyncio.timeout(5):
                while sum(task.done() for task in tasks) < 63:
                    await asyncio.sleep(0.005)
            await asyncio.get_running_loop().run_in_executor(None, int)
        finally:
            lifecycle.may_continue.set()
            upstream.close()
        assert await asyncio.gather(*tasks) == [error] * 64

    asyncio.run(flood())
    assert lifecycle.failures == 1
