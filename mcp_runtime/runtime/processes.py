"""The hall's processes, guard and web: what `manage.py up` becomes once it has prepared all and started them.

A program of its own, with the standard library alone: it only waits, and what waits should weigh little. It takes over
what `manage.py up` has started (see `warm`), and starts again what ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType

from mcp_runtime.http1 import listeners
from mcp_runtime.protocol.errors import describe_exit
from mcp_runtime.runtime import guard
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
BASE_DIR = Path(__file__).resolve().parents[2]

PIPE_BYTES = 16_384  # that the smallest pipe takes while nobody reads

COMMANDS = {
    "runtime": [sys.executable, "-m", "mcp_runtime.runtime.guard"],
    "web": [sys.executable, "-m", "guildhall.web"],
}


class State:
    """What `manage.py up` leaves to the program that it becomes. No dataclass: that takes a megabyte to import."""

    def __init__(
        self, pids: Mapping[str, int], sockets: Sequence[int], unwritten: Sequence[tuple[int, str]] = ()
    ) -> None:
        self.pids = pids  # of the parts that run already
        self.sockets = sockets  # the gateway's, as descriptors
        self.unwritten = unwritten  # what no console took yet, by descriptor


def command_line(state: State) -> list[str]:
    """What to execute in the place of `manage.py up`, for whose sake its last words are there."""
    reader, writer = os.pipe()
    unwritten = list(state.unwritten)
    # `up` itself has said a few lines, and what is too much was the last to be said.
    while len(text := json.dumps([state.pids, state.sockets, unwritten]).encode()) > PIPE_BYTES:
        unwritten.pop()
    os.write(writer, text)
    os.close(writer)
    for descriptor in (reader, *state.sockets):
        os.set_inheritable(descriptor, True)
    os.environ["GUILD_HALL_UP_STATE"] = str(reader)
    return [sys.executable, "-m", "mcp_runtime.runtime.processes", "manage.py", "up"]


def taken_over() -> State:
    number = os.environ.pop("GUILD_HALL_UP_STATE", "")  # the descriptor of the file
    if not number:
        return State({}, [])
    with open(int(number), "rb") as file:
        state = State(*json.load(file))
    for descriptor in state.sockets:
        os.set_inheritable(descriptor, False)  # each part is handed its own
    return state


class Signals:
    """Signals to wait for. No threading.Event: a handler that interrupts its `wait` would lock itself out."""

    def __init__(self) -> None:
        self.stops = 0
        self._reader, self._writer = socket.socketpair()
        for end in (self._reader, self._writer):
            end.setblocking(False)
        signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        for number in guard.STOP_SIGNALS:
            signal.signal(number, self._on_stop)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, guard.STOP_SIGNALS)  # blocked by who became us

    def _on_stop(self, number: int, frame: FrameType | None) -> None:
        # A terminal that closes sends SIGHUP more than once: that is no second Ctrl-C.
        self.stops = max(self.stops, 1) if number == signal.SIGHUP else self.stops + 1

    def wait(self, seconds: float | None) -> None:
        """Until a signal comes, that of an ended child included."""
        select.select([self._reader], [], [], seconds)
        with contextlib.suppress(BlockingIOError):
            self._reader.recv(4096)


class Forked:
    """A child that was forked before we became this program, as far as we need of subprocess.Popen."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: int | None = None

    def poll(self) -> int | None:
        if self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._code = os.waitstatus_to_exitcode(status) if pid else None
        return self._code

    def terminate(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGTERM)


class Part:
    """A child, in a session of its own: the terminal's Ctrl-C reaches us alone, and we end it.

    `sockets` are handed down to it, and kept for the next one. `pid`: it runs already.
    """

    def __init__(self, name: str, argv: list[str], sockets: Sequence[socket.socket] = (), pid: int = 0) -> None:
        self.name = name
        self._argv = argv
        self._sockets = sockets
        self._process: subprocess.Popen[bytes] | Forked | None = Forked(pid) if pid else None
        self._started_at = time.monotonic()
        self._quick_deaths = 0
        self.due_at: float | None = None if pid else 0.0  # when to start it; None while it runs

    def start(self) -> None:
        self.due_at = None
        self._started_at = time.monotonic()
        with birthmark.handed_on(birthmark.PART):
            self._process = subprocess.Popen(
                self._argv,
                env={**os.environ, **part_environment(), **listeners.hand_down(self._sockets)},
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

    `sockets` are the runtime's, for agents. `pids` are those of parts that run already.
    """

    def __init__(
        self, say: Callable[[str], None], sockets: Sequence[socket.socket] = (), pids: Mapping[str, int] = {}
    ) -> None:
        self._say = say
        self._sockets = sockets
        self._parts = {
            name: Part(name, argv, sockets if name == "runtime" else (), pids.get(name, 0))
            for name, argv in COMMANDS.items()
        }

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


def part_environment() -> dict[str, str]:
    """What the environment of a part has beside that of its parent, which is us."""
    return {
        "PYTHONPATH": python_path(),
        "PYTHONUNBUFFERED": "1",
        # On Linux they end with us, however we end.
        "GUILD_HALL_END_WITH_PARENT": str(os.getpid()),
    }


def python_path() -> str:
    """With the hall in front, wherever it is started from."""
    given = os.environ.get("PYTHONPATH", "")
    parts = [str(BASE_DIR), *(part for part in given.split(os.pathsep) if part and part != str(BASE_DIR))]
    return os.pathsep.join(parts)


def main() -> int:
    state = taken_over()
    writers = {stream.fileno(): console.Writer(stream) for stream in (sys.stdout, sys.stderr)}
    for descriptor, text in state.unwritten:
        writers[descriptor].write(text)
    said = writers[sys.stdout.fileno()]
    sockets = [socket.socket(fileno=descriptor) for descriptor in state.sockets]
    code = Processes(lambda text: said.write(console.line("hall", text)), sockets, state.pids).run()
    for writer in writers.values():
        writer.flush()
    return code


if __name__ == "__main__":
    sys.exit(main())
