"""Time on a machine that tests share with each other and with other machines."""

from __future__ import annotations

import contextlib
import fcntl
import os
import statistics
import time
from pathlib import Path

STEAL = 8  # the column of a processor's line in /proc/stat
TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
# Whether the running test has the machine alone, so that it can measure seconds.
is_ours = False
was_ours = False  # at some time in the running test
_turn: Turn | None = None  # of the running test


class Turn:
    """A test's turn on the machine. Tests run in parallel, but a test that measures time runs alone, in all processes.

    There are two locks on files in `folder`. Every test passes the gate and enters the room. A test that must be alone
    keeps the gate shut until the others have left the room, and until it shares the machine again.
    """

    def __init__(self, folder: Path, *, may_be_alone: bool) -> None:
        self._files = contextlib.ExitStack()
        self._gate, self._room = (self._files.enter_context((folder / name).open("w")) for name in ("gate", "room"))
        self._may_be_alone = may_be_alone

    def __enter__(self) -> Turn:
        global _turn, is_ours, was_ours
        fcntl.flock(self._gate, fcntl.LOCK_EX)
        fcntl.flock(self._room, fcntl.LOCK_SH)
        fcntl.flock(self._gate, fcntl.LOCK_UN)
        _turn, is_ours, was_ours = self, False, False
        return self

    def __exit__(self, *_: object) -> None:
        global _turn, is_ours
        self._files.close()
        _turn, is_ours = None, False

    def take_alone(self) -> None:
        global is_ours, was_ours
        assert self._may_be_alone, "a test that measures time needs the marker `alone`"
        fcntl.flock(self._room, fcntl.LOCK_UN)  # otherwise two such tests would wait for each other
        fcntl.flock(self._gate, fcntl.LOCK_EX)
        fcntl.flock(self._room, fcntl.LOCK_EX)
        is_ours = was_ours = True

    def share_again(self) -> None:
        global is_ours
        if is_ours:
            fcntl.flock(self._room, fcntl.LOCK_SH)  # while the gate is shut nobody else comes in
            fcntl.flock(self._gate, fcntl.LOCK_UN)
            is_ours = False


def take_alone() -> None:
    """From now on the test has the machine alone."""
    assert _turn is not None
    _turn.take_alone()


def share_again() -> None:
    """If the test has the machine alone, other tests may run beside the rest of it."""
    if _turn is not None:
        _turn.share_again()


# CPU seconds of one `_yardstick` on the machine on which bounds of CPU time were measured.
YARDSTICK_SECONDS = 0.002
MAX_SLOWNESS = 8.0


def slowness() -> float:
    """How many times more CPU time the same work takes now than on the machine of the bounds. At least 1.

    A shared machine is sometimes several times slower for some seconds, and its CPU time does not show that.
    """
    return min(max(statistics.median(_yardstick() for _ in range(7)) / YARDSTICK_SECONDS, 1.0), MAX_SLOWNESS)


def _yardstick() -> float:
    start, length = time.thread_time(), 0
    for number in range(20_000):
        length += len(str(number))
    return time.thread_time() - start


def patience(seconds: float) -> float:
    """How long to wait for something that should take so many seconds, because the machine may be slow or busy."""
    return seconds * slowness() if is_ours else seconds + min(3 * seconds, 30.0)


class Stopwatch:
    """Measures the time since it was created. `seconds` leaves out times in which the machine did not work for us.

    `elapsed` is the whole time. Use it to test that something takes at least so long.

    Left out are the time that the host took from a processor, and the time in which all waited for the disk. If other
    tests run, the time in which somebody waited for a processor is left out too. Linux reports all three (proc(5),
    PSI). On other systems every second counts. At least half of the time counts, or a quarter if other tests run,
    because we may be the ones who keep the machine busy. For a test that runs alone the result is scaled to the usual
    speed of the machine (see `slowness`).
    """

    def __init__(self) -> None:
        self._slowness = slowness() if is_ours else 1.0
        self._start, self._steal, self._wait = time.monotonic(), _steal_seconds(), _wait_seconds()

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._start

    @property
    def seconds(self) -> float:
        steal = max((now - then for now, then in zip(_steal_seconds(), self._steal, strict=False)), default=0.0)
        elapsed = self.elapsed
        seconds = max(elapsed - steal - (_wait_seconds() - self._wait), elapsed / (2 if is_ours else 4))
        return seconds / max(self._slowness, slowness()) if is_ours else seconds


def _steal_seconds() -> list[float]:
    """The steal time of each processor."""
    with contextlib.suppress(OSError, IndexError, ValueError):
        lines = Path("/proc/stat").read_text().splitlines()
        return [int(line.split()[STEAL]) / TICKS_A_SECOND for line in lines[1:] if line.startswith("cpu")]
    return []


def _wait_seconds() -> float:
    """The time in which all waited for the disk, and with other tests that in which somebody waited for a processor."""
    return _pressure("io", "full") + (0.0 if is_ours else _pressure("cpu", "some"))


def _pressure(resource: str, share: str) -> float:
    with contextlib.suppress(OSError, IndexError, ValueError):
        for line in Path(f"/proc/pressure/{resource}").read_text().splitlines():
            if line.startswith(share):
                return int(line.rpartition("total=")[2]) / 1e6
    return 0.0
