"""Whose request computes. Threads of one interpreter that compute at the same time only make each other late.

So one of them has the turn. The next turn goes to the user who has used least of the interpreter's time lately, and a
request that asks the database something leaves its turn to such a user in the midst of its work.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper

from mcp_runtime.schemas.schema_work import others_compute

# What a user who was quiet may use before it is behind others again, and what a request may use before that counts
# against it: about one or two requests. Else one that began before others would be behind them at its end.
CREDIT_SECONDS = 0.02
MAX_USERS = 10_000
# Who has the turn and goes on for so long computes much, or waits for what nobody here knows of. Then who waits goes on
# beside it: after a moment who has used less, after a while who has used more, and at last who is of the same user.
# Else one user's long requests would be all at work at the same time.
PATIENCE_SECONDS, HEAVY_PATIENCE_SECONDS, OWN_PATIENCE_SECONDS = 0.005, 0.1, 0.5

User = int  # 0: all whom nobody knows


class Turn:
    """What a request computes by. `wake` is called when it has its turn, by the thread that hands it over."""

    def __init__(self, user: User, wake: Callable[[], object]) -> None:
        self.user = user
        self.wake = wake
        self.is_begun = False
        self.began_at: float | None = None  # what its user had used when it got its turn
        self.counted = 0.0  # CPU seconds of its thread, as far as they were counted


class Turns:
    """Any thread may call all of it.

    What users use is counted as Linux counts it for processes: one that comes back after a while starts where that one
    is which was served last, less a small credit. So nobody saves up, and nobody pays for long.

    `clock` goes on always, `cpu_clock` while the thread that asks it computes.
    """

    def __init__(
        self, *, clock: Callable[[], float] = time.monotonic, cpu_clock: Callable[[], float] = time.thread_time
    ) -> None:
        self._clock, self._cpu_clock = clock, cpu_clock
        self._lock = threading.Lock()
        self._holder: Turn | None = None
        self._is_away = False  # the holder is at a query
        self._since = 0.0  # when the holder got it
        self._beside: list[Turn] = []  # that went on for long, and still do
        self._waiting: list[Turn] = []
        self._used: dict[User, float] = {}  # seconds, on a scale that all share
        self._now = 0.0  # on that scale: where the user is who had the last turn

    def take(self, turn: Turn) -> bool:
        """Whether it has its turn at once; else `wake` tells when."""
        with self._lock:
            if turn.user not in self._used and len(self._used) >= MAX_USERS:
                self._used.clear()
            self._used[turn.user] = max(self._used_by(turn), self._now - CREDIT_SECONDS)
            if not self._is_beside(turn) and (
                self._holder is None or (self._is_away and self._standing(turn) < self._standing(self._holder))
            ):
                self._give(turn)
                return True
            self._waiting.append(turn)
            return False

    def give_back(self, turn: Turn) -> None:
        """The request is over, or waits for something else: then its next query brings it back."""
        with self._lock:
            if turn in self._waiting:
                self._waiting.remove(turn)
            turn.began_at = None
            self._let_go(turn)

    def patience(self, turn: Turn) -> float:
        """Seconds until one that waits may insist."""
        with self._lock:
            return max(self._since + self._patience(turn) - self._clock(), PATIENCE_SECONDS / 5)

    def insist(self, turn: Turn) -> None:
        """For one that waits: if who has the turn goes on for long, it is woken to go on beside it."""
        with self._lock:
            if turn in self._waiting and self._clock() > self._since + self._patience(turn):
                self._waiting.remove(turn)
                # Who is at a query does not go on beside it: it comes back, and waits for its turn as others do.
                if self._holder is not None and not self._is_away:
                    self._beside.append(self._holder)
                self._give(turn)
                turn.wake()

    def is_taken(self) -> bool:
        """Whether somebody computes now."""
        return self._holder is not None and not self._is_away

    # In the thread of the request

    def begin(self, turn: Turn) -> None:
        turn.is_begun, turn.counted = True, self._cpu_clock()

    def count(self, turn: Turn) -> None:
        """What the request has used since it was counted last."""
        before, turn.counted = turn.counted, self._cpu_clock()
        with self._lock:
            self._used[turn.user] = self._used_by(turn) + turn.counted - before

    def leave(self, turn: Turn) -> None:
        """For a query: meanwhile a user who has used less may have the turn. `come_back` must follow."""
        self.count(turn)
        with self._lock:
            if turn is not self._holder:
                self._let_go(turn)
                return
            self._is_away = True
            first = self._first()
            if first is not None and self._standing(first) < self._standing(turn):
                self._hand_on()

    def come_back(self, turn: Turn) -> None:
        """The query is answered: go on when it is its turn."""
        with self._lock:
            if turn is self._holder:
                self._is_away = False
                return
        called = threading.Semaphore(0)
        turn.wake = called.release
        if not self.take(turn):
            while not called.acquire(timeout=self.patience(turn)):
                self.insist(turn)

    # With the lock

    def _used_by(self, turn: Turn) -> float:
        return self._used.get(turn.user, self._now - CREDIT_SECONDS)

    def _standing(self, turn: Turn) -> float:
        """The least comes first. It is that of the beginning for a while, for all requests of the user together."""
        used = self._used_by(turn)
        return used if turn.began_at is None else max(turn.began_at, used - CREDIT_SECONDS)

    def _is_beside(self, turn: Turn) -> bool:
        return any(other.user == turn.user for other in self._beside)

    def _patience(self, turn: Turn) -> float:
        holder = self._holder
        if holder is None or holder.user == turn.user or self._is_beside(turn):
            return OWN_PATIENCE_SECONDS
        return PATIENCE_SECONDS if self._standing(turn) < self._standing(holder) else HEAVY_PATIENCE_SECONDS

    def _give(self, turn: Turn) -> None:
        self._holder, self._is_away, self._since = turn, False, self._clock()
        self._now = max(self._now, self._used_by(turn))
        if turn.began_at is None:
            turn.began_at = self._used_by(turn)

    def _let_go(self, turn: Turn) -> None:
        if turn in self._beside:
            self._beside.remove(turn)
        if turn is self._holder or self._holder is None:
            self._hand_on()

    def _hand_on(self) -> None:
        self._holder = None
        turn = self._first()
        if turn is not None:
            self._waiting.remove(turn)
            self._give(turn)
            turn.wake()

    def _first(self) -> Turn | None:
        """Of one user first what is begun, and then what waits longest. None of whom something goes on beside."""
        return min(
            (waiting for waiting in self._waiting if not self._is_beside(waiting)),
            key=lambda waiting: (self._standing(waiting), not waiting.is_begun),
            default=None,
        )


# Queries ----------------------------------------------------------------------------------------------------------

_local = threading.local()


@contextlib.contextmanager
def computing(turns: Turns, turn: Turn) -> Iterator[None]:
    """Around what a thread does for a request that has its turn."""
    _local.turn = turns, turn
    token = others_compute.set(turns.is_taken)  # asked by work that gave its turn back
    turns.begin(turn)
    try:
        yield
    finally:
        others_compute.reset(token)
        _local.turn = None
        turns.count(turn)
        turns.give_back(turn)


def give_way_at_queries(connection: BaseDatabaseWrapper, **_: Any) -> None:
    """A receiver of Django's `connection_created`."""
    if _at_query not in connection.execute_wrappers:
        connection.execute_wrappers.append(_at_query)


def _at_query(execute: Callable[..., Any], sql: str, params: Any, many: bool, context: dict[str, Any]) -> Any:
    # Who writes, or waits to write, keeps its turn. Others would only wait for the same lock, in pauses that become
    # longer and longer (SQLite); and who holds a lock must not wait for one that wants it.
    here = getattr(_local, "turn", None)
    if here is None or context["connection"].in_atomic_block or not str(sql).startswith("SELECT"):
        return execute(sql, params, many, context)
    turns, turn = here
    turns.leave(turn)
    try:
        return execute(sql, params, many, context)
    finally:
        turns.come_back(turn)
