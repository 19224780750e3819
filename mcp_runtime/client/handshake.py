"""What a server tells of itself when a conversation begins: by initialize, or by server/discover of a modern one."""

from __future__ import annotations

import re
import reprlib
from dataclasses import dataclass
from typing import Any

import requests

from mcp_runtime.protocol import mcp
from mcp_runtime.protocol.errors import ProtocolError
from mcp_runtime.protocol.jsonrpc import object_of

MAX_INSTRUCTIONS = 10_000  # characters
_SESSION_ID = re.compile("[!-~]{1,1000}")  # visible ASCII, says the specification


@dataclass(frozen=True)
class InitializeResult:
    """What the handshake told."""

    protocol_version: str
    server_info: dict[str, Any]
    capabilities: dict[str, Any]
    instructions: str

    @property
    def announces_changes(self) -> bool:
        """Whether it says when a list of its is another."""
        kinds = ("tools", "prompts", "resources")
        return any(object_of(self.capabilities.get(kind)).get("listChanged") is True for kind in kinds)


class AnsweredModernError(ProtocolError):
    """The server knows `initialize`, but speaks only the modern way."""


def initialized(result: dict[str, Any]) -> InitializeResult:
    """Of an answer to initialize. Raises ProtocolError: in another version than the hall's."""
    version = result.get("protocolVersion")
    if version == mcp.MODERN_VERSION:
        raise AnsweredModernError("answered initialize with a version that has no handshake")
    if version not in mcp.HANDSHAKE_VERSIONS:
        spoken = ", ".join(mcp.HANDSHAKE_VERSIONS)
        answer = reprlib.repr(version)
        raise ProtocolError(f"answered initialize with protocol version {answer}; the hall speaks {spoken}")
    return _told(str(version), result, object_of(result.get("serverInfo")))


def discovered(result: dict[str, Any]) -> InitializeResult:
    """Of an answer to server/discover. Raises ProtocolError: in other versions than the hall's."""
    versions = result.get("supportedVersions")
    if not isinstance(versions, list) or mcp.MODERN_VERSION not in versions:
        answer = reprlib.repr(versions)
        raise ProtocolError(f"answered server/discover with versions {answer}; the hall speaks {mcp.MODERN_VERSION}")
    server_info = object_of(result.get("_meta")).get(f"{mcp.META}serverInfo")
    return _told(mcp.MODERN_VERSION, result, object_of(server_info))


def _told(version: str, result: dict[str, Any], server_info: dict[str, Any]) -> InitializeResult:
    return InitializeResult(
        protocol_version=version,
        server_info=server_info,
        capabilities=object_of(result.get("capabilities")),
        instructions=str(result.get("instructions") or "")[:MAX_INSTRUCTIONS],
    )


def session_id_of(response: requests.Response) -> str | None:
    told = response.headers.get(mcp.SESSION_HEADER)
    if told is not None and not _SESSION_ID.fullmatch(told):
        raise ProtocolError(f"its session id is not one line of visible ASCII: {reprlib.repr(told)}")
    return told
