"""Runs the hall's processes, guard and web. `manage.py up` becomes this program after it has started them.

It is a separate program with only the standard library. It takes over the processes that `manage.py up` has started
(see `warm`), and restarts those that end. Most of the time it waits, so it should use little memory. It imports modules
for the end of a part, or for its messages, only on use.
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

TYPE_CHECKING = False  # as in `typing`, whose import takes half a megabyte
if TYPE_CHECKING:
    import subprocess

    from mcp_runtime.system import console

# A part that ended without a stop is restarted. If it ran for long, it is restarted at once, because agents cannot
# connect meanwhile. Otherwise it is restarted after these pauses in seconds. One more quick death ends the hall.
RESTART_DELAYS = (1.0, 2.0, 4.0)
QUICK_DEATH_SECONDS = 10.0
PATIENCE_SECONDS = 8.0
LOOK_SECONDS = 0.2
KILL_SECONDS = 1.0  # from a second SIGTERM to SIGKILL, for a part that hangs, and for the end of its orphans
# Only the hall's processes have these variables. They identify them on systems without birthmarks.
HALL_VARIABLES = (b"GUILD_HALL_MEMBER=", b"GUILD_HALL_GUARD_PID=", b"GUILD_HALL_END_WITH_PARENT=")
PROGRAM = os.path.realpath(__file__)
BASE_DIR = os.path.dirname(os.path.dirname(os.path.dirname(PROGRAM)))

PIPE_BYTES = 16_384  # the capacity of the smallest pipe

COMMANDS = {
    "runtime": guard.COMMAND,
    "web": [sys.executable, "-m", "guildhall.web"],
}


class State:
    """The state that `manage.py up` passes to this program. No dataclass, because its import takes a megabyte."""

    def __init__(
        self, pids: Mapping[str, int], sockets: Sequence[int], unwritten: Sequence[tuple[int, str]] = ()
    ) -> None:
        self.pids = pids  # of the parts that run already
        self.sockets = sockets  # the gateway's, as descriptors
        self.unwritten = unwritten  # texts that no console has accepted yet, each with its descriptor


def command_line(state: State) -> list[str]:
    """The command to execute in the place of `manage.py up`. It takes over `state`."""
    reader, writer = os.pipe()
    unwritten = list(state.unwritten)
    # `up` itself writes only a few lines. If there are too many, drop the last ones.
    while len(text := marshal.dumps([dict(state.pids), list(state.sockets), unwritten])) > PIPE_BYTES:
        unwritten.pop()
    os.write(writer, text)
    os.close(writer)
    for descriptor in (reader, *state.sockets):
        os.set_inheritable(descriptor, True)
    os.environ["GUILD_HALL_UP_STATE"] = str(reader)
    # By its path, because -m takes a megabyte. The last two arguments are for `ps`.
    return [sys.executable, "-S", "-P", PROGRAM, "manage.py", "up"]


def read_state() -> State:
    number = os.environ.pop("GUILD_HALL_UP_STATE", "")  # the descriptor of the file
    if not number:
        return State({}, [])
    with open(int(number), "rb") as file:
        state = State(*marshal.load(file))  # noqa: S302 - written by ourselves
    for descriptor in state.sockets:
        os.set_inheritable(descriptor, False)  # each part gets only its own
    return state


class Signals:
    """Waits for signals. No threading.Event, because a handler that sets it during its `wait` would block for ever."""

    def __init__(self) -> None:
        self.stops = 0
        self._reader, writer = os.pipe()
        for end in (self._reader, writer):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        for number in guard.STOP_SIGNALS:
            signal.signal(number, self._on_stop)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, guard.STOP_SIGNALS)  # `warm` has blocked them

    def _on_stop(self, number: int, frame: FrameType | None) -> None:
        # A terminal that closes sends SIGHUP more than once, which does not count as a second Ctrl-C.
        self.stops = max(self.stops, 1) if number == signal.SIGHUP else self.stops + 1

    def wait(self, seconds: float | None) -> None:
        """Wait for a signal, including SIGCHLD."""
        select.select([self._reader], [], [], seconds)
        with contextlib.suppress(BlockingIOError):
            os.read(self._reader, 4096)


class ForkedProcess:
    """A child that was forked before this program. It has the methods of subprocess.Popen that are needed here."""

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
    """A child in a separate session, so that the terminal's Ctrl-C reaches only this program, which ends the child.

    The child and its successors inherit `sockets`, which are descriptors. With `pid` it runs already.
    """

    def __init__(self, name: str, argv: list[str], sockets: Sequence[int] = (), pid: int = 0) -> None:
        self.name = name
        self._argv = argv
        self._sockets = sockets
        self._process: subprocess.Popen[bytes] | ForkedProcess | None = ForkedProcess(pid) if pid else None
        self._started_at = time.monotonic()
        self._quick_deaths = 0
        self.start_at: float | None = None if pid else 0.0  # when to start it, or None while it runs

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
        """The exit code of a part that ended since the last check, or None."""
        return self._process.poll() if self._process and self.start_at is None else None

    def restart_delay(self, exit_code: int = 1) -> float | None:
        """Seconds until the next start. None if the part has ended too often.

        An end by the fence does not count, because its cause is a database that is away, again and again perhaps.
        """
        is_quick = time.monotonic() - self._started_at < QUICK_DEATH_SECONDS
        if exit_code == guard.EX_FENCED:
            return RESTART_DELAYS[0] if is_quick else 0.0
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
    """Starts runtime and web, restarts them when they end, and stops them together.

    `sockets` are descriptors of the runtime's sockets for agents. `pids` are the parts that run already.
    """

    def __init__(self, say: Callable[[str], None], sockets: Sequence[int] = (), pids: Mapping[str, int] = {}) -> None:
        self._say = say
        self._sockets = sockets
        self._parts = {
            name: Part(name, argv, sockets if name == "runtime" else (), pids.get(name, 0))
            for name, argv in COMMANDS.items()
        }

    def run(self) -> int:
        """Run until a stop, or until a part has ended too often. Returns the exit code."""
        guard.become_subreaper()
        self._signals = Signals()
        code = 0
        while not self._signals.stops and not code:
            look_again = self._end_orphans()
            code = self._keep_up()
            if not code:
                self._signals.wait(LOOK_SECONDS if look_again else self._pause())  # the end of a child ends the wait
        self._end()
        return code

    def _end_orphans(self) -> bool:
        """End processes of the hall that became our children because their part died.

        Returns whether to look again. Other children are only reaped. They are from the script that became this
        program, or from a container's process 1.
        """
        return guard.end_children(spare=[part.pid for part in self._parts.values()], is_target=is_of_the_hall)

    def _keep_up(self) -> int:
        """Start the parts that are due. Returns the exit code of a part that has ended too often, or 0."""
        for part in self._parts.values():
            code = part.exit_code()
            if code is not None:
                from mcp_runtime.protocol.errors import describe_exit

                delay = part.restart_delay(code)
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
        """Send SIGTERM to each part. After a second Ctrl-C, or after PATIENCE_SECONDS, kill the remaining parts."""
        for descriptor in self._sockets:
            os.close(descriptor)  # clients must not wait for a runtime that does not come back
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


class Messages:
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
    """Whether the process is a descendant of a part of the hall (Linux)."""
    if birthmark.is_another(pid):
        return True
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            environment = file.read().split(b"\0")
    except OSError:
        return False
    own_environment = {b"%s=%s" % item for item in os.environb.items()}
    return any(variable.startswith(HALL_VARIABLES) and variable not in own_environment for variable in environment)


def part_environment() -> dict[str, str]:
    """The variables that a part gets in addition to the environment of this process."""
    return {
        "PYTHONPATH": python_path(),
        "PYTHONUNBUFFERED": "1",
        # On Linux the parts end with this process, however it ends.
        "GUILD_HALL_END_WITH_PARENT": str(os.getpid()),
    }


def python_path() -> str:
    """The PYTHONPATH with the hall's folder first, so that the current directory does not matter."""
    path = os.environ.get("PYTHONPATH", "")
    parts = [BASE_DIR, *(part for part in path.split(os.pathsep) if part and part != BASE_DIR)]
    return os.pathsep.join(parts)


def main() -> int:
    state = read_state()
    messages = Messages(state.unwritten)
    code = Processes(messages.say, state.sockets, state.pids).run()
    messages.flush()
    return code


if __name__ == "__main__":
    sys.exit(main())
