"""The digest of a member's folder. Two nodes whose folders have the same digest can run the same member.

The digest covers the paths, the executable bits and the contents of the files that the manifest's patterns name, and
the targets of links. An unchanged file is not read again.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from hashlib import blake2b
from pathlib import Path

from mcp_runtime.members.manifest.files import FILE_NAME

MAX_FILES = 10_000
MAX_BYTES = 200_000_000
MAX_ENTRIES = 100_000  # that a walk looks at, also those that no pattern names
CHUNK_BYTES = 1_000_000
# Two writes in quick succession can have the same mtime. So a file is remembered only if its last write is older.
MTIME_NANOSECONDS = 1_000_000_000
HIDDEN_NAMES = ("__pycache__", "node_modules")
ANY_FOLDERS = "**"


@dataclass(frozen=True)
class FolderDigest:
    """The digest of a folder, or the fault because of which it has none."""

    text: str
    fault: str = ""


TOO_LARGE = FolderDigest(
    "",
    f"its folder has more than {MAX_FILES:,} files or {MAX_BYTES // 1_000_000} MB, so the hall cannot compare it with "
    "those of other nodes. Name the files that must be equal in node.files",
)


@dataclass(frozen=True)
class _Content:
    """The hash of a file or the target of a link, and the status that it had before it was read."""

    status: tuple[int, int, int]
    hash: bytes


class FolderDigests:
    """Computes the digests of folders, and remembers the hashes of their files."""

    def __init__(self) -> None:
        self._contents: dict[Path, dict[bytes, _Content]] = {}

    def compute(self, folders: Mapping[Path, Sequence[str]]) -> dict[Path, FolderDigest]:
        """The digest of each folder, by the patterns of its files. It forgets all other folders."""
        digests, contents = {}, {}
        for folder, patterns in folders.items():
            known_contents = self._contents.get(folder, {})
            digests[folder], contents[folder] = _digest(folder, patterns, known_contents)
        self._contents = contents
        return digests


def _digest(
    folder: Path, patterns: Sequence[str], known_contents: Mapping[bytes, _Content]
) -> tuple[FolderDigest, dict[bytes, _Content]]:
    files = _files(folder, patterns)
    if files is None:
        return TOO_LARGE, {}
    total, contents = blake2b(digest_size=32), {}
    for path, status in sorted(files.items()):
        content = known_contents.get(path)
        try:
            if content is None or content.status != _status(status):
                content = _read(os.path.join(os.fsencode(folder), path), status)
        except OSError:
            continue  # it vanished, or cannot be read. A node that can read it has another digest
        if status.st_mtime_ns + MTIME_NANOSECONDS < time.time_ns():
            contents[path] = content
        for part in (_kind(status), path, content.hash):
            total.update(len(part).to_bytes(8, "big") + part)
    return FolderDigest(total.hexdigest()), contents


def _kind(status: os.stat_result) -> bytes:
    if stat.S_ISLNK(status.st_mode):
        return b"link"
    return b"program" if status.st_mode & stat.S_IXUSR else b"file"


def _read(path: bytes, status: os.stat_result) -> _Content:
    """The content of a file, or the target of a link. Raises OSError.

    If a file changes meanwhile, its status here is older than that of its next look, which then reads it again.
    """
    if stat.S_ISLNK(status.st_mode):
        return _Content(_status(status), os.readlink(path))
    # O_NONBLOCK, because a pipe in the place of the file could block for ever. O_NOFOLLOW for a link in its place.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    try:
        return _Content(_status(status), _hash(descriptor))
    finally:
        os.close(descriptor)


def _status(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_size, status.st_mtime_ns, status.st_ino


def _hash(descriptor: int) -> bytes:
    content_hash, left = blake2b(digest_size=32), MAX_BYTES  # a file may grow for ever
    while left > 0 and (chunk := os.read(descriptor, min(CHUNK_BYTES, left))):
        content_hash.update(chunk)
        left -= len(chunk)
    return content_hash.digest()


# The files --------------------------------------------------------------------------------------------------------


def _files(folder: Path, patterns: Sequence[str]) -> dict[bytes, os.stat_result] | None:
    """The files and links that the patterns name, by their path in the folder. None if there are too many."""
    files: dict[bytes, os.stat_result] = {}
    total_bytes = 0
    for number, (path, entry) in enumerate(_walk(folder, patterns)):
        if number >= MAX_ENTRIES:
            return None
        if entry is None:
            continue
        try:
            status = entry.stat(follow_symlinks=False)
        except OSError:
            continue
        if stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode):
            files[os.fsencode(path)] = status
            total_bytes += status.st_size
        if len(files) > MAX_FILES or total_bytes > MAX_BYTES:
            return None
    return files


def _walk(folder: Path, patterns: Sequence[str]) -> Iterator[tuple[str, os.DirEntry[str] | None]]:
    """The path of each entry, and the entry itself if a pattern names it and it is not a folder.

    It enters only folders that may contain such an entry.
    """
    first = [_Progress.of(pattern) for pattern in (FILE_NAME, *patterns)]
    folders = [("", first)]
    while folders:
        prefix, progress_of_folder = folders.pop()
        for entry in _entries(folder / prefix):
            path = f"{prefix}{entry.name}"
            progress = [after for before in progress_of_folder if (after := before.enter(entry.name)).positions]
            if entry.is_dir(follow_symlinks=False):
                if progress:
                    folders.append((f"{path}/", progress))
                yield path, None
            else:
                yield path, entry if any(part.is_match for part in progress) else None


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:  # it vanished, or cannot be read
        return []


@dataclass(frozen=True)
class _Progress:
    """How much of a pattern the names of a path have matched so far. With `**` there are several possibilities."""

    parts: tuple[str, ...]
    positions: frozenset[int]

    @classmethod
    def of(cls, pattern: str) -> _Progress:
        parts = tuple(part for part in pattern.split("/") if part not in ("", "."))
        # A pattern of a folder stands for all files in it.
        return cls._at((*parts, ANY_FOLDERS), {0})

    @classmethod
    def _at(cls, parts: tuple[str, ...], positions: set[int]) -> _Progress:
        """Add the positions after each `**`, which may stand for no folder."""
        reachable = set(positions)
        for position, part in enumerate(parts):
            if position in reachable and part == ANY_FOLDERS:
                reachable.add(position + 1)
        return cls(parts, frozenset(reachable))

    def enter(self, name: str) -> _Progress:
        positions = set()
        for position in self.positions - {len(self.parts)}:
            part = self.parts[position]
            if part == ANY_FOLDERS:
                if not _is_hidden(name):
                    positions.add(position)
            elif _names(part, name):
                positions.add(position + 1)
        return self._at(self.parts, positions)

    @property
    def is_match(self) -> bool:
        return len(self.parts) in self.positions


def _names(part: str, name: str) -> bool:
    """Whether a part of a pattern names a file. Wildcards name no hidden files, as in a shell."""
    if _is_hidden(name) and not part.startswith("."):
        return part == name
    return fnmatchcase(name, part)


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or name in HIDDEN_NAMES
