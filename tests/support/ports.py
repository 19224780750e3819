"""Ports of the managed range for processes that tests start."""

from __future__ import annotations

import collections
import contextlib
import fcntl
import functools
import os
import random
from pathlib import Path
from typing import IO

import pytest

from mcp_runtime.members import ports

MANAGED = range(20_000, 30_000)
SLICES = 16  # for so many parallel test processes
WIDTH = len(MANAGED) // SLICES
_recent: collections.deque[range] = collections.deque(maxlen=4)
_claims: list[IO[str]] = []  # open until this process ends, because each has a lock


def free_range(size: int) -> tuple[int, int]:
    """First and last of so many free ports, which no other test process of this run uses.

    The last few ranges are not returned again, because a test may need several before it uses any.
    """
    own_slice = _slice()
    for _ in range(200):
        first = random.choice(own_slice[: len(own_slice) - size])
        range_ = range(first, first + size)
        if not any(set(range_) & set(recent) for recent in _recent) and all(map(ports.is_free, range_)):
            _recent.append(range_)
            return first, first + size - 1
    pytest.fail("no free part of the managed port range")


@functools.cache
def _slice() -> range:
    """The ports for this process."""
    for number in range(SLICES):
        claim = (Path(os.environ["TESTS_SHARED_DIR"]) / f"ports-{number}").open("w")
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _claims.append(claim)
            return MANAGED[number * WIDTH : (number + 1) * WIDTH]
        claim.close()
    pytest.fail(f"more than {SLICES} parallel test processes")
