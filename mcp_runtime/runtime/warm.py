"""Guard, worker and web as forks of `manage.py up`, which has imported and prepared all of the hall by then (Linux).

They start at once, and share its memory. Elsewhere forks of a program with threads and system libraries are not safe:
there, and when a part has died, it is a program of its own that starts from nothing (see `processes`).
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import socket
import sys
from collections.abc import Sequence

from mcp_runtime.http1 import listeners
from mcp_runtime.runtime import guard, processes
from mcp_runtime.system import birthmark
from mcp_runtime.system.parent import signal_when_parent_dies
from mcp_runtime.system.title import set_title

M_ARENA_MAX = -8  # malloc.h
WORKER, WEB = "mcp_runtime.runtime.worker", "guildhall.web"


def fork_parts(sockets: Sequence[socket.socket]) -> tuple[str, dict[str, int]]:
    """Returns in three processes: in `up` with the pids of the parts, in worker and web with the module to run there.

    `sockets` are the worker's. Signals that ask `up` to stop wait from now on, for the program that it becomes.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, guard.STOP_SIGNALS)
    if sys.platform != "linux":
        return "", {}
    guard.become_subreaper()  # `processes` is one as well; what is left until then becomes ours too
    gc.collect()  # what is left of the preparation
    gc.freeze()  # what the collector does not touch is not copied
    gc.disable()
    _give_memory_back()
    environment = processes.part_environment()
    if not (runtime := os.fork()):
        _become_part(environment)
        return _become_guard(sockets), {}
    if not (web := os.fork()):
        _become_part(environment)
        for one in sockets:
            one.close()
        _begin(WEB)
        gc.enable()
        return WEB, {}
    return "", {"runtime": runtime, "web": web}


def _give_memory_back() -> None:
    """What the preparation took, and an arena for each few threads: 8 MB after a first start (glibc)."""
    library = ctypes.CDLL(None)
    if hasattr(library, "malloc_trim"):
        library.malloc_trim(0)
        library.mallopt(M_ARENA_MAX, 2)


def _become_part(environment: dict[str, str]) -> None:
    """What `processes` gives a part that it starts."""
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    birthmark.take(birthmark.PART)
    os.environ.update(environment)


def _become_guard(sockets: Sequence[socket.socket]) -> str:
    """Returns in the worker, which is a fork of ours, with its module."""
    signal_when_parent_dies(signal.SIGTERM)  # which waits, as all signals do, for the guard
    guard.become_subreaper()
    pid = os.getpid()
    if worker := os.fork():
        os.environ["GUILD_HALL_WORKER_PID"] = str(worker)
        os.execv(sys.executable, processes.COMMANDS["runtime"])  # noqa: S606 - no shell is wanted
    os.setsid()
    del os.environ["GUILD_HALL_END_WITH_PARENT"]
    os.environ["GUILD_HALL_GUARD_PID"] = str(pid)
    os.environ.update(listeners.hand_down(sockets))
    for one in sockets:
        one.detach()  # the worker makes its own of the descriptors
    _begin(WORKER)
    return WORKER


def _begin(module: str) -> None:
    """As the interpreter would begin: it obeys the signals that have been held back."""
    set_title(module)
    if callable(signal.getsignal(signal.SIGTERM)):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # process 1 has one for itself
    signal.pthread_sigmask(signal.SIG_UNBLOCK, guard.STOP_SIGNALS)
