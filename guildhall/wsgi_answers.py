"""What a thread does for one request: it produces the answer, which the loop sends, or says what the request may have.

The application produces its answer in steps. A step ends when the client has enough to read, and the next one starts
when the client has read it. Each step may run in another thread, so the generator of an answer may run in several
threads, one after the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import IO, Any
from wsgiref.types import WSGIApplication, WSGIEnvironment

from guildhall.turns import Turn
from mcp_runtime.http1 import server
from mcp_runtime.http1.server import HttpExchange
from mcp_runtime.schemas.schema_work import about_to_wait
from mcp_runtime.security.limits import Owner

logger = logging.getLogger("guildhall.web")

MAX_AHEAD = 262_144  # bytes that the application may be ahead of the client
FILE_BLOCK = 131_072
WAITS = "guildhall.waits"  # in the environment: a request calls it before it waits

Headers = list[tuple[bytes, bytes]]


class Answer:
    """The application's answer to one request. Threads produce it, and the loop sends it.

    `file` has the body of an upload, and is closed at the end.
    """

    def __init__(
        self,
        application: WSGIApplication,
        environment: WSGIEnvironment,
        exchange: HttpExchange,
        owner: Owner,
        file: IO[bytes] | None = None,
    ) -> None:
        self._application = application
        self._file = file
        self._environment = environment
        self._exchange = exchange
        self._loop = asyncio.get_running_loop()
        self._result: Iterable[bytes] | None = None
        self._parts: Iterator[bytes] = iter(())
        self._status = 0
        self._headers: Headers = []
        self._remaining_bytes: int | None = None  # of the body, if its length is known
        self._has_begun = False
        self._ahead: deque[bytes] = deque()
        self._produced_bytes = 0  # by the threads
        self._sent_bytes = 0  # by the loop
        self.owner = owner
        self.is_closed = False
        self.is_in_thread = False
        self.turn: Turn | None = None
        self.has_client = True

    @property
    def name(self) -> str:
        return f"{self._exchange.verb} {self._exchange.path!r}"

    # In a thread

    def step(self) -> bool:
        """Produce as much as the client can take. True at the end of the answer."""
        before = about_to_wait.set(self._environment.get(WAITS, lambda: None))
        try:
            return self._step()
        finally:
            # Otherwise the thread would keep the request alive, and call it when a later one waits.
            about_to_wait.reset(before)

    def _step(self) -> bool:
        if self._result is None:
            self._result = self._application(self._environment, self._start_response)
            self._parts = iter(self._result)
        for part in self._parts:
            if part:
                self._produce(part)
            if not self.has_client:
                return True
            if self._exchange.is_blocked or self._produced_bytes - self._sent_bytes > MAX_AHEAD:
                return False
        call_soon(self._loop, self._end)
        self.close()
        return True

    def _start_response(
        self,
        status: str,
        headers: list[tuple[str, str]],
        exc_info: tuple[type[BaseException], BaseException, TracebackType] | tuple[None, None, None] | None = None,
        /,
    ) -> Callable[[bytes], object]:
        if exc_info is not None and self._has_begun and exc_info[1] is not None:
            raise exc_info[1]
        self._status = int(status[:3])
        self._headers = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers]
        length = dict(self._headers).get(b"content-length")
        self._remaining_bytes = None if length is None else int(length)
        return self._produce

    def _produce(self, part: bytes) -> None:
        if self._remaining_bytes is not None:
            part = part[: self._remaining_bytes]
            self._remaining_bytes -= len(part)
        self._has_begun = True
        self._produced_bytes += len(part)
        self._ahead.append(part)
        if self._remaining_bytes == 0 and self._produced_bytes <= MAX_AHEAD:
            return  # `_end` sends it all
        if len(self._ahead) == 1:  # otherwise a `_flush` is already scheduled, and sends this part too
            call_soon(self._loop, self._flush)

    def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            close = getattr(self._result, "close", None)
            try:
                if close is not None:
                    close()
            finally:
                if self._file is not None:
                    self._file.close()

    # On the loop

    def _flush(self) -> None:
        try:
            if not self._exchange.is_over:
                self._send()
        except Exception:
            logger.exception("%s was not answered", self.name)
            self.fail()

    def _end(self) -> None:
        try:
            if not self._exchange.is_over:
                self._send_last()
        except Exception:
            logger.exception("%s was not answered", self.name)
            self.fail()

    def _send(self) -> None:
        if not self._exchange.has_begun:
            self._exchange.begin(self._status, self._headers)
        while self._ahead:
            part = self._ahead.popleft()
            self._sent_bytes += len(part)
            if part and self._exchange.verb != "HEAD":
                self._exchange.put(part)

    def _send_last(self) -> None:
        if not self._exchange.has_begun and (not self._remaining_bytes or self._status in server.WITHOUT_BODY):
            headers = [header for header in self._headers if header[0] != b"content-length"]
            self._exchange.reply(self._status, b"".join(self._ahead), headers)
            return
        self._send()
        if self._remaining_bytes and self._exchange.verb != "HEAD":
            self._exchange.abort()  # the client would read the next answer as the rest of this one
        else:
            self._exchange.end()

    def fail(self) -> None:
        self.has_client = False
        if self._exchange.has_begun:
            self._exchange.abort()
        else:
            refuse(self._exchange, 500, "Internal Server Error")


class Question:
    """Asks in a thread whether a request may have a large body. It is one step, and sends nothing."""

    def __init__(self, ask: Callable[[WSGIEnvironment], bool], environment: WSGIEnvironment, owner: Owner) -> None:
        self._ask = ask
        self._environment = environment
        self.name = f"whether {environment['PATH_INFO']!r} takes a large body"
        self.owner = owner
        self.is_closed = True
        self.is_in_thread = False
        self.turn: Turn | None = None
        self.is_granted = False

    def step(self) -> bool:
        self.is_granted = self._ask(self._environment)
        return True

    def fail(self) -> None:
        """Then the application gets the beginning, and tells the client what is wrong."""

    def close(self) -> None:
        """There is nothing to close."""


class FileBlocks:
    """`wsgi.file_wrapper`: a file in blocks larger than those that applications ask for."""

    def __init__(self, file: IO[bytes], block_size: int = FILE_BLOCK) -> None:
        self._file = file

    def __iter__(self) -> Iterator[bytes]:
        return iter(lambda: self._file.read(FILE_BLOCK), b"")

    def close(self) -> None:
        self._file.close()


def refuse(exchange: HttpExchange, status: int, text: str) -> None:
    exchange.is_kept_alive = False
    exchange.reply(status, f"{text}\n".encode(), [(b"content-type", b"text/plain; charset=utf-8")])


def call_soon(loop: asyncio.AbstractEventLoop, work: Callable[..., None], *args: Any) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(work, *args)
