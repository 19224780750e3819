"""Replies as MCP has them over HTTP: one JSON body, a stream of events, or a refusal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mcp_runtime import http_server, jsonrpc
from mcp_runtime.errors import MethodError
from mcp_runtime.gateway.messages import Answer, Event
from mcp_runtime.http_server import Exchange, Headers, TooLargeError
from mcp_runtime.jsonrpc import INVALID_REQUEST

JSON_HEADERS = ((b"content-type", b"application/json"),)
STREAM_HEADERS = (
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
)


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


async def body_of(exchange: Exchange, take: Callable[[int], None] = lambda size: None) -> bytes:
    """Raises Refusal. `take` as Exchange.body has it."""
    try:
        return await exchange.body(take)
    except TooLargeError:
        text = f"the message is larger than {http_server.MAX_BODY:,} bytes"
        raise Refusal(413, MethodError(INVALID_REQUEST, text)) from None
    except TimeoutError:
        text = f"the body did not come within {http_server.BODY_SECONDS:g} s"
        raise Refusal(408, MethodError(INVALID_REQUEST, text)) from None


class Outgoing:
    """A reply that becomes a stream with its first event."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    @property
    def is_started(self) -> bool:
        return self._exchange.is_begun

    def start(self) -> None:
        if not self._exchange.is_begun:
            self._exchange.begin(200, STREAM_HEADERS)

    async def put(self, event: Event) -> None:
        self.start()
        await self._exchange.write(encoded(event))

    async def end(self, answer: Answer | None) -> None:
        """`answer` is its last word; without one the stream is over, or to be resumed."""
        if answer is not None and not self._exchange.is_begun:
            self._exchange.reply(answer.status, answer.body, JSON_HEADERS)
            return
        self.start()
        if answer is not None:
            await self._exchange.write(encoded(Event(answer.body)))
        self._exchange.end()


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
