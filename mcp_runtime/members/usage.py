"""Ends members that use more memory or processes than their manifest allows.

The kernel limits what one process may allocate. Without cgroups it has no limit for all processes of a member together,
so the hall looks once a second.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path

from django.db import connections

from mcp_runtime.members import process
from mcp_runtime.members.lifecycle import Lifecycle
from mcp_runtime.members.live import LiveMember
from mcp_runtime.rows.database import unit_of_work
from mcp_runtime.system import birthmark

logger = logging.getLogger("guildhall.runtime")


class Usage:
    """Compares what members use with their limits. The supervisor calls `turn` each turn.

    `run_apart(work)` runs `work` in a thread. It raises RuntimeError if the system gives no thread.
    """

    def __init__(self, lifecycle: Lifecycle, run_apart: Callable[[Callable[[], None]], object]) -> None:
        self._lifecycle = lifecycle
        self._run_apart = run_apart
        self._ending: set[str] = set()  # the environment tags of processes that are being ended

    def turn(self) -> None:
        """End the members that use too much, each in a thread, because that may take seconds."""
        limited = [member for member in self._lifecycle.live_members() if member.max_processes or member.max_memory]
        pids = birthmark.pids_by_number() if limited else {}
        for member in limited:
            fault = excess(member, pids.get(birthmark.number_of(member.process.tag), ()))
            if fault and member.process.tag not in self._ending:
                self._ending.add(member.process.tag)
                try:
                    self._run_apart(partial(self._end_apart, member, fault))
                except RuntimeError as error:  # the system gives no thread
                    self._ending.discard(member.process.tag)
                    logger.warning("member %r cannot be ended (%s); trying again", member.name, error)

    def _end_apart(self, member: LiveMember, fault: str) -> None:
        try:
            unit_of_work(partial(self._end, member, fault))
        except Exception:
            logger.exception("the end of member %r failed", member.name)
        finally:
            connections.close_all()  # the thread ends here
            self._ending.discard(member.process.tag)

    def _end(self, member: LiveMember, fault: str) -> None:
        message = f"member {member.name!r} was ended: {fault}"
        if member.connected_at is not None:
            self._lifecycle.fail(member, "limit", message, timeout=0)
            return
        logger.warning("%s", message)  # its start, in another thread, notices its end
        member.process.kill()
        process.kill_tagged(member.process.tag)


def excess(member: LiveMember, pids: Collection[int]) -> str:
    """What of its limits the member exceeds, as a text. Empty if it stays within them."""
    if member.max_processes and len(pids) > member.max_processes:
        return f"it had {len(pids)} processes, and processes in limits allows {member.max_processes}"
    memory = sum(map(memory_of, pids)) if member.max_memory else 0
    if member.max_memory and memory > member.max_memory:
        return (
            f"its processes used {memory // 1_000_000} MB of memory, and memory_mb in limits allows "
            f"{member.max_memory // 1_000_000}"
        )
    return ""


def memory_of(pid: int) -> int:
    """Bytes of memory of the process that are not of files. 0 if it has ended.

    Memory that it shares with others counts too, for each of them, because it has no other limit (proc_pid_status(5)).
    """
    with contextlib.suppress(OSError, ValueError):
        lines = Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
        sizes = [line.split()[1] for line in lines if line.startswith(("RssAnon:", "RssShmem:"))]
        return sum(map(int, sizes)) * 1024  # kB there means 1024 bytes
    return 0
