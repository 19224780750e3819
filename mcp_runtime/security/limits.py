"""How much one token may do at a time: calls a minute, concurrent calls, slots, stored bytes. Counted in memory.

`TokenLimits` are the limits that each token can set (declared in `roster.models.tokens`). All other limits are the same
for every token. They are constants, here or beside the code that they limit. All are checked before the work begins,
and forgotten when the process ends. `token_buckets` divides the calls a minute between nodes.
"""

from __future__ import annotations

import asyncio
import collections
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, TypeVar

from mcp_runtime.protocol.errors import TooManyCallsError

MAX_ENTRIES = 10_000  # of a table by owner, before old entries are removed

# What the gateway stores for clients. One user or token gets only a part, so that nobody uses up all of it.
MAX_STREAMS = 1_000
MAX_STREAMS_OF_USER = 128
MAX_STREAMS_OF_TOKEN = 64
MAX_SESSIONS = 2_000
MAX_SESSIONS_OF_USER = 256
MAX_SESSIONS_OF_TOKEN = 128
# The subscriptions of one session or one stream to resources, and the characters of all their URIs.
MAX_SUBSCRIPTIONS = 1_000
MAX_SUBSCRIBED = 100_000


# The owner of a budget: the ids of a user and of a token. The operator has neither.
Owner = tuple[int | None, int | None]


def has_room_for_stream(owner: Owner, owners_of_open: Iterable[Owner]) -> bool:
    """Whether the owner may open one more stream beside those that are open, each given by its owner."""
    owners = list(owners_of_open)
    of_user = [other for other in owners if other[0] == owner[0]]
    return (
        len(owners) < MAX_STREAMS and len(of_user) < MAX_STREAMS_OF_USER and of_user.count(owner) < MAX_STREAMS_OF_TOKEN
    )


# A principal may use at most this many times the slots that stay free. That is three quarters while it is alone.
SHARE = 3


Item = TypeVar("Item")


def in_turn(items: Iterable[Item], owner_of: Callable[[Item], Owner]) -> list[Item]:
    """The first item of each owner, then the second of each, and so on. Many items of one owner delay nobody else."""
    rounds: collections.Counter[Owner] = collections.Counter()
    numbered = []
    for item in items:
        rounds[owner_of(item)] += 1
        numbered.append((rounds[owner_of(item)], item))
    return [item for _, item in sorted(numbered, key=itemgetter(0))]


class Slots:
    """Slots that principals share. Not thread-safe.

    A call may hang until its deadline, so slots are limited before others wait for them. A principal that has slots may
    take another one if it then has at most SHARE times the number that stays free (the "dynamic threshold" of shared
    buffers in switches). One principal alone gets 12 of 16, and a second one gets 3 of the rest. A principal without a
    slot may take the last one. Several busy principals converge to equal parts.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.in_use = 0
        self._of_owner: collections.Counter[Owner] = collections.Counter()
        self._of_user: collections.Counter[int | None] = collections.Counter()

    @property
    def free(self) -> int:
        """Below zero after `count` became smaller."""
        return self.count - self.in_use

    def count_of(self, owner: Owner) -> int:
        return self._of_owner[owner]

    def may_take(self, owner: Owner) -> bool:
        free, count = self.free, self._of_owner[owner]
        if free <= 0 or (count and count + 1 > SHARE * (free - 1)):
            return False
        # The last of a few slots is for another user, because one user can have any number of tokens.
        return free > 1 or self.count < SHARE + 1 or not self._of_user[owner[0]]

    def take(self, owner: Owner) -> None:
        self.in_use += 1
        self._of_owner[owner] += 1
        self._of_user[owner[0]] += 1

    def give_back(self, owner: Owner) -> None:
        self.in_use -= 1
        _count_down(self._of_owner, owner)
        _count_down(self._of_user, owner[0])


class SharedSlots(Slots):
    """Slots for several threads, which may use only `seat`."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self._lock = threading.Lock()

    @contextmanager
    def seat(self, owner: Owner) -> Iterator[bool]:
        """Use a slot while the context is entered. Gives False if there was none."""
        with self._lock:
            if has_slot := self.may_take(owner):
                self.take(owner)
        try:
            yield has_slot
        finally:
            if has_slot:
                with self._lock:
                    self.give_back(owner)


class Places:
    """Limits how many requests of one event loop are served at a time. The others wait.

    A free place goes to the principal that has the fewest places, and there to the request that has waited longest.
    """

    def __init__(self, count: int) -> None:
        self._slots = Slots(count)
        # Among principals with equally many places, the one that was served longest ago comes first.
        self._waiting: dict[Owner, collections.deque[asyncio.Future[None]]] = {}

    async def take(self, owner: Owner) -> None:
        if owner not in self._waiting and self._slots.may_take(owner):
            self._slots.take(owner)
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(owner, collections.deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give_back(owner)  # it got a place at the same moment
            else:
                self._leave(owner, turn)
            raise

    def allow(self, count: int) -> None:
        """Change the number of places. If there are fewer now, requests that are being served keep theirs."""
        if count != self._slots.count:
            self._slots.count = count
            self._hand_on()

    def give_back(self, owner: Owner) -> None:
        self._slots.give_back(owner)
        self._hand_on()

    def _hand_on(self) -> None:
        while self._waiting:
            may_take = [owner for owner in self._waiting if self._slots.may_take(owner)]
            if not may_take:
                return
            owner = min(may_take, key=self._slots.count_of)
            line = self._waiting.pop(owner)
            turn = line.popleft()
            if line:
                self._waiting[owner] = line  # behind the others
            if not turn.done():
                self._slots.take(owner)
                turn.set_result(None)

    def _leave(self, owner: Owner, turn: asyncio.Future[None]) -> None:
        line = self._waiting.get(owner)
        if line is not None and turn in line:
            line.remove(turn)
            if not line:
                del self._waiting[owner]


class Rounds:
    """Begins one request of each principal in each round of the event loop. Many requests of one delay no other."""

    def __init__(self) -> None:
        self._lines: dict[Owner, collections.deque[asyncio.Future[None]]] = {}

    async def turn(self, owner: Owner) -> None:
        line = self._lines.get(owner)
        loop = asyncio.get_running_loop()
        if line is None:
            self._lines[owner] = collections.deque()
            loop.call_soon(self._next, loop, owner)
            return
        turn = loop.create_future()
        line.append(turn)
        await turn

    def _next(self, loop: asyncio.AbstractEventLoop, owner: Owner) -> None:
        line = self._lines[owner]
        while line:
            turn = line.popleft()
            if not turn.done():  # otherwise its client has disconnected
                turn.set_result(None)
                loop.call_soon(self._next, loop, owner)
                return
        del self._lines[owner]


def _count_down(counter: collections.Counter[Any], key: Any, count: int = 1) -> None:
    """Subtract, and remove keys that reach zero. Principals come and go, so they would fill the counter."""
    counter[key] -= count
    if counter[key] <= 0:
        del counter[key]


@dataclass(frozen=True)
class TokenLimits:
    """The limits of one token, with the names of `Token.LIMITS`. 0 means no limit."""

    calls_per_minute: int = 0
    max_in_flight: int = 0


class Limiter:
    """Counts the calls of each key, for each of `TokenLimits`.

    The `calls_per_minute` of a whole minute may come at once. After that they refill at the same rate.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._full_at: dict[int, float] = {}  # when all of the minute's calls may be made again
        self._in_flight: dict[int, int] = {}

    @contextmanager
    def call(self, key: int, limits: TokenLimits) -> Iterator[None]:
        """Count one call while the context is entered. Raises TooManyCallsError."""
        self.enter(key, limits)
        try:
            yield
        finally:
            self.leave(key)

    def enter(self, key: int, limits: TokenLimits) -> None:
        """Count a call that begins. `leave` must follow. Counts nothing if it raises TooManyCallsError."""
        with self._lock:
            in_flight = self._in_flight.get(key, 0)
            most = limits.max_in_flight
            if most and in_flight >= most:
                text = f"Too many concurrent calls (limit {most}). Try again when one of them has ended."
                raise TooManyCallsError(text, 1.0)
            if limits.calls_per_minute:
                self._take(key, 60.0 / limits.calls_per_minute, limits.calls_per_minute)
            self._in_flight[key] = in_flight + 1

    def leave(self, key: int) -> None:
        with self._lock:
            remaining = self._in_flight.get(key, 0) - 1
            if remaining > 0:
                self._in_flight[key] = remaining
            else:
                self._in_flight.pop(key, None)

    def _take(self, key: int, each: float, calls_per_minute: int) -> None:
        now = self._clock()
        full_at = max(self._full_at.get(key, now), now) + each
        # A small tolerance for rounding errors.
        if full_at - now > 60.0 + 1e-6:
            raise TooManyCallsError(
                f"Too many calls a minute (limit {calls_per_minute}). Try again in {full_at - now - 60.0:.1f} s.",
                full_at - now - 60.0,
            )
        if key not in self._full_at and len(self._full_at) >= MAX_ENTRIES:
            self._full_at = {other: moment for other, moment in self._full_at.items() if moment > now}
        self._full_at[key] = full_at


class BudgetError(Exception):
    """Not enough remains of the budget. `is_full`: the budget of all principals is used up, so nobody is to blame."""

    def __init__(self, message: str, *, is_full: bool = False) -> None:
        super().__init__(message)
        self.is_full = is_full


class ByteBudget:
    """Limits the bytes that are stored for principals: for a token, for its user, and in all. Not thread-safe."""

    def __init__(self, *, of_token: int, of_user: int, in_all: int) -> None:
        self._of_token, self._of_user, self._in_all = of_token, of_user, in_all
        self._total = 0
        self._by_token: collections.Counter[Owner] = collections.Counter()
        self._by_user: collections.Counter[int | None] = collections.Counter()

    def take(self, owner: Owner, size: int) -> None:
        """Count `size` bytes. `give_back` must follow. Counts nothing if it raises BudgetError."""
        if self._by_token[owner] + size > self._of_token:
            raise BudgetError(f"this token may have {self._of_token:,} bytes")
        if self._by_user[owner[0]] + size > self._of_user:
            raise BudgetError(f"the tokens of one user may have {self._of_user:,} bytes")
        if self._total + size > self._in_all:
            raise BudgetError(f"all clients together may have {self._in_all:,} bytes", is_full=True)
        self._total += size
        self._by_token[owner] += size
        self._by_user[owner[0]] += size

    def give_back(self, owner: Owner, size: int) -> None:
        self._total -= size
        _count_down(self._by_token, owner, size)
        _count_down(self._by_user, owner[0], size)


class Account:
    """The changing number of bytes that one user of a budget stores. The first `free` bytes are not counted."""

    def __init__(self, budget: ByteBudget, owner: Owner, free: int = 0) -> None:
        self._budget, self._owner, self._free = budget, owner, free
        self._size = self._counted_bytes = 0

    def change(self, size: int) -> None:
        """Add `size` bytes, or remove them if it is negative. Counts nothing if it raises BudgetError."""
        counted_bytes = max(self._size + size - self._free, 0)
        if counted_bytes > self._counted_bytes:
            self._budget.take(self._owner, counted_bytes - self._counted_bytes)
        elif counted_bytes < self._counted_bytes:
            self._budget.give_back(self._owner, self._counted_bytes - counted_bytes)
        self._size, self._counted_bytes = self._size + size, counted_bytes

    def close(self) -> None:
        self.change(-self._size)


class TimeShare:
    """Limits the time of a thread for each principal: `burst` seconds at once, and then what `share` refills.

    The time that work takes is known only after it. So a principal that took too much waits before its next work.
    """

    def __init__(self, share: float, burst: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._share, self._lead, self._clock = share, burst / share, clock
        self._refilled_at: dict[Owner, float] = {}  # when the time that the owner took is refilled

    def wait(self, owner: Owner) -> float:
        """Seconds until the principal may continue. 0 means now."""
        return max(0.0, self._refilled_at.get(owner, 0.0) - self._lead - self._clock())

    def spend(self, owner: Owner, seconds: float) -> None:
        now = self._clock()
        if owner not in self._refilled_at and len(self._refilled_at) >= MAX_ENTRIES:
            self._refilled_at = {other: moment for other, moment in self._refilled_at.items() if moment > now}
        self._refilled_at[owner] = max(self._refilled_at.get(owner, now), now) + seconds / self._share


def bytes_of_members() -> ByteBudget:
    """For notifications of members until they are passed on. An owner is a member (in place of a user) and a token."""
    return ByteBudget(of_token=8_000_000, of_user=16_000_000, in_all=64_000_000)


def bytes_of_suspended() -> ByteBudget:
    """For members' streams that wait for their clients' answers."""
    return ByteBudget(of_token=16_000_000, of_user=32_000_000, in_all=96_000_000)


def bytes_of_streams() -> ByteBudget:
    """For messages on open streams that the client has not read yet."""
    return ByteBudget(of_token=8_000_000, of_user=16_000_000, in_all=64_000_000)
