"""The data of a server about itself, from its response to `initialize`, or to `server/discover` if it is modern."""

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
_SESSION_ID = re.compile("[!-~]{1,1000}")  # the specification requires visible ASCII


@dataclass(frozen=True)
class InitializeResult:
    """The result of the handshake."""

    protocol_version: str
    server_info: dict[str, Any]
    capabilities: dict[str, Any]
    instructions: str

    @property
    def announces_changes(self) -> bool:
        """Whether the server sends a notification when one of its lists changes."""
        kinds = ("tools", "prompts", "resources")
        return any(object_of(self.capabilities.get(kind)).get("listChanged") is True for kind in kinds)


class ModernOnlyError(ProtocolError):
    """The server answers `initialize`, but supports only MCP without a handshake."""


def parse_initialize(result: dict[str, Any]) -> InitializeResult:
    """Read an answer to initialize. Raises ProtocolError if the hall does not support its version."""
    version = result.get("protocolVersion")
    if version == mcp.MODERN_VERSION:
        raise ModernOnlyError("answered initialize with a version that has no handshake")
    if version not in mcp.HANDSHAKE_VERSIONS:
        supported = ", ".join(mcp.HANDSHAKE_VERSIONS)
        answer = reprlib.repr(version)
        raise ProtocolError(f"answered initialize with protocol version {answer}; the hall speaks {supported}")
    return _build_result(str(version), result, object_of(result.get("serverInfo")))


def parse_discover(result: dict[str, Any]) -> InitializeResult:
    """Read an answer to server/discover. Raises ProtocolError if the hall supports none of its versions."""
    versions = result.get("supportedVersions")
    if not isinstance(versions, list) or mcp.MODERN_VERSION not in versions:
        answer = reprlib.repr(versions)
        raise ProtocolError(f"answered server/discover with versions {answer}; the hall speaks {mcp.MODERN_VERSION}")
    server_info = object_of(result.get("_meta")).get(f"{mcp.META}serverInfo")
    return _build_result(mcp.MODERN_VERSION, result, object_of(server_info))


def _build_result(version: str, result: dict[str, Any], server_info: dict[str, Any]) -> InitializeResult:
    return InitializeResult(
        protocol_version=version,
        server_info=server_info,
        capabilities=object_of(result.get("capabilities")),
        instructions=str(result.get("instructions") or "")[:MAX_INSTRUCTIONS],
    )


def session_id_of(response: requests.Response) -> str | None:
    session_id = response.headers.get(mcp.SESSION_HEADER)
    if session_id is not None and not _SESSION_ID.fullmatch(session_id):
        raise ProtocolError(f"its session id is not one line of visible ASCII: {reprlib.repr(session_id)}")
    return session_id
