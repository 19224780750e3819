"""The suite sends no credentials and has no option for it: this adds them between it and the hall."""

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
    """Passes bytes on as they come, both ways; each request has one header more, behind its first line.

    Nothing else is touched: names of headers, spaces around values, Host (which has this relay's port) and Origin are
    the suite's own, and an end of either side ends the other.
    """

    port: int
    header: bytes

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Closed whenever it ends: it is cancelled wherever it stands when the relay is over.
        with contextlib.closing(writer), contextlib.suppress(OSError):
            from_hall, to_hall = await asyncio.open_connection("127.0.0.1", self.port)
            with contextlib.closing(to_hall):
                await _first_of(self._requests(reader, to_hall), self._answers(from_hall, writer))

    async def _requests(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            first_line = await reader.readline()
            headers = await reader.readuntil(b"\r\n\r\n")
            writer.write(first_line + self.header + headers)
            # The suite gives the length of every body that it sends.
            writer.write(await reader.readexactly(_content_length(headers)))
            await writer.drain()

    async def _answers(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()


async def _first_of(*ways: Coroutine[Any, Any, None]) -> None:
    """Until one of them ends; it takes the others along."""
    tasks = [asyncio.create_task(way) for way in ways]
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
    """A port on this machine that leads to `port`, with the token on every request."""
    ready: Future[tuple[int, asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def run() -> None:
        serve = Relay(port, f"Authorization: Bearer {token}\r\n".encode()).serve
        async with await asyncio.start_server(serve, "127.0.0.1", 0, limit=LIMIT) as server:
            done = asyncio.Event()
            ready.set_result((server.sockets[0].getsockname()[1], asyncio.get_running_loop(), done))
            await done.wait()

    thread = threading.Thread(target=lambda: asyncio.run(run()), daemon=True)
    thread.start()
    own_port, loop, done = ready.result(10)
    try:
        yield own_port
    finally:
        loop.call_soon_threadsafe(done.set)
        thread.join(10)
