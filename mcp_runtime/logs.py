"""A member's log file: find it, read its end, follow it. No Django.

Its writer rotates it (`name.log` becomes `name.log.1`) whenever it likes, and what a member writes may be anything.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from io import FileIO
from pathlib import Path

MAX_BYTES = 1_000_000
# A line without an end is given out in parts of about this size, so that memory stays bounded.
MAX_LINE_BYTES = 64_000
FOLLOW_INTERVAL = 0.2
CUT = "…"


def path_of(data_dir: Path, name: str) -> Path:
    """Where the member of that name has its log."""
    return data_dir / "logs" / f"{name}.log"


def rotated(path: Path) -> Path:
    """Where `path` goes when it is full."""
    return path.with_name(f"{path.name}.1")


# The end ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _End:
    """The last bytes of a file, and which file that was: names change hands when a log is rotated."""

    data: bytes = b""
    identity: tuple[int, int] | None = None
    is_cut: bool = False
    """Whether the same file holds more before `data`."""


def tail(path: Path, lines: int, *, max_bytes: int = MAX_BYTES) -> list[str]:
    """The last `lines` lines, oldest first, from at most `max_bytes` bytes of the log and the file rotated before it.

    Empty when there is no log. What is not UTF-8 shows as replacement characters.
    """
    return _last_lines(path, _end_of(path, max_bytes), lines, max_bytes)


def _last_lines(path: Path, newest: _End, lines: int, max_bytes: int) -> list[str]:
    end = newest
    if not newest.is_cut and newest.data.count(b"\n") < lines and len(newest.data) < max_bytes:
        older = _end_of(rotated(path), max_bytes - len(newest.data))
        # Rotated between the two reads, it is the very file that was read already.
        if older.identity != newest.identity:
            end = replace(older, data=older.data + newest.data)
    found = _split(end.data)
    if end.is_cut and found:
        found = found[1:] or [CUT + found[0]]
    return found[-lines:] if lines > 0 else []


def _end_of(path: Path, max_bytes: int) -> _End:
    file = _open(path)
    if file is None:
        return _End()
    with file:
        return _read_end(file, max_bytes)


def _read_end(file: FileIO, max_bytes: int) -> _End:
    status = os.fstat(file.fileno())
    begin = max(0, status.st_size - max_bytes)
    file.seek(begin)
    return _End(file.read(max_bytes), (status.st_dev, status.st_ino), is_cut=begin > 0)


def _open(path: Path) -> FileIO | None:
    try:
        return path.open("rb", buffering=0)
    except OSError:  # not there yet, or being rotated at this moment
        return None


def _split(data: bytes) -> list[str]:
    # At newlines alone: str.splitlines would also split at the form feeds in binary noise.
    parts = data.split(b"\n")
    return [_text(part) for part in (parts if parts[-1] else parts[:-1])]


def _text(line: bytes) -> str:
    return line.removesuffix(b"\r").decode("utf-8", "replace")


# Follow -----------------------------------------------------------------------------------------------------------


def _pause() -> None:
    time.sleep(FOLLOW_INTERVAL)


def follow(path: Path, *, lines: int = 0, pause: Callable[[], object] = _pause) -> Iterator[str]:
    """The last `lines` lines, then each line once it is complete, for ever. The file need not be there yet.

    Outlives rotation and truncation. `pause` is called whenever there is nothing new; close the iterator to stop.
    """
    with closing(_Follower(path)) as follower:
        newest = follower.read_end()
        complete, newline, held = newest.data.rpartition(b"\n")
        yield from _last_lines(path, replace(newest, data=complete + newline), lines, MAX_BYTES)
        while True:
            chunk = follower.read()
            if not chunk:
                pause()
                continue
            *done, held = (held + chunk).split(b"\n")
            yield from map(_text, done)
            if len(held) > MAX_LINE_BYTES:
                yield _text(held)
                held = b""


class _Follower:
    """The file at `path`, whichever that is by now, read onwards."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = _open(path)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def read_end(self) -> _End:
        return _read_end(self._file, MAX_BYTES) if self._file else _End()

    def read(self) -> bytes:
        """What was written since the last read; empty when nothing was."""
        self._file = self._file or _open(self._path)
        if self._file is None:
            return b""
        # Asked before reading: nothing is written to a file once it was moved, so an empty read then is its end.
        moved = not self._is_in_place(self._file)
        chunk = self._file.read(MAX_LINE_BYTES)
        if not chunk and moved:
            self.close()
        elif not chunk and self._file.tell() > os.fstat(self._file.fileno()).st_size:
            self._file.seek(0)
        return chunk

    def _is_in_place(self, file: FileIO) -> bool:
        try:
            return os.path.samestat(self._path.stat(), os.fstat(file.fileno()))
        except OSError:
            return False
