"""The hall's processes, guard and web: what `manage.py up` becomes once it has prepared all and started them.

A program of its own, with the standard library alone. It takes over what `manage.py up` has started (see `warm`), and
starts again what ends. It only waits, and what waits should weigh little: what it needs when a part has ended, or when
it says something, is imported then.
"""

from __future__ import annotations

import contextlib
import marshal
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from types import FrameType

from mcp_runtime.runtime import guard
from mcp_runtime.system import birthmark

TYPE_CHECKING = False  # that of `typing`, which is half a megabyte
if TYPE_CHECKING:
    import subprocess

    from mcp_runtime.system import console

# A part that ended by itself is started again: at once after a long life, for agents cannot connect meanwhile, else
# after these pauses in seconds. One more quick death ends the hall.
RESTART_DELAYS = (1.0, 2.0, 4.0)
QUICK_DEATH_SECONDS = 10.0
PATIENCE_SECONDS = 8.0
LOOK_SECONDS = 0.2
KILL_SECONDS = 1.0  # from a second SIGTERM to SIGKILL, for a part that is frozen; and for the end of what it leaves
# In the environment of the hall's processes alone, for systems where they can have no birthmark.
HALL_VARIABLES = (b"GUILD_HALL_MEMBER=", b"GUILD_HALL_GUARD_PID=", b"GUILD_HALL_END_WITH_PARENT=")
PROGRAM = os.path.realpath(__file__)
BASE_DIR = os.path.dirname(os.path.dirname(os.path.dirname(PROGRAM)))

PIPE_BYTES = 16_384  # that the smallest pipe takes while nobody reads

COMMANDS = {
    "runtime": guard.COMMAND,
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
    """The command to execute in the place of `manage.py up`. It takes over `state`."""
    reader, writer = os.pipe()
    unwritten = list(state.unwritten)
    # `up` itself has said a few lines. Lines that are too many were the last ones.
    while len(text := marshal.dumps([dict(state.pids), list(state.sockets), unwritten])) > PIPE_BYTES:
        unwritten.pop()
    os.write(writer, text)
    os.close(writer)
    for descriptor in (reader, *state.sockets):
        os.set_inheritable(descriptor, True)
    os.environ["GUILD_HALL_UP_STATE"] = str(reader)
    # By its path: -m takes a megabyte. The words behind it are for `ps`.
    return [sys.executable, "-S", "-P", PROGRAM, "manage.py", "up"]


def read_state() -> State:
    number = os.environ.pop("GUILD_HALL_UP_STATE", "")  # the descriptor of the file
    if not number:
        return State({}, [])
    with open(int(number), "rb") as file:
        state = State(*marshal.load(file))  # noqa: S302 - written by ourselves
    for descriptor in state.sockets:
        os.set_inheritable(descriptor, False)  # each part is handed its own
    return state


class Signals:
    """Signals to wait for. No threading.Event: a handler that interrupts its `wait` would lock itself out."""

    def __init__(self) -> None:
        self.stops = 0
        self._reader, writer = os.pipe()
        for end in (self._reader, writer):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
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
            os.read(self._reader, 4096)


class ForkedProcess:
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

    It inherits `sockets`, which are descriptors, and so does the next one. `pid`: it runs already.
    """

    def __init__(self, name: str, argv: list[str], sockets: Sequence[int] = (), pid: int = 0) -> None:
        self.name = name
        self._argv = argv
        self._sockets = sockets
        self._process: subprocess.Popen[bytes] | ForkedProcess | None = ForkedProcess(pid) if pid else None
        self._started_at = time.monotonic()
        self._quick_deaths = 0
        self.start_at: float | None = None if pid else 0.0  # when to start it; None while it runs

    def start(self) -> None:
        self.start_at = None
        self._started_at = time.monotonic()
        import subprocess

        from mcp_runtime.http1 import listeners

        with birthmark.inheritance(birthmark.PART):
            self._process = subprocess.Popen(
                self._argv,
                env={**os.environ, **part_environment(), **listeners.inheritance(self._sockets)},
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                pass_fds=self._sockets,
            )

    def exit_code(self) -> int | None:
        """The exit code of a part that ended since the last look, else None."""
        return self._process.poll() if self._process and self.start_at is None else None

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
        """Send SIGTERM. For the guard a second one means that it must end at once."""
        if self._process is not None:
            self._process.terminate()

    def kill_group(self) -> None:
        if self._process is not None and self.is_alive:
            os.killpg(self._process.pid, signal.SIGKILL)


class Processes:
    """Runtime and web: started, started again when they end, and stopped together.

    `sockets` are the runtime's, for agents, as descriptors. `pids` are those of parts that run already.
    """

    def __init__(self, say: Callable[[str], None], sockets: Sequence[int] = (), pids: Mapping[str, int] = {}) -> None:
        self._say = say
        self._sockets = sockets
        self._parts = {
            name: Part(name, argv, sockets if name == "runtime" else (), pids.get(name, 0))
            for name, argv in COMMANDS.items()
        }

    def run(self) -> int:
        """Run until a stop, or until a part will not stay up. Returns the exit code."""
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
        """End processes of the hall that became our children because their part died.

        Returns whether to look again. Other children are reaped: those of the script that became us, or
        of a container's process 1.
        """
        return guard.end_children(spare=[part.pid for part in self._parts.values()], is_target=is_of_the_hall)

    def _keep_up(self) -> int:
        """One look: start what is due. The exit code of a part that will not stay up, else 0."""
        for part in self._parts.values():
            code = part.exit_code()
            if code is not None:
                from mcp_runtime.protocol.errors import describe_exit

                delay = part.restart_delay()
                how = f"The {part.name} ended with {describe_exit(code)}"
                if delay is None:
                    self._say(f"{how} and will not stay up; stopping.")
                    return code if code > 0 else 1
                self._say(f"{how}; starting it again{f' in {delay:g} s' if delay else ''}.")
                part.start_at = time.monotonic() + delay
            elif part.start_at is not None and part.start_at <= time.monotonic():
                part.start()
        return 0

    def _pause(self) -> float | None:
        moments = [part.start_at for part in self._parts.values() if part.start_at is not None]
        return max(min(moments) - time.monotonic(), 0) if moments else None

    def _end(self) -> None:
        """Send SIGTERM to each part. After a second Ctrl-C, or after PATIENCE_SECONDS, kill those that are left."""
        for one in self._sockets:
            os.close(one)  # nobody waits for a runtime that does not come back
        is_terminated, deadline = False, time.monotonic() + PATIENCE_SECONDS
        kill_at = deadline + KILL_SECONDS
        while alive := [part for part in self._parts.values() if part.is_alive]:
            now = self._signals.stops > 1 or time.monotonic() > deadline
            if time.monotonic() > kill_at:
                for part in alive:
                    part.kill_group()  # its processes are orphans then
            elif now or not is_terminated:
                for part in alive:
                    part.terminate()
                is_terminated = True
            if now:
                self._parts["web"].kill_group()
                kill_at = min(kill_at, time.monotonic() + KILL_SECONDS)
            self._signals.wait(LOOK_SECONDS)
        deadline = time.monotonic() + KILL_SECONDS
        while self._end_orphans() and time.monotonic() < deadline:
            time.sleep(guard.SWEEP_INTERVAL)


class Words:
    """The messages on the console, by its descriptor."""

    def __init__(self, unwritten: Sequence[tuple[int, str]]) -> None:
        self._writers: dict[int, console.Writer] = {}
        for descriptor, text in unwritten:
            self._write(descriptor, text)

    def say(self, text: str) -> None:
        from mcp_runtime.system import console

        self._write(sys.stdout.fileno(), console.line("hall", text))

    def flush(self) -> None:
        for writer in self._writers.values():
            writer.flush()

    def _write(self, descriptor: int, text: str) -> None:
        from mcp_runtime.system import console

        if descriptor not in self._writers:
            stream = sys.stderr if descriptor == sys.stderr.fileno() else sys.stdout
            self._writers[descriptor] = console.Writer(stream)
        self._writers[descriptor].write(text)


def is_of_the_hall(pid: int) -> bool:
    """Whether a part of the hall started the process, or what it started, and so on (Linux)."""
    if birthmark.is_another(pid):
        return True
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            environment = file.read().split(b"\0")
    except OSError:
        return False
    own = {b"%s=%s" % item for item in os.environb.items()}
    return any(variable.startswith(HALL_VARIABLES) and variable not in own for variable in environment)


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
    path = os.environ.get("PYTHONPATH", "")
    parts = [BASE_DIR, *(part for part in path.split(os.pathsep) if part and part != BASE_DIR)]
    return os.pathsep.join(parts)


def main() -> int:
    state = read_state()
    words = Words(state.unwritten)
    code = Processes(words.say, state.sockets, state.pids).run()
    words.flush()
    return code


if __name__ == "__main__":
    sys.exit(main())
