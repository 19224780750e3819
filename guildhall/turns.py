"""Decides which request computes. Threads of one interpreter that compute at the same time only delay each other.

So one of them has the turn. The next turn goes to the user who has used least CPU time recently. A request that queries
the database gives its turn to such a user during the query. (Not for statements of `rows.plain_sql` on SQLite, which
take less time than the change of threads.)
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper

from mcp_runtime.schemas.schema_work import others_compute

# How much CPU time a user may use after a pause before others come first again, and how much a request may use before
# it counts: about one or two requests. Otherwise a request that started before others would end behind them.
CREDIT_SECONDS = 0.02
MAX_USERS = 10_000
# A request that has the turn for so long computes much, or waits for something unknown here. Then a waiting request
# runs in parallel. The first limit is for a user who has used less, the second for one who has used more, and the third
# for the same user. Otherwise all long requests of one user would run at the same time.
PATIENCE_SECONDS, HEAVY_PATIENCE_SECONDS, OWN_PATIENCE_SECONDS = 0.005, 0.1, 0.5

User = int  # 0 is for all unknown users


class Turn:
    """A request's turn to compute. The thread that hands the turn over calls `wake`."""

    def __init__(self, user: User, wake: Callable[[], object]) -> None:
        self.user = user
        self.wake = wake
        self.has_begun = False
        self.initial_usage: float | None = None  # the usage of its user when it got its turn
        self.counted_cpu = 0.0  # CPU time of its thread at the last count


class Turns:
    """The turns of all requests. Any thread may call the methods.

    Usage is counted as Linux counts it for processes. A user who comes back after a pause starts with the usage of the
    user who was served last, minus a small credit. So nobody saves up time, and nobody pays for long.

    `clock` measures real time, `cpu_clock` the CPU time of the calling thread.
    """

    def __init__(
        self, *, clock: Callable[[], float] = time.monotonic, cpu_clock: Callable[[], float] = time.thread_time
    ) -> None:
        self._clock, self._cpu_clock = clock, cpu_clock
        self._lock = threading.Lock()
        self._holder: Turn | None = None
        self._is_holder_waiting = False  # the holder waits for a query
        self._since = 0.0  # when the holder got the turn
        self._parallel: list[Turn] = []  # former holders that took too long, and still run
        self._waiting: list[Turn] = []
        self._usage: dict[User, float] = {}  # seconds, on a scale shared by all users
        self._now = 0.0  # on that scale, the usage of the user who had the last turn

    def take(self, turn: Turn) -> bool:
        """Ask for a turn. True if it starts at once. Otherwise `wake` is called when it starts."""
        with self._lock:
            if turn.user not in self._usage and len(self._usage) >= MAX_USERS:
                self._usage.clear()
            self._usage[turn.user] = max(self._usage_of(turn), self._now - CREDIT_SECONDS)
            if not self._is_parallel(turn) and (
                self._holder is None
                or (self._is_holder_waiting and self._priority(turn) < self._priority(self._holder))
            ):
                self._give(turn)
                return True
            self._waiting.append(turn)
            return False

    def give_back(self, turn: Turn) -> None:
        """End a turn, because the request is over or waits for something. Its next query asks for a turn again."""
        with self._lock:
            if turn in self._waiting:
                self._waiting.remove(turn)
            turn.initial_usage = None
            self._release(turn)

    def patience(self, turn: Turn) -> float:
        """Seconds until a waiting turn may `insist`."""
        with self._lock:
            return max(self._since + self._patience(turn) - self._clock(), PATIENCE_SECONDS / 5)

    def insist(self, turn: Turn) -> None:
        """Start a waiting turn in parallel if the holder has taken too long."""
        with self._lock:
            if turn in self._waiting and self._clock() > self._since + self._patience(turn):
                self._waiting.remove(turn)
                # A holder that waits for a query does not run in parallel. It waits for a turn again, as others do.
                if self._holder is not None and not self._is_holder_waiting:
                    self._parallel.append(self._holder)
                self._give(turn)
                turn.wake()

    def is_busy(self) -> bool:
        """Whether a request computes now."""
        return self._holder is not None and not self._is_holder_waiting

    # In the thread of the request

    def begin(self, turn: Turn) -> None:
        turn.has_begun, turn.counted_cpu = True, self._cpu_clock()

    def count(self, turn: Turn) -> None:
        """Add the CPU time since the last count to the usage of the user."""
        before, turn.counted_cpu = turn.counted_cpu, self._cpu_clock()
        with self._lock:
            self._usage[turn.user] = self._usage_of(turn) + turn.counted_cpu - before

    def yield_turn(self, turn: Turn) -> None:
        """Let a user who has used less have the turn during a query. `wait_for_turn` must follow."""
        self.count(turn)
        with self._lock:
            if turn is not self._holder:
                self._release(turn)
                return
            self._is_holder_waiting = True
            waiting = self._next()
            if waiting is not None and self._priority(waiting) < self._priority(turn):
                self._hand_on()

    def wait_for_turn(self, turn: Turn) -> None:
        """Wait for the turn after a query."""
        with self._lock:
            if turn is self._holder:
                self._is_holder_waiting = False
                return
        wake_signal = threading.Semaphore(0)
        turn.wake = wake_signal.release
        if not self.take(turn):
            while not wake_signal.acquire(timeout=self.patience(turn)):
                self.insist(turn)

    # While the caller has the lock

    def _usage_of(self, turn: Turn) -> float:
        return self._usage.get(turn.user, self._now - CREDIT_SECONDS)

    def _priority(self, turn: Turn) -> float:
        """The lowest comes first. While a user's credit lasts, it stays as it was at the start of the request."""
        usage = self._usage_of(turn)
        return usage if turn.initial_usage is None else max(turn.initial_usage, usage - CREDIT_SECONDS)

    def _is_parallel(self, turn: Turn) -> bool:
        return any(running.user == turn.user for running in self._parallel)

    def _patience(self, turn: Turn) -> float:
        holder = self._holder
        if holder is None or holder.user == turn.user or self._is_parallel(turn):
            return OWN_PATIENCE_SECONDS
        return PATIENCE_SECONDS if self._priority(turn) < self._priority(holder) else HEAVY_PATIENCE_SECONDS

    def _give(self, turn: Turn) -> None:
        self._holder, self._is_holder_waiting, self._since = turn, False, self._clock()
        self._now = max(self._now, self._usage_of(turn))
        if turn.initial_usage is None:
            turn.initial_usage = self._usage_of(turn)

    def _release(self, turn: Turn) -> None:
        if turn in self._parallel:
            self._parallel.remove(turn)
        if turn is self._holder or self._holder is None:
            self._hand_on()

    def _hand_on(self) -> None:
        self._holder = None
        turn = self._next()
        if turn is not None:
            self._waiting.remove(turn)
            self._give(turn)
            turn.wake()

    def _next(self) -> Turn | None:
        """The next turn. Of one user, those that began come first, then the oldest. Parallel users are left out."""
        return min(
            (turn for turn in self._waiting if not self._is_parallel(turn)),
            key=lambda turn: (self._priority(turn), not turn.has_begun),
            default=None,
        )


# Queries ----------------------------------------------------------------------------------------------------------

_local = threading.local()


@contextlib.contextmanager
def computing(turns: Turns, turn: Turn) -> Iterator[None]:
    """For the work of a thread for a request that has its turn."""
    _local.turn = turns, turn
    token = others_compute.set(turns.is_busy)  # work that gave its turn back uses it
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
    # A request that writes, or waits to write, keeps its turn. Others would only wait for the same lock, in longer and
    # longer pauses (SQLite). And a request with a lock must not wait for one that needs the lock.
    current = getattr(_local, "turn", None)
    if current is None or context["connection"].in_atomic_block or not str(sql).startswith("SELECT"):
        return execute(sql, params, many, context)
    turns, turn = current
    turns.yield_turn(turn)
    try:
        return execute(sql, params, many, context)
    finally:
        turns.wait_for_turn(turn)
