"""The machine under the tests: shared, and now and then taken away."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

STEAL = 8  # the column of a processor's line in /proc/stat
TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
# The test that runs is marked `alone`: it has the machine for itself, and seconds are what it promises.
is_ours = False


def patience(seconds: float) -> float:
    """For what should take so many seconds: other tests want the processors too."""
    return seconds if is_ours else seconds + min(3 * seconds, 30.0)


class Stopwatch:
    """Seconds since it was made, without those in which the machine was not ours: a promise of seconds is ours to keep.
    That something takes at least so long is asked of `elapsed`, which is all of them.

    Not ours is what the host took from a processor, and what everybody waited for the disk. Beside other tests it is
    also the time in which somebody waited for a processor. Linux tells all three (proc(5), PSI); elsewhere every second
    counts. Half of the time does in any case, beside other tests a quarter: it may be us who keep the machine busy.
    """

    def __init__(self) -> None:
        self._began, self._stolen, self._waited = time.monotonic(), _stolen(), _waited()

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._began

    @property
    def seconds(self) -> float:
        stolen = max((now - then for now, then in zip(_stolen(), self._stolen, strict=False)), default=0.0)
        elapsed = self.elapsed
        return max(elapsed - stolen - (_waited() - self._waited), elapsed / (2 if is_ours else 4))


def _stolen() -> list[float]:
    """Seconds, of each processor."""
    with contextlib.suppress(OSError, IndexError, ValueError):
        lines = Path("/proc/stat").read_text().splitlines()
        return [int(line.split()[STEAL]) / TICKS_A_SECOND for line in lines[1:] if line.startswith("cpu")]
    return []


def _waited() -> float:
    """Seconds in which all waited for the disk, or beside other tests somebody for a processor."""
    return _pressure("io", "full") + (0.0 if is_ours else _pressure("cpu", "some"))


def _pressure(resource: str, share: str) -> float:
    with contextlib.suppress(OSError, IndexError, ValueError):
        for line in Path(f"/proc/pressure/{resource}").read_text().splitlines():
            if line.startswith(share):
                return int(line.rpartition("total=")[2]) / 1e6
    return 0.0
