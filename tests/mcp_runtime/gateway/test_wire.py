"""The ways to members: whose large answers are read when."""

from __future__ import annotations

import asyncio
from functools import partial

from mcp_runtime.gateway import envelope
from mcp_runtime.gateway.wire import Wire

LARGE = b"x" * (envelope.MAX_SMALL + 1)


def test_large_answers_of_one_owner_wait_for_each_other_and_those_of_another_go_between() -> None:
    read: list[str] = []

    def note(name: str, _: bytes) -> None:
        read.append(name)

    async def flood() -> None:
        wire = Wire(None, max_bytes=1)  # type: ignore[arg-type]
        try:
            greedy = [wire.in_thread((1, 1), partial(note, f"greedy {number}"), LARGE) for number in range(5)]
            tasks = [asyncio.ensure_future(one) for one in greedy]
            await asyncio.sleep(0)  # all of them stand in line
            await wire.in_thread((2, 2), partial(note, "another"), LARGE)
            await asyncio.gather(*tasks)
        finally:
            wire.close()

    asyncio.run(flood())
    assert read.index("another") <= 2  # one of the others was being read, and one had its turn
