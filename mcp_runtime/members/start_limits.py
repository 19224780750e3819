"""How long one start may take, and what the machine has to do with it. No Django.

The initialize handshake has 5 s (REQ-MCP-HTTP-14, 20). They begin when the member's port accepts connections. Until
then a budget counts: 5 s without the time in which the server waited for a CPU, so that a busy machine ends no start,
and 30 s at most. After a failure it is 30 s in any case.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from mcp_runtime.client.client import INITIALIZE_TIMEOUT
from mcp_runtime.client.transport import Exchange
from mcp_runtime.protocol.errors import RequestCancelledError, RequestTimeoutError

START_BUDGET = 5.0
LONGEST_START_BUDGET = 30.0
# A few hundred megabytes at an ordinary line's speed: longer is mostly a registry that does not answer.
FETCHING_START_BUDGET = 120.0
BUSY_SHARE = 0.5  # of the time since its spawn that a start computes, or would


@dataclass(frozen=True)
class CpuTime:
    """Seconds in which processes ran, and in which they were ready to run while others did."""

    running: float
    waiting: float


def cpu_time(pid: int, *, alone: bool = False) -> CpuTime | None:
    """Of the process and, unless `alone`, its descendants that live, of each its main thread.

    None where the system does not tell. Source: Linux, Documentation/scheduler/sched-stats.rst.
    """
    running = waiting = 0
    try:
        root = psutil.Process(pid)
        for process in (root, *(() if alone else root.children(recursive=True))):
            with contextlib.suppress(ProcessLookupError):
                on_cpu, ready, _ = Path(f"/proc/{process.pid}/schedstat").read_text().split()
                running, waiting = running + int(on_cpu), waiting + int(ready)
    except (psutil.Error, OSError, ValueError):
        return None
    return CpuTime(running / 1e9, waiting / 1e9)


@dataclass
class StartLimits:
    """Of one start of the process `pid`. Times in seconds; moments are those of `time.monotonic()`."""

    pid: int
    spawned_at: float
    budget: float
    longest: float
    handshake: float | None
    """From when the port accepts; None: what is left of the budget."""

    @classmethod
    def of(
        cls, pid: int, spawned_at: float, *, start_timeout: float | None, fetches: bool, has_port: bool, is_first: bool
    ) -> StartLimits:
        """`start_timeout` bounds budget and handshake together. A stdio server has no port: its budget is for both."""
        if start_timeout is not None:
            return cls(pid, spawned_at, start_timeout, start_timeout, None)
        handshake = INITIALIZE_TIMEOUT if has_port else None
        if fetches:
            return cls(pid, spawned_at, FETCHING_START_BUDGET, FETCHING_START_BUDGET, handshake)
        return cls(pid, spawned_at, START_BUDGET if is_first else LONGEST_START_BUDGET, LONGEST_START_BUDGET, handshake)

    def remaining(self) -> float:
        """Of the budget, as of now. Not above 0: it is over."""
        elapsed = time.monotonic() - self.spawned_at
        if elapsed >= self.budget and self.budget < self.longest:
            cpu = cpu_time(self.pid)
            waiting = math.inf if cpu is None else cpu.waiting
            self.budget = min(max(self.budget, START_BUDGET + waiting), self.longest)
        return self.budget - elapsed

    @property
    def is_computing(self) -> bool:
        """Whether the start keeps a CPU busy, or would if it had one; not one that hangs, or waits for a network."""
        for alone in (
            True,
            False,
        ):  # mostly it is the process itself; to find descendants takes a look at all there are
            cpu = cpu_time(self.pid, alone=alone)
            if cpu is not None and cpu.running + cpu.waiting > BUSY_SHARE * (time.monotonic() - self.spawned_at):
                return True
        return False

    @property
    def handshake_seconds(self) -> float:
        return self.handshake or self.budget

    def handshake_deadline(self) -> float:
        """As of now, when the port accepts."""
        return time.monotonic() + self.handshake if self.handshake else self.spawned_at + self.longest

    @contextlib.contextmanager
    def enforce(self, exchange: Exchange) -> Iterator[None]:
        """For a handshake that has what is left of the budget, which grows. Raises RequestTimeoutError at its end."""
        if self.handshake or self.budget >= self.longest:  # its deadline is known before
            yield
            return
        is_over = threading.Event()

        def watch() -> None:
            while (remaining := self.remaining()) > 0:
                if is_over.wait(remaining):
                    return
            exchange.abort()

        watching = threading.Thread(target=watch, name=f"start-{self.pid}", daemon=True)
        watching.start()
        try:
            yield
        except RequestCancelledError:
            if self.remaining() > 0:  # it was somebody else
                raise
        finally:
            is_over.set()
            watching.join()
        if exchange.is_aborted:
            raise RequestTimeoutError(self.budget)
