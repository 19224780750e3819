"""How much one token may do at a time: calls a minute, calls under way, slots, what is kept. Counted in memory.

`Limits` are those that a token may have its own of (declared in `roster.models.tokens`). All others are the same for
every token, and stand here, or beside what they bound, as constants.
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

MAX_KEPT = 10_000

# What the gateway keeps for callers: in all, and of one user or token so much less that nobody takes the place of all.
MAX_STREAMS = 1_000
MAX_STREAMS_OF_USER = 128
MAX_STREAMS_OF_TOKEN = 64
MAX_SESSIONS = 2_000
MAX_SESSIONS_OF_USER = 256
MAX_SESSIONS_OF_TOKEN = 128
# Resources that one session or one stream is subscribed to, and the characters of all their URIs.
MAX_SUBSCRIPTIONS = 1_000
MAX_SUBSCRIBED = 100_000


# A principal as budgets count it: the ids of its user and of its token. The operator has neither.
Owner = tuple[int | None, int | None]
# A principal may hold so many times the slots that then stay free: three quarters of them while it is alone.
SHARE = 3


Item = TypeVar("Item")


def in_turn(items: Iterable[Item], owner_of: Callable[[Item], Owner]) -> list[Item]:
    """First the first of each owner, then the second, and so on: many of one do not come before another's one."""
    rounds: collections.Counter[Owner] = collections.Counter()
    numbered = []
    for item in items:
        rounds[owner_of(item)] += 1
        numbered.append((rounds[owner_of(item)], item))
    return [item for _, item in sorted(numbered, key=itemgetter(0))]


class Slots:
    """Slots that principals share. Not for several threads at once.

    A call may hang until its deadline, so slots are rationed before anybody waits for them. Whoever holds one may take
    another as long as it then holds at most SHARE times what stays free (the "dynamic threshold" of shared buffers in
    switches). One principal alone gets 12 of 16, a second one 3 of the rest, and whoever holds none may take the last.
    While several are busy they converge to equal parts.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.held = 0
        self._of_owner: collections.Counter[Owner] = collections.Counter()
        self._of_user: collections.Counter[int | None] = collections.Counter()

    @property
    def free(self) -> int:
        """Below zero after `count` became smaller."""
        return self.count - self.held

    def held_by(self, owner: Owner) -> int:
        return self._of_owner[owner]

    def may_take(self, owner: Owner) -> bool:
        free, holds = self.free, self._of_owner[owner]
        if free <= 0 or (holds and holds + 1 > SHARE * (free - 1)):
            return False
        # The last of a few is for another user: one user can have any number of tokens.
        return free > 1 or self.count < SHARE + 1 or not self._of_user[owner[0]]

    def take(self, owner: Owner) -> None:
        self.held += 1
        self._of_owner[owner] += 1
        self._of_user[owner[0]] += 1

    def give_back(self, owner: Owner) -> None:
        self.held -= 1
        _count_down(self._of_owner, owner)
        _count_down(self._of_user, owner[0])


class SharedSlots(Slots):
    """The same for several threads, as long as they use `seat` alone."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self._lock = threading.Lock()

    @contextmanager
    def seat(self, owner: Owner) -> Iterator[bool]:
        """Around what needs a slot: whether there is one."""
        with self._lock:
            if is_seated := self.may_take(owner):
                self.take(owner)
        try:
            yield is_seated
        finally:
            if is_seated:
                with self._lock:
                    self.give_back(owner)


class Places:
    """So many requests may be served at a time; others wait, on the one loop that uses this. A place that becomes free
    goes to the principal that holds the fewest of them, and among its requests to the one that waits longest."""

    def __init__(self, count: int) -> None:
        self._slots = Slots(count)
        # Of principals that hold equally many, the one that was served longest ago comes first.
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
                self.give_back(owner)  # it was given in the same moment
            else:
                self._leave(owner, turn)
            raise

    def allow(self, count: int) -> None:
        """So many from now on. Where it is fewer, those who are in stay."""
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
            owner = min(may_take, key=self._slots.held_by)
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
    """One request of each principal begins in each round of the loop: many at once do not come before another's one."""

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
            if not turn.done():  # else its client has gone
                turn.set_result(None)
                loop.call_soon(self._next, loop, owner)
                return
        del self._lines[owner]


def _count_down(counter: collections.Counter[Any], key: Any, count: int = 1) -> None:
    """Without a trace of who holds nothing any more: principals come and go."""
    counter[key] -= count
    if counter[key] <= 0:
        del counter[key]


@dataclass(frozen=True)
class Limits:
    """What one token may do, by the names of `ApiToken.LIMITS`; 0 is no limit."""

    calls_per_minute: int = 0
    max_in_flight: int = 0


class Limiter:
    """Counts by key, for each of `Limits`.

    Of `calls_per_minute` a whole minute's worth may come at once, then as many as that refills.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._full_at: dict[int, float] = {}  # when all of the minute's calls may be made again
        self._in_flight: dict[int, int] = {}

    @contextmanager
    def call(self, key: int, limits: Limits) -> Iterator[None]:
        """Around one call. Raises TooManyCallsError."""
        self.enter(key, limits)
        try:
            yield
        finally:
            self.leave(key)

    def enter(self, key: int, limits: Limits) -> None:
        """A call begins; `leave` must follow. Raises TooManyCallsError, and then nothing is counted."""
        with self._lock:
            under_way = self._in_flight.get(key, 0)
            most = limits.max_in_flight
            if most and under_way >= most:
                text = f"Too many concurrent calls (limit {most}). Try again when one of them has ended."
                raise TooManyCallsError(text, 1.0)
            if limits.calls_per_minute:
                self._take(key, 60.0 / limits.calls_per_minute, limits.calls_per_minute)
            self._in_flight[key] = under_way + 1

    def leave(self, key: int) -> None:
        with self._lock:
            left = self._in_flight.get(key, 0) - 1
            if left > 0:
                self._in_flight[key] = left
            else:
                self._in_flight.pop(key, None)

    def _take(self, key: int, each: float, calls_per_minute: int) -> None:
        now = self._clock()
        full_at = max(self._full_at.get(key, now), now) + each
        # A hair's breadth for what adding fractions loses.
        if full_at - now > 60.0 + 1e-6:
            raise TooManyCallsError(
                f"Too many calls a minute (limit {calls_per_minute}). Try again in {full_at - now - 60.0:.1f} s.",
                full_at - now - 60.0,
            )
        if key not in self._full_at and len(self._full_at) >= MAX_KEPT:
            self._full_at = {kept: moment for kept, moment in self._full_at.items() if moment > now}
        self._full_at[key] = full_at


class BudgetError(Exception):
    """More than the budget has left. `is_full`: that of all together, so that it is nobody's fault."""

    def __init__(self, message: str, *, is_full: bool = False) -> None:
        super().__init__(message)
        self.is_full = is_full


class ByteBudget:
    """Bytes that are kept for principals: of a token, of its user, and in all. Not for several threads at once."""

    def __init__(self, *, of_token: int, of_user: int, in_all: int) -> None:
        self._of_token, self._of_user, self._in_all = of_token, of_user, in_all
        self._taken = 0
        self._by_token: collections.Counter[Owner] = collections.Counter()
        self._by_user: collections.Counter[int | None] = collections.Counter()

    def take(self, owner: Owner, size: int) -> None:
        """`give_back` must follow. Raises BudgetError, and then nothing is counted."""
        if self._by_token[owner] + size > self._of_token:
            raise BudgetError(f"this token may have {self._of_token:,} bytes")
        if self._by_user[owner[0]] + size > self._of_user:
            raise BudgetError(f"the tokens of one user may have {self._of_user:,} bytes")
        if self._taken + size > self._in_all:
            raise BudgetError(f"all clients together may have {self._in_all:,} bytes", is_full=True)
        self._taken += size
        self._by_token[owner] += size
        self._by_user[owner[0]] += size

    def give_back(self, owner: Owner, size: int) -> None:
        self._taken -= size
        _count_down(self._by_token, owner, size)
        _count_down(self._by_user, owner[0], size)


class Account:
    """The bytes that one holder has of a budget, now more and now fewer. The first `free` of them are not counted."""

    def __init__(self, budget: ByteBudget, owner: Owner, free: int = 0) -> None:
        self._budget, self._owner, self._free = budget, owner, free
        self._size = self._counted = 0

    def change(self, size: int) -> None:
        """So many bytes more, or fewer. Raises BudgetError, and then nothing is counted."""
        counted = max(self._size + size - self._free, 0)
        if counted > self._counted:
            self._budget.take(self._owner, counted - self._counted)
        elif counted < self._counted:
            self._budget.give_back(self._owner, self._counted - counted)
        self._size, self._counted = self._size + size, counted

    def close(self) -> None:
        self.change(-self._size)


class TimeShare:
    """A part of a thread's time for each principal: `burst` seconds of it at once, then as much as `share` refills.

    What was spent is known only afterwards, so a principal that spent too much waits before it goes on.
    """

    def __init__(self, share: float, burst: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._share, self._lead, self._clock = share, burst / share, clock
        self._paid_at: dict[Owner, float] = {}  # when what was spent is refilled

    def wait(self, owner: Owner) -> float:
        """Seconds before the principal may go on; 0: now."""
        return max(0.0, self._paid_at.get(owner, 0.0) - self._lead - self._clock())

    def spend(self, owner: Owner, seconds: float) -> None:
        now = self._clock()
        if owner not in self._paid_at and len(self._paid_at) >= MAX_KEPT:
            self._paid_at = {kept: moment for kept, moment in self._paid_at.items() if moment > now}
        self._paid_at[owner] = max(self._paid_at.get(owner, now), now) + seconds / self._share


def bytes_of_members() -> ByteBudget:
    """Of what members say unasked, until it is passed on. An owner is a member (in place of a user) and a token."""
    return ByteBudget(of_token=8_000_000, of_user=16_000_000, in_all=64_000_000)


def bytes_of_held() -> ByteBudget:
    """Of members' streams that wait for their clients' answers."""
    return ByteBudget(of_token=16_000_000, of_user=32_000_000, in_all=96_000_000)


def bytes_of_streams() -> ByteBudget:
    """Of what is to be said on open streams, and was not read yet."""
    return ByteBudget(of_token=8_000_000, of_user=16_000_000, in_all=64_000_000)
