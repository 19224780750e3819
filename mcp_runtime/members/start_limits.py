"""The time limits of one start. They depend on how busy the machine is. No Django.

The initialize handshake has 5 s (REQ-MCP-HTTP-14, 20). They begin when the member's port accepts connections. Before
that, the start has a budget of 5 s. Time in which the server waited for a CPU does not count, so that a busy machine
ends no start, but the budget never exceeds 30 s. After a failure it is always 30 s.
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
from mcp_runtime.client.exchanges import Exchange
from mcp_runtime.protocol.errors import RequestCancelledError, RequestTimeoutError

START_BUDGET = 5.0
LONGEST_START_BUDGET = 30.0
# Enough for a few hundred megabytes over an ordinary line. A longer start is mostly a registry that does not answer.
FETCHING_START_BUDGET = 120.0
BUSY_SHARE = 0.5  # of the time since the spawn. A start that runs, or waits for a CPU, for more of it is computing


@dataclass(frozen=True)
class CpuTime:
    """Seconds in which processes ran, and seconds in which they waited for a CPU."""

    running: float
    waiting: float


def cpu_time(pid: int, *, alone: bool = False) -> CpuTime | None:
    """The CPU time of the process and of its living descendants. With `alone`, only that of the process.

    It counts only the main thread of each process. None if the system does not report it. Source: Linux,
    Documentation/scheduler/sched-stats.rst.
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
    """The limits of one start, whose process is `pid`. Times are in seconds, moments those of `time.monotonic()`."""

    pid: int
    spawned_at: float
    budget: float
    longest: float
    handshake: float | None
    """Seconds from the moment when the port accepts connections. None means the rest of the budget."""

    @classmethod
    def of(
        cls, pid: int, spawned_at: float, *, start_timeout: float | None, fetches: bool, has_port: bool, is_first: bool
    ) -> StartLimits:
        """The limits for a manifest. `start_timeout` limits the budget and the handshake together.

        `fetches` means that the command fetches the server first. `is_first` means that the last start did not fail. A
        stdio server has no port, so its budget is for the handshake too.
        """
        if start_timeout is not None:
            return cls(pid, spawned_at, start_timeout, start_timeout, None)
        handshake = INITIALIZE_TIMEOUT if has_port else None
        if fetches:
            return cls(pid, spawned_at, FETCHING_START_BUDGET, FETCHING_START_BUDGET, handshake)
        return cls(pid, spawned_at, START_BUDGET if is_first else LONGEST_START_BUDGET, LONGEST_START_BUDGET, handshake)

    def remaining(self) -> float:
        """The seconds that remain of the budget. Zero or less means that it is used up."""
        elapsed = time.monotonic() - self.spawned_at
        if elapsed >= self.budget and self.budget < self.longest:
            cpu = cpu_time(self.pid)
            waiting = math.inf if cpu is None else cpu.waiting
            self.budget = min(max(self.budget, START_BUDGET + waiting), self.longest)
        return self.budget - elapsed

    @property
    def is_computing(self) -> bool:
        """Whether the start keeps a CPU busy, or waits for one. False if it hangs, or waits for the network."""
        # Mostly it is the process itself. Finding descendants is slow, because it reads all processes of the machine.
        for alone in (True, False):
            cpu = cpu_time(self.pid, alone=alone)
            if cpu is not None and cpu.running + cpu.waiting > BUSY_SHARE * (time.monotonic() - self.spawned_at):
                return True
        return False

    @property
    def handshake_seconds(self) -> float:
        return self.handshake or self.budget

    def handshake_deadline(self) -> float:
        """The deadline of the handshake. Call it when the port accepts connections."""
        return time.monotonic() + self.handshake if self.handshake else self.spawned_at + self.longest

    @contextlib.contextmanager
    def enforce(self, exchange: Exchange) -> Iterator[None]:
        """Abort the handshake in the block at the end of the budget, and raise RequestTimeoutError.

        It does nothing if the deadline of the handshake is fixed. The budget is not, because it may still grow.
        """
        if self.handshake or self.budget >= self.longest:  # the deadline is fixed, and the request has it
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
            if self.remaining() > 0:  # somebody else aborted it
                raise
        finally:
            is_over.set()
            watching.join()
        if exchange.is_aborted:
            raise RequestTimeoutError(self.budget)
