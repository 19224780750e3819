"""Renew the tokens of members in threads of their own, which all members share.

A silent authorization server must not take the threads that all calls need, and one member must not take the threads
that the renewals of others need.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

from mcp_runtime.protocol.errors import ServerAwayError
from mcp_runtime.rows.database import unit_of_work

THREADS = 8
MAX_OF_MEMBER = 3  # threads
PATIENCE_SECONDS = 2.0  # without the end of any renewal of the member
Key = tuple[int, str, str]  # the id of the member, and what tells its renewals apart


@dataclass(eq=False)
class _Gate:
    """The renewals of one member: those that have a thread, and those that wait for one."""

    count: int = 0
    slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_OF_MEMBER))
    changed_at: float = 0.0  # when one of them began in a free thread, or ended


class Renewals:
    """Use it only on the gateway's event loop."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS, "gateway-renewer")
        self._in_progress: dict[Key, asyncio.Future[object]] = {}
        self._gates: dict[int, _Gate] = {}  # by member

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def once(self, key: Key, renewal: Callable[[], object]) -> object:
        """Return `renewal()`. All who need the same one wait for one thread.

        Raises ServerAwayError if other renewals of the member have all threads that it may have, and none of them ends.
        """
        if key not in self._in_progress:
            future = asyncio.ensure_future(self._run(key[0], partial(unit_of_work, renewal)))
            self._in_progress[key] = future
            future.add_done_callback(partial(self._forget, key))
        return await asyncio.shield(self._in_progress[key])

    def _forget(self, key: Key, done: asyncio.Future[object]) -> None:
        self._in_progress.pop(key, None)
        if not done.cancelled():
            done.exception()  # nobody may wait for it any more

    async def _run(self, member_id: int, work: Callable[[], object]) -> object:
        gate = self._gates.setdefault(member_id, _Gate())
        gate.count += 1
        try:
            return await self._in_thread(gate, work)
        finally:
            gate.count -= 1
            if not gate.count:
                del self._gates[member_id]

    async def _in_thread(self, gate: _Gate, work: Callable[[], object]) -> object:
        await self._enter(gate)
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._threads, work)
        finally:
            gate.slots.release()
            gate.changed_at = loop.time()

    @staticmethod
    async def _enter(gate: _Gate) -> None:
        loop = asyncio.get_running_loop()
        if not gate.slots.locked():
            gate.changed_at = loop.time()
        while True:
            left = gate.changed_at + PATIENCE_SECONDS - loop.time()
            try:
                async with asyncio.timeout(max(left, 0.0)):
                    await gate.slots.acquire()
                return
            except TimeoutError:
                if loop.time() >= gate.changed_at + PATIENCE_SECONDS:
                    raise ServerAwayError(
                        "its authorization server does not answer, and other renewals already wait for it; "
                        "try again in a moment"
                    ) from None
