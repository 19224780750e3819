"""The HTTP/1.1 server of the gateway and the web. A reply goes out in one piece or as a stream.

The server has few features, because each call pays for all of its code. The parser is httptools, as in `client`. For
clients, TLS, compression and upgrades are the work of a proxy in front. Heads, bodies and connections have limits, and
so has the time to wait for each of them.

The module is long because each request goes back and forth between three classes. `HttpServer` starts it, its
`_Connection` reads and writes, and its `HttpExchange` is what the rest of the hall sees. To follow one request you need
all three.
"""

from __future__ import annotations

import asyncio
import collections
import logging
import math
import resource
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from email.utils import formatdate
from functools import cache, lru_cache, partial
from http import HTTPStatus
from types import TracebackType
from typing import Any, cast
from urllib.parse import unquote

import httptools

from mcp_runtime.http1.listeners import BACKLOG

logger = logging.getLogger("guildhall.gateway")

MAX_CONNECTIONS = 4_096
MAX_HEAD = 65_536  # bytes of a request's headers
MAX_FIELDS = 128  # lines of headers
HEAD_SECONDS = 10.0  # for a complete head
MAX_BODY = 4_000_000  # bytes
BODY_SECONDS = 30.0
MAX_UNREAD = 65_536  # unread bytes of a body. With more, the sender must wait
MAX_BUFFERED = 64_000_000  # bytes of all replies that clients have not read yet, and of incomplete heads
MAX_PIPELINED = 256  # requests of a connection that wait behind the current one
MAX_DISCARDED = 4_000_000  # bytes of a discarded body, before the next request
# Bytes of a discarded body if no request follows. Most clients read no answer before they have sent everything.
MAX_LINGERING = 64_000_000
IDLE_SECONDS = 75.0  # between two requests
BLOCKED_CHECK = 64  # how many clients start to read slowly before the unread bytes are checked again
CHECK_SECONDS = 1.0  # between two checks of the deadlines

# Headers that may occur only once. A proxy in front might use the first one, and this server the last.
ONLY_ONCE = frozenset((b"host", b"authorization", b"origin"))

Headers = Sequence[tuple[bytes, bytes]]

WITHOUT_BODY = (204, 304)

HEAD_TOO_LONG = f"Request Header Fields Too Large: the headers have more than {MAX_HEAD:,} bytes."
TOO_MANY_FIELDS = f"Request Header Fields Too Large: there are more than {MAX_FIELDS} header lines."


class ClientDisconnectedError(Exception):
    """The client closed the connection."""


class TooLargeError(Exception):
    """The body has more than MAX_BODY bytes, or more than an upload may have."""


class HttpExchange:
    """One request whose head has arrived, and its reply. Names of headers are in lower case."""

    def __init__(
        self, connection: _Connection, verb: str, url: bytes, headers: dict[bytes, bytes], *, is_kept_alive: bool
    ) -> None:
        self.verb = verb
        if not url.startswith(b"/"):
            url = _strip_authority(url, headers)
        self.target = url  # path and query as they were sent
        path, _, query = url.partition(b"?")
        self.path = unquote(path.decode("latin-1")) if b"%" in path else path.decode("latin-1")
        self.query = query.decode("latin-1")
        self.headers = headers
        self.is_kept_alive = is_kept_alive  # the connection, after this exchange
        self.is_complete = False  # the body
        self.has_begun = False  # the reply
        self.is_over = False
        self.owner: object = None  # set by `answer` once it knows
        self._is_chunked = False
        self._connection = connection
        self._parts = bytearray()
        self._reserved_bytes = 0  # for the body
        self._reader: asyncio.Future[None] | None = None
        self._task: asyncio.Task[object] | None = None
        self._cancelling = 0

    async def body(self, reserve: Callable[[int], None] = lambda size: None, *, step: int = 0) -> bytes:
        """Return the whole body. It can be read only once.

        `reserve(size)` is called with the number of bytes that will be in memory, before they are read. It may raise.
        A known length is reserved at once. If `step` is given, that many bytes are reserved at a time. Raises
        TooLargeError, TimeoutError after BODY_SECONDS, and ClientDisconnectedError.
        """
        if not self.is_complete:
            async with asyncio.timeout(BODY_SECONDS):
                await self._rest_of_body(reserve, step)
        size = len(self._parts)
        if size > MAX_BODY:
            raise TooLargeError
        reserve(size)
        body, self._parts = bytes(self._parts), bytearray()
        return body

    async def spool(self, write: Callable[[bytes], Awaitable[None]], *, most: int, seconds: float) -> None:
        """Pass the whole body on in parts, for one that is too large for memory. It can be read only once.

        Raises TooLargeError if it has more bytes than `most`, TimeoutError, and ClientDisconnectedError.
        """
        if (self.length or 0) > most:
            raise TooLargeError
        size = 0
        self._continue()
        async with asyncio.timeout(seconds):
            while not self.is_complete or self._parts:
                part, self._parts = bytes(self._parts), bytearray()
                if part:
                    size += len(part)
                    if size > most:
                        raise TooLargeError
                    await write(part)
                else:
                    await self._wait_for_part()

    def put_back(self, body: bytes) -> None:
        """Let the next reader read the body that `body()` returned."""
        self._parts = bytearray(body)

    async def _rest_of_body(self, reserve: Callable[[int], None], step: int) -> None:
        length = self.length
        most = MAX_BODY if length is None else length
        if most > MAX_BODY:
            raise TooLargeError
        first = step or (MAX_UNREAD if length is None else length)
        self._reserved_bytes = min(max(first, len(self._parts)), most)
        reserve(self._reserved_bytes)
        self._continue()
        while not self.is_complete and len(self._parts) <= MAX_BODY:
            if len(self._parts) > self._reserved_bytes:
                self._reserved_bytes = min(len(self._parts) + (step or len(self._parts)), most)
                reserve(self._reserved_bytes)
            await self._wait_for_part()

    def _continue(self) -> None:
        """Ask for the body, if the client waits for that."""
        if not self.is_complete and self.headers.get(b"expect", b"").lower() == b"100-continue":
            self._connection.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    async def _wait_for_part(self) -> None:
        """Wait until there is more of the body. Raises ClientDisconnectedError."""
        if self._connection.is_lost:
            raise ClientDisconnectedError
        self._connection.resume()
        self._reader = asyncio.get_running_loop().create_future()
        await self._reader

    @property
    def length(self) -> int | None:
        """The Content-Length."""
        length = self.headers.get(b"content-length", b"")
        return int(length) if length.isdigit() else None

    # The reply ----------------------------------------------------------------------------------------------------

    def reply(self, status: int, body: bytes = b"", headers: Headers = ()) -> None:
        """Send the whole reply."""
        self.has_begun = True
        length = () if status in WITHOUT_BODY else ((b"content-length", b"%d" % len(body)),)
        self._connection.write(self._head(status, (*headers, *length)) + (b"" if self.verb == "HEAD" else body))
        self._end()

    def begin(self, status: int, headers: Headers) -> None:
        """Start a reply that comes in pieces. The headers may include its length."""
        has_length = any(name.lower() == b"content-length" for name, _ in headers)
        if not has_length and self.verb != "HEAD" and status not in WITHOUT_BODY:
            # HTTP/1.0, the default of nginx, has no chunks. There the end of the connection ends the reply.
            self._is_chunked = self.version != "1.0"
        framing = ((b"transfer-encoding", b"chunked"),) if self._is_chunked else ()
        self._connection.write(self._head(status, (*headers, *framing)))
        self.has_begun = True

    def put(self, part: bytes) -> None:
        """Send the next piece. It must not be empty."""
        self._connection.write(b"%x\r\n%b\r\n" % (len(part), part) if self._is_chunked else part)

    async def drain(self) -> None:
        """Wait until a slow client has read enough. Raises ClientDisconnectedError."""
        await self._connection.drain()
        if self._connection.is_lost:
            raise ClientDisconnectedError

    async def write(self, part: bytes) -> None:
        """Send the next piece, and wait until a slow client has read enough. Raises ClientDisconnectedError."""
        self.put(part)
        await self.drain()

    def end(self) -> None:
        """End a reply that comes in pieces."""
        if self._is_chunked:
            self._connection.write(b"0\r\n\r\n")
        self._end()

    @property
    def is_blocked(self) -> bool:
        """Whether the client reads more slowly than we write. Any thread may read this."""
        return self._connection.is_blocked

    @property
    def address(self) -> tuple[str, int]:
        """The client's host and port."""
        return self._connection.address

    @property
    def version(self) -> str:
        """The version of HTTP."""
        return self._connection.version

    def _end(self) -> None:
        self.is_over = True
        self._parts = bytearray()  # free the memory of an unread body
        self._connection.finish(self)

    def _head(self, status: int, headers: Headers) -> bytes:
        if self._connection.is_last_answer:
            self.is_kept_alive = False
        # The rest of this request comes before the next one. A client that waits for "100 Continue" may not send it.
        if not self.is_complete and ((self.length or 0) > MAX_DISCARDED or b"expect" in self.headers):
            self.is_kept_alive = False
        lines = [_status_line(status), _date_line(int(time.time())), *[b"%b: %b" % header for header in headers]]
        if not self.is_kept_alive:
            lines.append(b"connection: close")
        head = b"\r\n".join(lines)
        # Some values come from clients. No value may add a header.
        if head.count(b"\n") != len(lines) - 1 or head.count(b"\r") != len(lines) - 1:
            raise ValueError("a header contains a line break")
        return head + b"\r\n\r\n"

    # While the client is there ------------------------------------------------------------------------------------

    def __enter__(self) -> HttpExchange:
        """Let the block raise ClientDisconnectedError when the client closes the connection."""
        if self._connection.is_lost:
            raise ClientDisconnectedError
        self._task = asyncio.current_task()
        self._cancelling = self._task.cancelling() if self._task is not None else 0
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        task, self._task = self._task, None
        if kind is not asyncio.CancelledError or not self._connection.is_lost or task is None:
            return
        if task.uncancel() <= self._cancelling:  # otherwise somebody else cancelled it too
            raise ClientDisconnectedError from error

    # From connection and server

    def take(self, part: bytes) -> bool:
        """Add a part of the body. Returns False if the connection must stop reading for now."""
        self._parts += part
        if len(self._parts) > self._reserved_bytes:
            self._wake()
        return len(self._parts) <= max(self._reserved_bytes, MAX_UNREAD)

    def abort(self) -> None:
        self._connection.abort()

    def complete(self) -> None:
        """Mark the body as complete."""
        self.is_complete = True
        self._wake()

    def disconnect(self) -> None:
        if not self.is_complete:
            self._parts.clear()  # frees the memory now, without the garbage collector
        self._wake()
        if self._task is not None:
            self._task.cancel()

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)


class _Connection(asyncio.Protocol):
    """One connection. Requests that arrive before the current one is answered wait in the pipeline."""

    _transport: asyncio.Transport

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._pipeline: collections.deque[HttpExchange] = collections.deque()
        self._current: HttpExchange | None = None  # the request that is being answered
        self._latest: HttpExchange | None = None  # the current one, or the last that was answered
        self._incoming: HttpExchange | None = None  # the request whose body is being received
        self._url = b""
        self._headers: dict[bytes, bytes] = {}
        self._has_progress = False  # whether the bytes that are read include a head or a part of a body
        self._is_reading_head = False
        self._head_bytes = 0
        self._field_count = 0
        self._refusal = (400, "Bad Request: not an HTTP/1.1 request.")
        self._discarded_bytes = 0
        self._is_lingering = self._is_paused = False
        self._is_last = False  # no request may follow the latest one
        self._unsent_bytes = math.inf  # at the last missed deadline
        self._drain_waiter: asyncio.Future[None] | None = None
        self.is_lost = False
        self.version = "1.1"
        self.address = ("", 0)
        self.deadline = math.inf  # the latest time at which the client must have sent something

    @property
    def is_blocked(self) -> bool:
        return self._drain_waiter is not None

    @property
    def is_last_answer(self) -> bool:
        """Whether the server accepts no more requests, and none waits behind the current one."""
        return self._server.is_closed and not self._pipeline

    def close_if_idle(self) -> None:
        """Close the connection if it waits for a request and has received no part of it."""
        if self._current is None and not self._pipeline and not self._is_reading_head:
            self._transport.close()

    @property
    def is_waiting_for_client(self) -> bool:
        """Whether the client must send or read something. Then closing the connection loses no work of ours."""
        if self._transport.is_closing():
            return False
        return self._current is None or not self._current.is_complete or self.is_blocked

    def close(self) -> None:
        """Close the connection once everything is sent."""
        self._transport.close()

    def abort(self) -> None:
        self._transport.abort()

    def make_room(self) -> None:
        if self._transport.get_write_buffer_size() or self._current is not None:
            self._transport.abort()
        else:
            self._transport.close()

    def close_overdue(self) -> None:
        """Close a connection after its deadline. Written data is still sent, as long as the client reads it."""
        if self._is_reading_head and not self._transport.is_closing():
            self._refuse(408, f"Request Timeout: the headers did not arrive within {HEAD_SECONDS:g} s.")
        unsent_bytes = self._transport.get_write_buffer_size()
        if self._transport.is_closing() and unsent_bytes >= self._unsent_bytes:
            self._transport.abort()
        else:
            self._unsent_bytes, self.deadline = unsent_bytes, self._loop.time() + IDLE_SECONDS
            self._transport.close()

    # From the loop

    def connection_made(self, base_transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, base_transport)
        peer = base_transport.get_extra_info("peername")
        if isinstance(peer, tuple):  # a Unix socket has no peer name
            self.address = (peer[0].removeprefix("::ffff:"), peer[1])  # an IPv4 client of a dual-stack socket
        self.deadline = self._loop.time() + HEAD_SECONDS
        if not self._server.admit(self):
            self._refuse(503, "Service Unavailable: too many connections are open.", [(b"retry-after", b"2")])
            self.close()

    def data_received(self, data: bytes) -> None:
        if self._is_lingering:
            self._discarded_bytes += len(data)
            if self._discarded_bytes > MAX_LINGERING:
                self.abort()
            return
        if self._is_last and self._incoming is None:
            return
        self._has_progress = False
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._ignore_upgrade(data[upgrade.args[0] :])
            return
        except httptools.HttpParserError:
            if not self._is_last or self._incoming is not None:  # otherwise the client would not read the refusal
                self._refuse(*self._refusal)
                return
        if not self._has_progress:  # trailers and chunk extensions count as a head
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD:
                self._refuse(431, HEAD_TOO_LONG)
        self._advance()

    # There is no `eof_received`. A client that stops sending counts as disconnected, because closing the connection
    # looks the same. Then calls are cancelled, streams are ended, and work that waits for a thread is not started.
    # nginx as a proxy does the same.

    def connection_lost(self, error: Exception | None) -> None:
        self.is_lost = True
        self._server.forget(self)
        for exchange in (self._current, *self._pipeline):
            if exchange is not None:
                exchange.disconnect()
        self._pipeline.clear()
        self._current = self._incoming = None
        self.resume_writing()

    def pause_writing(self) -> None:
        self._drain_waiter = self._loop.create_future()
        self._server.count_blocked()

    @property
    def owner(self) -> object:
        """The owner of the replies that wait here to be read."""
        return self._latest.owner if self._latest is not None else None

    @property
    def buffered_bytes(self) -> int:
        """The bytes in memory that the client has not read yet, with those of an incomplete head."""
        return 0 if self.is_lost else self._transport.get_write_buffer_size() + self._head_bytes

    def resume_writing(self) -> None:
        if self._drain_waiter is not None and not self._drain_waiter.done():
            self._drain_waiter.set_result(None)
        self._drain_waiter = None
        if self._pipeline:
            self._advance()

    # From the parser

    def on_message_begin(self) -> None:
        self._url, self._headers, self._field_count = b"", {}, 0
        self._is_reading_head = True
        if self._current is None:
            self.deadline = self._loop.time() + HEAD_SECONDS

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._incoming is None:  # otherwise it is a trailer, which the server ignores
            name = name.lower()
            self._field_count += 1
            if self._field_count > MAX_FIELDS:
                self._refusal = (431, TOO_MANY_FIELDS)
                raise ValueError("too many headers")
            if name not in self._headers:
                self._headers[name] = value
            elif name in ONLY_ONCE:
                raise ValueError("a header that may occur only once is repeated")
            else:  # RFC 9110, 5.3, and RFC 6265 for cookies
                self._headers[name] += (b"; " if name == b"cookie" else b", ") + value

    def on_headers_complete(self) -> None:
        if len(self._url) + sum(len(name) + len(value) for name, value in self._headers.items()) > MAX_HEAD:
            self._refusal = (431, HEAD_TOO_LONG)
            raise ValueError("the head is too long")
        self._has_progress, self._head_bytes = True, 0
        self._is_reading_head = False
        self.version = self._parser.get_http_version()
        self._is_last = self.version == "1.0" or not self._parser.should_keep_alive()
        verb = self._parser.get_method().decode()
        exchange = HttpExchange(self, verb, self._url, self._headers, is_kept_alive=not self._is_last)
        self._incoming = exchange
        self._pipeline.append(exchange)

    def on_body(self, body: bytes) -> None:
        exchange = self._incoming
        if exchange is None:
            return
        self._has_progress, self._head_bytes = True, 0
        if exchange.is_over:
            self._discarded_bytes += len(body)
            if self._discarded_bytes > MAX_DISCARDED:
                self._linger()
        elif not exchange.take(body):
            self._pause()

    def on_message_complete(self) -> None:
        exchange, self._incoming = self._incoming, None
        if exchange is not None:
            exchange.complete()
            if exchange.is_over:
                self._wait_for_next()

    def _ignore_upgrade(self, rest: bytes) -> None:
        """Parse the request again without its Upgrade header. `rest` is the data after its head.

        Some clients request HTTP/2 with their first request. The parser stops at this header, and skips the body.
        """
        exchange = self._pipeline.pop()
        if exchange.verb == "CONNECT" or self._pipeline:  # a pipeline of upgrades would call this method recursively
            self._refuse(400, "Bad Request: this server is not a proxy.")
            return
        self._parser, self._is_last = httptools.HttpRequestParser(self), False
        head = [b"%b %b HTTP/1.1" % (exchange.verb.encode(), self._url)]
        head += [
            b"%b: %b" % header for header in exchange.headers.items() if header[0] not in (b"upgrade", b"connection")
        ]
        head += [] if exchange.is_kept_alive else [b"connection: close"]
        self.data_received(b"\r\n".join(head) + b"\r\n\r\n" + rest)

    def _refuse(self, status: int, text: str, headers: Headers = ()) -> None:
        """Refuse a bad request. If an earlier request is not answered yet, only close the connection."""
        if self._is_lingering:
            return
        if self._current is not None or self._pipeline or self._incoming is not None:
            self.abort()
            return
        exchange = HttpExchange(self, "", b"", {}, is_kept_alive=False)
        exchange.reply(status, f"{text}\n".encode(), [(b"content-type", b"text/plain"), *headers])

    # From exchanges

    def write(self, data: bytes) -> None:
        if not self.is_lost:
            self._transport.write(data)

    async def drain(self) -> None:
        if self._drain_waiter is not None:
            await asyncio.shield(self._drain_waiter)  # so that the cancellation of one wait does not cancel the others

    def resume(self) -> None:
        if self._is_paused and not self.is_lost:
            self._is_paused = False
            self._transport.resume_reading()

    def _pause(self) -> None:
        if not self._is_paused and not self.is_lost:
            self._is_paused = True
            self._transport.pause_reading()

    def finish(self, exchange: HttpExchange) -> None:
        self._current = None
        if self.is_last_answer:
            exchange.is_kept_alive = False  # the reply may have begun before the server was closed
        if not exchange.is_kept_alive and exchange.is_complete:
            self.deadline = self._loop.time() + IDLE_SECONDS
            self._transport.close()
        elif not exchange.is_kept_alive:
            self._linger()
        elif exchange.is_complete:
            self._wait_for_next()
        else:
            self._discarded_bytes = 0
            self.deadline = self._loop.time() + BODY_SECONDS
            self.resume()

    def _linger(self) -> None:
        """Send nothing more. Close the connection when the client has finished sending, or after BODY_SECONDS.

        Closing a connection while data still arrives resets it. Most clients then never see the reply.
        """
        if self._is_lingering or self._transport.is_closing():
            return
        self._is_lingering = True
        self.deadline = self._loop.time() + BODY_SECONDS
        self.resume()
        if self._transport.can_write_eof():  # TLS cannot
            self._transport.write_eof()

    def _wait_for_next(self) -> None:
        self.deadline = self._loop.time() + IDLE_SECONDS
        self._advance()

    def _advance(self) -> None:
        if self._is_lingering:
            return
        if (
            self._pipeline
            and self._current is None
            and self._drain_waiter is None  # otherwise replies would accumulate for a client that reads none
            and not self._transport.is_closing()
        ):
            self._current = self._latest = self._pipeline.popleft()
            self.deadline = math.inf
            self._server.begin(self._current)
        if self._pipeline:
            self._pause()
            if len(self._pipeline) > MAX_PIPELINED:
                self.abort()
        elif self._is_paused and self._incoming is None:  # a paused one does not notice that the client closed it
            self.resume()


class HttpServer:
    """Listens on sockets, and runs `answer` for each request in a separate task."""

    def __init__(self, answer: Callable[[HttpExchange], Coroutine[Any, Any, None]]) -> None:
        self._answer = answer
        self._connections: dict[_Connection, None] = {}  # oldest first
        self._blocked = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._listeners: list[asyncio.Server] = []
        self.is_closed = False
        self._check_timer: asyncio.TimerHandle | None = None

    async def start(self, sockets: list[socket.socket], tls: ssl.SSLContext | None = None) -> None:
        """Listen on bound sockets."""
        loop = asyncio.get_running_loop()
        handshake = None if tls is None else HEAD_SECONDS
        for sock in sockets:
            self._listeners.append(
                await loop.create_server(
                    lambda: _Connection(self), sock=sock, backlog=BACKLOG, ssl=tls, ssl_handshake_timeout=handshake
                )
            )

    def stop_listening(self) -> None:
        """Accept no more connections. Open connections are closed after their next reply, which announces this.

        A client with one more request connects again. It waits in the backlog if another process keeps the socket open.
        """
        self.is_closed = True
        for listener in self._listeners:
            listener.close()

    def close_idle(self) -> None:
        """Close the connections that have received nothing since their last reply."""
        for connection in self._connections:
            connection.close_if_idle()

    async def stop(self, seconds: float) -> None:
        """Stop the server. Requests in progress have `seconds` to end."""
        deadline = asyncio.get_running_loop().time() + seconds
        self.stop_listening()
        self.close_idle()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)
        for task in self._tasks:
            task.cancel()
        for connection in self._connections:
            connection.close()
        while self._connections and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.005)  # the last replies are still being sent
        for connection in list(self._connections):
            connection.abort()
        if self._check_timer is not None:
            self._check_timer.cancel()

    # From connections

    def admit(self, connection: _Connection) -> bool:
        """Return whether the connection is accepted. If there are too many, others that wait for clients are closed."""
        if len(self._connections) >= max_connections() and not self._make_room():
            return False
        self._connections[connection] = None
        if self._check_timer is None:
            self._check_timer = asyncio.get_running_loop().call_later(CHECK_SECONDS, self._check_connections)
        return True

    def _make_room(self) -> bool:
        """Close the oldest connections that wait for their clients, of the host with most of them. False if none wait.

        A client that sends a request at once gets its reply before its connection is the oldest, however many
        connections its host has. Several are closed together, because the search goes through all connections.
        """
        waiting = [connection for connection in self._connections if connection.is_waiting_for_client]
        if not waiting:
            return False
        host = collections.Counter(connection.address[0] for connection in waiting).most_common(1)[0][0]
        of_host = [connection for connection in waiting if connection.address[0] == host]
        for connection in of_host[: 1 + len(waiting) // 64]:
            connection.make_room()
        return True

    def count_blocked(self) -> None:
        """Count one more client that reads slowly. Every BLOCKED_CHECK of them, check all connections."""
        self._blocked += 1
        if self._blocked % BLOCKED_CHECK == 0:
            self._limit_buffered()

    def _limit_buffered(self) -> None:
        """Close connections until their bytes fit the limit. Those of the owner with most bytes are closed first."""
        sizes = {connection: size for connection in self._connections if (size := connection.buffered_bytes)}
        total = sum(sizes.values())
        if total <= MAX_BUFFERED:
            return
        by_owner: collections.Counter[object] = collections.Counter()
        for connection, size in sizes.items():
            by_owner[connection.owner] += size
        for connection in sorted(sizes, key=lambda each: (by_owner[each.owner], sizes[each]), reverse=True):
            connection.abort()
            total -= sizes[connection]
            if total <= MAX_BUFFERED * 7 // 8:
                return

    def forget(self, connection: _Connection) -> None:
        self._connections.pop(connection, None)

    def _check_connections(self) -> None:
        self._check_timer, now = None, asyncio.get_running_loop().time()
        for connection in [each for each in self._connections if each.deadline < now]:
            connection.close_overdue()
        self._limit_buffered()
        if self._connections:
            self._check_timer = asyncio.get_running_loop().call_later(CHECK_SECONDS, self._check_connections)

    def begin(self, exchange: HttpExchange) -> None:
        task = asyncio.get_running_loop().create_task(self._answer(exchange))
        self._tasks.add(task)
        task.add_done_callback(partial(self._finish_task, exchange))

    def _finish_task(self, exchange: HttpExchange, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, ClientDisconnectedError):
            logger.error("%s %r was not answered", exchange.verb, exchange.path, exc_info=error)
        if not exchange.is_over:
            exchange.abort()


def max_connections() -> int:
    """The limit of connections. It is half of the files that the process may open, because other parts need some."""
    return min(MAX_CONNECTIONS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)


@cache
def _status_line(status: int) -> bytes:
    return f"HTTP/1.1 {status} {HTTPStatus(status).phrase}".encode()


@lru_cache(maxsize=1)
def _date_line(second: int) -> bytes:
    return f"date: {formatdate(second, usegmt=True)}".encode()


def _strip_authority(url: bytes, headers: dict[bytes, bytes]) -> bytes:
    """Return the path of `http://host/path`, the form for proxies (RFC 9112, 3.2.2). It sets the Host header."""
    scheme, _, rest = url.partition(b"://")
    if scheme.lower() not in (b"http", b"https"):
        return url
    headers[b"host"], _, path = rest.partition(b"/")
    return b"/" + path
