"""Web, guard and worker as forks of `manage.py up`, which has imported what they have in common by then (Linux).

They start at once, and share its memory. The web is forked first: it imports what it alone needs, and prepares database
and files in a fork of its own, while `up` imports what the worker alone needs. So neither has what is the other's, and
all of it takes the time of the longer half.

Elsewhere forks of a program with threads and system libraries are not safe: there, and when a part has died, it is a
program of its own that starts from nothing (see `processes`).
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import IO

from mcp_runtime.http1 import listeners
from mcp_runtime.runtime import guard, processes
from mcp_runtime.system import birthmark
from mcp_runtime.system.parent import signal_when_parent_dies
from mcp_runtime.system.title import set_title

M_ARENA_MAX = -8  # malloc.h
PREPARED = "\n"  # an empty line
WORKER, WEB = "mcp_runtime.runtime.worker", "guildhall.web"
# What both import sooner or later, with all that it stands on; and the worker alone.
OF_BOTH = ("mcp_runtime.control.calls", "mcp_runtime.http1.server", "requests", "uvloop", "yaml")
OF_THE_WORKER = (WORKER, "mcp_runtime.runtime.runtime", "mcp_runtime.runtime.bootstep")


class Web:
    """The web as a fork, which waits until it may serve."""

    def __init__(self, pid: int, lines: IO[str], go: int) -> None:
        self.pid = pid
        self._lines = lines
        self._go = go

    def wait_until_prepared(self, say: Callable[[str], None]) -> None:
        """Until database and files are ready; what is said meanwhile is said by `say`. When that fails, so do we."""
        for line in self._lines:
            if line == PREPARED:
                return
            say(line.removesuffix("\n"))
        _exit_as(self.pid)  # which has said what went wrong

    def serve(self) -> None:
        """From now on; nothing of it is handed on to the next fork.

        Signals that ask `up` to stop wait from now on, for the program that it becomes.
        """
        signal.pthread_sigmask(signal.SIG_BLOCK, guard.STOP_SIGNALS)
        self._lines.close()
        with contextlib.suppress(BrokenPipeError):  # it died: the program that we become starts another
            os.write(self._go, b"go")
        os.close(self._go)


def fork_web(load: Callable[[], object], prepare: Callable[[Callable[[str], None]], object]) -> Web:
    """It calls `load`, and in a fork of its own `prepare`.

    That is given what to say lines with: they may have to wait for the console longer than a fork lives.
    """
    _import(OF_BOTH)
    gc.collect()
    gc.freeze()  # what the collector does not touch is not copied
    gc.disable()
    _give_memory_back()
    environment = processes.part_environment()
    lines, say = os.pipe()
    may_go, go = os.pipe()
    if pid := os.fork():
        os.close(say)
        os.close(may_go)
        return Web(pid, open(lines, encoding="utf-8", errors="surrogateescape"), go)
    os.close(lines)
    os.close(go)
    signal_when_parent_dies(signal.SIGTERM)
    _become_part(environment)
    _obey_sigterm()
    load()
    _in_a_fork(lambda: prepare(partial(_write_line, say)))
    web = import_module(WEB)  # which looks at the static files that are there
    gc.freeze()
    _write_line(say, PREPARED.removesuffix("\n"))
    os.close(say)
    if not os.read(may_go, 2):
        sys.exit()  # `up` could not go on, and has said why
    os.close(may_go)
    set_title(WEB)
    gc.enable()
    sys.exit(web.main())


def load_worker() -> None:
    """What it needs before its members are ready."""
    _import(OF_THE_WORKER)


def _import(modules: Sequence[str]) -> None:
    for module in modules:
        import_module(module)


def _in_a_fork(work: Callable[[], object]) -> None:
    """The memory that `work` takes ends with it. When it fails, so do we."""
    if not (pid := os.fork()):
        signal_when_parent_dies(signal.SIGTERM)
        work()
        sys.exit()
    _exit_as(pid, only_failures=True)


def _exit_as(pid: int, *, only_failures: bool = False) -> None:
    """Wait for a fork that says itself what went wrong, and end with its exit code."""
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code or not only_failures:
        sys.exit(code if code >= 0 else 128 - code)


def _write_line(descriptor: int, text: str) -> None:
    os.write(descriptor, text.encode(errors="surrogateescape") + b"\n")


def fork_guard(sockets: Sequence[socket.socket]) -> int:
    """Its pid, in `up`; 0 in the worker, which is to run then. `sockets` are the worker's."""
    guard.become_subreaper()  # `processes` is one as well; what is left until then becomes ours too
    environment = processes.part_environment()
    if pid := os.fork():
        return pid
    _become_part(environment)
    _become_guard(sockets)
    return 0


def _give_memory_back() -> None:
    """What is free, and from now on two arenas for all threads, not one for each few (glibc)."""
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


def _become_guard(sockets: Sequence[socket.socket]) -> None:
    """Returns in the worker, which is a fork of ours."""
    signal_when_parent_dies(signal.SIGTERM)  # which waits, as all signals do, for the guard
    guard.become_subreaper()
    pid = os.getpid()
    if worker := os.fork():
        os.environ["GUILD_HALL_WORKER_PID"] = str(worker)
        os.execv(sys.executable, processes.COMMANDS["runtime"])  # noqa: S606 - no shell is wanted
    os.setsid()
    del os.environ["GUILD_HALL_END_WITH_PARENT"]
    os.environ["GUILD_HALL_GUARD_PID"] = str(pid)
    os.environ.update(listeners.inheritance([one.fileno() for one in sockets]))
    for one in sockets:
        one.detach()  # the worker makes its own of the descriptors
    set_title(WORKER)
    _obey_sigterm()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, guard.STOP_SIGNALS)


def _obey_sigterm() -> None:
    """As the interpreter would from its beginning: process 1 has a handler for itself."""
    if callable(signal.getsignal(signal.SIGTERM)):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
