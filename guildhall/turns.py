"""Whose request computes. Threads of one interpreter that compute at the same time only make each other late.

So one of them has the turn. The next turn goes to the client that has used least of the interpreter's time lately, and
a request that asks the database something leaves its turn to such a client in the midst of its work.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper

from mcp_runtime.limits import Owner

# What a client that was quiet may use before it is behind others again: about one or two requests.
CREDIT_SECONDS = 0.02
MAX_CLIENTS = 10_000
# Who has had its turn for so long computes much, or waits for what nobody here knows of. Others go on beside it.
LONG_SECONDS = 0.02


class Turn:
    """What a request computes by. `wake` is called when it has its turn, by the thread that hands it over."""

    def __init__(self, owner: Owner, wake: Callable[[], object]) -> None:
        self.owner = owner
        self.wake = wake
        self.is_begun = False
        self.counted = 0.0  # CPU seconds of its thread, as far as they were counted


class Turns:
    """Any thread may call all of it.

    What clients use is counted as Linux counts it for processes: a client that comes back after a while starts where
    that one is which was served last, less a small credit. So nobody saves up, and nobody pays for long.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holder: Turn | None = None
        self._is_away = False  # the holder is at a query
        self._since = 0.0  # when the holder got it, on the monotonic clock
        self._waiting: list[Turn] = []
        self._used: dict[Owner, float] = {}  # seconds, on a scale that all share
        self._now = 0.0  # on that scale: where the client is that had the last turn

    def take(self, turn: Turn) -> bool:
        """Whether it has its turn at once; else `wake` tells when."""
        with self._lock:
            if turn.owner not in self._used and len(self._used) >= MAX_CLIENTS:
                self._used = {owner: used for owner, used in self._used.items() if used > self._now - CREDIT_SECONDS}
            self._used[turn.owner] = max(self._used_by(turn), self._now - CREDIT_SECONDS)
            if self._holder is None or (self._is_away and self._used_by(turn) < self._used_by(self._holder)):
                self._give(turn)
                return True
            self._waiting.append(turn)
            return False

    def give_back(self, turn: Turn) -> None:
        """The request is over, or waits for something else: then its next query brings it back."""
        with self._lock:
            if turn is self._holder:
                self._hand_on()
            elif turn in self._waiting:
                self._waiting.remove(turn)

    def end_long(self) -> None:
        """For those who wait, now and then: who has had its turn for LONG_SECONDS goes on without."""
        with self._lock:
            if self._holder is not None and time.monotonic() - self._since > LONG_SECONDS:
                self._hand_on()

    # In the thread of the request

    def begin(self, turn: Turn) -> None:
        turn.is_begun, turn.counted = True, time.thread_time()

    def count(self, turn: Turn) -> None:
        """What the request has used since it was counted last."""
        before, turn.counted = turn.counted, time.thread_time()
        with self._lock:
            self._used[turn.owner] = self._used_by(turn) + turn.counted - before

    def leave(self, turn: Turn) -> None:
        """For a query: meanwhile a client that has used less may have the turn. `come_back` must follow."""
        self.count(turn)
        with self._lock:
            if turn is self._holder:
                self._is_away = True
                if self._waiting and min(map(self._used_by, self._waiting)) < self._used_by(turn):
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
            while not called.acquire(timeout=LONG_SECONDS):
                self.end_long()

    # With the lock

    def _used_by(self, turn: Turn) -> float:
        return self._used.get(turn.owner, 0.0)

    def _give(self, turn: Turn) -> None:
        self._holder, self._is_away, self._since = turn, False, time.monotonic()
        self._now = max(self._now, self._used_by(turn))

    def _hand_on(self) -> None:
        self._holder = None
        if self._waiting:
            # Of one client first what is begun, and then what waits longest.
            turn = min(self._waiting, key=lambda waiting: (self._used_by(waiting), not waiting.is_begun))
            self._waiting.remove(turn)
            self._give(turn)
            turn.wake()


# Queries ----------------------------------------------------------------------------------------------------------

_local = threading.local()


@contextlib.contextmanager
def computing(turns: Turns, turn: Turn) -> Iterator[None]:
    """Around what a thread does for a request that has its turn."""
    _local.turn = turns, turn
    turns.begin(turn)
    try:
        yield
    finally:
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
    if here is None or context["connection"].in_atomic_block or not sql.startswith("SELECT"):
        return execute(sql, params, many, context)
    turns, turn = here
    turns.leave(turn)
    try:
        return execute(sql, params, many, context)
    finally:
        turns.come_back(turn)
