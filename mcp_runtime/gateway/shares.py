"""The share of this gateway in the calls that a token may make in a minute, in a hall with several nodes.

A gateway borrows calls of a token from a row, a few at a time, and gives those back that it does not need within a
second. So all gateways together never accept more calls than the token may make. What all have borrowed and not used is
at most a tenth of the limit.
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
UNUSED_PART = 10  # all gateways together borrow at most this part of the limit before they use it


@dataclass(eq=False)
class _Share:
    """Calls of one token that this gateway has borrowed."""

    calls_per_minute: int = 0
    calls: int = 0
    until: float = 0.0  # when they are given back. Times of the event loop
    refused_until: float = 0.0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Shares:
    """The shares of all tokens. Use it only on the gateway's event loop."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._shares: dict[int, _Share] = {}

    @property
    def are_needed(self) -> bool:
        return bool(self._peers.by_lease)

    async def take(self, principal: Principal) -> bool:
        """Count one call of the principal. Raise TooManyCallsError.

        Return False if no row counts this call: the token has no limit, or the database does not answer. Then the
        caller counts it.
        """
        limit, token_id = principal.limits.calls_per_minute, principal.token_id
        if not limit or token_id is None:
            return False
        while True:
            share = self._shares.setdefault(token_id, _Share())
            async with share.lock:
                if self._shares.get(token_id) is share:  # otherwise it was given back meanwhile
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

    async def give_back_regularly(self) -> None:
        while True:
            await asyncio.sleep(BORROWED_SECONDS)
            now = asyncio.get_running_loop().time()
            await self.give_back([token_id for token_id, share in self._shares.items() if now > share.until])

    async def give_back(self, token_ids: list[int] | None = None) -> None:
        """Put calls back that were not made, of these tokens or of all."""
        for token_id in list(self._shares) if token_ids is None else token_ids:
            share = self._shares.get(token_id)
            if share is None:
                continue
            async with share.lock:
                unused, share.calls = share.calls, 0
                self._shares.pop(token_id, None)
                if unused:
                    work = partial(token_buckets.give_back, token_id, share.calls_per_minute, unused)
                    try:
                        await asyncio.get_running_loop().run_in_executor(None, unit_of_work, work)
                    except Error as error:
                        logger.warning("calls of a token cannot be given back (%s)", str(error).strip())


def _refusal(limit: int, seconds: float) -> TooManyCallsError:
    return TooManyCallsError(f"Too many calls a minute (limit {limit}). Try again in {seconds:.1f} s.", seconds)
