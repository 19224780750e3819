"""What an honest client waits beside an attack, and what another waits at a hall that shares only the machine with it.

Both at the same time. Processes that merely burn as much CPU would be in the way less: a hall at work wakes several
processes for each request.
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
    """Seconds that honest calls took, by source, and what failed of them."""

    took: dict[str, list[float]] = field(default_factory=lambda: {source: [] for source in SOURCES})
    failures: list[str] = field(default_factory=list)

    def add(self, other: Latency) -> None:
        for source in SOURCES:
            self.took[source] += other.took[source]
        self.failures += other.failures

    @property
    def count(self) -> int:
        return sum(map(len, self.took.values()))

    def p95(self, source: str) -> float:
        """Milliseconds."""
        took = sorted(self.took[source])
        return took[math.ceil(len(took) * 0.95) - 1] * 1000 if took else math.nan

    def against(self, baseline: Latency) -> tuple[dict[str, float], str]:
        """The ratio of the 95th percentiles of each source, and the figures of both in words."""
        figures = [f"{source} {self.p95(source):.1f} ms against {baseline.p95(source):.1f}" for source in SOURCES]
        return {source: self.p95(source) / baseline.p95(source) for source in SOURCES}, ", ".join(figures)


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
