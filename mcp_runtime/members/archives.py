"""Reads a zip within bounds, and refuses whatever two programs could understand in two ways.

The same reader checks what somebody proposes and unpacks what was approved, so both see the same files. It reads the
list of entries at the end of the zip, and compares it with the head of each entry. It writes nothing.

Source: APPNOTE.TXT of PKWARE, version 6.3.10. A signature of `mcpb sign` may follow the zip.
"""

from __future__ import annotations

import re
import stat
import struct
import unicodedata
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from mcp_runtime.protocol.errors import SourceError

MAX_SIZE = 50_000_000  # bytes of the zip
MAX_UNPACKED = 200_000_000  # bytes of all files together
MAX_ENTRIES = 10_000
MAX_LIST = 8_000_000  # bytes of the list of entries
MAX_PART = 255  # bytes of a part of a name
MAX_NAME = 1000  # bytes of a whole name
MAX_DEPTH = 32  # parts of a name
MAX_SIGNATURE = 100_000
BLOCK = 262_144

_END = struct.Struct("<4s4H2LH")
_CENTRAL = struct.Struct("<4s6H3L5H2L")
_LOCAL = struct.Struct("<4s5H3L2H")
_STORED, _DEFLATED = 0, 8
_ENCRYPTED = 0x2041  # encrypted, strongly encrypted, and with a masked head
_SIZES_FOLLOW = 0x8  # the head of the entry does not have its sizes
_PATCH = 0x20
_ZIP64 = (0xFFFF, 0xFFFFFFFF)
_SIGNATURE = (b"MCPB_SIG_V1", b"MCPB_SIG_END")
TOO_MANY = f"has more than {MAX_ENTRIES:,} files and folders"
_BOTH = "is a file and a folder"
_HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}  # categories of characters that change how a line looks


@dataclass(frozen=True)
class PackedFile:
    """A file in a zip. `name` is relative, with `/`, and has no tricks."""

    name: str
    size: int
    is_executable: bool
    start: int
    """Where its data begins in the zip."""
    packed_size: int
    is_deflated: bool
    crc: int


@dataclass(frozen=True)
class _Entry:
    """An entry of the list, as it stands there."""

    name: str
    raw_name: bytes
    flags: int
    method: int
    crc: int
    packed_size: int
    size: int
    mode: int
    offset: int


class Archive:
    """A zip whose list of entries is checked. `stream` must stay open, and nobody else may read it meanwhile."""

    def __init__(self, stream: BinaryIO) -> None:
        """Raises SourceError."""
        self._stream = stream
        self.size = stream.seek(0, 2)
        if self.size > MAX_SIZE:
            raise SourceError("", f"is larger than {MAX_SIZE:,} bytes")
        end, self.is_signed = self._end_of_zip()
        count, list_size, list_start = self._end_record(end)
        entries = self._entries(count, list_start, list_size)
        tree = _Tree()
        for entry in entries:
            tree.add(entry.name)
        files = self._files(entries, list_start)
        self.files: dict[str, PackedFile] = {file.name: file for file in sorted(files, key=lambda each: each.name)}
        self.folders = sorted(tree.folders)
        """All folders, also those that only occur in the names of files."""
        self.unpacked_size = sum(file.size for file in files)
        if self.unpacked_size > MAX_UNPACKED:
            raise SourceError("", f"is larger than {MAX_UNPACKED:,} bytes when it is unpacked")

    def blocks(self, file: PackedFile) -> Iterator[bytes]:
        """The content, in blocks. Raises SourceError as soon as it is not what the list says."""
        size = crc = 0
        for block in self._inflated(file) if file.is_deflated else self._stored(file):
            size += len(block)
            if size > file.size:
                break
            crc = zlib.crc32(block, crc)
            yield block
        if size != file.size:
            raise SourceError(shown(file.name), f"has another size than the {file.size:,} bytes that the zip declares")
        if crc != file.crc:
            raise SourceError(shown(file.name), "is damaged: its checksum is wrong")

    def read(self, file: PackedFile, most: int) -> bytes:
        """The whole content, of at most so many bytes. Raises SourceError."""
        if file.size > most:
            raise SourceError(shown(file.name), f"is larger than {most:,} bytes")
        return b"".join(self.blocks(file))

    def check(self) -> None:
        """Read every file once. Raises SourceError."""
        for file in self.files.values():
            for _ in self.blocks(file):
                pass

    # Data ---------------------------------------------------------------------------------------------------------

    def _stored(self, file: PackedFile) -> Iterator[bytes]:
        start, left = file.start, file.packed_size
        while left:
            block = self._read_at(start, min(left, BLOCK))
            yield block
            start, left = start + len(block), left - len(block)

    def _inflated(self, file: PackedFile) -> Iterator[bytes]:
        inflater = zlib.decompressobj(-zlib.MAX_WBITS)
        try:
            for block in self._stored(file):
                yield from _blocks_of(inflater, block)
        except zlib.error:
            raise SourceError(shown(file.name), "is damaged: it cannot be unpacked") from None
        if not inflater.eof or inflater.unused_data:
            raise SourceError(shown(file.name), "is damaged: its data does not end where the zip says")

    def _read_at(self, start: int, size: int) -> bytes:
        self._stream.seek(start)
        data = self._stream.read(size)
        if len(data) != size:
            raise SourceError("", "ends too early, so it is not a whole zip")
        return data

    # The end ------------------------------------------------------------------------------------------------------

    def _end_of_zip(self) -> tuple[int, bool]:
        """Where the zip ends, and whether a signature of `mcpb sign` follows."""
        tail = self._read_at(max(0, self.size - MAX_SIGNATURE), min(self.size, MAX_SIGNATURE))
        begin, finish = _SIGNATURE
        if not tail.endswith(finish):
            return self.size, False
        place = tail.rfind(begin)
        length = len(tail) - place - len(begin) - 4 - len(finish)
        if place < 0 or length < 0 or struct.unpack_from("<L", tail, place + len(begin))[0] != length:
            raise SourceError("", "has a damaged signature at its end")
        return self.size - len(tail) + place, True

    def _end_record(self, end: int) -> tuple[int, int, int]:
        """The number of entries, and the size and the start of their list."""
        tail_start = max(0, end - _END.size - 0xFFFF)
        tail = self._read_at(tail_start, end - tail_start)
        places = [match.start() for match in re.finditer(re.escape(b"PK\5\6"), tail)]
        places = [
            place
            for place in places
            if len(tail) - place >= _END.size and _END.unpack_from(tail, place)[7] == len(tail) - place - _END.size
        ]
        if len(places) != 1:
            raise SourceError("", "has two ends of a zip" if places else "is not a zip")
        place = places[0]
        _, disk, first_disk, count_here, count, list_size, list_start, _ = _END.unpack_from(tail, place)
        if tail[max(0, place - 20) : place].startswith(b"PK\6\7") or {count, list_size, list_start} & {*_ZIP64}:
            raise SourceError("", "is a zip64, which is for larger files than a bundle may have")
        if disk or first_disk or count_here != count:
            raise SourceError("", "is a part of a zip in several files")
        if count > MAX_ENTRIES:
            raise SourceError("", TOO_MANY)
        if list_start + list_size != tail_start + place or list_size > MAX_LIST:
            raise SourceError("", "has a list of files that is not where the zip says")
        return count, list_size, list_start

    # The list -----------------------------------------------------------------------------------------------------

    def _entries(self, count: int, start: int, size: int) -> list[_Entry]:
        data, place, entries = self._read_at(start, size), 0, []
        for _ in range(count):
            if len(data) - place < _CENTRAL.size:
                raise SourceError("", "has fewer files in its list than the zip says")
            head = _CENTRAL.unpack_from(data, place)
            signature, _, _, flags, method, _, _, crc, packed_size, unpacked_size = head[:10]
            name_size, extra_size, comment_size, disk, _, attributes, offset = head[10:]
            place += _CENTRAL.size
            raw_name = data[place : place + name_size]
            place += name_size + extra_size + comment_size
            if signature != b"PK\1\2" or disk or place > len(data):
                raise SourceError("", "has a damaged list of files")
            if {packed_size, unpacked_size, offset} & {*_ZIP64[1:]}:
                raise SourceError("", "is a zip64, which is for larger files than a bundle may have")
            name, mode = _decoded(raw_name), attributes >> 16
            entries.append(_Entry(name, raw_name, flags, method, crc, packed_size, unpacked_size, mode, offset))
        if place != len(data):
            raise SourceError("", "has more files in its list than the zip says")
        return entries

    def _files(self, entries: list[_Entry], list_start: int) -> list[PackedFile]:
        files, spans = [], []
        for entry in entries:
            _require_ordinary(entry)
            data_start = self._data_start(entry)
            spans.append((entry.offset, data_start + entry.packed_size, entry.name))
            if not entry.name.endswith("/"):
                is_executable, is_deflated = bool(entry.mode & stat.S_IXUSR), entry.method == _DEFLATED
                data = (data_start, entry.packed_size, is_deflated, entry.crc)
                files.append(PackedFile(entry.name, entry.size, is_executable, *data))
        end_before = 0
        for start, end, name in sorted(spans):
            if start < end_before or end > list_start:
                raise SourceError(shown(name), "shares its data with another part of the zip")
            end_before = end
        return files

    def _data_start(self, entry: _Entry) -> int:
        """Where the data begins. Raises SourceError if the head of the entry says something else than the list."""
        head = _LOCAL.unpack(self._read_at(entry.offset, _LOCAL.size))
        signature, _, flags, method, _, _, crc, packed_size, size, name_size, extra_size = head
        is_same = (signature, name_size, method) == (b"PK\3\4", len(entry.raw_name), entry.method)
        is_same = is_same and self._read_at(entry.offset + _LOCAL.size, name_size) == entry.raw_name
        is_same &= not (flags ^ entry.flags) & (_ENCRYPTED | _SIZES_FOLLOW | _PATCH)
        has_sizes = (crc, packed_size, size) == (entry.crc, entry.packed_size, entry.size)
        if not is_same or not (has_sizes or entry.flags & _SIZES_FOLLOW):
            raise SourceError(shown(entry.name), "is described in two ways in the zip")
        return entry.offset + _LOCAL.size + int(name_size) + int(extra_size)


def shown(name: str) -> str:
    """A name of the zip for a sentence, short and in one line."""
    visible = "".join(part if part.isprintable() else "?" for part in name[:81])
    return visible if len(name) <= 80 else f"{visible[:80]}..."


def _blocks_of(inflater: zlib._Decompress, data: bytes) -> Iterator[bytes]:
    """What the data becomes, at most BLOCK bytes at a time."""
    while True:
        block = inflater.decompress(data, BLOCK)
        data = inflater.unconsumed_tail
        if block:
            yield block
        if inflater.eof or (not data and len(block) < BLOCK):
            return


def _decoded(raw_name: bytes) -> str:
    try:
        return raw_name.decode()
    except UnicodeDecodeError:
        raise SourceError(shown(raw_name.decode("latin-1")), "has a name that is not UTF-8") from None


def _require_usable(name: str) -> None:
    """Raise SourceError for a name that leaves the folder, or that people or systems misread."""
    parts = name.removesuffix("/").split("/")
    if name.startswith("/") or re.match(r"[A-Za-z]:", name):
        raise SourceError(shown(name), "has an absolute path")
    if ".." in parts:
        raise SourceError(shown(name), "has .. in its path, so it would leave the folder")
    if "\\" in name:
        raise SourceError(shown(name), "has a backslash in its name")
    if any(unicodedata.category(character) in _HIDDEN for character in name):
        raise SourceError(shown(name), "has a character in its name that nobody sees")
    if "" in parts or "." in parts:
        raise SourceError(shown(name), "has an empty part in its path")
    if len(name.encode()) > MAX_NAME or any(len(part.encode()) > MAX_PART for part in parts):
        raise SourceError(shown(name), f"has a name of more than {MAX_NAME} bytes, or a part of more than {MAX_PART}")
    if len(parts) > MAX_DEPTH:
        raise SourceError(shown(name), f"is more than {MAX_DEPTH} folders deep")


def _require_ordinary(entry: _Entry) -> None:
    """Raise SourceError unless it is a file or a folder that can be read."""
    kind, is_folder = stat.S_IFMT(entry.mode), entry.name.endswith("/")
    if kind == stat.S_IFLNK:
        raise SourceError(shown(entry.name), "is a symbolic link")
    if kind not in (0, stat.S_IFDIR if is_folder else stat.S_IFREG):
        raise SourceError(shown(entry.name), "is neither a file nor a folder")
    if entry.flags & _ENCRYPTED:
        raise SourceError(shown(entry.name), "is encrypted")
    if entry.method not in (_STORED, _DEFLATED) or entry.flags & _PATCH:
        raise SourceError(shown(entry.name), "is packed in a way that the hall does not know; use deflate")
    if is_folder and entry.size:
        raise SourceError(shown(entry.name), "is a folder with data")
    if entry.method == _STORED and entry.size != entry.packed_size:
        raise SourceError(shown(entry.name), "has another size than the zip declares")


class _Tree:
    """Files and folders by name. It refuses names that some systems cannot tell apart."""

    def __init__(self) -> None:
        self.folders: set[str] = set()
        self._files: set[str] = set()
        self._entries: set[str] = set()
        self._seen: dict[str, str] = {}  # each name, by what a system that ignores case and form makes of it

    def add(self, name: str) -> None:
        """Add an entry and the folders above it. Raises SourceError."""
        _require_usable(name)
        path = name.removesuffix("/")
        if path in self._entries:
            raise SourceError(shown(path), "is in the zip twice")
        self._entries.add(path)
        folded = _folded(path)
        is_folder = path != name
        while path and path not in self.folders:
            if path in self._files or self._seen.setdefault(folded, path) != path:
                other = self._seen.get(folded, path)
                reason = f"differs from {shown(other)} only in case or form" if other != path else _BOTH
                raise SourceError(shown(path), reason)
            (self.folders if is_folder else self._files).add(path)
            if len(self._seen) > MAX_ENTRIES:
                raise SourceError("", TOO_MANY)
            path, folded, is_folder = path.rpartition("/")[0], folded.rpartition("/")[0], True
        if path in self.folders and not is_folder:
            raise SourceError(shown(path), _BOTH)


def _folded(name: str) -> str:
    return unicodedata.normalize("NFC", unicodedata.normalize("NFD", name).casefold())
