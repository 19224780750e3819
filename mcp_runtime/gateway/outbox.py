"""What is to be said on one open stream, until its client has read it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable

from mcp_runtime.security import limits
from mcp_runtime.security.limits import BudgetError, ByteBudget, Owner

logger = logging.getLogger("guildhall.gateway")

MAX_WAITING = 1_000  # messages for a stream that is not read
MAX_WAITING_BYTES = 1_000_000  # of them, or a single larger one


class Outbox:
    """What is to be said on one open stream, within `budget`, that of all streams.

    Too many messages: the oldest goes, for a notification is only ever a hint. Too many bytes: nobody reads, so the
    stream is given up, and `give_up` is called to end it. Its client can come back, and resume where the member can.
    """

    def __init__(
        self,
        owner: Owner = (None, None),
        budget: ByteBudget | None = None,
        give_up: Callable[[], None] = lambda: None,
    ) -> None:
        self._owner, self._give_up = owner, give_up
        self._budget = budget or limits.bytes_of_streams()
        self._waiting: deque[tuple[bytes, str, int | None]] = deque()
        self._bytes = 0  # that wait
        self._in_hand = 0  # bytes of the message that was taken last: it is being sent until the next one is taken
        self._is_given_up = False
        self._has_more = asyncio.Event()
        self.is_closed = False

    def put(self, data: bytes, event_id: str = "", retry_ms: int | None = None) -> None:
        if self._is_given_up:
            return
        while len(self._waiting) >= MAX_WAITING:
            self._forget(len(self._waiting.popleft()[0]))
        try:
            if self._waiting and self._bytes + len(data) > MAX_WAITING_BYTES:
                raise BudgetError(f"a stream may have {MAX_WAITING_BYTES:,} bytes")
            self._budget.take(self._owner, len(data))
        except BudgetError as error:
            logger.info("a stream that is not read was ended: of what waits to be sent %s", error)
            self.discard()
            self._give_up()
            return
        self._bytes += len(data)
        self._waiting.append((data, event_id, retry_ms))
        self._has_more.set()

    def _forget(self, size: int) -> None:
        self._bytes -= size
        self._budget.give_back(self._owner, size)

    def close(self) -> None:
        self.is_closed = True
        self._has_more.set()

    def discard(self) -> None:
        """Close it, and keep nothing. What is being sent stays counted as long as `sent` was not called."""
        self._is_given_up = True
        self._forget(self._bytes)
        self._waiting.clear()
        self.close()

    def sent(self) -> None:
        """The message that was taken last is not held any more."""
        self._budget.give_back(self._owner, self._in_hand)
        self._in_hand = 0

    async def take(self, seconds: float) -> tuple[bytes, str, int | None] | None:
        """The next message, the one before it being sent; None when none came in time, or none will."""
        self.sent()
        if not self._waiting and not self.is_closed:
            self._has_more.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._has_more.wait()
        if not self._waiting:
            return None
        taken = self._waiting.popleft()
        self._in_hand = len(taken[0])
        self._bytes -= self._in_hand
        return taken
