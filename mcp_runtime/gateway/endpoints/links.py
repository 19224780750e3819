"""Resources that results name, under URIs that a client of several members can read: those that lists have.

Two members may use one URI for two resources. A result that passes through the roster's own address therefore names
them as `guild://member/uri`, so that nobody has to guess later whose result a URI came from.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from msgspec import Raw

from mcp_runtime.gateway import envelope
from mcp_runtime.gateway.catalog import resource_uri
from mcp_runtime.protocol.errors import ProtocolError

# What clients get without a server, or know by its scheme (MCP Apps). Such a URI means the same for every member.
KEPT_SCHEMES = ("http:", "https:", "data:", "ui:")
# One of them is in each response that names a resource.
MARKS = (b'"resource', b'"contents"')


def with_member(body: bytes, member: str, asked: Mapping[str, str]) -> bytes:
    """A response of the member whose result names resources by their listed URIs. `asked` are exceptions.

    The response has been read before (envelope.py). What names no resource stays as it is, byte for byte; so does what
    has thousands of parts.
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
        return body  # it has more parts than are looked at
    return envelope.encode({**message, "result": {**result, **found}}) if names.are_changed else body


class _Names:
    """Parts of a result with its URIs rewritten. What is not as MCP has it stays as it is."""

    def __init__(self, member: str, asked: Mapping[str, str]) -> None:
        self._member = member
        self._asked = asked
        self.are_changed = False

    def message(self, value: Any) -> Any:
        """Of a prompt: its content is a block, or several."""
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
    with contextlib.suppress(ProtocolError):  # it is too long to be one
        return envelope.text(value)
    return ""
