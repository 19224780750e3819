"""The server as the bridge's only child: its process, its pipes, and its end."""

from __future__ import annotations

import os
import selectors
import signal
import sys
import time
from collections.abc import Callable
from io import FileIO

from mcp_runtime.bridge.command import EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND
from mcp_runtime.bridge.complaints import complain
from mcp_runtime.bridge.messages import READ_BYTES, Lines, Message, encode

MAX_BACKLOG = 16_000_000  # bytes that the server has not read: four bodies of callers
# The server is ended in the order of MCP: close its input, then SIGTERM, then SIGKILL. Seconds after the first step.
# SIGTERM is not sent at once, because the hall sends it to the whole group. For some servers two SIGTERM mean "hurry".
TERMINATE_AFTER = 0.5
KILL_AFTER = 2.0  # before the hall kills the bridge
PR_SET_PDEATHSIG = 1


class StdioServer:
    """The server. `on_line` gets each line, and whether it was cut. `on_end` is called at the end of the output."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        argv: list[str],
        max_bytes: int,
        *,
        on_line: Callable[[bytes, bool], None],
        on_end: Callable[[], None],
    ) -> None:
        self._selector = selector
        self._argv = argv
        self._max_bytes = max_bytes
        self._on_line = on_line
        self._on_end = on_end
        self._unsent = bytearray()
        self._lines = Lines(max_bytes)
        self._end_steps: list[tuple[float, Callable[[], None]]] | None = None

    def start(self) -> int:
        """Start the server. Returns 0, or if it cannot be started the exit code that a shell would have."""
        try:
            self._process = Child(self._argv)
        except FileNotFoundError:
            complain(f"command not found: {self._argv[0]!r}")
            return EXIT_NOT_FOUND
        except OSError as error:
            complain(f"command {self._argv[0]!r} cannot be started: {error.strerror}")
            return EXIT_NOT_EXECUTABLE
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        for pipe in (self._stdin, self._stdout):
            os.set_blocking(pipe.fileno(), False)
        self._selector.register(self._stdout, selectors.EVENT_READ, lambda _: self._read())
        return 0

    def poll(self) -> int | None:
        """The exit status, -n for signal n. None while it runs."""
        return self._process.poll()

    def begin_end(self) -> None:
        """Close the server's input, and plan the signals in case it does not end."""
        if self._end_steps is None:
            now = time.monotonic()
            self._end_steps = [(now + TERMINATE_AFTER, self._process.terminate), (now + KILL_AFTER, self._process.kill)]
            self._close_input()

    def patience(self) -> float | None:
        """Take the steps of the end that are due. Returns the seconds until the next step."""
        while self._end_steps:
            remaining = self._end_steps[0][0] - time.monotonic()
            if remaining > 0:
                return remaining
            self._end_steps.pop(0)[1]()
        return None

    def read_rest(self) -> None:
        """Read the last output after the server has ended, without waiting."""
        if self._stdout in self._selector.get_map():
            for _ in range(2 * self._max_bytes // READ_BYTES + 1):  # a process that inherited the pipe may still write
                if not self._read():
                    break

    @property
    def unfinished_line(self) -> bytes:
        """What it wrote to stdout after its last newline."""
        return self._lines.rest

    def send(self, message: Message) -> bool:
        """Send a message. Returns False if the server does not read, because that must not fill the memory."""
        if self._stdin.closed or len(self._unsent) > MAX_BACKLOG:
            return False
        try:
            self._unsent += encode(message) + b"\n"
        except RecursionError:
            return False
        self._write()
        return True

    def _write(self) -> None:
        if self._stdin.closed:  # another callback of the same turn may close it
            return
        try:
            del self._unsent[: os.write(self._stdin.fileno(), self._unsent)]
        except BlockingIOError:
            pass
        except OSError:
            self._close_input()  # the server has closed its input. While it runs, requests get an error
            return
        self._watch(self._stdin, selectors.EVENT_WRITE, (lambda _: self._write()) if self._unsent else None)

    def _close_input(self) -> None:
        if not self._stdin.closed:
            self._watch(self._stdin, selectors.EVENT_WRITE, None)
            self._unsent.clear()
            self._stdin.close()

    def _watch(self, pipe: FileIO, events: int, callback: Callable[[int], object] | None) -> None:
        """Call `callback` when the pipe is ready. None ends that."""
        is_watched = pipe in self._selector.get_map()
        if callback and not is_watched:
            self._selector.register(pipe, events, callback)
        elif is_watched and not callback:
            self._selector.unregister(pipe)

    def _read(self) -> bool:
        """Read once. Returns whether there was something to read."""
        try:
            chunk = os.read(self._stdout.fileno(), READ_BYTES)
        except BlockingIOError:
            return False
        if not chunk:
            self._selector.unregister(self._stdout)
            self._on_end()
            return False
        for line, is_cut in self._lines.feed(chunk):
            self._on_line(line, is_cut)
        return True


class Child:
    """A process with pipes to its stdin and from its stdout. `subprocess` would take 0.8 MB in each bridge."""

    def __init__(self, argv: list[str]) -> None:
        """Raises OSError if the command cannot be executed."""
        stdin, self_stdin = os.pipe()
        self_stdout, stdout = os.pipe()
        fault_reader, fault_writer = os.pipe()  # a successful exec closes the writer
        self._status: int | None = None
        parent = os.getpid()
        self._pid = os.fork()  # the bridge has one thread, so Python code is safe in the fork
        if not self._pid:
            try:
                os.dup2(stdin, 0)
                os.dup2(stdout, 1)
                end_with(parent)
                for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores these, and children inherit that
                    signal.signal(number, signal.SIG_DFL)
                os.execvp(argv[0], argv)  # noqa: S606 - it must not use a shell
            except OSError as error:
                os.write(fault_writer, str(error.errno).encode())
            finally:
                os._exit(EXIT_NOT_EXECUTABLE)
        for descriptor in (stdin, stdout, fault_writer):
            os.close(descriptor)
        self.stdin, self.stdout = FileIO(self_stdin, "w"), FileIO(self_stdout)
        with FileIO(fault_reader) as file:
            text = file.read()
        if text:
            os.waitpid(self._pid, 0)
            raise OSError(int(text), os.strerror(int(text)))  # Python chooses the subclass by the number

    def poll(self) -> int | None:
        """The exit status, -n for signal n. None while it runs."""
        if self._status is None:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            self._status = os.waitstatus_to_exitcode(status) if pid else None
        return self._status

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if self.poll() is None:  # until it is reaped, no other process can have its pid
            os.kill(self._pid, number)


def end_with(parent: int) -> None:
    """Let this process die with the bridge, before it executes the server.

    Only Linux can do that. On other systems the server notices the end of its input.
    """
    if sys.platform == "linux":
        import ctypes  # the bridge itself does not need it

        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
