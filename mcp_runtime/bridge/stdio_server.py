"""The server as the bridge's one child: its process, its pipes, and its end."""

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

MAX_BACKLOG = 16_000_000  # bytes that the server does not read: four bodies of callers
# The end of the server, in the order MCP asks for: the end of its input, SIGTERM, SIGKILL; seconds after the first.
# Not SIGTERM at once: the hall sends its own to the whole group, and two of them mean "hurry" to some servers.
TERMINATE_AFTER = 0.5
KILL_AFTER = 2.0  # sooner than the hall's patience with us ends
PR_SET_PDEATHSIG = 1


class StdioServer:
    """`on_line` is given each line of the server, and whether it was cut; `on_end` is told of the end of its output."""

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
        """The exit code where it cannot be started, said as shells say it; else 0."""
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
        """Its exit status, -n for signal n; None while it runs."""
        return self._process.poll()

    def begin_end(self) -> None:
        """It is to end: what it does not do by itself is due soon."""
        if self._end_steps is None:
            now = time.monotonic()
            self._end_steps = [(now + TERMINATE_AFTER, self._process.terminate), (now + KILL_AFTER, self._process.kill)]
            self._close_input()

    def patience(self) -> float | None:
        """Seconds until the next step of the end is due; steps that are due are taken."""
        while self._end_steps:
            left = self._end_steps[0][0] - time.monotonic()
            if left > 0:
                return left
            self._end_steps.pop(0)[1]()
        return None

    def read_rest(self) -> None:
        """It ended: what it said last, as far as that goes without waiting."""
        if self._stdout in self._selector.get_map():
            for _ in range(2 * self._max_bytes // READ_BYTES + 1):  # somebody who inherited the pipe may still write
                if not self._read():
                    break

    def tell(self, message: Message) -> bool:
        """Whether it will be told: one that does not read must not fill our memory."""
        if self._stdin.closed or len(self._unsent) > MAX_BACKLOG:
            return False
        try:
            self._unsent += encode(message) + b"\n"
        except RecursionError:
            return False
        self._write()
        return True

    def _write(self) -> None:
        if self._stdin.closed:  # by another callback of the same turn
            return
        try:
            del self._unsent[: os.write(self._stdin.fileno(), self._unsent)]
        except BlockingIOError:
            pass
        except OSError:
            self._close_input()  # it wants to hear no more; while it runs, requests get an error
            return
        self._watch(self._stdin, selectors.EVENT_WRITE, (lambda _: self._write()) if self._unsent else None)

    def _close_input(self) -> None:
        if not self._stdin.closed:
            self._watch(self._stdin, selectors.EVENT_WRITE, None)
            self._unsent.clear()
            self._stdin.close()

    def _watch(self, pipe: FileIO, events: int, callback: Callable[[int], object] | None) -> None:
        """Have `callback` called when the pipe is ready, or nobody."""
        is_watched = pipe in self._selector.get_map()
        if callback and not is_watched:
            self._selector.register(pipe, events, callback)
        elif is_watched and not callback:
            self._selector.unregister(pipe)

    def _read(self) -> bool:
        """Whether there was something to read."""
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
    """A process with pipes to its stdin and from its stdout. subprocess would take each bridge 0.8 MB."""

    def __init__(self, argv: list[str]) -> None:
        """Raises OSError where it cannot be executed."""
        stdin, self_stdin = os.pipe()
        self_stdout, stdout = os.pipe()
        fault, told_fault = os.pipe()  # closed by the execution itself
        self._status: int | None = None
        parent = os.getpid()
        self._pid = os.fork()  # we have one thread, so Python is safe behind it
        if not self._pid:
            try:
                os.dup2(stdin, 0)
                os.dup2(stdout, 1)
                end_with(parent)
                for number in (signal.SIGPIPE, signal.SIGXFSZ):  # which Python ignores, and what it starts would too
                    signal.signal(number, signal.SIG_DFL)
                os.execvp(argv[0], argv)  # noqa: S606 - no shell is wanted
            except OSError as error:
                os.write(told_fault, str(error.errno).encode())
            finally:
                os._exit(EXIT_NOT_EXECUTABLE)
        for descriptor in (stdin, stdout, told_fault):
            os.close(descriptor)
        self.stdin, self.stdout = FileIO(self_stdin, "w"), FileIO(self_stdout)
        with FileIO(fault) as file:
            text = file.read()
        if text:
            os.waitpid(self._pid, 0)
            raise OSError(int(text), os.strerror(int(text)))  # a subclass of it, by the number

    def poll(self) -> int | None:
        """Its exit status, -n for signal n; None while it runs."""
        if self._status is None:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            self._status = os.waitstatus_to_exitcode(status) if pid else None
        return self._status

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if self.poll() is None:  # its pid is its own until it is reaped
            os.kill(self._pid, number)


def end_with(parent: int) -> None:
    """In the server's process, before it is the server: it dies with us (Linux; elsewhere its input's end tells it)."""
    if sys.platform == "linux":
        import ctypes  # we ourselves do without

        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
