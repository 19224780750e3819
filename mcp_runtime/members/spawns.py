"""The spawns of one runtime: the environment tags of the processes, and an end after which nothing is spawned."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterator

from mcp_runtime.members import process
from mcp_runtime.members.readiness import StoppedWhileStartingError

SPAWN_GRACE = 0.3  # seconds that `kill_everything` waits for spawns in progress


class Spawns:
    """Counts the spawns in progress, so that none of them escapes `kill_everything`."""

    def __init__(self, tag_prefix: str) -> None:
        self._tag_prefix = tag_prefix
        self._numbers = itertools.count(1)
        self._condition = threading.Condition()
        self._in_progress = 0  # protected by _condition
        self.is_closed = False  # written under _condition

    def next_tag(self, name: str) -> str:
        """The environment tag for a process of the member.

        Each spawn has its own. So a sweep for the processes of a failed start never finds those of the next start.
        """
        return f"{self._tag_prefix}{next(self._numbers)}/{name}"

    @contextlib.contextmanager
    def one(self, name: str) -> Iterator[None]:
        """Spawn a process of the member within it. Raises StoppedWhileStartingError after `kill_everything`."""
        with self._condition:
            if self.is_closed:
                raise StoppedWhileStartingError(name)
            self._in_progress += 1
        try:
            yield
        finally:
            with self._condition:
                self._in_progress -= 1
                self._condition.notify_all()

    def kill_everything(self) -> None:
        """Kill all processes that this runtime started, and refuse further spawns.

        A runtime calls this when it lost its lease, and at the end when it stops. Without the refusal, a start in
        progress would spawn a process that nobody ends.
        """
        with self._condition:
            self.is_closed = True
            # The wait is short. If a spawn hangs because its disk hangs, the other processes are killed nevertheless.
            self._condition.wait_for(lambda: not self._in_progress, SPAWN_GRACE)
        process.kill_tagged(self._tag_prefix)
