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
KEPT_SCHEMES = ("http:", "https:", "data:", "ui:")
# Each response that names a resource contains one of these.
MARKS = (b'"resource', b'"contents"')


def with_member(body: bytes, member: str, asked: Mapping[str, str]) -> bytes:
    """Return a member's response with the listed URIs of resources. `requested_uris` has exceptions.

    The response has been read before (envelope.py). A response without resources stays unchanged, byte for byte. So
    does one with thousands of parts.
    """
    if not any(mark in body for mark in MARKS):
        return body
    names = _Names(member, asked)
    found: dict[str, Any] = {}
    try:
        message = envelope.fields(Raw(body))
        result = envelope.fields(message.get("result"))
        for key, rewritten in (("content", names.block), ("contents", names.resource), ("messages", names.message)):
            if key in result:
                found[key] = [rewritten(item) for item in envelope.items(result[key])]
    except ProtocolError:
        return body  # it has too many parts
    return envelope.encode({**message, "result": {**result, **found}}) if names.are_changed else body


class _Names:
    """Rewrites the URIs in parts of a result. Parts that do not follow MCP stay unchanged."""

    def __init__(self, member: str, asked: Mapping[str, str]) -> None:
        self._member = member
        self._asked = asked
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
        own = _text(fields.get("uri"))
        uri = own if own.lower().startswith(KEPT_SCHEMES) else resource_uri(self._member, own)
        uri = self._asked.get(own, uri)
        if not own or uri == own:
            return value
        self.are_changed = True
        return {**fields, "uri": uri}


def _text(value: Any) -> str:
    with contextlib.suppress(ProtocolError):  # it is too long for a type or a URI
        return envelope.text(value)
    return ""
