"""The web as a program: `python -m guildhall.web`. Django, imported once; more than one process are forks of it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import sys
import threading
import time

import uvloop
from django.conf import settings
from django.db.backends.signals import connection_created
from django.urls import get_resolver

from guildhall.turns import give_way_at_queries
from guildhall.wsgi import application
from guildhall.wsgi_server import WsgiServer
from mcp_runtime.control.calls import end_waiting
from mcp_runtime.http1.listeners import BACKLOG
from mcp_runtime.http1.server import HttpServer
from mcp_runtime.protocol.errors import describe_exit
from mcp_runtime.rows.database import give_connection_back
from mcp_runtime.runtime.processes import Signals
from mcp_runtime.system.parent import signal_when_parent_dies

logger = logging.getLogger("guildhall.web")

# As in the runtime: a request waits for the interpreter behind each thread that computes, 5 ms a turn by default.
SWITCH_INTERVAL = 0.0001
STOP_SECONDS = 2.0  # for requests that are being answered
WAIT_SECONDS = 0.5  # of them for calls to end that clients wait for; then these are answered as they are
KILL_SECONDS = 1.0  # more, until a process that does not end is killed
QUICK_DEATH_SECONDS = 10.0
RESTART_SECONDS = 1.0  # after a quick death
PARENT_SECONDS = 1.0  # between two looks whether the parent is there
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def main() -> None:
    sys.setswitchinterval(SWITCH_INTERVAL)
    connection_created.connect(give_way_at_queries)
    parent = os.environ.get("GUILD_HALL_END_WITH_PARENT")
    if parent:
        end_with(int(parent))
    address = (settings.GUILD_HALL_HOST, settings.GUILD_HALL_PORT)
    try:
        sockets = listen(address, settings.GUILD_HALL_WEB_WORKERS)
    except OSError as error:
        sys.exit(f"The web cannot listen on {address[0]}:{address[1]}: {os.strerror(error.errno or 0)}.")
    try:
        if len(sockets) == 1:
            serve(sockets[0])
        else:
            Workers(sockets).run()
    finally:
        gc.freeze()  # as in manage.py: its end is quicker


def end_with(parent: int) -> None:
    """SIGTERM to this process when its parent dies, of SIGKILL too (Linux)."""
    signal_when_parent_dies(signal.SIGTERM)
    if sys.platform == "linux" and os.getppid() != parent:
        sys.exit("the parent is gone already")


def listen(address: tuple[str, int], workers: int) -> list[socket.socket]:
    """A socket for each worker. On Linux the kernel deals connections out to them, elsewhere they are one and the same.

    They outlive a worker that dies: whoever waits in its backlog is served by the next one. Raises OSError.
    """
    if workers == 1 or sys.platform != "linux":
        return [_bound(address, is_shared=False)] * workers
    _bound(address, is_shared=False).close()  # a socket that shares its address is never told that it is taken
    return [_bound(address, is_shared=True) for _ in range(workers)]


def _bound(address: tuple[str, int], *, is_shared: bool) -> socket.socket:
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    is_dual = address[0] == "::" and socket.has_dualstack_ipv6()
    return socket.create_server(address, family=family, backlog=BACKLOG, reuse_port=is_shared, dualstack_ipv6=is_dual)


# One process ------------------------------------------------------------------------------------------------------


def serve(listening: socket.socket, parent: int = 0) -> None:
    """Until a signal says so, or until `parent` is not our parent any more."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(listening, parent))


def settle() -> None:
    """Import all of the hall, and have the garbage collector pass over it: else it holds the interpreter for 40 ms."""
    get_resolver().url_patterns  # noqa: B018 - imports the views
    gc.freeze()


async def _serve(listening: socket.socket, parent: int) -> None:
    stopping = asyncio.Event()
    for number in STOP_SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    name = listening.getsockname()[:2]
    web = WsgiServer(application, threads=settings.GUILD_HALL_WEB_THREADS, name=name, after_step=give_connection_back)
    server = HttpServer(web)
    await server.start([listening])
    if not parent:
        logger.info("ready")
        threading.Thread(target=settle, name="settle", daemon=True).start()
    while not stopping.is_set() and os.getppid() == (parent or os.getppid()):
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stopping.wait(), PARENT_SECONDS if parent else None)
    asyncio.get_running_loop().call_later(WAIT_SECONDS, end_waiting)
    await server.stop(STOP_SECONDS)


# More than one ----------------------------------------------------------------------------------------------------


class Workers:
    """A process for each socket: started again when it ends, ended together."""

    def __init__(self, sockets: list[socket.socket]) -> None:
        self._sockets = sockets
        self._slots: dict[int, int] = {}  # by pid
        self._started_at: dict[int, float] = {}
        self._due: dict[int, float] = dict.fromkeys(range(len(sockets)), 0.0)  # by slot

    def run(self) -> None:
        self._signals = Signals()
        settle()
        self._start_due()
        logger.info("ready")
        while not self._signals.stops:
            now = time.monotonic()
            self._signals.wait(max(0.0, min(self._due.values()) - now) if self._due else None)
            self._collect()
            self._start_due()
        self._end()

    def _start_due(self) -> None:
        for slot in [slot for slot, due in self._due.items() if due <= time.monotonic()]:
            del self._due[slot]
            parent, pid = os.getpid(), os.fork()
            if not pid:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                serve(self._sockets[slot], parent)
                sys.exit()
            self._slots[pid], self._started_at[pid] = slot, time.monotonic()

    def _collect(self) -> None:
        while self._slots:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            if pid not in self._slots:
                continue  # somebody else's child that became ours: in a container this may be process 1
            slot, lived = self._slots.pop(pid), time.monotonic() - self._started_at.pop(pid)
            delay = RESTART_SECONDS if lived < QUICK_DEATH_SECONDS else 0.0
            self._due[slot] = time.monotonic() + delay
            if not self._signals.stops:
                how = describe_exit(os.waitstatus_to_exitcode(status))
                logger.warning("a web process ended with %s; starting it again", how)

    def _end(self) -> None:
        self._tell(signal.SIGTERM)
        deadline = time.monotonic() + STOP_SECONDS + KILL_SECONDS
        while self._slots:
            if time.monotonic() > deadline:
                self._tell(signal.SIGKILL)
            self._signals.wait(0.1)
            self._collect()

    def _tell(self, number: signal.Signals) -> None:
        for pid in self._slots:
            os.kill(pid, number)


if __name__ == "__main__":
    main()
