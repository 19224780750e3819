"""Bulkheads for hosts that are asked from shared threads: a silent host must not take the threads that others need.

A few requests to one host may wait for it at the same time. The next ones wait for a turn as long as the host answers
something, and otherwise fail at once. After a request without an answer, only one request at a time tries the host,
until it answers again.
"""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from mcp_runtime.protocol.errors import ConnectError

MAX_AT_ONCE = 3  # requests to one host
PATIENCE_SECONDS = 2.0  # without any answer of the host
MAX_HOSTS = 200  # that are remembered while nobody asks them


@dataclass(eq=False)
class Turn:
    """One request. `sent_at` is by the monotonic clock, and set when its time begins."""

    entered_at: float
    sent_at: float = math.inf


@dataclass(eq=False)
class _Host:
    turns: list[Turn] = field(default_factory=list)  # of the requests in progress
    answered_at: float = -math.inf
    is_silent: bool = False  # the last request that ended had no answer

    @property
    def has_room(self) -> bool:
        return len(self.turns) < (1 if self.is_silent else MAX_AT_ONCE)

    @property
    def quiet_since(self) -> float:
        return max(self.answered_at, min(turn.entered_at for turn in self.turns))


class Bulkheads:
    """The requests of this process by host. Thread-safe."""

    def __init__(self) -> None:
        self.hosts: OrderedDict[str, _Host] = OrderedDict()
        self._changed = threading.Condition()

    @contextmanager
    def turn(self, origin: str, deadline: float) -> Iterator[Turn]:
        """A turn for one request to scheme, host and port, until the monotonic `deadline`. Raises ConnectError.

        A block that ends without an exception got an answer.
        """
        host, turn = self._enter(origin, deadline)
        has_answer = False
        try:
            yield turn
            has_answer = True
        finally:
            self._leave(host, turn, has_answer=has_answer)

    def _enter(self, origin: str, deadline: float) -> tuple[_Host, Turn]:
        with self._changed:
            host = self._host(origin)
            while not host.has_room:
                now = time.monotonic()
                left = min(host.quiet_since + PATIENCE_SECONDS, deadline) - now
                if host.is_silent or left <= 0:
                    raise ConnectError(
                        f"{origin} does not answer, and other requests already wait for it; try again in a moment",
                        is_refusal=True,
                    )
                self._changed.wait(left)
            turn = Turn(time.monotonic())
            host.turns.append(turn)
            return host, turn

    def _leave(self, host: _Host, turn: Turn, *, has_answer: bool) -> None:
        with self._changed:
            host.turns.remove(turn)
            now = time.monotonic()
            if has_answer:
                host.answered_at, host.is_silent = now, False
            elif now >= turn.sent_at + PATIENCE_SECONDS:
                host.is_silent = True
            self._changed.notify_all()

    def _host(self, origin: str) -> _Host:
        host = self.hosts.setdefault(origin, _Host())
        self.hosts.move_to_end(origin)
        if len(self.hosts) > MAX_HOSTS:
            idle = next((name for name, each in self.hosts.items() if not each.turns and each is not host), None)
            if idle is not None:  # otherwise each of them is asked now, which the threads bound
                del self.hosts[idle]
        return host
