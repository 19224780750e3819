"""How much one token may do at a time: calls a minute, calls under way, what is kept for it. Counted in memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mcp_runtime.errors import TooManyCallsError

MAX_KEPT = 10_000

# What the gateway keeps for callers: in all, and of one user or token so much less that nobody takes the place of all.
MAX_STREAMS = 1_000
MAX_STREAMS_OF_USER = 128
MAX_STREAMS_OF_TOKEN = 64
MAX_SESSIONS = 2_000
MAX_SESSIONS_OF_USER = 256
MAX_SESSIONS_OF_TOKEN = 128


class Limiter:
    """Counts by key. Of `calls_per_minute` a whole minute's worth may come at once, then as many as that refills."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._full_at: dict[int, float] = {}  # when all of the minute's calls may be made again
        self._in_flight: dict[int, int] = {}

    @contextmanager
    def call(self, key: int, *, calls_per_minute: int, max_in_flight: int) -> Iterator[None]:
        """Around one call; 0 is no limit. Raises TooManyCallsError."""
        self.enter(key, calls_per_minute=calls_per_minute, max_in_flight=max_in_flight)
        try:
            yield
        finally:
            self.leave(key)

    def enter(self, key: int, *, calls_per_minute: int, max_in_flight: int) -> None:
        """A call begins; `leave` must follow. Raises TooManyCallsError, and then nothing is counted."""
        with self._lock:
            under_way = self._in_flight.get(key, 0)
            if max_in_flight and under_way >= max_in_flight:
                raise TooManyCallsError(
                    f"This token may have {max_in_flight} calls under way at the same time, and has. Wait for one.", 1.0
                )
            if calls_per_minute:
                self._take(key, 60.0 / calls_per_minute, calls_per_minute)
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
                f"This token may make {calls_per_minute} calls a minute, and has. "
                f"The next one is due in {full_at - now - 60.0:.1f} s.",
                full_at - now - 60.0,
            )
        if key not in self._full_at and len(self._full_at) >= MAX_KEPT:
            self._full_at = {kept: moment for kept, moment in self._full_at.items() if moment > now}
        self._full_at[key] = full_at
