"""The lines of a member's log between two times. Each line begins with the time when the hall read it. No Django."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime

MAX_LINES = 1_000
FULL_BYTES = 2_000_000  # a log with as many has lost older lines, because it was rotated (mcp_runtime.members.output)
MAX_PENDING = 64_000  # bytes of a line without an end. Its rest is another line
# The hall reads the output of members at a limited speed, so the last lines of a call may have a later time.
READ_SECONDS = 0.1
_STAMP = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2},[0-9]{3}")


@dataclass(frozen=True)
class Span:
    """The first MAX_LINES lines, with their times."""

    lines: list[str]
    is_cut: bool = False  # whether there are more lines
    is_late: bool = False  # whether the stored log begins after the beginning of the span


def stamp(seconds: float) -> str:
    """The time at the beginning of a line, in the time zone of the process."""
    return f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(seconds))},{int(seconds % 1 * 1000):03}"


def span(chunks: Iterable[bytes], begin: datetime, end: datetime) -> Span:
    """The lines of a whole log, oldest first, from `begin` to READ_SECONDS after `end`."""
    first_stamp, last_stamp = stamp(begin.timestamp()), stamp(end.timestamp() + READ_SECONDS)
    counted = _Counted(chunks)
    lines: list[str] = []
    is_cut, oldest = False, ""
    current = ""  # the time of a line, also of the next lines without a time
    for line in _lines(counted):
        match = _STAMP.match(line)
        current = match[0] if match else current
        oldest = oldest or current
        is_cut = first_stamp <= current <= last_stamp and len(lines) == MAX_LINES
        if current > last_stamp or is_cut:
            break
        if current >= first_stamp:
            lines.append(line)
    return Span(lines, is_cut, is_late=oldest > first_stamp and counted.read_rest() >= FULL_BYTES)


class _Counted:
    """The chunks, and the number of their bytes."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = iter(chunks)
        self._bytes = 0

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self._chunks:
            self._bytes += len(chunk)
            yield chunk

    def read_rest(self) -> int:
        """Read all chunks. Returns the number of bytes."""
        for chunk in self._chunks:
            self._bytes += len(chunk)
        return self._bytes


def _lines(chunks: Iterable[bytes]) -> Iterator[str]:
    partial = b""
    for chunk in chunks:
        *complete, partial = (partial + chunk).split(b"\n")
        yield from (line.decode("utf-8", "replace") for line in complete)
        if len(partial) > MAX_PENDING:
            yield partial.decode("utf-8", "replace")
            partial = b""
    if partial:
        yield partial.decode("utf-8", "replace")
