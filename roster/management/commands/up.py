from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError
from django.db import connections

from mcp_runtime.control.members import await_heartbeat
from mcp_runtime.http1 import listeners
from mcp_runtime.protocol.errors import AddressTakenError, describe_exit
from mcp_runtime.runtime import guard, pid_namespace
from mcp_runtime.system import birthmark, console

# A part that ended by itself is started again: at once after a long life, for agents find no door meanwhile, else after
# these pauses in seconds. One more quick death ends the hall.
RESTART_DELAYS = (1.0, 2.0, 4.0)
QUICK_DEATH_SECONDS = 10.0
PATIENCE_SECONDS = 8.0
LOOK_SECONDS = 0.2
KILL_SECONDS = 1.0  # from a second SIGTERM to SIGKILL, for a part that is frozen; and for the end of what it leaves
# In the environment of the hall's processes alone, for systems where they can have no birthmark.
MARKS = (b"GUILD_HALL_MEMBER=", b"GUILD_HALL_GUARD_PID=", b"GUILD_HALL_END_WITH_PARENT=")

COMMANDS = {
    "runtime": [sys.executable, "-m", "mcp_runtime.runtime.guard"],
    "web": [sys.executable, "-m", "guildhall.web"],
}


class Command(BaseCommand):
    help = "Start the whole hall: database, first account, runtime and web, in one log stream. Ctrl-C ends all of it."

    def handle(self, *args: Any, **options: Any) -> None:
        self._console = console.Writer(self.stdout)
        if settings.GUILD_HALL_PID_NAMESPACE:
            become(pid_namespace.command_line([sys.executable, *sys.orig_argv[1:]]))
        require_free_address("web", settings.GUILD_HALL_HOST, settings.GUILD_HALL_PORT, "GUILD_HALL_PORT")
        require_free_address(
            "gateway", settings.GUILD_HALL_HOST, settings.GUILD_HALL_GATEWAY_PORT, "GUILD_HALL_GATEWAY_PORT"
        )
        self._say_addresses()
        call_command("prepare", say=self._say)
        if holder := await_heartbeat(self._say):
            raise CommandError(f"This hall is up already: its runtime is {holder}. One hall has one runtime.")
        let_go_of_the_database()
        try:
            sockets = listeners.bind(settings.GUILD_HALL_HOST, settings.GUILD_HALL_GATEWAY_PORT)
        except AddressTakenError as error:
            raise CommandError(str(error)) from error
        code = Processes(self._say_soon, sockets).run()
        self._console.flush()
        if code:
            sys.exit(code)

    def _say(self, text: str) -> None:
        """Before what others write next."""
        self._say_soon(text)
        self._console.flush()

    def _say_soon(self, text: str) -> None:
        self._console.write(console.line("hall", text))

    def _say_addresses(self) -> None:
        host = settings.GUILD_HALL_HOST
        host = "localhost" if host in ("127.0.0.1", "0.0.0.0", "::1", "::") else host  # noqa: S104 - shown, not bound
        base = f"http://{f'[{host}]' if ':' in host else host}"
        web, gateway = f"{base}:{settings.GUILD_HALL_PORT}", f"{base}:{settings.GUILD_HALL_GATEWAY_PORT}/mcp"
        self._say(f"Roster and admin: {web}/   API: {web}/api/docs/   Agents: {gateway}   Ctrl-C ends all of it")


def become(argv: list[str]) -> NoReturn:
    """Replace this process by a program of the hall's own, which unblocks SIGTERM once it can obey.

    Until then the signal waits: process 1 would never hear of one that comes while it has no handler.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    sys.stdout.flush()
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(settings.BASE_DIR), os.environ.get("PYTHONPATH")]))
    os.execv(argv[0], argv)  # noqa: S606 - no shell is wanted


def require_free_address(part: str, host: str, port: int, setting: str) -> None:
    """Raises CommandError when `part` could not listen there."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            hint = f"GUILD_HALL_HOST and {setting} choose where."
            if error.errno == errno.EADDRINUSE:
                hint = f"Is Guild Hall running already? {setting} chooses another port."
            raise CommandError(f"The {part} cannot listen on {host}:{port}: {error.strerror}. {hint}") from error


def let_go_of_the_database() -> None:
    """From here on it is the children's business."""
    for connection in connections.all():
        connection.close()
        if connection.vendor == "postgresql":
            connection.close_pool()  # type: ignore[attr-defined]


class Signals:
    """Signals to wait for. No threading.Event: a handler that interrupts its `wait` would lock itself out."""

    def __init__(self) -> None:
        self.stops = 0
        self._reader, self._writer = socket.socketpair()
        for end in (self._reader, self._writer):
            end.setblocking(False)
        signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._on_stop)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])  # see `become`

    def _on_stop(self, number: int, frame: FrameType | None) -> None:
        # A terminal that closes sends SIGHUP more than once: that is no second Ctrl-C.
        self.stops = max(self.stops, 1) if number == signal.SIGHUP else self.stops + 1

    def wait(self, seconds: float | None) -> None:
        """Until a signal comes, that of an ended child included."""
        select.select([self._reader], [], [], seconds)
        with contextlib.suppress(BlockingIOError):
            self._reader.recv(4096)


class Part:
    """A child, in a session of its own: the terminal's Ctrl-C reaches us alone, and we end it.

    `sockets` are handed down to it, and kept for the next one.
    """

    def __init__(self, name: str, argv: list[str], sockets: Sequence[socket.socket] = ()) -> None:
        self.name = name
        self._argv = argv
        self._sockets = sockets
        self._process: subprocess.Popen[bytes] | None = None
        self._started_at = 0.0
        self._quick_deaths = 0
        self.due_at: float | None = 0.0  # when to start it; None while it runs

    def start(self) -> None:
        self.due_at = None
        self._started_at = time.monotonic()
        with birthmark.handed_on(birthmark.PART):
            self._process = subprocess.Popen(
                self._argv,
                env={**_environment(), **listeners.hand_down(self._sockets)},
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                pass_fds=[one.fileno() for one in self._sockets],
            )

    def ended(self) -> int | None:
        """The exit code, when it was running until now."""
        return self._process.poll() if self._process and self.due_at is None else None

    def restart_delay(self) -> float | None:
        """How long to wait before the next try; None when it will not stay up."""
        is_quick = time.monotonic() - self._started_at < QUICK_DEATH_SECONDS
        self._quick_deaths = self._quick_deaths + 1 if is_quick else 0
        if self._quick_deaths > len(RESTART_DELAYS):
            return None
        return RESTART_DELAYS[self._quick_deaths - 1] if is_quick else 0.0

    @property
    def pid(self) -> int:
        return self._process.pid if self._process else 0

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def terminate(self) -> None:
        """The first time it asks; to the guard, the second one means: now."""
        if self._process is not None:
            self._process.terminate()

    def kill_group(self) -> None:
        if self._process is not None and self.is_alive:
            os.killpg(self._process.pid, signal.SIGKILL)


class Processes:
    """Runtime and web: started, started again when they end by themselves, ended together.

    `sockets` are the runtime's, for agents.
    """

    def __init__(self, say: Callable[[str], None], sockets: Sequence[socket.socket] = ()) -> None:
        self._say = say
        self._sockets = sockets
        self._parts = {name: Part(name, argv, sockets if name == "runtime" else ()) for name, argv in COMMANDS.items()}

    def run(self) -> int:
        """Until somebody wants it to end, or a part will not stay up; the exit code."""
        guard.become_subreaper()
        self._signals = Signals()
        code = 0
        while not self._signals.stops and not code:
            look_again = self._end_orphans()
            code = self._keep_up()
            if not code:
                self._signals.wait(LOOK_SECONDS if look_again else self._pause())  # the end of each wakes us
        self._end()
        return code

    def _end_orphans(self) -> bool:
        """What is of the hall and has become our child has lost its part, and nobody else ends it.

        Whether to look again. Other children, of the script that became us or as process 1 of a container, are reaped.
        """
        return guard.end_children(spare=[part.pid for part in self._parts.values()], is_meant=is_of_the_hall)

    def _keep_up(self) -> int:
        """One look: start what is due. The exit code of a part that will not stay up, else 0."""
        for part in self._parts.values():
            code = part.ended()
            if code is not None:
                delay = part.restart_delay()
                how = f"The {part.name} ended with {describe_exit(code)}"
                if delay is None:
                    self._say(f"{how} and will not stay up; stopping.")
                    return code if code > 0 else 1
                self._say(f"{how}; starting it again{f' in {delay:g} s' if delay else ''}.")
                part.due_at = time.monotonic() + delay
            elif part.due_at is not None and part.due_at <= time.monotonic():
                part.start()
        return 0

    def _pause(self) -> float | None:
        dues = [part.due_at for part in self._parts.values() if part.due_at is not None]
        return max(min(dues) - time.monotonic(), 0) if dues else None

    def _end(self) -> None:
        """One SIGTERM each; a second Ctrl-C means now, and patience ends by itself. Who does not end then is killed."""
        for one in self._sockets:
            one.close()  # nobody waits for a runtime that does not come back
        asked, deadline = False, time.monotonic() + PATIENCE_SECONDS
        kill_at = deadline + KILL_SECONDS
        while alive := [part for part in self._parts.values() if part.is_alive]:
            now = self._signals.stops > 1 or time.monotonic() > deadline
            if time.monotonic() > kill_at:
                for part in alive:
                    part.kill_group()  # what it leaves is an orphan then
            elif now or not asked:
                for part in alive:
                    part.terminate()
                asked = True
            if now:
                self._parts["web"].kill_group()
                kill_at = min(kill_at, time.monotonic() + KILL_SECONDS)
            self._signals.wait(LOOK_SECONDS)
        deadline = time.monotonic() + KILL_SECONDS
        while self._end_orphans() and time.monotonic() < deadline:
            time.sleep(guard.SWEEP_INTERVAL)


def is_of_the_hall(pid: int) -> bool:
    """Whether a part of the hall started the process, or what it started, and so on (Linux)."""
    if birthmark.is_another(pid):
        return True
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    own = {b"%s=%s" % item for item in os.environb.items()}
    return any(variable.startswith(MARKS) and variable not in own for variable in environment)


def _environment() -> dict[str, str]:
    path = os.pathsep.join(filter(None, [str(settings.BASE_DIR), os.environ.get("PYTHONPATH")]))
    return {
        **os.environ,
        "PYTHONPATH": path,
        "PYTHONUNBUFFERED": "1",
        # On Linux they end with us, however we end.
        "GUILD_HALL_END_WITH_PARENT": str(os.getpid()),
    }
