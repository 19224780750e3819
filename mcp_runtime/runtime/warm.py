"""Forks web, guard and worker from `manage.py up`, after it has imported their common modules (Linux).

The forks start at once, and share its memory. The web is forked first. It imports its own modules, and prepares
database and files in another fork. Meanwhile `up` imports the worker's modules. So neither has the other's modules, and
both together take only the time of the longer half.

On other systems, forks of a program with threads and system libraries are not safe. There, and after the death of a
part, the part starts as a new program (see `processes`).
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from importlib.metadata import version
from typing import IO

from mcp_runtime.http1 import listeners
from mcp_runtime.runtime import guard, processes
from mcp_runtime.system import birthmark, memory
from mcp_runtime.system.late_modules import load_late
from mcp_runtime.system.parent import signal_when_parent_dies
from mcp_runtime.system.title import set_title

M_ARENA_MAX = -8  # malloc.h
PREPARED = "\n"  # an empty line
WORKER, WEB = "mcp_runtime.runtime.worker", "guildhall.web"
# Modules that both import sooner or later, with all their imports, and modules of the worker only.
COMMON_MODULES = ("mcp_runtime.control.calls", "mcp_runtime.http1.server", "requests", "uvloop")
WORKER_MODULES = (WORKER, "mcp_runtime.runtime.runtime", "mcp_runtime.runtime.bootstep")


class Web:
    """The web as a fork, which waits until it may serve."""

    def __init__(self, pid: int, lines: IO[str], go: int) -> None:
        self.pid = pid
        self._lines = lines
        self._go = go

    def wait_until_prepared(self, say: Callable[[str], None]) -> None:
        """Wait until database and files are ready. `say` gets the lines about that. If it fails, this process exits."""
        for line in self._lines:
            if line == PREPARED:
                return
            say(line.removesuffix("\n"))
        _exit_as(self.pid)  # the fork has reported the error

    def serve(self) -> None:
        """Let the web serve from now on. The next fork inherits nothing of it.

        Stop signals to `up` wait from now on, for the program that it becomes.
        """
        signal.pthread_sigmask(signal.SIG_BLOCK, guard.STOP_SIGNALS)
        self._lines.close()
        with contextlib.suppress(BrokenPipeError):  # the web died, and the program that `up` becomes starts another
            os.write(self._go, b"go")
        os.close(self._go)


def fork_web(load: Callable[[], object], prepare: Callable[[Callable[[str], None]], object]) -> Web:
    """Fork the web. The fork calls `load`, and in another fork `prepare`.

    `prepare` gets a function for its lines, because they may have to wait for the console longer than that fork lives.
    """
    # `requests` loads 3 MB for guesses at encodings, which the hall never needs. At its import it reads the version.
    load_late("charset_normalizer", __version__=version("charset_normalizer"))
    load_late("yaml")  # REST framework imports it. Only the OpenAPI document uses it
    _import(COMMON_MODULES)
    gc.collect()
    gc.freeze()  # memory that the collector does not touch is not copied
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
    web = import_module(WEB)  # it reads the static files
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
    sys.modules["yaml"] = None  # type: ignore[assignment]  # kombu would load it, for messages that the hall never has
    _import(WORKER_MODULES)


def _import(modules: Sequence[str]) -> None:
    for module in modules:
        import_module(module)


def _in_a_fork(work: Callable[[], object]) -> None:
    """Do `work` in a fork, so that its memory is freed at its end. If it fails, this process exits."""
    if not (pid := os.fork()):
        signal_when_parent_dies(signal.SIGTERM)
        work()
        sys.exit()
    _exit_as(pid, only_failures=True)


def _exit_as(pid: int, *, only_failures: bool = False) -> None:
    """Wait for a fork, and exit with its exit code. The fork itself has reported its error."""
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code or not only_failures:
        sys.exit(code if code >= 0 else 128 - code)


def _write_line(descriptor: int, text: str) -> None:
    os.write(descriptor, text.encode(errors="surrogateescape") + b"\n")


def fork_guard(sockets: Sequence[socket.socket]) -> int:
    """Fork guard and worker. Returns the guard's pid in `up`, and 0 in the worker. `sockets` are the worker's."""
    guard.become_subreaper()  # `processes` is one too, but orphans may come before it runs
    environment = processes.part_environment()
    if pid := os.fork():
        return pid
    _become_part(environment)
    _become_guard(sockets)
    return 0


def _give_memory_back() -> None:
    """Give free memory back, and limit malloc to two arenas for all threads (glibc)."""
    memory.give_back()
    if hasattr(memory.library(), "mallopt"):
        memory.library().mallopt(M_ARENA_MAX, 2)


def _become_part(environment: dict[str, str]) -> None:
    """Set up this fork as `processes` sets up a part that it starts."""
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    birthmark.take(birthmark.PART)
    os.environ.update(environment)


def _become_guard(sockets: Sequence[socket.socket]) -> None:
    """Become the guard. Returns only in the worker, which is a fork of this process."""
    signal_when_parent_dies(signal.SIGTERM)  # all signals wait for the guard
    guard.become_subreaper()
    pid, fence_file = os.getpid(), guard.create_fence_file()
    if fence_file >= 0:
        os.environ["GUILD_HALL_FENCE"] = str(fence_file)
    if worker := os.fork():
        os.environ["GUILD_HALL_WORKER_PID"] = str(worker)
        if fence_file >= 0:
            os.set_inheritable(fence_file, True)
        os.execv(sys.executable, processes.COMMANDS["runtime"])  # noqa: S606 - it must not use a shell
    os.setsid()
    del os.environ["GUILD_HALL_END_WITH_PARENT"]
    os.environ["GUILD_HALL_GUARD_PID"] = str(pid)
    os.environ.update(listeners.inheritance([each.fileno() for each in sockets]))
    for each in sockets:
        each.detach()  # the worker creates its own sockets from the descriptors
    set_title(WORKER)
    _obey_sigterm()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, guard.STOP_SIGNALS)


def _obey_sigterm() -> None:
    """Let SIGTERM end this process, as in a new interpreter. As process 1, `up` has a handler that forks inherit."""
    if callable(signal.getsignal(signal.SIGTERM)):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
