"""Members' output. One thread reads it for all, slows down writers, and stores it in bounded files. No Django."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import logging
import logging.handlers
import os
import sys
import threading
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import IO, ClassVar

from mcp_runtime.members import log_spans, logs
from mcp_runtime.secrets.references import Mask
from mcp_runtime.system.loops import loop

logger = logging.getLogger("guildhall.runtime")

TAIL_LINES = 20
MAX_LINE = 4000
LOG_BYTES = 1_000_000
READ_BYTES = 16_384
LAST_BYTES = 1_048_576  # of the last output of a member that ended. No user's pipe in Linux is larger
# The output of all members together is read at this speed. Members that write faster wait in their own write(). Each
# read, each line and each line on the console costs CPU time too, and counts as this many more bytes. All of it takes
# 1 to 5 % of a core.
BYTES_PER_SECOND = 500_000
READ_COST = 500
LINE_COST = 20
CONSOLE_COST = 500
MASK_COST = 10  # for each secret and each of its lines
PAUSE = 0.02  # the minimum of seconds between two reads of a member
CONSOLE_LINES_PER_SECOND = 50
COMPLAIN_SECONDS = 60.0
# Seconds after the exit of a member in which the output of other processes with its pipe is still read.
DRAIN_AFTER_EXIT = 2.0


class MemberLog:
    """A member's output. It goes to the console with its name, and to a bounded rotating file.

    `secrets` are the secrets that the process has. `mask` masks them.
    """

    def __init__(self, name: str, path: Path, secrets: Collection[str] = ()) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._name = name
        self.mask = Mask(secrets)
        self._console = logging.getLogger(f"guildhall.member.{name}")
        self._file = _LogFile(name, path)
        self._tail: collections.deque[str] = collections.deque(maxlen=TAIL_LINES)
        self._second = 0
        self._lines_this_second = 0

    def write(self, lines: Sequence[str]) -> int:
        """Write `lines` to the log and the console. Long ones are split. Returns how many of them the console shows."""
        clean = [logs.plain(line) for line in lines]
        if self.mask.cost:  # before the lines are split, because a secret may stand at the cut
            clean = self.mask.apply("\n".join(clean)).split("\n")
        if max(map(len, clean)) > MAX_LINE:
            clean = [line[start : start + MAX_LINE] for line in clean for start in range(0, len(line) or 1, MAX_LINE)]
        self._tail.extend(clean)
        stamp = log_spans.stamp(time.time())
        self._file.handle(logging.makeLogRecord({"msg": "\n".join([f"{stamp} {line}" for line in clean])}))
        return self._show(clean)

    def _show(self, lines: list[str]) -> int:
        second = int(time.monotonic())
        if second != self._second:
            if self._lines_this_second > CONSOLE_LINES_PER_SECOND:
                hidden_count = self._lines_this_second - CONSOLE_LINES_PER_SECOND
                self._console.info("… %d more lines: guildhall logs %s", hidden_count, self._name)
            self._second, self._lines_this_second = second, 0
        visible = lines[: max(CONSOLE_LINES_PER_SECOND - self._lines_this_second, 0)]
        self._lines_this_second += len(lines)
        for line in visible:
            self._console.info("%s", line)
        return len(visible)

    def tail(self) -> str:
        return "\n".join(list(self._tail))

    def last_line(self) -> str:
        return next((line for line in reversed(list(self._tail)) if line.strip()), "").strip()

    def close(self) -> None:
        self._file.close()


class _LogFile(logging.handlers.RotatingFileHandler):
    """Handles a full disk. Lines of the log are lost, and a message says so from time to time."""

    def __init__(self, name: str, path: Path) -> None:
        super().__init__(
            path, maxBytes=LOG_BYTES, backupCount=logs.BACKUPS, encoding="utf-8", errors="replace", delay=True
        )
        self._member = name
        self._complain_at = 0.0

    def handleError(self, record: logging.LogRecord) -> None:
        stream, self.stream = self.stream, None  # otherwise the text in its buffer would make all further writes fail
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()
        if time.monotonic() >= self._complain_at:
            self._complain_at = time.monotonic() + COMPLAIN_SECONDS
            reason = getattr(sys.exception(), "strerror", None) or sys.exception()
            text = "the log of member %r cannot be written (%s); its lines are lost until it can"
            logger.warning(text, self._member, reason)


class Output:
    """The reading end of a member's pipe. It closes the pipe. One thread reads the pipes of all members."""

    _paused: ClassVar[set[Output]] = set()  # those that were just read. Only the reading thread uses it

    def __init__(self, pipe: IO[bytes], log: MemberLog) -> None:
        self._pipe = pipe
        self._descriptor = pipe.fileno()
        self._log = log
        self._incomplete_line = b""
        self._next_read: asyncio.TimerHandle | None = None
        self._is_closed = False
        self._is_complete = threading.Event()
        self._loop = loop("member-output")
        os.set_blocking(self._descriptor, False)
        self._loop.call_soon_threadsafe(self._listen)

    def finish(self, timeout: float) -> None:
        """Read the last output of a member that ended. Waits for that at most `timeout` seconds."""
        self._loop.call_soon_threadsafe(self._read_last)
        self.wait_until_read(timeout)

    def wait_until_read(self, timeout: float) -> None:
        """Wait until `finish` has read the last output, at most `timeout` seconds."""
        self._is_complete.wait(timeout)

    # On the reading thread ----------------------------------------------------------------------------------------

    def _listen(self) -> None:
        self._paused.discard(self)
        self._next_read = None
        self._loop.add_reader(self._descriptor, self._read_and_pause)

    def _read_and_pause(self) -> None:
        cost = self._read(READ_BYTES)
        if self._is_closed:
            return
        self._loop.remove_reader(self._descriptor)
        self._paused.add(self)
        # Paused members share the speed equally, so a member that writes little is read soon whatever others write.
        self._next_read = self._loop.call_later(max(PAUSE, cost * len(self._paused) / BYTES_PER_SECOND), self._listen)

    def _read_last(self) -> None:
        if not self._is_closed:
            self._read(LAST_BYTES)
            if self._incomplete_line and not self._is_closed:
                self._keep(b"\n")
            self._loop.call_later(DRAIN_AFTER_EXIT, self._close)
        self._is_complete.set()

    def _read(self, most: int) -> int:
        """Read up to `most` bytes, and store them. Returns the cost in bytes."""
        try:
            chunk = os.read(self._descriptor, most)
        except BlockingIOError:
            return READ_COST
        if chunk:
            return READ_COST + self._keep(chunk)
        self._close()
        return READ_COST

    def _keep(self, chunk: bytes) -> int:
        complete, newline, incomplete = chunk.rpartition(b"\n")
        if newline:
            complete, self._incomplete_line = self._incomplete_line + complete, incomplete
        else:
            complete, self._incomplete_line = b"", self._incomplete_line + chunk
        mask = self._log.mask
        lines = _lines(complete) if newline else []
        if len(self._incomplete_line) > MAX_LINE + mask.longest:
            text = mask.apply(self._incomplete_line.decode("utf-8", "surrogateescape"))
            # A secret at the end may not be complete yet, so the end is cut later.
            end = max((len(text) - mask.longest) // MAX_LINE * MAX_LINE, 0)
            lines += _lines(text[:end].encode("utf-8", "surrogateescape")) if end else []
            self._incomplete_line = text[end:].encode("utf-8", "surrogateescape")
        visible_count = self._log.write(lines) if lines else 0
        return len(chunk) + LINE_COST * len(lines) + CONSOLE_COST * visible_count + MASK_COST * mask.cost

    def _close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        if self._next_read is not None:
            self._next_read.cancel()
        self._paused.discard(self)
        self._loop.remove_reader(self._descriptor)
        self._pipe.close()
        if self._incomplete_line:
            self._keep(b"\n")
        self._log.close()


def _lines(text: bytes) -> list[str]:
    """The lines of `text`, which is decoded at once, because most lines are short."""
    return [line.rstrip("\r") for line in text.decode("utf-8", "replace").split("\n")]
