"""The least that a gateway in Python does, without tokens, rights, sessions and records: `relay.py PORT UPSTREAM_URL`.

It reads HTTP with httptools on uvloop, as the hall does, decodes a request, removes the member's name from the tool's,
and sends it on a connection that stays open. It decodes the response, and sends it to the client. So it is the bound of
what the gateway could cost.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any
from urllib.parse import urlsplit

import httptools
import msgspec
import uvloop

PREFIX = "echo__"
HEAD = b"%b\r\nContent-Type: application/json\r\nAccept: application/json, text/event-stream\r\n%b"
LENGTH = b"Content-Length: %d\r\n\r\n"
PASSED_ON = (b"mcp-session-id", b"mcp-protocol-version")


class Connection(asyncio.Protocol):
    """Collects messages. `parser` is httptools' for requests or for responses."""

    parser: Any
    transport: Any

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_message_begin(self) -> None:
        self.body = b""
        self.passed_on = b""

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() in PASSED_ON:
            self.passed_on += b"%b: %b\r\n" % (name, value)

    def on_body(self, part: bytes) -> None:
        self.body += part


class Upstream(Connection):
    """A connection to the server, for one request at a time."""

    def __init__(self, client: Client) -> None:
        self.parser = httptools.HttpResponseParser(self)
        self.client = client

    def on_message_complete(self) -> None:
        message = msgspec.json.decode(self.body) if self.body else None
        self.client.reply(self.parser.get_status_code(), message, self.passed_on)


class Client(Connection):
    """A connection of a client, which has an upstream connection of its own."""

    def __init__(self, host: str, port: int, path: str) -> None:
        self.parser = httptools.HttpRequestParser(self)
        self.address, self.path = (host, port), path
        self.upstream: asyncio.Task[Upstream] | None = None

    def on_message_complete(self) -> None:
        message = msgspec.json.decode(self.body) if self.body else {}
        params = message.get("params", {})
        if message.get("method") == "tools/call":
            params["name"] = params["name"].removeprefix(PREFIX)
        verb = self.parser.get_method()
        body = msgspec.json.encode(message) if verb == b"POST" else b""
        start = b"%b %b HTTP/1.1\r\nHost: 127.0.0.1" % (verb, self.path.encode())
        data = HEAD % (start, self.passed_on) + LENGTH % len(body) + body
        if self.upstream is None:
            self.upstream = asyncio.ensure_future(self._connect())
        if self.upstream.done():
            self.upstream.result().transport.write(data)
        else:
            self.upstream.add_done_callback(lambda task: task.result().transport.write(data))

    async def _connect(self) -> Upstream:
        _, upstream = await asyncio.get_running_loop().create_connection(lambda: Upstream(self), *self.address)
        return upstream

    def reply(self, status: int, message: Any, headers: bytes) -> None:
        body = b"" if message is None else msgspec.json.encode(message)
        self.transport.write(HEAD % (b"HTTP/1.1 %d OK" % status, headers) + LENGTH % len(body) + body)

    def connection_lost(self, error: Exception | None) -> None:
        if self.upstream is not None and self.upstream.done():
            self.upstream.result().transport.close()


async def main() -> None:
    url = urlsplit(sys.argv[2])
    server = await asyncio.get_running_loop().create_server(
        lambda: Client(str(url.hostname), url.port or 80, url.path), "127.0.0.1", int(sys.argv[1]), backlog=1024
    )
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main())
