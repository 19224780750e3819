"""Send streams over HTTP until the client or the gateway ends them."""

from __future__ import annotations

import contextlib
from typing import Any

from mcp_runtime.gateway.catalog import Place
from mcp_runtime.gateway.messages import Client, Event, Stream
from mcp_runtime.gateway.replies import FORBIDDEN, STREAM_HEADERS, Refusal, encoded
from mcp_runtime.gateway.streams.client_streams import ClientStreams, TooManyStreamsError
from mcp_runtime.http1.server import HttpExchange
from mcp_runtime.protocol.errors import AccessError, ClientError, MethodError
from mcp_runtime.protocol.jsonrpc import INTERNAL_ERROR
from mcp_runtime.security import access


async def open_stream(
    client_streams: ClientStreams, place: Place, client: Client, exchange: HttpExchange, *listen: Any
) -> Stream:
    """Open a stream of notifications. Raise Refusal if that is not possible."""
    try:
        access.require_anything(client.principal)
        return await client_streams.open(place, client, exchange, *listen)
    except AccessError as error:
        raise Refusal(403, MethodError(FORBIDDEN, str(error))) from error
    except TooManyStreamsError as error:
        full = MethodError(INTERNAL_ERROR, "too many open streams; close some")
        raise Refusal(503, full, headers=[(b"retry-after", b"10")]) from error


async def send_stream(stream: Stream, exchange: HttpExchange, *, first: bytes = b"", last: bytes = b"") -> None:
    """Forward the stream until it ends or the client disconnects."""
    async with contextlib.aclosing(stream):
        exchange.begin(200, STREAM_HEADERS)
        await exchange.write(encoded(Event(first)))
        with contextlib.suppress(ClientError):  # the client may resume
            async for event in stream.events:
                await exchange.write(encoded(event))
        if last:
            await exchange.write(encoded(Event(last)))
        exchange.end()
