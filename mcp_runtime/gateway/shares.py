"""The share of this gateway in the calls that a token may make, in a hall with several nodes.

A gateway borrows calls of a token from a row, a few at a time, and gives those back that it does not need within a
second. So all gateways together never accept more calls in a minute than the token may make, and never have more
concurrent ones. What all have borrowed and not used is at most a tenth of the limit. Of concurrent calls, a gateway
keeps for a moment what it has needed a moment ago. So a call waits before it is refused, if other gateways have a part
of the limit.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from functools import partial

from django.db import Error

from mcp_runtime.gateway.peers import Peers
from mcp_runtime.protocol.errors import TooManyCallsError
from mcp_runtime.rows.database import unit_of_work
from mcp_runtime.security import token_buckets
from mcp_runtime.security.access import Principal

logger = logging.getLogger("guildhall.gateway")

BORROWED_SECONDS = 1.0
REFUSED_SECONDS = 0.1  # the shortest time between two attempts to borrow, after there was nothing to borrow
REDUCED_SECONDS = 0.2  # between two looks at the concurrent calls that a gateway does not need
ROOM_SECONDS = 0.6  # that a call waits for other gateways to give back concurrent calls
UNUSED_PART = 10  # all gateways together borrow at most this part of the limit before they use it


@dataclass(eq=False)
class _Share:
    """Calls of one token that this gateway has borrowed."""

    calls_per_minute: int = 0
    calls: int = 0
    until: float = 0.0  # when they are given back. Times of the event loop
    refused_until: float = 0.0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


@dataclass(eq=False)
class _Concurrency:
    """Concurrent calls of one token at this gateway."""

    limit: int = 0
    share: int = 0  # that the row grants to this gateway
    row_share: int = 0  # the most that the row may have, because the answer to the last change may be lost
    calls: int = 0  # that run
    waiting: int = 0  # calls that wait for a larger share
    peak: int = 0  # the highest number of them since the share was last reduced
    refused_until: float = 0.0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def has_room(self, limit: int) -> bool:
        return self.calls < self.share and self.limit == limit


class Shares:
    """The shares of all tokens. Use it only on the gateway's event loop."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self.shares_by_token: dict[int, _Share] = {}
        self.concurrency_by_token: dict[int, _Concurrency] = {}
        self._has_calls = asyncio.Event()

    @property
    def are_needed(self) -> bool:
        return bool(self._peers.by_lease)

    async def take(self, principal: Principal) -> bool:
        """Count one call of this minute. Raise TooManyCallsError.

        Return False if no row counts this call: the token has no limit, or the database does not answer. Then the
        caller counts it.
        """
        limit, token_id = principal.limits.calls_per_minute, principal.token_id
        if not limit or token_id is None:
            return False
        while True:
            share = self.shares_by_token.setdefault(token_id, _Share())
            async with share.lock:
                if self.shares_by_token.get(token_id) is share:  # otherwise it was given back meanwhile
                    return await self._take(share, token_id, limit)

    async def _take(self, share: _Share, token_id: int, limit: int) -> bool:
        now = asyncio.get_running_loop().time()
        if share.calls < 1 or now > share.until or share.calls_per_minute != limit:
            if now < share.refused_until and share.calls_per_minute == limit:
                raise _refusal(limit, share.refused_until - now)  # a client that insists must not cost the database
            unused = share.calls if share.calls_per_minute == limit else 0
            share.calls, share.calls_per_minute = 0, limit
            share.until = now + BORROWED_SECONDS
            try:
                share.calls, seconds = await self._borrow(token_id, limit, unused)
            except Error as error:
                logger.warning("the calls of a token cannot be counted together (%s)", str(error).strip())
                return False
            if not share.calls:
                share.refused_until = now + max(seconds, REFUSED_SECONDS)
                raise _refusal(limit, seconds)
        share.calls -= 1
        return True

    async def _borrow(self, token_id: int, limit: int, unused: int) -> tuple[int, float]:
        wanted = max(limit // (UNUSED_PART * (len(self._peers.by_lease) + 1)), 1)
        work = partial(token_buckets.borrow, token_id, limit, wanted, unused)
        return await asyncio.get_running_loop().run_in_executor(None, unit_of_work, work)

    # Concurrent calls -----------------------------------------------------------------------------------------------

    async def begin(self, principal: Principal) -> bool:
        """Count a concurrent call of the principal. `end` must follow. Raise TooManyCallsError.

        Return False if no row counts this call, as in `take`. Then there is nothing to end.
        """
        limit, token_id = principal.limits.max_in_flight, principal.token_id
        if not limit or token_id is None:
            return False
        concurrency = self.concurrency_by_token.setdefault(token_id, _Concurrency())
        self._has_calls.set()
        if not concurrency.has_room(limit):
            concurrency.waiting += 1
            try:
                async with concurrency.lock:
                    await self._enlarge(concurrency, token_id, limit)
            except Error as error:
                logger.warning("the concurrent calls of a token cannot be counted together (%s)", str(error).strip())
                return False
            finally:
                concurrency.waiting -= 1
        concurrency.calls += 1
        concurrency.peak = max(concurrency.peak, concurrency.calls)
        return True

    async def _enlarge(self, concurrency: _Concurrency, token_id: int, limit: int) -> None:
        """Ask for a share that is large enough for all calls. Raise TooManyCallsError if there is no room."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + ROOM_SECONDS
        while not concurrency.has_room(limit):  # another call may have ended, or may have asked
            if loop.time() < concurrency.refused_until and concurrency.limit == limit:
                raise _concurrency_refusal(limit)
            wanted = min(concurrency.calls + concurrency.waiting, limit)
            await self._set_share(concurrency, token_id, limit, wanted)
            concurrency.limit = limit
            if concurrency.has_room(limit):
                return
            if concurrency.share >= limit or loop.time() > deadline:
                concurrency.refused_until = loop.time() + REFUSED_SECONDS
                raise _concurrency_refusal(limit)
            await asyncio.sleep(REDUCED_SECONDS)

    async def _set_share(self, concurrency: _Concurrency, token_id: int, limit: int, calls: int) -> None:
        concurrency.row_share = max(concurrency.row_share, calls)
        work = partial(token_buckets.set_share, token_id, limit, self._peers.own_lease, calls)
        change = asyncio.get_running_loop().run_in_executor(None, unit_of_work, work)
        try:
            await asyncio.wait({change})
        except asyncio.CancelledError:  # the client went away. The row changes nevertheless
            await asyncio.wait({change})
            raise
        finally:
            if change.done() and change.exception() is None:
                concurrency.share = concurrency.row_share = change.result()
        change.result()

    def end(self, token_id: int) -> None:
        self.concurrency_by_token[token_id].calls -= 1

    async def reduce_regularly(self) -> None:
        """Give concurrent calls back that this gateway does not need. A gateway without calls does nothing."""
        while True:
            await self._has_calls.wait()
            await asyncio.sleep(REDUCED_SECONDS)
            await self.reduce()
            if not self.concurrency_by_token:
                self._has_calls.clear()

    async def reduce(self) -> None:
        """Give back what no call has needed since the last time."""
        for token_id, concurrency in list(self.concurrency_by_token.items()):
            async with concurrency.lock:
                needed = max(concurrency.peak, concurrency.calls)
                concurrency.peak = concurrency.calls
                if needed < concurrency.row_share:
                    concurrency.share = needed  # first here, so that no call uses what the row has no more
                    try:
                        await self._set_share(concurrency, token_id, concurrency.limit, needed)
                    except Error as error:
                        logger.warning("calls of a token cannot be given back (%s)", str(error).strip())
                        await asyncio.sleep(BORROWED_SECONDS)
                if not (concurrency.calls or concurrency.waiting or concurrency.row_share):
                    del self.concurrency_by_token[token_id]

    # Give back ------------------------------------------------------------------------------------------------------

    async def give_back_regularly(self) -> None:
        while True:
            await asyncio.sleep(BORROWED_SECONDS)
            now = asyncio.get_running_loop().time()
            await self.give_back([token_id for token_id, share in self.shares_by_token.items() if now > share.until])

    async def give_back(self, token_ids: list[int] | None = None) -> None:
        """Put calls back that were not made, of these tokens or of all."""
        for token_id in list(self.shares_by_token) if token_ids is None else token_ids:
            share = self.shares_by_token.get(token_id)
            if share is None:
                continue
            async with share.lock:
                unused, share.calls = share.calls, 0
                self.shares_by_token.pop(token_id, None)
                if unused:
                    work = partial(token_buckets.give_back, token_id, share.calls_per_minute, unused)
                    try:
                        await asyncio.get_running_loop().run_in_executor(None, unit_of_work, work)
                    except Error as error:
                        logger.warning("calls of a token cannot be given back (%s)", str(error).strip())


def _refusal(limit: int, seconds: float) -> TooManyCallsError:
    return TooManyCallsError(f"Too many calls a minute (limit {limit}). Try again in {seconds:.1f} s.", seconds)


def _concurrency_refusal(limit: int) -> TooManyCallsError:
    return TooManyCallsError(f"Too many concurrent calls (limit {limit}). Try again when one of them has ended.", 1.0)
