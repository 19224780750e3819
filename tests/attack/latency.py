"""The latency of an honest client beside an attack, and of another one at a second hall on the same machine.

Both are measured at the same time. Processes that only use CPU would be a weaker yardstick, because a hall wakes
several processes for each request.
"""

from __future__ import annotations

import contextlib
import json
import math
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.attack.hall import ROOT, Hall

SOURCES = ("gateway", "rest")


@dataclass
class Latency:
    """The seconds of honest calls, by source, and their failures."""

    seconds: dict[str, list[float]] = field(default_factory=lambda: {source: [] for source in SOURCES})
    failures: list[str] = field(default_factory=list)

    def add(self, other: Latency) -> None:
        for source in SOURCES:
            self.seconds[source] += other.seconds[source]
        self.failures += other.failures

    @property
    def count(self) -> int:
        return sum(map(len, self.seconds.values()))

    def p95(self, source: str) -> float:
        """The 95th percentile in milliseconds."""
        seconds = sorted(self.seconds[source])
        return seconds[math.ceil(len(seconds) * 0.95) - 1] * 1000 if seconds else math.nan

    def against(self, baseline: Latency) -> tuple[dict[str, float], str]:
        """The ratio of the 95th percentiles of each source, and the figures of both in words."""
        figures = [f"{source} {self.p95(source):.1f} ms against {baseline.p95(source):.1f}" for source in SOURCES]
        return {source: self.p95(source) / baseline.p95(source) for source in SOURCES}, ", ".join(figures)


@contextlib.contextmanager
def run_neighbour(hall: Hall) -> Iterator[Latency]:
    """Run the neighbour during the block. The result is complete after the block."""
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
        output, _ = neighbour.communicate(timeout=60)
        latency.add(Latency(**json.loads(output)))
