"""One readable log stream: time, who speaks (a part of the hall, or a member), what is said. No Django.

A console that nobody reads (a full pipe, Ctrl-S) blocks nobody. A separate thread writes to it, and beyond a bound
lines are dropped and counted. `replace_standard_streams` does the same for what libraries and the interpreter print.

Log records quote members, clients and manifests. Whatever they say, a record is one line and moves no cursor.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import re
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from io import TextIOBase
from typing import IO
from weakref import WeakSet

WIDTH = 14
WAITING = 2000  # texts that wait for the console at most
FLUSH_SECONDS = 0.5
# What a terminal obeys, or what changes the order of what is shown: controls but for the tab, line and paragraph
# separators, bidirectional controls, lone surrogates.
CONTROLS = "\x00-\x08\x0a-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
_CONTROL = re.compile(f"[{CONTROLS}]")
_OF_THE_TRACEBACK_ITSELF = re.compile(
    r"[\s|+-]*(File \"|(Exception Group )?Traceback |The above exception was |During handling of the above )"
)


_writers: WeakSet[Writer] = WeakSet()


def line(speaker: str, text: str, moment: float | None = None) -> str:
    """`12:00:01 example        | listening on 20000`"""
    return f"{time.strftime('%H:%M:%S', time.localtime(moment))} {speaker:<{WIDTH}} | {visible(text)}"


def visible(text: str) -> str:
    """`text` with its control characters and line breaks as escapes: `\\x1b`, `\\n`, `\\u202e`."""
    return _CONTROL.sub(lambda match: ascii(match[0])[1:-1], text)


class LineFormatter(logging.Formatter):
    """The last part of the logger's name is the speaker: `guildhall.runtime` says "runtime"."""

    def format(self, record: logging.LogRecord) -> str:
        text = record.getMessage()
        if record.levelno >= logging.WARNING:
            text = f"{record.levelname.lower()}: {text}"
        parts = [text.removesuffix("\n")]
        if record.exc_info and record.exc_info[1]:
            parts += traceback_lines(record.exc_info[1])
        speaker = record.name.rsplit(".", 1)[-1]
        return "\n".join(line(speaker, part, record.created) for part in parts)


def flush() -> None:
    """What was logged is written, if the console takes it soon: for who ends without the interpreter's own end."""
    for handler in logging.getLogger().handlers:
        handler.flush()


def traceback_lines(error: BaseException) -> Iterator[str]:
    """Its traceback, line by line. An exception's own text, which may quote anybody, is one line of it."""
    for part in traceback.TracebackException.from_exception(error).format():
        is_own = _OF_THE_TRACEBACK_ITSELF.match(part)
        yield from part.strip("\n").split("\n") if is_own else [part.removesuffix("\n")]


def unwritten() -> list[tuple[int, str]]:
    """What was said and no console took yet, each with the descriptor: for a program that this process becomes."""
    return [(writer.descriptor, text) for writer in _writers for text in writer.unwritten()]


class Writer:
    """Writes to `stream` from a thread of its own; who speaks never waits."""

    def __init__(self, stream: IO[str] | TextIOBase) -> None:
        self._stream = stream
        self._reset()
        _writers.add(self)
        os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        """Begin empty in a fork: threads do not live on there, and the parent writes what waits."""
        self._texts: queue.Queue[str] = queue.Queue(WAITING)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._drop_count = 0
        self._under_way: str | None = None

    @property
    def descriptor(self) -> int:
        return self._stream.fileno()

    def unwritten(self) -> list[str]:
        """Whole texts: up to PIPE_BUF a pipe takes all of one or nothing."""
        return [text for text in (self._under_way, *self._texts.queue) if text is not None]

    def write(self, text: str) -> None:
        """`text`, a line or more, is written soon; dropped when WAITING others wait."""
        with self._lock:
            try:
                self._texts.put_nowait(text)
            except queue.Full:
                self._drop_count += 1
            if self._thread is None:
                self._start()

    def flush(self, seconds: float = FLUSH_SECONDS) -> None:
        """Returns when all is written, after `seconds` at most."""
        condition = self._texts.all_tasks_done
        with condition:
            condition.wait_for(lambda: not self._texts.unfinished_tasks, seconds)

    def _start(self) -> None:
        thread = threading.Thread(target=self._write_on, args=(self._texts,), name="console", daemon=True)
        # A signal that the main thread blocks would come through this one.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            thread.start()
            self._thread = thread
        except RuntimeError:  # no thread can be had, or the interpreter ends; the next text tries again
            with contextlib.suppress(queue.Empty):
                while True:
                    self._write_now(self._texts.get_nowait())
                    self._texts.task_done()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)

    def _write_on(self, texts: queue.Queue[str]) -> None:
        while True:
            self._under_way = texts.get()
            self._write_now(self._under_way)
            self._under_way = None
            if texts.empty():
                self._report_drops()
            texts.task_done()

    def _report_drops(self) -> None:
        with self._lock:
            count, self._drop_count = self._drop_count, 0
        if count:
            self._write_now(line("hall", f"… {count} more lines, which this console did not take in time"))

    def _write_now(self, text: str) -> None:
        """Not through the stream's buffer: its lock, held for ever, would break the end of the interpreter."""
        rest = f"{text}\n".encode(errors="backslashreplace")
        with contextlib.suppress(OSError, ValueError):  # nobody is there to read it, now or any more
            try:
                descriptor = self._stream.fileno()
            except (OSError, AttributeError):  # not of the system: a test's, or a caller's of call_command
                self._stream.write(rest.decode())
                return
            while rest:
                try:
                    rest = rest[os.write(descriptor, rest) :]
                except BlockingIOError:  # whoever shares it made it so
                    select.select([], [descriptor], [])


class NonBlockingStream(TextIOBase):
    """A text stream whose `write` never waits for `stream`. It writes whole lines, through a Writer."""

    def __init__(self, stream: IO[str] | TextIOBase) -> None:
        self._stream = stream
        self._writer = Writer(stream)
        self._line = ""  # that has no end yet

    def fileno(self) -> int:
        return self._stream.fileno()

    def isatty(self) -> bool:
        return self._stream.isatty()

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        lines, newline, self._line = (self._line + text).rpartition("\n")
        if newline:
            self._writer.write(lines)
        return len(text)

    def flush(self) -> None:
        """End the line, and give the console FLUSH_SECONDS to take it. The interpreter calls this before it ends."""
        if self._line:
            self.write("\n")
        self._writer.flush()


def replace_standard_streams() -> None:
    """Let warnings, tracebacks and other output of this process, and of its forks, never wait for the console."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, NonBlockingStream):
            setattr(sys, name, NonBlockingStream(stream))


class ConsoleHandler(logging.Handler):
    """Records go to `stream` through a Writer."""

    def __init__(self, stream: IO[str] | TextIOBase) -> None:
        super().__init__()
        self._writer = Writer(stream)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._writer.write(self.format(record))
        except Exception:  # noqa: BLE001 - as logging's own handlers do
            self.handleError(record)

    def flush(self) -> None:
        """What was said is written, if the console takes it soon; logging asks for it at exit."""
        self._writer.flush()
