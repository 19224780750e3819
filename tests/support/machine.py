"""The machine under the tests: shared, and now and then taken away."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

STEAL = 8  # the column of a processor's line in /proc/stat
TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


class Stopwatch:
    """Seconds since it was made, without those in which the machine was not ours: a promise of seconds is ours to keep.

    Not ours is what the host took from a processor, and what everybody waited for the disk. Linux tells both (proc(5),
    PSI); elsewhere every second counts. At least half of the time does: it may be us who keep the disk busy.
    """

    def __init__(self) -> None:
        self._began, self._stolen, self._waited = time.monotonic(), _stolen(), _waited_for_disk()

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._began

    @property
    def seconds(self) -> float:
        stolen = max((now - then for now, then in zip(_stolen(), self._stolen, strict=False)), default=0.0)
        elapsed = self.elapsed
        return max(elapsed - stolen - (_waited_for_disk() - self._waited), elapsed / 2)


def _stolen() -> list[float]:
    """Seconds, of each processor."""
    with contextlib.suppress(OSError, IndexError, ValueError):
        lines = Path("/proc/stat").read_text().splitlines()
        return [int(line.split()[STEAL]) / TICKS_A_SECOND for line in lines[1:] if line.startswith("cpu")]
    return []


def _waited_for_disk() -> float:
    """Seconds in which nothing ran, for all that could have waited for it."""
    with contextlib.suppress(OSError, IndexError, ValueError):
        full = Path("/proc/pressure/io").read_text().splitlines()[1]
        return int(full.rpartition("total=")[2]) / 1e6
    return 0.0
