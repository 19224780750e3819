"""A POST request, and the first checks of its message."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mcp_runtime.gateway.catalog import Place
from mcp_runtime.gateway.messages import Client, ClientSession
from mcp_runtime.gateway.replies import Refusal
from mcp_runtime.http1.server import HttpExchange
from mcp_runtime.protocol import jsonrpc
from mcp_runtime.protocol.errors import MethodError
from mcp_runtime.protocol.jsonrpc import INVALID_PARAMS, INVALID_REQUEST
from mcp_runtime.security.access import Principal

MAX_CAPABILITIES = 16_384  # bytes
MAX_REQUEST_ID = 1_000  # characters


@dataclass(frozen=True, slots=True)
class Post:
    """One POST request of an authenticated client. `size` is the size of the message in bytes."""

    place: Place
    principal: Principal
    exchange: HttpExchange
    size: int
    message: Any

    @property
    def headers(self) -> dict[bytes, bytes]:
        return self.exchange.headers

    @property
    def takes_stream(self) -> bool:
        accept = self.headers.get(b"accept", b"*/*")
        return b"text/event-stream" in accept or b"*/*" in accept or b"text/*" in accept

    def client(self, session: ClientSession) -> Client:
        return client_in(session, self.principal, self.headers)


def checked_id(message: dict[str, Any]) -> Any:
    """Return the id of a request. MCP allows strings and integers. JSON-RPC also allows other numbers."""
    message_id = message.get("id")
    if isinstance(message_id, str) and len(message_id) > MAX_REQUEST_ID:  # it is stored longer than the message
        raise Refusal(400, MethodError(INVALID_REQUEST, f"an id can have at most {MAX_REQUEST_ID:,} characters"))
    if isinstance(message_id, (str, int, float)) and not isinstance(message_id, bool):
        return message_id
    raise Refusal(400, MethodError(INVALID_REQUEST, "the id of a request must be a string or a number"))


def check_capabilities(capabilities: dict[str, Any], message_id: Any) -> None:
    """Raise Refusal if the capabilities are too large. They are stored as long as a session or a stream."""
    if len(jsonrpc.encode(capabilities)) > MAX_CAPABILITIES:
        text = f"capabilities can have at most {MAX_CAPABILITIES:,} bytes"
        raise Refusal(400, MethodError(INVALID_PARAMS, text), message_id)


def params_of(message: dict[str, Any]) -> dict[str, Any]:
    params = message.get("params", {})
    if not isinstance(params, dict):
        raise Refusal(400, MethodError(INVALID_REQUEST, "params must be an object"), message.get("id"))
    return params


def client_in(session: ClientSession, principal: Principal, headers: dict[bytes, bytes]) -> Client:
    authorization = headers.get(b"authorization")
    return Client(principal, session, session.capabilities, session.log_level, authorization, session.program)
