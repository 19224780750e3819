"""What an honest client waits beside an attack, and beside harmless processes that take as much CPU.

As many processes as the attack kept busy: half of each of two cores is in the way more often than one whole core.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.attack.hall import ROOT, Hall

# Burns a share of one core in slices of 10 ms until its stdin ends.
BURN = """
import sys, threading, time
share, over = float(sys.argv[1]), threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
while not over.is_set():
    until = time.process_time() + 0.01 * share
    while time.process_time() < until:
        pass
    time.sleep(0.01 * (1 - share))
"""
DOORS = ("gateway", "rest")


@dataclass
class Latency:
    """Seconds that honest calls took, by door, and what failed of them."""

    took: dict[str, list[float]] = field(default_factory=lambda: {door: [] for door in DOORS})
    failures: list[str] = field(default_factory=list)

    def add(self, other: Latency) -> None:
        for door in DOORS:
            self.took[door] += other.took[door]
        self.failures += other.failures

    @property
    def count(self) -> int:
        return sum(map(len, self.took.values()))

    def p95(self, door: str) -> float:
        """Milliseconds."""
        took = sorted(self.took[door])
        return took[math.ceil(len(took) * 0.95) - 1] * 1000 if took else math.nan

    def against(self, baseline: Latency) -> tuple[dict[str, float], str]:
        """The ratio of the 95th percentiles at each door, and the figures of both in words."""
        figures = [f"{door} {self.p95(door):.1f} ms against {baseline.p95(door):.1f}" for door in DOORS]
        return {door: self.p95(door) / baseline.p95(door) for door in DOORS}, ", ".join(figures)


@contextlib.contextmanager
def beside(hall: Hall) -> Iterator[Latency]:
    """The neighbour at work; its figures are there when it is over."""
    argv = [sys.executable, "-m", "tests.attack.neighbour", str(hall.gateway_port), str(hall.port)]
    latency = Latency()
    neighbour = subprocess.Popen(
        [*argv, hall.tokens["neighbour"]], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert neighbour.stdout is not None
    try:
        neighbour.stdout.readline()  # ready
        yield latency
    finally:
        told, _ = neighbour.communicate(timeout=60)
        latency.add(Latency(**json.loads(told)))


def burning(hall: Hall, shares: list[float], seconds: float) -> Latency:
    """The neighbour's waits while so many processes burn such shares of a core each."""
    burners = [
        subprocess.Popen([sys.executable, "-c", BURN, str(min(share, 1.0))], stdin=subprocess.PIPE)
        for share in shares
        if share > 0.01
    ]
    try:
        with beside(hall) as latency:
            time.sleep(seconds)
    finally:
        for burner in burners:
            burner.communicate(timeout=30)
    return latency


class CpuShares:
    """What each process takes beyond what it takes with the neighbour alone: this one, and those of the hall."""

    def __init__(self, hall: Hall, idle: dict[int, float]) -> None:
        self._hall, self._idle = hall, idle
        self._began, self._used = time.monotonic(), self._seconds()

    def _seconds(self) -> dict[int, float]:
        return {os.getpid(): own_cpu(), **self._hall.cpu()}

    def shares(self) -> dict[int, float]:
        """Of one core, by pid."""
        took = time.monotonic() - self._began
        return {
            pid: (used - self._used.get(pid, 0.0)) / took - self._idle.get(pid, 0.0)
            for pid, used in self._seconds().items()
        }


def own_cpu() -> float:
    """CPU seconds of this process and of its children that ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
