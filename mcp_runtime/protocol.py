"""MCP on top of JSON-RPC: versions, headers, events of a stream, what a result says to people. No I/O.

Sources: MCP specification 2025-06-18 and later (basic/transports, basic/lifecycle, server/tools).
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from typing import Any

# REQ-MCP-HTTP-24: asked for and sent from initialize on; another agreed version replaces it afterwards.
PREFERRED_VERSION = "2025-06-18"
HANDSHAKE_VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")

VERSION_HEADER = "MCP-Protocol-Version"
SESSION_HEADER = "Mcp-Session-Id"

JSON = "application/json"
EVENT_STREAM = "text/event-stream"

CONTENT_WORDS = {"image": "an image", "audio": "audio", "resource": "a resource", "resource_link": "a link"}


def initialize_params(client_name: str, client_version: str) -> dict[str, Any]:
    return {
        "protocolVersion": PREFERRED_VERSION,
        "capabilities": {},
        "clientInfo": {"name": client_name, "version": client_version},
    }


class EventStream:
    """Server-sent events from bytes as they come (WHATWG): feed chunks, get the data of finished events.

    It grows with an event that does not end: the reader bounds what it feeds.
    """

    def __init__(self) -> None:
        self._rest = bytearray()  # of a line that is not finished; grown in place, for a line may come byte by byte
        self._data: list[bytes] = []
        self._after_return = False
        self._at_beginning = True

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        if not chunk:
            return
        if self._after_return and chunk.startswith(b"\n"):
            chunk = chunk[1:]  # the second half of a CRLF that was split between two reads
        self._after_return = chunk.endswith(b"\r")
        first, *others = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        self._rest += first
        if not others:
            return
        lines, self._rest = [bytes(self._rest), *others[:-1]], bytearray(others[-1])
        if self._at_beginning:
            lines[0], self._at_beginning = lines[0].removeprefix(codecs.BOM_UTF8), False
        for line in lines:
            if line:
                self._field(line)
            elif self._data:
                data, self._data = b"\n".join(self._data), []
                if data:
                    yield data

    def _field(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data.append(value.removeprefix(b" "))


def text_of(result: dict[str, Any]) -> str:
    """What a tool's result says, for people: its texts, and a word for everything else."""
    content = result.get("content")
    parts = []
    for item in content if isinstance(content, list) else []:
        kind = item.get("type") if isinstance(item, dict) else None
        if kind == "text":
            parts.append(str(item.get("text", "")))
        else:
            parts.append(f"[{CONTENT_WORDS.get(str(kind), 'something unknown')}]")
    return "\n".join(parts)
