"""HTTP replies of MCP: a JSON body, a stream of events, or a refusal."""

from __future__ import annotations

from http import HTTPStatus
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
# Our own error codes, in the range that JSON-RPC leaves to applications. Not 401, which Claude's CLI takes for the HTTP
# status.
UNAUTHORIZED = 40100
FORBIDDEN = 40300
# These clients ignore the body of a 401 or 403, but show a JSON-RPC error. Codex asks to log in, which is not possible.
CLIENTS_IGNORING_ERROR_BODIES = (b"claude-code/", b"codex-mcp-client/")


class Refusal(Exception):
    """An HTTP status with a JSON-RPC error as its body. Its text begins with the standard text of HTTP or JSON-RPC."""

    def __init__(self, status: int, error: MethodError, message_id: Any = None, headers: Headers = ()) -> None:
        super().__init__(_with_standard_text(status, error))
        self.status = status
        self.error = error
        self.message_id = message_id
        self.headers = headers

    @property
    def body(self) -> bytes:
        error = self.error
        return jsonrpc.encode(jsonrpc.error_response(self.message_id, error.code, str(self), error.data))


def _with_standard_text(status: int, error: MethodError) -> str:
    """With status 400 the text of the JSON-RPC code, if it is a standard code. Otherwise the text of the status."""
    standard = jsonrpc.MEANINGS.get(error.code) if status == HTTPStatus.BAD_REQUEST else HTTPStatus(status).phrase
    return f"{standard}: {error}" if standard else str(error)


def encoded(event: Event) -> bytes:
    """Return the event in the format of event streams."""
    parts = []
    if event.event_id:
        parts.append(b"id: " + event.event_id.encode())
    if event.retry_ms is not None:
        parts.append(b"retry: " + str(event.retry_ms).encode())
    if event.data:
        parts.append(b"data: " + event.data.replace(b"\n", b"\ndata: "))
    elif event.event_id:
        parts.append(b"data:")
    # An empty event becomes a comment, which keeps the connection alive.
    return (b"\n".join(parts) or b":") + b"\n\n"


def ignores_error_bodies(headers: dict[bytes, bytes]) -> bool:
    """Return whether the User-Agent is a client that ignores the body of a refusal."""
    return headers.get(b"user-agent", b"").startswith(CLIENTS_IGNORING_ERROR_BODIES)
