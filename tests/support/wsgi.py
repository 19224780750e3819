"""The web's own server on a real socket, with any application."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any
from wsgiref.types import WSGIApplication

import uvloop

from guildhall.uploads import Uploads
from guildhall.wsgi_server import WsgiServer
from mcp_runtime.http1.server import HttpExchange, HttpServer
from tests.support.resources import bytes_in


class RunningServer:
    """A server whose event loop runs in its own thread."""

    def __init__(self, application: WSGIApplication, threads: int, uploads: Uploads | None = None) -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        self.port = listener.getsockname()[1]
        self.steps = 0
        self.exchanges: list[HttpExchange] = []
        self.finished_exchanges: list[HttpExchange] = []
        self._threads_before = web_threads()
        self._wsgi = WsgiServer(
            application, threads=threads, name=("a", 1), after_step=self._after_step, uploads=uploads
        )
        self.server = HttpServer(self._respond)
        self.loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()
        self.on_loop(self.server.start([listener])).result(10)

    def _after_step(self) -> None:
        self.steps += 1

    async def _respond(self, exchange: HttpExchange) -> None:
        self.exchanges.append(exchange)
        try:
            await self._wsgi(exchange)
        finally:
            self.finished_exchanges.append(exchange)

    def threads(self) -> int:
        """The number of threads that work for the application."""
        return len(web_threads() - self._threads_before)

    def wait_until_idle(self) -> None:
        """Wait until the event loop has no work."""
        self.on_loop(asyncio.sleep(0.05)).result(10)

    def bytes_in_memory(self, connection: socket.socket) -> int:
        """The bytes in memory of the request on this connection."""
        address = connection.getsockname()
        return sum(bytes_in(exchange) for exchange in list(self.exchanges) if exchange.address == address)

    def on_loop(self, work: Any) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def connect(self, address: str = "127.0.0.1") -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=10, source_address=(address, 0))

    def exchange_bytes(self, *parts: bytes) -> bytes:
        """Send the parts and return all bytes until the server ends the connection."""
        with self.connect() as connection:
            for part in parts:
                connection.sendall(part)
            return read_rest(connection)

    def get(self, path: str = "/", verb: str = "GET", **options: Any) -> tuple[http.client.HTTPResponse, bytes]:
        client = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        client.request(verb, path, **options)
        response = client.getresponse()
        body = response.read()
        client.close()
        return response, body

    def end(self) -> None:
        self.on_loop(self.server.stop(0.2)).result(10)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)
        self.loop.close()


Serve = Callable[..., RunningServer]


def web_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("web-")}


def read_rest(connection: socket.socket) -> bytes:
    data = bytearray()
    with contextlib.suppress(ConnectionError):
        while part := connection.recv(65_536):
            data += part
    return bytes(data)
