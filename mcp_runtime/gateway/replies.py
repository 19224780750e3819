"""Replies as MCP has them over HTTP: one JSON body, a stream of events, or a refusal."""

from __future__ import annotations

from typing import Any

from mcp_runtime.gateway.messages import Event
from mcp_runtime.http1.server import Headers
from mcp_runtime.protocol import jsonrpc
from mcp_runtime.protocol.errors import MethodError

JSON_HEADERS = ((b"content-type", b"application/json"),)
STREAM_HEADERS = (
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
)
# Of our own, in the range that JSON-RPC leaves to applications. Not 401: Claude's CLI takes that for the HTTP status.
UNAUTHORIZED = 40100
FORBIDDEN = 40300
# What comes with a 401 or 403 these throw away (Codex says to log in, which nobody can); a JSON-RPC error they show.
DEAF = (b"claude-code/", b"codex-mcp-client/")


class Refusal(Exception):
    """An HTTP status with a JSON-RPC error as its body."""

    def __init__(self, status: int, error: MethodError, message_id: Any = None, headers: Headers = ()) -> None:
        super().__init__(str(error))
        self.status = status
        self.error = error
        self.message_id = message_id
        self.headers = headers

    @property
    def body(self) -> bytes:
        error = self.error
        return jsonrpc.encode(jsonrpc.error_response(self.message_id, error.code, str(error), error.data))


def encoded(event: Event) -> bytes:
    """As streams have it."""
    parts = []
    if event.event_id:
        parts.append(b"id: " + event.event_id.encode())
    if event.retry_ms is not None:
        parts.append(b"retry: " + str(event.retry_ms).encode())
    if event.data:
        parts.append(b"data: " + event.data.replace(b"\n", b"\ndata: "))
    elif event.event_id:
        parts.append(b"data:")
    # Nothing at all is a comment: a sign of life.
    return (b"\n".join(parts) or b":") + b"\n\n"


def is_deaf(headers: dict[bytes, bytes]) -> bool:
    """Whether the client throws away what comes with a refusal, by what it calls itself."""
    return headers.get(b"user-agent", b"").startswith(DEAF)
