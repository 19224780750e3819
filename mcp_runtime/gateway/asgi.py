"""ASGI by hand: bodies within bounds, replies, events, and whether the caller is still there."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, MutableMapping
from typing import Any

from mcp_runtime.errors import MethodError
from mcp_runtime.gateway.messages import Answer, Event
from mcp_runtime.jsonrpc import INVALID_REQUEST

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

MAX_BODY = 4_000_000
BODY_SECONDS = 30.0
# How long a call may take before somebody looks whether its caller is still there: most are over sooner.
WATCH_AFTER = 0.2
JSON_HEADERS = [(b"content-type", b"application/json")]
STREAM_HEADERS = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]


class Refusal(Exception):
    """An HTTP status with a JSON-RPC error as its body."""

    def __init__(
        self, status: int, error: MethodError, message_id: Any = None, headers: list[tuple[bytes, bytes]] | None = None
    ) -> None:
        super().__init__(str(error))
        self.status = status
        self.error = error
        self.message_id = message_id
        self.headers = headers or []


class GoneError(Exception):
    """The caller is not there any more."""


@contextlib.asynccontextmanager
async def while_there(receive: Receive, *, at_once: bool = False) -> AsyncGenerator[None]:
    """Ends what is inside when the caller goes away. Looked at after a while only: most of it is over sooner."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    watcher: asyncio.Task[None] | None = None
    is_gone = False

    async def watch() -> None:
        nonlocal is_gone
        while (await receive())["type"] != "http.disconnect":
            pass
        is_gone = True
        if task is not None:
            task.cancel()

    def begin() -> None:
        nonlocal watcher
        watcher = loop.create_task(watch())

    timer = loop.call_later(0.0 if at_once else WATCH_AFTER, begin)
    try:
        yield
    except asyncio.CancelledError:
        if is_gone:
            if task is not None:
                task.uncancel()
            raise GoneError from None
        raise
    finally:
        timer.cancel()
        if watcher is not None:
            watcher.cancel()


async def body_of(receive: Receive) -> bytes:
    parts, has_more = bytearray(), True
    try:
        async with asyncio.timeout(BODY_SECONDS):
            while has_more and len(parts) <= MAX_BODY:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise GoneError
                parts += message.get("body", b"")
                has_more = message.get("more_body", False)
    except TimeoutError as error:
        raise Refusal(408, MethodError(INVALID_REQUEST, f"the body did not come within {BODY_SECONDS:g} s")) from error
    if len(parts) > MAX_BODY:
        raise Refusal(413, MethodError(INVALID_REQUEST, f"the message is larger than {MAX_BODY:,} bytes"))
    return bytes(parts)


async def start(send: Send, status: int, headers: list[tuple[bytes, bytes]]) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})


async def send_whole(send: Send, status: int, body: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
    await send({"type": "http.response.body", "body": body})


class Outgoing:
    """A reply that becomes a stream with its first event."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.is_started = False

    async def start(self) -> None:
        if not self.is_started:
            self.is_started = True
            await start(self._send, 200, STREAM_HEADERS)

    async def put(self, event: Event) -> None:
        await self.start()
        await send_event(self._send, event)

    async def end(self, answer: Answer | None) -> None:
        """`answer` is its last word; without one the stream is over, or to be resumed."""
        if answer is not None and not self.is_started:
            await send_whole(self._send, answer.status, answer.body, JSON_HEADERS)
            return
        await self.start()
        if answer is not None:
            await send_event(self._send, Event(answer.body))
        await self._send({"type": "http.response.body", "body": b""})


async def send_event(send: Send, event: Event) -> None:
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
    text = b"\n".join(parts) or b":"
    await send({"type": "http.response.body", "body": text + b"\n\n", "more_body": True})
