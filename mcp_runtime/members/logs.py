"""A member's log file: find it, read its end, follow it, in one go or in parts. No Django.

Its writer rotates it (`name.log` becomes `name.log.1`) whenever it likes, and what a member writes may be anything.
"""

from __future__ import annotations

import os
import re
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from io import FileIO
from pathlib import Path

MAX_BYTES = 1_000_000
# A line without an end is given out in parts of about this size, so that memory stays bounded.
MAX_LINE_BYTES = 64_000
FOLLOW_INTERVAL = 0.2
BACKUPS = 2  # rotated files that are kept
# Of one part. When more has been written since, the part is only the end of it.
PART_BYTES = 256_000
FINGERPRINT_BYTES = 64
DOWNLOAD_BYTES = 65_536
CUT = "…"

_COLOURS_AND_SUCH = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[PX^_][^\x1b]*(?:\x1b\\)?|[ -/]*[0-~])"
)
UNSEEN = "\N{REPLACEMENT CHARACTER}"
# Nearly all that must not be shown, in one go. The rest that is not ASCII is checked character by character.
_CONTROLS = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]")
_NOT_ASCII_TEXT = re.compile(rf"[^ -~\t{UNSEEN}]+")


def path_of(data_dir: Path, name: str) -> Path:
    """The path of the log of the member with that name."""
    return data_dir / "logs" / f"{name}.log"


def rotated_path(path: Path, times: int = 1) -> Path:
    """Where `path` goes when it is full, and from there so many times on."""
    return path.with_name(f"{path.name}.{times}")


def plain(text: str) -> str:
    """`text` without a terminal's colours and titles; what else must not be shown becomes replacement characters."""
    text = _COLOURS_AND_SUCH.sub("", text) if "\x1b" in text else text
    return text if text.isprintable() else _NOT_ASCII_TEXT.sub(_harmless, _CONTROLS.sub(UNSEEN, text))


def _harmless(match: re.Match[str]) -> str:
    return "".join([char if char.isprintable() else UNSEEN for char in match[0]])


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
        older = _end_of(rotated_path(path), max_bytes - len(newest.data))
        # Rotated between the two reads, it is the very file that was read already.
        if older.identity != newest.identity:
            end = replace(older, data=older.data + newest.data)
    last = _split_lines(end.data)
    if end.is_cut and last:
        last = last[1:] or [CUT + last[0]]
    return last[-lines:] if lines > 0 else []


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


def _split_lines(data: bytes) -> list[str]:
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
        complete, newline, partial = newest.data.rpartition(b"\n")
        yield from _last_lines(path, replace(newest, data=complete + newline), lines, MAX_BYTES)
        while True:
            chunk = follower.read()
            if not chunk:
                pause()
                continue
            *complete_lines, partial = (partial + chunk).split(b"\n")
            yield from map(_text, complete_lines)
            if len(partial) > MAX_LINE_BYTES:
                yield _text(partial)
                partial = b""


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
        """The bytes that were written since the last read. Empty if there are none."""
        self._file = self._file or _open(self._path)
        if self._file is None:
            return b""
        # Look before reading: nothing is written to a file after its rotation, so an empty read is then its end.
        is_rotated = not self._is_in_place(self._file)
        chunk = self._file.read(MAX_LINE_BYTES)
        if not chunk and is_rotated:
            self.close()
        elif not chunk and self._file.tell() > os.fstat(self._file.fileno()).st_size:
            self._file.seek(0)
        return chunk

    def _is_in_place(self, file: FileIO) -> bool:
        try:
            return os.path.samestat(self._path.stat(), os.fstat(file.fileno()))
        except OSError:
            return False


# In parts, for readers that poll ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """Some complete lines, and the cursor to ask for those behind them."""

    lines: list[str]
    cursor: str = ""
    is_gap: bool = False
    """Whether something between the cursor that was given and `lines` was left out, or is gone."""


def part_after(path: Path, cursor: str = "", *, lines: int) -> Part:
    """The lines behind the cursor of an earlier part; without one, or when they are too many, the last `lines` lines.

    Nothing is kept between two parts, and the cost is that of what is new: the cursor says in which file the reader was
    and where, and finds it again under whatever name it has by now. A cursor of nonsense is one of a file that is gone.
    """
    with ExitStack() as stack:
        files = [stack.enter_context(closing(file)) for file in _generations(path)]
        if not files:
            return Part([])
        sizes = [os.fstat(file.fileno()).st_size for file in files]
        place = _place_of(cursor, files, sizes) if cursor else None
        if place is None or sum(sizes[: place[0] + 1]) - place[1] > PART_BYTES:
            return _last_part(path, files[0], lines, is_gap=bool(cursor))
        index, offset = place
        files[index].seek(offset)
        older = b"".join(file.read(PART_BYTES) for file in files[index:0:-1])
        newest, begin = files[0], 0 if index else offset
        complete, newline, _ = newest.read(sizes[0] - begin).rpartition(b"\n")
        data = older + complete + newline
        return Part(_split_lines(data) if data else [], _cursor_at(newest, begin + len(complete + newline)))


def read_whole(path: Path) -> Iterator[bytes]:
    """The whole stored log, oldest first, as it is now. Lines that are written meanwhile are left out."""
    with ExitStack() as stack:
        files = [stack.enter_context(closing(file)) for file in _generations(path)]
        for file in reversed(files):
            remaining = os.fstat(file.fileno()).st_size
            while remaining > 0 and (chunk := file.read(min(remaining, DOWNLOAD_BYTES))):
                remaining -= len(chunk)
                yield chunk


def _generations(path: Path) -> list[FileIO]:
    """The file and those rotated before it, newest first, each once: one may be rotated between two opens."""
    files: dict[tuple[int, int], FileIO] = {}
    for name in [path, *(rotated_path(path, times) for times in range(1, BACKUPS + 1))]:
        file = _open(name)
        if file is None:
            continue
        status = os.fstat(file.fileno())
        if files.setdefault((status.st_dev, status.st_ino), file) is not file:
            file.close()
    return list(files.values())


def _last_part(path: Path, newest: FileIO, lines: int, *, is_gap: bool) -> Part:
    end = _read_end(newest, PART_BYTES)
    begin = newest.tell() - len(end.data)
    complete, newline, _ = end.data.rpartition(b"\n")
    end = replace(end, data=complete + newline)
    return Part(_last_lines(path, end, lines, PART_BYTES), _cursor_at(newest, begin + len(end.data)), is_gap)


def _cursor_at(file: FileIO, offset: int) -> str:
    """The inode alone does not identify a file, because it is used again after a deletion: the last bytes count too."""
    begin = max(0, offset - FINGERPRINT_BYTES)
    last_bytes = os.pread(file.fileno(), offset - begin, begin)
    return f"{os.fstat(file.fileno()).st_ino}-{offset}-{zlib.crc32(last_bytes)}"


def _place_of(cursor: str, files: list[FileIO], sizes: list[int]) -> tuple[int, int] | None:
    """Which of the files the cursor is in, and where; None when it is in none of them."""
    match = re.fullmatch(r"[0-9]{1,20}-([0-9]{1,15})-[0-9]{1,10}", cursor)
    if match is None:
        return None
    offset = int(match[1])
    for index, file in enumerate(files):
        if offset <= sizes[index] and _cursor_at(file, offset) == cursor:
            return index, offset
    return None
