"""Messages that wait to be sent on one open stream."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable

from mcp_runtime.security import limits
from mcp_runtime.security.limits import BudgetError, ByteBudget, Owner

logger = logging.getLogger("guildhall.gateway")

MAX_WAITING = 1_000  # messages in a stream that is not read
MAX_WAITING_BYTES = 1_000_000  # of these messages. A single message may be larger


class Outbox:
    """A queue of the messages for one open stream. `budget` limits the bytes of all streams.

    If there are too many messages, the oldest is dropped, because a notification is only a hint. If there are too many
    bytes, the client does not read, and `give_up` is called to end the stream. The client can reconnect, and resume if
    the member supports it.
    """

    def __init__(
        self,
        owner: Owner = (None, None),
        budget: ByteBudget | None = None,
        give_up: Callable[[], None] = lambda: None,
    ) -> None:
        self._owner, self._give_up = owner, give_up
        self._budget = budget or limits.bytes_of_streams()
        self._messages: deque[tuple[bytes, str, int | None]] = deque()
        self._bytes = 0  # of the waiting messages
        self._sending_bytes = 0  # bytes of the message that is being sent, until the next `take`
        self._is_given_up = False
        self._has_more = asyncio.Event()
        self.is_closed = False

    def put(self, data: bytes, event_id: str = "", retry_ms: int | None = None) -> None:
        if self._is_given_up:
            return
        while len(self._messages) >= MAX_WAITING:
            self._release(len(self._messages.popleft()[0]))
        try:
            if self._messages and self._bytes + len(data) > MAX_WAITING_BYTES:
                raise BudgetError(f"a stream may have {MAX_WAITING_BYTES:,} bytes")
            self._budget.take(self._owner, len(data))
        except BudgetError as error:
            self.give_up(str(error))
            return
        self._bytes += len(data)
        self._messages.append((data, event_id, retry_ms))
        self._has_more.set()

    @property
    def is_full(self) -> bool:
        """Whether the next message makes the oldest one be dropped."""
        return len(self._messages) >= MAX_WAITING

    def give_up(self, reason: str) -> None:
        """End the stream, because its client does not read it."""
        logger.info("ended a stream whose client does not read it: %s", reason)
        self.discard()
        self._give_up()

    def _release(self, size: int) -> None:
        self._bytes -= size
        self._budget.give_back(self._owner, size)

    def close(self) -> None:
        self.is_closed = True
        self._has_more.set()

    def discard(self) -> None:
        """Close it, drop all messages and accept no more.

        The message that is being sent counts until `finish_sending`.
        """
        self._is_given_up = True
        self._release(self._bytes)
        self._messages.clear()
        self.close()

    def finish_sending(self) -> None:
        """Release the bytes of the message that `take` returned last."""
        self._budget.give_back(self._owner, self._sending_bytes)
        self._sending_bytes = 0

    async def take(self, seconds: float) -> tuple[bytes, str, int | None] | None:
        """Return the next message, or None after `seconds` or when the outbox is closed and empty.

        The previous message counts as sent.
        """
        self.finish_sending()
        if not self._messages and not self.is_closed:
            self._has_more.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._has_more.wait()
        if not self._messages:
            return None
        message = self._messages.popleft()
        self._sending_bytes = len(message[0])
        self._bytes -= self._sending_bytes
        return message
