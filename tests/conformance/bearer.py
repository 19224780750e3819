"""The suite sends no credentials and has no option for them, so this relay adds a token between suite and hall."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

LIMIT = 1 << 20  # bytes of a request's head


@dataclass(frozen=True)
class Relay:
    """Relays bytes in both directions. Adds one header after the first line of each request.

    Nothing else changes: the names of headers, spaces around values, Host (which has the port of this relay) and Origin
    come from the suite. The end of either side ends the other.
    """

    port: int
    header: bytes

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # This is cancelled at any point when the relay ends, and closes its connections then.
        with contextlib.closing(writer), contextlib.suppress(OSError):
            from_hall, to_hall = await asyncio.open_connection("127.0.0.1", self.port)
            with contextlib.closing(to_hall):
                await _wait_for_first(self._relay_requests(reader, to_hall), self._relay_responses(from_hall, writer))

    async def _relay_requests(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            first_line = await reader.readline()
            headers = await reader.readuntil(b"\r\n\r\n")
            writer.write(first_line + self.header + headers)
            # The suite sends the length of every body.
            writer.write(await reader.readexactly(_content_length(headers)))
            await writer.drain()

    async def _relay_responses(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()


async def _wait_for_first(*coroutines: Coroutine[Any, Any, None]) -> None:
    """Run all coroutines until one of them ends, and then cancel the others."""
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _content_length(headers: bytes) -> int:
    for line in headers.lower().split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name == b"transfer-encoding":
            raise ValueError("a request in chunks: the relay does not know where it ends")
        if name == b"content-length":
            return int(value)
    return 0


@contextlib.contextmanager
def relay(port: int, token: str) -> Iterator[int]:
    """A port on this machine that relays to `port`, with the token in every request."""
    ready: Future[tuple[int, asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def run() -> None:
        serve = Relay(port, f"Authorization: Bearer {token}\r\n".encode()).serve
        async with await asyncio.start_server(serve, "127.0.0.1", 0, limit=LIMIT) as server:
            stop = asyncio.Event()
            ready.set_result((server.sockets[0].getsockname()[1], asyncio.get_running_loop(), stop))
            await stop.wait()

    thread = threading.Thread(target=lambda: asyncio.run(run()), daemon=True)
    thread.start()
    own_port, loop, stop = ready.result(10)
    try:
        yield own_port
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
