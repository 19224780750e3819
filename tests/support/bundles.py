"""Bundles for tests: honest ones, and zips that are built byte by byte to say something false."""

from __future__ import annotations

import io
import json
import stat
import struct
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

NODE_SERVER = Path(__file__).parent / "servers" / "bundle_server.js"
MANIFEST: dict[str, Any] = {
    "manifest_version": "0.3",
    "name": "echo",
    "display_name": "Echo",
    "version": "1.2.0",
    "description": "Says what it hears.",
    "author": {"name": "Anna", "url": "https://anna.example.com"},
    "server": {
        "type": "node",
        "entry_point": "server/index.js",
        "mcp_config": {"command": "node", "args": ["${__dirname}/server/index.js"]},
    },
}


def manifest(**values: Any) -> dict[str, Any]:
    return {**MANIFEST, **values}


def server(kind: str = "node", **config: Any) -> dict[str, Any]:
    """The key `server` with this mcp_config."""
    return {**MANIFEST["server"], "type": kind, "mcp_config": {"command": "node", **config}}


def bundle(
    document: Any = MANIFEST, files: dict[str, bytes] | None = None, *, modes: dict[str, int] | None = None
) -> bytes:
    """A bundle as `mcpb pack` writes it."""
    content = io.BytesIO()
    text = document if isinstance(document, bytes) else json.dumps(document).encode()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in {"manifest.json": text, **(files or {"server/index.js": b"// a server\n"})}.items():
            info = zipfile.ZipInfo(name)
            info.external_attr = (modes or {}).get(name, stat.S_IFREG | 0o644) << 16
            archive.writestr(info, data, zipfile.ZIP_DEFLATED)
    return content.getvalue()


def node_bundle(more: dict[str, bytes] | None = None) -> bytes:
    """A bundle with a real server for node, which needs a greeting and may have a key."""
    document = manifest(
        server=server(
            args=["${__dirname}/server/index.js", "${__dirname}/words.txt", "${user_config.greeting}"],
            env={"API_KEY": "${user_config.key}"},
        ),
        user_config={
            "greeting": {"type": "string", "title": "Greeting", "description": "What it says.", "required": True},
            "key": {"type": "string", "title": "Key", "description": "Any text.", "sensitive": True},
        },
    )
    return bundle(
        document, {"server/index.js": NODE_SERVER.read_bytes(), "words.txt": b"From the bundle:", **(more or {})}
    )


@dataclass(frozen=True)
class Raw:
    """An entry, in which each field may lie. None: what is true."""

    name: bytes
    data: bytes = b""
    method: int = 0
    packed: bytes | None = None
    size: int | None = None
    packed_size: int | None = None
    crc: int | None = None
    mode: int = stat.S_IFREG | 0o644
    flags: int = 0x800
    offset: int | None = None
    local: dict[str, Any] = field(default_factory=dict)
    """What only the head of the entry says."""
    disk: int = 0


def raw_zip(
    entries: Sequence[Raw],
    *,
    count: int | None = None,
    list_size: int | None = None,
    list_start: int | None = None,
    before_end: bytes = b"",
    comment: bytes = b"",
    disk: int = 0,
) -> bytes:
    """A zip with exactly these entries."""
    content, listed = bytearray(), bytearray()
    for entry in entries:
        packed = entry.data if entry.packed is None else entry.packed
        true = replace(
            entry,
            size=len(entry.data) if entry.size is None else entry.size,
            packed_size=len(packed) if entry.packed_size is None else entry.packed_size,
            crc=zlib.crc32(entry.data) if entry.crc is None else entry.crc,
            offset=len(content) if entry.offset is None else entry.offset,
        )
        if entry.offset is None:
            content += _local(replace(true, **entry.local)) + packed
        listed += _central(true)
    start = len(content) if list_start is None else list_start
    size = len(listed) if list_size is None else list_size
    number = len(entries) if count is None else count
    end = struct.pack("<4s4H2LH", b"PK\5\6", disk, 0, number, number, size, start, len(comment))
    return bytes(content + listed) + before_end + end + comment


def _local(entry: Raw) -> bytes:
    sizes = (entry.crc, entry.packed_size, entry.size, len(entry.name), 0)
    return struct.pack("<4s5H3L2H", b"PK\3\4", 20, entry.flags, entry.method, 0, 0, *sizes) + entry.name


def _central(entry: Raw) -> bytes:
    sizes = (entry.crc, entry.packed_size, entry.size, len(entry.name), 0, 0, entry.disk, 0)
    head = struct.pack("<4s6H3L5H", b"PK\1\2", 0x314, 20, entry.flags, entry.method, 0, 0, *sizes)
    return head + struct.pack("<LL", (entry.mode << 16) & 0xFFFFFFFF, entry.offset) + entry.name


def deflated(data: bytes) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    return packer.compress(data) + packer.flush()
