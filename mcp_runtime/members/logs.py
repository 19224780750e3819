"""Reads a member's log file: its path, its last lines, new lines as they are written, or all of it. No Django.

The writer rotates the file at any time: `name.log` becomes `name.log.1`. A member may write any bytes.
"""

from __future__ import annotations

import os
import re
import time
import zlib
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from io import FileIO
from pathlib import Path

MAX_BYTES = 1_000_000
# A line without an end is returned in parts of about this size, so that memory stays bounded.
MAX_LINE_BYTES = 64_000
FOLLOW_INTERVAL = 0.2
BACKUPS = 2  # rotated files that are kept
# Bytes of one part. If more has been written since the last part, the part has only the last lines.
PART_BYTES = 256_000
FINGERPRINT_BYTES = 64
DOWNLOAD_BYTES = 65_536
CUT = "…"

_ESCAPE_SEQUENCES = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[PX^_][^\x1b]*(?:\x1b\\)?|[ -/]*[0-~])"
)
UNSEEN = "\N{REPLACEMENT CHARACTER}"
# The characters that must not be shown, except some outside ASCII. Those are checked one by one.
_CONTROLS = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]")
_NOT_ASCII_TEXT = re.compile(rf"[^ -~\t{UNSEEN}]+")


def path_of(data_dir: Path, name: str) -> Path:
    """The path of the log of the member with that name."""
    return data_dir / "logs" / f"{name}.log"


def rotated_path(path: Path, times: int = 1) -> Path:
    """The path of the file that was rotated `times` times from `path`."""
    return path.with_name(f"{path.name}.{times}")


def plain(text: str) -> str:
    """`text` without escape sequences. Other characters that must not be shown become replacement characters."""
    text = _ESCAPE_SEQUENCES.sub("", text) if "\x1b" in text else text
    return text if text.isprintable() else _NOT_ASCII_TEXT.sub(_harmless, _CONTROLS.sub(UNSEEN, text))


def _harmless(match: re.Match[str]) -> str:
    return "".join([char if char.isprintable() else UNSEEN for char in match[0]])


# The end ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _End:
    """The last bytes of a file, and its identity, because a rotation gives its name to another file."""

    data: bytes = b""
    identity: tuple[int, int] | None = None
    is_cut: bool = False
    """Whether the same file has more bytes before `data`."""


def tail(path: Path, lines: int, *, max_bytes: int = MAX_BYTES) -> list[str]:
    """The last `lines` lines, oldest first, from at most `max_bytes` bytes of the log and the file rotated before it.

    Empty if there is no log. Bytes that are not UTF-8 become replacement characters.
    """
    return _last_lines(path, _end_of(path, max_bytes), lines, max_bytes)


def _last_lines(path: Path, newest: _End, lines: int, max_bytes: int) -> list[str]:
    end = newest
    if not newest.is_cut and newest.data.count(b"\n") < lines and len(newest.data) < max_bytes:
        older = _end_of(rotated_path(path), max_bytes - len(newest.data))
        # If the log was rotated between the two reads, this is the file that was already read.
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
    except OSError:  # it does not exist yet, or is being rotated at this moment
        return None


def _split_lines(data: bytes) -> list[str]:
    # Split only at newlines, because str.splitlines would also split at form feeds in binary data.
    parts = data.split(b"\n")
    return [_text(part) for part in (parts if parts[-1] else parts[:-1])]


def _text(line: bytes) -> str:
    return line.removesuffix(b"\r").decode("utf-8", "replace")


# Follow -----------------------------------------------------------------------------------------------------------


def _pause() -> None:
    time.sleep(FOLLOW_INTERVAL)


def follow(path: Path, *, lines: int = 0, pause: Callable[[], object] = _pause) -> Iterator[str]:
    """The last `lines` lines, and then each new line when it is complete, without end. The file need not exist yet.

    It continues after rotation and truncation. `pause` is called when there is nothing new. To stop, close the
    iterator.
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
    """Reads the file at `path` onwards. After a rotation it continues with the new file."""

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
        # Check before the read. Nothing is written to a file after its rotation, so an empty read is then its end.
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
    """Some complete lines, and the cursor for the lines after them."""

    lines: list[str]
    cursor: str = ""
    is_gap: bool = False
    """Whether lines between the cursor of the call and `lines` are missing."""


def part_after(path: Path, cursor: str = "", *, lines: int) -> Part:
    """The lines after the cursor of an earlier part. Without a cursor, or if they are too many, the last `lines` lines.

    Nothing is stored between two parts, and only new bytes are read. The cursor identifies the file and the offset in
    it, and finds the file under its current name. An invalid cursor counts as one of a file that does not exist any
    more.
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


def read_whole(path: Path) -> Generator[bytes]:
    """The whole stored log, oldest bytes first. Lines that are written during the read are left out."""
    with ExitStack() as stack:
        files = [stack.enter_context(closing(file)) for file in _generations(path)]
        for file in reversed(files):
            remaining = os.fstat(file.fileno()).st_size
            while remaining > 0 and (chunk := file.read(min(remaining, DOWNLOAD_BYTES))):
                remaining -= len(chunk)
                yield chunk


def _generations(path: Path) -> list[FileIO]:
    """The file and those rotated before it, newest first. A rotation between two opens does not repeat a file."""
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
    """The cursor for `offset`. It has a checksum of the last bytes, because inodes are used again after a deletion."""
    begin = max(0, offset - FINGERPRINT_BYTES)
    last_bytes = os.pread(file.fileno(), offset - begin, begin)
    return f"{os.fstat(file.fileno()).st_ino}-{offset}-{zlib.crc32(last_bytes)}"


def _place_of(cursor: str, files: list[FileIO], sizes: list[int]) -> tuple[int, int] | None:
    """The index of the cursor's file and the offset in it. None if it is in none of the files."""
    match = re.fullmatch(r"[0-9]{1,20}-([0-9]{1,15})-[0-9]{1,10}", cursor)
    if match is None:
        return None
    offset = int(match[1])
    for index, file in enumerate(files):
        if offset <= sizes[index] and _cursor_at(file, offset) == cursor:
            return index, offset
    return None
