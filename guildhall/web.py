"""The web as a program: `python -m guildhall.web`. It imports Django once, and forks if there are more processes."""

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
from wsgiref.types import WSGIEnvironment

import uvloop
from django.conf import settings
from django.db.backends.signals import connection_created
from django.urls import get_resolver

from guildhall.turns import give_way_at_queries
from guildhall.uploads import Uploads
from guildhall.wsgi import application
from guildhall.wsgi_server import WsgiServer
from mcp_runtime.control.calls import end_waiting
from mcp_runtime.http1.listeners import BACKLOG
from mcp_runtime.http1.server import HttpServer
from mcp_runtime.protocol.errors import describe_exit
from mcp_runtime.rows.database import give_connection_back
from mcp_runtime.runtime.processes import Signals
from mcp_runtime.system.console import replace_standard_streams
from mcp_runtime.system.parent import signal_when_parent_dies

logger = logging.getLogger("guildhall.web")

# As in the runtime. By default a request waits 5 ms for each thread that computes.
SWITCH_INTERVAL = 0.0001
STOP_SECONDS = 2.0  # for requests that are being answered
WAIT_SECONDS = 0.5  # of these seconds, for clients that wait for the end of a call. Then they get its state
KILL_SECONDS = 1.0  # after STOP_SECONDS, until a process that does not end is killed
QUICK_DEATH_SECONDS = 10.0
RESTART_SECONDS = 1.0  # after a quick death
PARENT_SECONDS = 1.0  # between two checks of the parent
# Where people add bundles. All other bodies have to fit into memory.
UPLOAD_PATHS = ("/api/members/", "/admin/roster/guildmember/proposals/")
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def main() -> None:
    replace_standard_streams()
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
        gc.freeze()  # as in manage.py, it makes the exit quicker


def end_with(parent: int) -> None:
    """Get SIGTERM when the parent dies, even by SIGKILL (Linux)."""
    signal_when_parent_dies(signal.SIGTERM)
    if sys.platform == "linux" and os.getppid() != parent:
        sys.exit("the parent is gone already")


def listen(address: tuple[str, int], workers: int) -> list[socket.socket]:
    """A socket for each worker. On Linux the kernel spreads connections over them. Elsewhere all share one socket.

    The sockets outlive a worker that dies, so its successor serves the clients in the backlog. Raises OSError.
    """
    if workers == 1 or sys.platform != "linux":
        return [_bind(address, is_shared=False)] * workers
    _bind(address, is_shared=False).close()  # a socket that shares its address gets no error if the address is in use
    return [_bind(address, is_shared=True) for _ in range(workers)]


def _bind(address: tuple[str, int], *, is_shared: bool) -> socket.socket:
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    is_dual = address[0] == "::" and socket.has_dualstack_ipv6()
    return socket.create_server(address, family=family, backlog=BACKLOG, reuse_port=is_shared, dualstack_ipv6=is_dual)


# One process ------------------------------------------------------------------------------------------------------


def serve(listener: socket.socket, parent: int = 0) -> None:
    """Serve until a signal comes, or until the parent dies."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(listener, parent))


def settle() -> None:
    """Import the whole hall, and exclude it from garbage collection, which would block the interpreter for 40 ms."""
    get_resolver().url_patterns  # noqa: B018 - imports the views
    gc.freeze()


def may_upload(environment: WSGIEnvironment) -> bool:
    """The first large upload imports what decides, so that the web starts sooner."""
    from roster import uploads

    return uploads.may_upload(environment)


async def _serve(listener: socket.socket, parent: int) -> None:
    stop_request = asyncio.Event()
    for number in STOP_SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, stop_request.set)
    name = listener.getsockname()[:2]
    web = WsgiServer(
        application,
        threads=settings.GUILD_HALL_WEB_THREADS,
        name=name,
        after_step=give_connection_back,
        uploads=Uploads(settings.GUILD_HALL_DATA_DIR, UPLOAD_PATHS, may_upload),
    )
    server = HttpServer(web)
    await server.start([listener])
    if not parent:
        logger.info("ready")
        threading.Thread(target=settle, name="settle", daemon=True).start()
    while not stop_request.is_set() and os.getppid() == (parent or os.getppid()):
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop_request.wait(), PARENT_SECONDS if parent else None)
    asyncio.get_running_loop().call_later(WAIT_SECONDS, end_waiting)
    await server.stop(STOP_SECONDS)


# More than one ----------------------------------------------------------------------------------------------------


class Workers:
    """A process for each socket. Each is restarted when it ends, and all are stopped together."""

    def __init__(self, sockets: list[socket.socket]) -> None:
        self._sockets = sockets
        self._slots: dict[int, int] = {}  # by pid
        self._start_moments: dict[int, float] = {}
        self._start_times: dict[int, float] = dict.fromkeys(range(len(sockets)), 0.0)  # by slot

    def run(self) -> None:
        self._signals = Signals()
        settle()
        self._start_missing()
        logger.info("ready")
        while not self._signals.stops:
            now = time.monotonic()
            self._signals.wait(max(0.0, min(self._start_times.values()) - now) if self._start_times else None)
            self._collect()
            self._start_missing()
        self._end()

    def _start_missing(self) -> None:
        for slot in [slot for slot, moment in self._start_times.items() if moment <= time.monotonic()]:
            del self._start_times[slot]
            parent, pid = os.getpid(), os.fork()
            if not pid:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                serve(self._sockets[slot], parent)
                sys.exit()
            self._slots[pid], self._start_moments[pid] = slot, time.monotonic()

    def _collect(self) -> None:
        while self._slots:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            if pid not in self._slots:
                continue  # an orphan, which process 1 of a container adopts
            slot, lifetime = self._slots.pop(pid), time.monotonic() - self._start_moments.pop(pid)
            delay = RESTART_SECONDS if lifetime < QUICK_DEATH_SECONDS else 0.0
            self._start_times[slot] = time.monotonic() + delay
            if not self._signals.stops:
                exit_description = describe_exit(os.waitstatus_to_exitcode(status))
                logger.warning("a web process ended with %s; starting it again", exit_description)

    def _end(self) -> None:
        self._send_signal(signal.SIGTERM)
        deadline = time.monotonic() + STOP_SECONDS + KILL_SECONDS
        while self._slots:
            if time.monotonic() > deadline:
                self._send_signal(signal.SIGKILL)
            self._signals.wait(0.1)
            self._collect()

    def _send_signal(self, number: signal.Signals) -> None:
        for pid in self._slots:
            os.kill(pid, number)


if __name__ == "__main__":
    main()
