"""The load of this node: CPU time and memory of the runtime and its members."""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections import defaultdict
from dataclasses import dataclass

import psutil

from roster.models import Node


@dataclass(frozen=True)
class Load:
    cpu_percent: float | None  # of one core. None in the first measurement, because it needs two
    memory_bytes: int


class LoadMeter:
    """Measures the processes of the runtime: guard, worker, members, agents, and the children of all of them."""

    def __init__(self) -> None:
        self._measured_at = 0.0
        # Not by start time, because psutil derives that from the wall clock, which may be set.
        self._cpu_seconds: dict[psutil.Process, float] = {}

    def measure(self) -> Load:
        """Return the load since the last measurement. Processes that ended meanwhile do not count."""
        now, cpu_seconds, memory = time.monotonic(), {}, 0
        for process in _processes():
            try:
                times = process.cpu_times()
                cpu_seconds[process] = times.user + times.system
                memory += _memory_of(process)
            except (psutil.Error, OSError):  # it has ended, or is hidden
                continue
        percent = None
        if self._cpu_seconds:
            used = sum(max(seconds - self._cpu_seconds.get(key, 0.0), 0.0) for key, seconds in cpu_seconds.items())
            percent = 100 * used / max(now - self._measured_at, 0.001)
        self._measured_at, self._cpu_seconds = now, cpu_seconds
        return Load(percent, memory)

    def write(self, lease_id: uuid.UUID) -> None:
        """Measure, and write the result to the node's row, if this runtime still has the lease."""
        load = self.measure()
        Node.objects.filter(lease_id=lease_id).update(cpu_percent=load.cpu_percent, memory_bytes=load.memory_bytes)


def _processes() -> list[psutil.Process]:
    """Return the guard, if it is there, this process, and all their descendants.

    Not `Process.children`, which fails if the system hides a single process of another user (proc(5), hidepid).
    """
    children: dict[int, list[psutil.Process]] = defaultdict(list)
    has_guard = os.environ.get("GUILD_HALL_GUARD_PID") == str(os.getppid())
    root_pid, processes = os.getppid() if has_guard else os.getpid(), []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            children[process.ppid()].append(process)
            if process.pid == root_pid:
                processes.append(process)
    for process in processes:  # it grows meanwhile
        processes += children.pop(process.pid, [])
    return processes


def _memory_of(process: psutil.Process) -> int:
    """Return its share of the memory that it uses (PSS), because forks share most of it.

    On other systems than Linux, and for processes of other users, this is all of the memory that it uses (RSS).
    """
    try:
        full = process.memory_full_info()
    except psutil.AccessDenied:
        return int(process.memory_info().rss)
    return int(getattr(full, "pss", full.rss))
