"""Rewrite the URIs of resources in results to their listed URIs, which a client of several members can read.

Two members may use the same URI for different resources. Therefore results at the roster's address contain
`guild://member/uri`. The gateway then knows which member a URI belongs to.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from msgspec import Raw

from mcp_runtime.gateway import envelope
from mcp_runtime.gateway.catalog import resource_uri
from mcp_runtime.protocol.errors import ProtocolError

# Clients read such a URI without a server, or recognize its scheme (MCP Apps). It means the same for every member.
UNCHANGED_SCHEMES = ("http:", "https:", "data:", "ui:")
# Each response that names a resource contains one of these.
MARKS = (b'"resource', b'"contents"')


def with_listed_uris(body: bytes, member: str, requested_uris: Mapping[str, str]) -> bytes:
    """Return a member's response with the listed URIs of resources. `requested_uris` has exceptions.

    The response has been read before (envelope.py). A response without resources stays unchanged, byte for byte. So
    does one with thousands of parts.
    """
    if not any(mark in body for mark in MARKS):
        return body
    names = _Names(member, requested_uris)
    rewritten_parts: dict[str, Any] = {}
    try:
        message = envelope.fields(Raw(body))
        result = envelope.fields(message.get("result"))
        for key, rewrite in (("content", names.block), ("contents", names.resource), ("messages", names.message)):
            if key in result:
                rewritten_parts[key] = [rewrite(item) for item in envelope.items(result[key])]
    except ProtocolError:
        return body  # it has too many parts
    return envelope.encode({**message, "result": {**result, **rewritten_parts}}) if names.are_changed else body


class _Names:
    """Rewrites the URIs in parts of a result. Parts that do not follow MCP stay unchanged."""

    def __init__(self, member: str, requested_uris: Mapping[str, str]) -> None:
        self._member = member
        self._requested_uris = requested_uris
        self.are_changed = False

    def message(self, value: Any) -> Any:
        """Rewrite a prompt's message. Its content is one block or several."""
        fields = envelope.fields(value)
        content = fields.get("content")
        if envelope.is_object(content):
            return {**fields, "content": self.block(content)}
        blocks = [self.block(item) for item in envelope.items(content)]
        return {**fields, "content": blocks} if blocks else value

    def block(self, value: Any) -> Any:
        fields = envelope.fields(value)
        kind = _text(fields.get("type"))
        if kind == "resource_link":
            return self.resource(value)
        if kind == "resource" and "resource" in fields:
            return {**fields, "resource": self.resource(fields["resource"])}
        return value

    def resource(self, value: Any) -> Any:
        fields = envelope.fields(value)
        own_uri = _text(fields.get("uri"))
        uri = own_uri if own_uri.lower().startswith(UNCHANGED_SCHEMES) else resource_uri(self._member, own_uri)
        uri = self._requested_uris.get(own_uri, uri)
        if not own_uri or uri == own_uri:
            return value
        self.are_changed = True
        return {**fields, "uri": uri}


def _text(value: Any) -> str:
    with contextlib.suppress(ProtocolError):  # it is too long for a type or a URI
        return envelope.text(value)
    return ""
