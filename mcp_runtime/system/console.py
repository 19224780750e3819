"""One readable log stream. A line has the time, the source (a part of the hall, or a member) and a text. No Django.

A console that nobody reads (a full pipe, Ctrl-S) blocks nobody. A separate thread writes to it. If too many lines wait,
further lines are dropped and counted. `replace_standard_streams` does the same for output of libraries and the
interpreter.

Log records quote members, clients and manifests. Whatever the quoted text is, a record is one line and moves no cursor.
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
# Characters that control a terminal or change the order of text: controls except the tab, line and paragraph
# separators, bidirectional controls, lone surrogates.
CONTROLS = "\x00-\x08\x0a-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
_CONTROL = re.compile(f"[{CONTROLS}]")
_TRACEBACK_LINE = re.compile(
    r"[\s|+-]*(File \"|(Exception Group )?Traceback |The above exception was |During handling of the above )"
)


_writers: WeakSet[Writer] = WeakSet()


def line(source: str, text: str, moment: float | None = None) -> str:
    """`12:00:01 example        | listening on 20000`"""
    return f"{time.strftime('%H:%M:%S', time.localtime(moment))} {source:<{WIDTH}} | {visible(text)}"


def visible(text: str) -> str:
    """`text` with its control characters and line breaks as escapes: `\\x1b`, `\\n`, `\\u202e`."""
    return _CONTROL.sub(lambda match: ascii(match[0])[1:-1], text)


class LineFormatter(logging.Formatter):
    """Formats records. The source is the last part of the logger's name: "runtime" for `guildhall.runtime`."""

    def format(self, record: logging.LogRecord) -> str:
        text = record.getMessage()
        if record.levelno >= logging.WARNING:
            text = f"{record.levelname.lower()}: {text}"
        parts = [text.removesuffix("\n")]
        if record.exc_info and record.exc_info[1]:
            parts += traceback_lines(record.exc_info[1])
        source = record.name.rsplit(".", 1)[-1]
        return "\n".join(line(source, part, record.created) for part in parts)


def flush() -> None:
    """Write all waiting log records, if the console accepts them soon. For processes that end without Python's exit."""
    for handler in logging.getLogger().handlers:
        handler.flush()


def traceback_lines(error: BaseException) -> Iterator[str]:
    """The traceback, line by line. The text of an exception may quote anybody, so it is one line."""
    for part in traceback.TracebackException.from_exception(error).format():
        is_own = _TRACEBACK_LINE.match(part)
        yield from part.strip("\n").split("\n") if is_own else [part.removesuffix("\n")]


def unwritten() -> list[tuple[int, str]]:
    """Texts that no console has accepted yet, each with its descriptor. For a program that this process becomes."""
    return [(writer.descriptor, text) for writer in _writers for text in writer.unwritten()]


class Writer:
    """Writes to `stream` from a separate thread, so that callers never wait."""

    def __init__(self, stream: IO[str] | TextIOBase) -> None:
        self._stream = stream
        self._reset()
        _writers.add(self)
        os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        """Begin empty in a fork. Threads do not exist there, and the parent writes the waiting texts."""
        self._texts: queue.Queue[str] = queue.Queue(WAITING)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._drop_count = 0
        self._in_progress: str | None = None

    @property
    def descriptor(self) -> int:
        return self._stream.fileno()

    def unwritten(self) -> list[str]:
        """Waiting texts, always whole. A pipe accepts a text of up to PIPE_BUF as a whole, or nothing of it."""
        return [text for text in (self._in_progress, *self._texts.queue) if text is not None]

    def write(self, text: str) -> None:
        """Write `text`, one or more lines, soon. It is dropped if WAITING others wait."""
        with self._lock:
            try:
                self._texts.put_nowait(text)
            except queue.Full:
                self._drop_count += 1
            if self._thread is None:
                self._start()

    def flush(self, seconds: float = FLUSH_SECONDS) -> None:
        """Wait until all is written, at most `seconds`."""
        condition = self._texts.all_tasks_done
        with condition:
            condition.wait_for(lambda: not self._texts.unfinished_tasks, seconds)

    def _start(self) -> None:
        thread = threading.Thread(target=self._write_on, args=(self._texts,), name="console", daemon=True)
        # This thread must block all signals, or it would receive those that the main thread blocks.
        previous_mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            thread.start()
            self._thread = thread
        except RuntimeError:  # no thread can be started, or the interpreter ends. The next text tries again
            with contextlib.suppress(queue.Empty):
                while True:
                    self._write_now(self._texts.get_nowait())
                    self._texts.task_done()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, previous_mask)

    def _write_on(self, texts: queue.Queue[str]) -> None:
        while True:
            self._in_progress = texts.get()
            self._write_now(self._in_progress)
            self._in_progress = None
            if texts.empty():
                self._report_drops()
            texts.task_done()

    def _report_drops(self) -> None:
        with self._lock:
            count, self._drop_count = self._drop_count, 0
        if count:
            self._write_now(line("hall", f"… {count} more lines, which this console did not take in time"))

    def _write_now(self, text: str) -> None:
        """Bypass the stream's buffer. If its lock were never released, the interpreter could not end."""
        rest = f"{text}\n".encode(errors="backslashreplace")
        with contextlib.suppress(OSError, ValueError):  # nothing reads it, now or any more
            try:
                descriptor = self._stream.fileno()
            except (OSError, AttributeError):  # not a stream of the system, as in tests or with call_command
                self._stream.write(rest.decode())
                return
            while rest:
                try:
                    rest = rest[os.write(descriptor, rest) :]
                except BlockingIOError:  # another process that shares it has set it to non-blocking
                    select.select([], [descriptor], [])


class NonBlockingStream(TextIOBase):
    """A text stream whose `write` never waits for `stream`. It writes whole lines of each thread, through a Writer."""

    def __init__(self, stream: IO[str] | TextIOBase) -> None:
        self._stream = stream
        self._writer = Writer(stream)
        # The incomplete line of each thread. A lock could be held by another thread at a fork.
        self._lines = threading.local()

    def fileno(self) -> int:
        return self._stream.fileno()

    def isatty(self) -> bool:
        return self._stream.isatty()

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        lines, newline, self._lines.last = (getattr(self._lines, "last", "") + text).rpartition("\n")
        if newline:
            self._writer.write(lines)
        return len(text)

    def flush(self) -> None:
        """End the line, and give the console FLUSH_SECONDS to take it. The interpreter calls this before it ends."""
        if getattr(self._lines, "last", ""):
            self.write("\n")
        self._writer.flush()


def replace_standard_streams() -> None:
    """Let warnings, tracebacks and other output of this process, and of its forks, never wait for the console."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, NonBlockingStream):
            setattr(sys, name, NonBlockingStream(stream))


class ConsoleHandler(logging.Handler):
    """Writes records to `stream` with a Writer."""

    def __init__(self, stream: IO[str] | TextIOBase) -> None:
        super().__init__()
        self._writer = Writer(stream)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._writer.write(self.format(record))
        except Exception:  # noqa: BLE001 - as logging's own handlers do
            self.handleError(record)

    def flush(self) -> None:
        """Write all waiting records, if the console accepts them soon. `logging` calls this at exit."""
        self._writer.flush()
