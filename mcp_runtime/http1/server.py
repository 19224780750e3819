"""HTTP/1.1 for callers, for gateway and web: requests as they come, replies in one piece or as a stream.

Small on purpose: a call is one short request and one short reply, and whatever stands here is paid for by each of
them. The parser is httptools, that of the way to members (`client`). TLS, compression and upgrades are none of it:
those are for whoever stands in front. Everything is bounded: heads, bodies, connections, and how long each is waited
for.

It is longer than other modules because each request goes back and forth between three classes: `HttpServer` begins it,
its `_Connection` reads and writes, and its `HttpExchange` is what the rest of the hall sees. Whoever follows one
request needs all three, and finds them here.
"""

from __future__ import annotations

import asyncio
import collections
import logging
import math
import resource
import socket
import time
from collections.abc import Callable, Coroutine, Sequence
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
MAX_FIELDS = 128  # lines of them
HEAD_SECONDS = 10.0  # for all of a head, however it trickles in
MAX_BODY = 4_000_000  # bytes
BODY_SECONDS = 30.0
MAX_UNREAD = 65_536  # bytes of a body that nobody has asked for yet; then its sender waits
MAX_HELD = 64_000_000  # bytes of all replies that their callers have not read, and of heads that are not complete
MAX_WAITING = 256  # requests behind the one that is being answered
MAX_DISCARDED = 4_000_000  # bytes of a body that nobody wants any more, before the next request
# Bytes of it where no request follows. Most clients read no answer before they have sent everything.
MAX_LINGERING = 64_000_000
IDLE_SECONDS = 75.0  # between two requests
BLOCKED_LOOK = 64  # callers who began to read slowly, between two looks at what is unread in all
LOOK_SECONDS = 1.0  # between two looks at who is late

# Whoever stands in front may judge by the first one, and we by the last.
ONLY_ONCE = frozenset((b"host", b"authorization", b"origin"))

Headers = Sequence[tuple[bytes, bytes]]

WITHOUT_BODY = (204, 304)


class GoneError(Exception):
    """The caller is not there any more."""


class TooLargeError(Exception):
    """The body has more than MAX_BODY bytes."""


class HttpExchange:
    """One request, whose head has come, and its reply. Names of headers are in small letters."""

    def __init__(
        self, connection: _Connection, verb: str, url: bytes, headers: dict[bytes, bytes], *, is_kept_alive: bool
    ) -> None:
        self.verb = verb
        if not url.startswith(b"/"):
            url = _without_authority(url, headers)
        self.target = url  # path and query as they were sent
        path, _, query = url.partition(b"?")
        self.path = unquote(path.decode("latin-1")) if b"%" in path else path.decode("latin-1")
        self.query = query.decode("latin-1")
        self.headers = headers
        self.is_kept_alive = is_kept_alive  # the connection, after it
        self.is_complete = False  # the body
        self.is_begun = False  # the reply
        self.is_over = False
        self.owner: object = None  # whose it is, once `answer` knows
        self._is_chunked = False
        self._connection = connection
        self._parts = bytearray()
        self._wanted = 0  # bytes of it
        self._reader: asyncio.Future[None] | None = None
        self._task: asyncio.Task[object] | None = None
        self._cancelling = 0

    async def body(self, take: Callable[[int], None] = lambda size: None, *, step: int = 0) -> bytes:
        """All of it, once. `take(size)` is told how much of it will be in memory, before it is read; it may refuse.

        A known length is told at once. With `step` it is told of so many bytes more than have come, again and again.
        Raises TooLargeError, TimeoutError, and GoneError for a caller who breaks off.
        """
        if not self.is_complete:
            async with asyncio.timeout(BODY_SECONDS):
                await self._rest_of_body(take, step)
        size = len(self._parts)
        if size > MAX_BODY:
            raise TooLargeError
        take(size)
        body, self._parts = bytes(self._parts), bytearray()
        return body

    async def _rest_of_body(self, take: Callable[[int], None], step: int) -> None:
        length = self._length
        most = MAX_BODY if length is None else length
        if most > MAX_BODY:
            raise TooLargeError
        first = step or (MAX_UNREAD if length is None else length)
        self._wanted = min(max(first, len(self._parts)), most)
        take(self._wanted)
        if self.headers.get(b"expect", b"").lower() == b"100-continue":
            self._connection.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        while not self.is_complete and len(self._parts) <= MAX_BODY:
            if self._connection.is_lost:
                raise GoneError
            if len(self._parts) > self._wanted:
                self._wanted = min(len(self._parts) + (step or len(self._parts)), most)
                take(self._wanted)
            self._connection.resume()
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader

    @property
    def _length(self) -> int | None:
        """Of the body, as the head says it."""
        length = self.headers.get(b"content-length", b"")
        return int(length) if length.isdigit() else None

    # The reply ----------------------------------------------------------------------------------------------------

    def reply(self, status: int, body: bytes = b"", headers: Headers = ()) -> None:
        """All of it."""
        self.is_begun = True
        length = () if status in WITHOUT_BODY else ((b"content-length", b"%d" % len(body)),)
        self._connection.write(self._head(status, (*headers, *length)) + (b"" if self.verb == "HEAD" else body))
        self._end()

    def begin(self, status: int, headers: Headers) -> None:
        """Of a reply that comes in pieces. Their length may be among the headers."""
        has_length = any(name.lower() == b"content-length" for name, _ in headers)
        if not has_length and self.verb != "HEAD" and status not in WITHOUT_BODY:
            # HTTP/1.0, which nginx speaks unless told otherwise, has no chunks: there the connection's end is the end.
            self._is_chunked = self.version != "1.0"
        framing = ((b"transfer-encoding", b"chunked"),) if self._is_chunked else ()
        self._connection.write(self._head(status, (*headers, *framing)))
        self.is_begun = True

    def put(self, part: bytes) -> None:
        """The next piece, which is not empty."""
        self._connection.write(b"%x\r\n%b\r\n" % (len(part), part) if self._is_chunked else part)

    async def drained(self) -> None:
        """Waits for a caller who reads slowly. Raises GoneError."""
        await self._connection.drained()
        if self._connection.is_lost:
            raise GoneError

    async def write(self, part: bytes) -> None:
        """`put` and `drained`."""
        self.put(part)
        await self.drained()

    def end(self) -> None:
        """No more pieces."""
        if self._is_chunked:
            self._connection.write(b"0\r\n\r\n")
        self._end()

    @property
    def is_blocked(self) -> bool:
        """The caller reads more slowly than we write. (May be asked by any thread.)"""
        return self._connection.is_blocked

    @property
    def address(self) -> tuple[str, int]:
        """Whose connection it is: host and port."""
        return self._connection.address

    @property
    def version(self) -> str:
        """Of HTTP."""
        return self._connection.version

    def _end(self) -> None:
        self.is_over = True
        self._parts = bytearray()  # of a body that nobody asked for
        self._connection.answered(self)

    def _head(self, status: int, headers: Headers) -> bytes:
        if self._connection.is_last_answer:
            self.is_kept_alive = False
        # Before the next request comes the rest of this one, if it comes: who expects a word may send nothing now.
        if not self.is_complete and ((self._length or 0) > MAX_DISCARDED or b"expect" in self.headers):
            self.is_kept_alive = False
        lines = [_status_line(status), _date_line(int(time.time())), *[b"%b: %b" % header for header in headers]]
        if not self.is_kept_alive:
            lines.append(b"connection: close")
        head = b"\r\n".join(lines)
        # Some values say what callers sent: none may become a header of its own.
        if head.count(b"\n") != len(lines) - 1 or head.count(b"\r") != len(lines) - 1:
            raise ValueError("a header would hold a line break")
        return head + b"\r\n\r\n"

    # While the caller is there ------------------------------------------------------------------------------------

    def __enter__(self) -> HttpExchange:
        """What is inside ends with GoneError when the caller goes away."""
        if self._connection.is_lost:
            raise GoneError
        self._task = asyncio.current_task()
        self._cancelling = self._task.cancelling() if self._task is not None else 0
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        task, self._task = self._task, None
        if kind is not asyncio.CancelledError or not self._connection.is_lost or task is None:
            return
        if task.uncancel() <= self._cancelling:  # else somebody cancelled it as well
            raise GoneError from error

    # From connection and server

    def take(self, part: bytes) -> bool:
        """One more part of the body. False: no more of it for now."""
        self._parts += part
        if len(self._parts) > self._wanted:
            self._wake()
        return len(self._parts) <= max(self._wanted, MAX_UNREAD)

    def abort(self) -> None:
        self._connection.abort()

    def complete(self) -> None:
        """That was the body."""
        self.is_complete = True
        self._wake()

    def gone(self) -> None:
        if not self.is_complete:
            self._parts.clear()  # now, and not when the garbage collector comes by
        self._wake()
        if self._task is not None:
            self._task.cancel()

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)


class _Connection(asyncio.Protocol):
    """One connection. Requests that come before the one in front of them is answered wait in line."""

    _transport: asyncio.Transport

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._line: collections.deque[HttpExchange] = collections.deque()
        self._answering: HttpExchange | None = None
        self._latest: HttpExchange | None = None  # that was answered, or is
        self._receiving: HttpExchange | None = None  # its body
        self._url = b""
        self._headers: dict[bytes, bytes] = {}
        self._has_progress = False  # a head, or some of a body, in the piece that is read
        self._is_within_a_head = False
        self._head_bytes = 0
        self._fields = 0
        self._refusal = (400, "This is no HTTP/1.1 request.")
        self._discarded = 0
        self._lingers = False
        self._is_paused = False
        self._is_last = False  # the request that came last is the last one
        self._unsent = math.inf  # bytes, when the caller was late
        self._drained: asyncio.Future[None] | None = None
        self.is_lost = False
        self.version = "1.1"
        self.address = ("", 0)
        self.due = math.inf  # when the caller should have said something

    @property
    def is_blocked(self) -> bool:
        return self._drained is not None

    @property
    def is_last_answer(self) -> bool:
        """Nothing has come behind the request that is answered, and nothing else is taken."""
        return self._server.is_closed and not self._line

    def close_if_idle(self) -> None:
        """When it waits for a request of which nothing has come."""
        if self._answering is None and not self._line and not self._is_within_a_head:
            self._transport.close()

    @property
    def is_waiting_for_its_client(self) -> bool:
        """To begin a request, to send the rest of one, or to read: no work of ours would be lost with it."""
        if self._transport.is_closing():
            return False
        return self._answering is None or not self._answering.is_complete or self.is_blocked

    def close(self) -> None:
        """Once everything is sent."""
        self._transport.close()

    def abort(self) -> None:
        self._transport.abort()

    def make_room(self) -> None:
        if self._transport.get_write_buffer_size() or self._answering is not None:
            self._transport.abort()
        else:
            self._transport.close()

    def end_late(self) -> None:
        """What was written is still sent, as long as the caller reads some of it."""
        if self._is_within_a_head and not self._transport.is_closing():
            self._refuse(408, f"The headers did not come within {HEAD_SECONDS:g} s.")
        unsent = self._transport.get_write_buffer_size()
        if self._transport.is_closing() and unsent >= self._unsent:
            self._transport.abort()
        else:
            self._unsent, self.due = unsent, self._loop.time() + IDLE_SECONDS
            self._transport.close()

    # From the loop

    def connection_made(self, made: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, made)
        peer = made.get_extra_info("peername")
        if isinstance(peer, tuple):  # a Unix socket has no name at its other end
            self.address = (peer[0].removeprefix("::ffff:"), peer[1])  # an IPv4 client of a socket for both
        self.due = self._loop.time() + HEAD_SECONDS
        if not self._server.admit(self):
            self._refuse(503, "Too many connections are open.", [(b"retry-after", b"2")])
            self.close()

    def data_received(self, data: bytes) -> None:
        if self._lingers:
            self._discarded += len(data)
            if self._discarded > MAX_LINGERING:
                self.abort()
            return
        if self._is_last and self._receiving is None:
            return
        self._has_progress = False
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._stay_with_this_protocol(data[upgrade.args[0] :])
            return
        except httptools.HttpParserError:
            if not self._is_last or self._receiving is not None:  # else it is about what nobody hears
                self._refuse(*self._refusal)
                return
        if not self._has_progress:  # what comes around a body grows as heads do: trailers, and what chunks say
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD:
                self._refuse(431, "The headers are too long.")
        self._go_on()

    # There is no `eof_received`: who stops sending is gone. One who closes the connection looks just the same, and then
    # calls are cancelled, streams ended, and what waits for a thread is not begun. nginx as a proxy does so too.

    def connection_lost(self, error: Exception | None) -> None:
        self.is_lost = True
        self._server.forget(self)
        for exchange in (self._answering, *self._line):
            if exchange is not None:
                exchange.gone()
        self._line.clear()
        self._answering = self._receiving = None
        self.resume_writing()

    def pause_writing(self) -> None:
        self._drained = self._loop.create_future()
        self._server.count_blocked()

    @property
    def owner(self) -> object:
        """Whose reply waits here to be read."""
        return self._latest.owner if self._latest is not None else None

    @property
    def held(self) -> int:
        """Bytes of memory: of what its client has not read, and of a head that is not complete."""
        return 0 if self.is_lost else self._transport.get_write_buffer_size() + self._head_bytes

    def resume_writing(self) -> None:
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        self._drained = None
        if self._line:
            self._go_on()

    # From the parser

    def on_message_begin(self) -> None:
        self._url, self._headers, self._fields = b"", {}, 0
        self._is_within_a_head = True
        if self._answering is None:
            self.due = self._loop.time() + HEAD_SECONDS

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._receiving is None:  # else it comes behind the body, where none is wanted
            name = name.lower()
            self._fields += 1
            if self._fields > MAX_FIELDS:
                self._refusal = (431, "There are too many headers.")
                raise ValueError("too many headers")
            if name not in self._headers:
                self._headers[name] = value
            elif name in ONLY_ONCE:
                raise ValueError("a header that decides who may come in is there twice")
            else:  # RFC 9110, 5.3; RFC 6265 for cookies
                self._headers[name] += (b"; " if name == b"cookie" else b", ") + value

    def on_headers_complete(self) -> None:
        if len(self._url) + sum(len(name) + len(value) for name, value in self._headers.items()) > MAX_HEAD:
            self._refusal = (431, "The headers are too long.")
            raise ValueError("a long head may come in one piece")
        self._has_progress, self._head_bytes = True, 0
        self._is_within_a_head = False
        self.version = self._parser.get_http_version()
        self._is_last = self.version == "1.0" or not self._parser.should_keep_alive()
        verb = self._parser.get_method().decode()
        exchange = HttpExchange(self, verb, self._url, self._headers, is_kept_alive=not self._is_last)
        self._receiving = exchange
        self._line.append(exchange)

    def on_body(self, body: bytes) -> None:
        exchange = self._receiving
        if exchange is None:
            return
        self._has_progress, self._head_bytes = True, 0
        if exchange.is_over:
            self._discarded += len(body)
            if self._discarded > MAX_DISCARDED:
                self._linger()
        elif not exchange.take(body):
            self._pause()

    def on_message_complete(self) -> None:
        exchange, self._receiving = self._receiving, None
        if exchange is not None:
            exchange.complete()
            if exchange.is_over:
                self._wait_for_next()

    def _stay_with_this_protocol(self, rest: bytes) -> None:
        """Some clients ask for HTTP/2 with whatever they send first. The parser stops there, and skips the body."""
        asking = self._line.pop()
        if asking.verb == "CONNECT" or self._line:  # one behind the other would be as many calls of this, nested
            self._refuse(400, "This is no proxy.")
            return
        self._parser, self._is_last = httptools.HttpRequestParser(self), False
        head = [b"%b %b HTTP/1.1" % (asking.verb.encode(), self._url)]
        head += [b"%b: %b" % one for one in asking.headers.items() if one[0] not in (b"upgrade", b"connection")]
        head += [] if asking.is_kept_alive else [b"connection: close"]
        self.data_received(b"\r\n".join(head) + b"\r\n\r\n" + rest)

    def _refuse(self, status: int, text: str, headers: Headers = ()) -> None:
        """What cannot be answered. Behind something that can be, the end of the connection says enough."""
        if self._lingers:
            return
        if self._answering is not None or self._line or self._receiving is not None:
            self.abort()
            return
        refused = HttpExchange(self, "", b"", {}, is_kept_alive=False)
        refused.reply(status, f"{text}\n".encode(), [(b"content-type", b"text/plain"), *headers])

    # From exchanges

    def write(self, data: bytes) -> None:
        if not self.is_lost:
            self._transport.write(data)

    async def drained(self) -> None:
        if self._drained is not None:
            await asyncio.shield(self._drained)  # who gives up waiting does not give up for the next one

    def resume(self) -> None:
        if self._is_paused and not self.is_lost:
            self._is_paused = False
            self._transport.resume_reading()

    def _pause(self) -> None:
        if not self._is_paused and not self.is_lost:
            self._is_paused = True
            self._transport.pause_reading()

    def answered(self, exchange: HttpExchange) -> None:
        self._answering = None
        if self.is_last_answer:
            exchange.is_kept_alive = False  # of a reply that began before
        if not exchange.is_kept_alive and exchange.is_complete:
            self.due = self._loop.time() + IDLE_SECONDS
            self._transport.close()
        elif not exchange.is_kept_alive:
            self._linger()
        elif exchange.is_complete:
            self._wait_for_next()
        else:
            self._discarded = 0
            self.due = self._loop.time() + BODY_SECONDS
            self.resume()

    def _linger(self) -> None:
        """Says no more, and ends when the client has sent what it is sending, or had the time for it.

        To close a connection on which something still comes is to reset it. Most clients then never see their answer.
        """
        if self._lingers or self._transport.is_closing():
            return
        self._lingers = True
        self.due = self._loop.time() + BODY_SECONDS
        self.resume()
        self._transport.write_eof()

    def _wait_for_next(self) -> None:
        self.due = self._loop.time() + IDLE_SECONDS
        self._go_on()

    def _go_on(self) -> None:
        if self._lingers:
            return
        if (
            self._line
            and self._answering is None
            and self._drained is None  # else replies would pile up for who reads none
            and not self._transport.is_closing()
        ):
            self._answering = self._latest = self._line.popleft()
            self.due = math.inf
            self._server.begin(self._answering)
        if self._line:
            self._pause()
            if len(self._line) > MAX_WAITING:
                self.abort()
        elif self._is_paused and self._receiving is None:  # only who reads learns that the caller went away
            self.resume()


class HttpServer:
    """Listens, and has `answer` answer each request in a task of its own."""

    def __init__(self, answer: Callable[[HttpExchange], Coroutine[Any, Any, None]]) -> None:
        self._answer = answer
        self._connections: dict[_Connection, None] = {}  # the oldest first
        self._blocked = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._listening: list[asyncio.Server] = []
        self.is_closed = False
        self._look: asyncio.TimerHandle | None = None

    async def start(self, sockets: list[socket.socket]) -> None:
        """At sockets that are bound."""
        loop = asyncio.get_running_loop()
        for one in sockets:
            self._listening.append(await loop.create_server(lambda: _Connection(self), sock=one, backlog=BACKLOG))

    def close_doors(self) -> None:
        """No connection is taken any more. Those that are open end with their next answer, which says so.

        A client that would send one more finds out in time, and connects anew: where somebody else keeps the socket, it
        waits there.
        """
        self.is_closed = True
        for listening in self._listening:
            listening.close()

    def close_idle(self) -> None:
        """The connections on which nothing has come since the last answer."""
        for connection in self._connections:
            connection.close_if_idle()

    async def stop(self, seconds: float) -> None:
        """Nobody else comes in; who is being answered has so long."""
        until = asyncio.get_running_loop().time() + seconds
        self.close_doors()
        self.close_idle()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)
        for task in self._tasks:
            task.cancel()
        for connection in self._connections:
            connection.close()
        while self._connections and asyncio.get_running_loop().time() < until:
            await asyncio.sleep(0.005)  # what is written last is on its way
        for connection in list(self._connections):
            connection.abort()
        if self._look is not None:
            self._look.cancel()

    # From connections

    def admit(self, connection: _Connection) -> bool:
        """So many connections, and no more. Those that wait for their clients make room for who comes later."""
        if len(self._connections) >= connections_at_most() and not self._make_room():
            return False
        self._connections[connection] = None
        if self._look is None:
            self._look = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._close_late)
        return True

    def _make_room(self) -> bool:
        """Ends the oldest ones that wait for their clients, of the address that has most of those.

        Whoever sends a request at once is answered before it is the oldest, how many ever come from one address.
        Several are ended together, for to find them takes a look at all.
        """
        waiting = [one for one in self._connections if one.is_waiting_for_its_client]
        if not waiting:
            return False
        crowd = collections.Counter(one.address[0] for one in waiting).most_common(1)[0][0]
        for one in [one for one in waiting if one.address[0] == crowd][: 1 + len(waiting) // 64]:
            one.make_room()
        return True

    def count_blocked(self) -> None:
        """One more caller reads more slowly than we write. To look at all of them is not for each of these."""
        self._blocked += 1
        if self._blocked % BLOCKED_LOOK == 0:
            self._bound_held()

    def _bound_held(self) -> None:
        """Ends connections until all have their bound again: those of whoever holds most, the largest first."""
        held = {one: size for one in self._connections if (size := one.held)}
        total = sum(held.values())
        if total <= MAX_HELD:
            return
        by_owner: collections.Counter[object] = collections.Counter()
        for one, size in held.items():
            by_owner[one.owner] += size
        for one in sorted(held, key=lambda one: (by_owner[one.owner], held[one]), reverse=True):
            one.abort()
            total -= held[one]
            if total <= MAX_HELD * 7 // 8:
                return

    def forget(self, connection: _Connection) -> None:
        self._connections.pop(connection, None)

    def _close_late(self) -> None:
        self._look, now = None, asyncio.get_running_loop().time()
        for connection in [one for one in self._connections if one.due < now]:
            connection.end_late()
        self._bound_held()
        if self._connections:
            self._look = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._close_late)

    def begin(self, exchange: HttpExchange) -> None:
        task = asyncio.get_running_loop().create_task(self._answer(exchange))
        self._tasks.add(task)
        task.add_done_callback(partial(self._ended, exchange))

    def _ended(self, exchange: HttpExchange, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, GoneError):
            logger.error("%s %r was not answered", exchange.verb, exchange.path, exc_info=error)
        if not exchange.is_over:
            exchange.abort()


def connections_at_most() -> int:
    """Of the files that the process may have open, members, database and logs need the other half."""
    return min(MAX_CONNECTIONS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)


@cache
def _status_line(status: int) -> bytes:
    return f"HTTP/1.1 {status} {HTTPStatus(status).phrase}".encode()


@lru_cache(maxsize=1)
def _date_line(second: int) -> bytes:
    return f"date: {formatdate(second, usegmt=True)}".encode()


def _without_authority(url: bytes, headers: dict[bytes, bytes]) -> bytes:
    """Of `http://host/path`, as it is written for proxies (RFC 9112, 3.2.2). The host stands above the header's."""
    scheme, _, rest = url.partition(b"://")
    if scheme.lower() not in (b"http", b"https"):
        return url
    headers[b"host"], _, path = rest.partition(b"/")
    return b"/" + path
