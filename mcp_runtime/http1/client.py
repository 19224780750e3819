"""HTTP/1.1 to members, on the gateway's loop: connections that are kept, and answers as they come.

A kept connection serves one principal, and the next request only after its reader says with `keep` that the answer
was the right one: a member that answers twice, or late, then reaches nobody else.

Small on purpose: a call is one request with a short body, and whatever stands here is paid for by each of them. The
parser is httptools, that of the gateway's own server. Redirects, cookies, proxies and compression are none of it.
"""

from __future__ import annotations

import asyncio
import collections
import ssl
from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import cast
from urllib.parse import urlsplit

import httptools

from mcp_runtime.client import remote, transport
from mcp_runtime.protocol.errors import ClientError, ConnectError, ProtocolError
from mcp_runtime.security.limits import Account, BudgetError, Owner

# Whose connections to which address (host, port, is_tls): those of one pool may stand in for each other.
_Pool = tuple[str, int, bool, Owner]
NOBODY: Owner = (None, None)  # the hall itself

BUFFERED = 262_144  # bytes of an answer that nobody has read yet; then its sender waits
PART = 64  # bytes that each part takes beside its own: a member may send them by the byte
DISCARDED = 65_536  # bytes of an answer nobody wants, for which a connection is kept
DISCARD_SECONDS = 5.0


@dataclass(frozen=True)
class Address:
    """Where a member is asked, as a connection and as a request need it."""

    host: str
    port: int
    is_tls: bool
    authority: str  # for the header
    target: str  # path and query

    @classmethod
    def of(cls, url: str) -> Address:
        parts = urlsplit(url)
        is_tls = parts.scheme == "https"
        target = parts._replace(scheme="", netloc="", fragment="").geturl()
        authority = parts.netloc.rpartition("@")[2]
        return cls(parts.hostname or "", parts.port or (443 if is_tls else 80), is_tls, authority, target or "/")


class Response:
    """An answer whose head has come. Its body is read with `chunks` or `whole`.

    Then `keep` gives the connection back for the next request, and `close` ends it. `release` is for an answer whose
    body does not matter.
    """

    def __init__(self, connection: _Connection, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self.status = status
        self._headers = headers
        self._connection = connection
        self._parts: collections.deque[bytes] = collections.deque()
        self._unread = 0  # bytes of them
        self._account: Account | None = None
        self._is_complete = False
        self._is_unwanted = False
        self.is_kept = False
        self._error: ClientError | None = None
        self._reader: asyncio.Future[None] | None = None
        # Before it nothing was asked on the connection, so it cannot be a second answer to something else.
        self.is_first = connection.asked == 1
        self.content_type = (self.header("content-type") or "").partition(";")[0].strip().lower()

    @property
    def owner(self) -> Owner:
        """Whose request it answers."""
        return self._connection.pool[3]

    def header(self, name: str) -> str | None:
        """The value of a header; its name in small letters or large."""
        wanted = name.lower().encode()
        return next((value.decode("latin-1") for key, value in self._headers if key == wanted), None)

    async def chunks(self) -> AsyncGenerator[bytes]:
        """The body, as it comes. Raises ConnectError and ProtocolError where it breaks off."""
        while True:
            if self._parts:  # all that came in one read: it may be thousands, of a byte each
                part = self._parts.popleft() if len(self._parts) == 1 else b"".join(self._parts)
                self._parts.clear()
                if self._account is not None:
                    self._account.change(len(part) - self._unread)
                self._unread = 0
                yield part
                del part  # the next one may come in an hour
                continue
            if self._error is not None:
                raise self._error
            if self._is_complete:
                return
            self._connection.resume()
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader

    async def whole(self, max_bytes: int) -> bytes:
        """The body in one piece. Raises ProtocolError when it is longer than `max_bytes`."""
        if self._is_complete and self._error is None and len(self._parts) <= 1 and self._unread <= max_bytes + PART:
            return self._parts.popleft() if self._parts else b""
        data = bytearray()
        try:
            async for chunk in self.chunks():
                data += chunk
                if len(data) > max_bytes:
                    raise ProtocolError(f"the answer is larger than {max_bytes:,} bytes")
        except BaseException:
            self.close()
            raise
        return bytes(data)

    def count(self, account: Account) -> None:
        """From now on the bytes that came count there. Who takes a chunk says when that is not held any more."""
        account.change(self._unread)
        self._account = account

    def keep(self) -> None:
        """The answer is the right one: once it is complete, its connection may serve the next request."""
        self.is_kept = True
        if self._is_complete:
            self._connection.give_back(self)

    def release(self) -> None:
        """Nobody wants the body. The connection is kept if there is little of it."""
        self._is_unwanted = True
        self._parts.clear()
        if not self._is_complete:
            asyncio.get_running_loop().call_later(DISCARD_SECONDS, self.close)
        self.keep()

    def close(self) -> None:
        """Whoever reads it hears that it broke off. The connection goes with it, unless `keep` gave it back."""
        if not self._is_complete or not self.is_kept:
            self._connection.end(self)

    # From the connection

    def take(self, part: bytes) -> bool:
        """One more part of the body. False: no more of it for now."""
        size = len(part) + PART
        self._unread += size
        if self._account is not None:
            try:
                self._account.change(size)
            except BudgetError:
                self._unread -= size
                self._connection.fail(ProtocolError("more than is kept waits to be passed on"))
                return True
        if self._is_unwanted:
            if self._unread > DISCARDED:
                self.close()
            return True
        self._parts.append(part)
        self._wake()
        return self._unread < BUFFERED

    def end(self, error: ClientError | None = None) -> None:
        self._is_complete, self._error = True, error
        self._wake()

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)


class _Connection(asyncio.Protocol):
    """One connection, one exchange at a time."""

    _transport: asyncio.Transport

    def __init__(self, connections: Connections, pool: _Pool) -> None:
        self._connections = connections
        self.pool = pool
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpResponseParser(self)
        self._answer: asyncio.Future[Response] | None = None
        self._response: Response | None = None
        self._unconfirmed: Response | None = None  # complete, and its reader has not said that it is right
        self._headers: list[tuple[bytes, bytes]] = []
        self._head_bytes = 0
        self._ends_with_connection = False
        self._is_paused = False
        self.idle_since = 0.0
        self.asked = 0  # requests so far

    async def ask(self, request: bytes) -> Response:
        """Raises ConnectError and ProtocolError. Whoever gives up waiting gives up the connection."""
        answer: asyncio.Future[Response] = self._loop.create_future()
        self._answer = answer
        self.asked += 1
        self._head_bytes = 0
        self._transport.write(request)
        try:
            return await answer
        except asyncio.CancelledError:
            # The answer may have come in the same moment. `self` may be at work for somebody else by then.
            if answer.done() and not answer.cancelled() and answer.exception() is None:
                answer.result().close()
            elif self._answer is answer:
                self.fail(ConnectError(transport.CLOSED_EARLY))
            raise

    def give_back(self, response: Response) -> None:
        """The answer was the right one."""
        if self._unconfirmed is response:
            self._unconfirmed = None
            self.idle_since = self._loop.time()
            self._connections.put(self)

    def end(self, response: Response) -> None:
        """The answer was a wrong one, or is not wanted: nothing else is read from here."""
        if response in (self._response, self._unconfirmed):
            self.fail(ConnectError(transport.CLOSED_EARLY))

    def resume(self) -> None:
        if self._is_paused:
            self._is_paused = False
            self._transport.resume_reading()

    def fail(self, error: ClientError) -> None:
        """The end of it, and of what is under way on it."""
        answer, response = self._answer, self._response
        self._answer = self._response = self._unconfirmed = None
        if answer is not None and not answer.done():
            answer.set_exception(error)
        if response is not None:
            response.end(error)
        self._transport.abort()

    @property
    def is_open(self) -> bool:
        return not self._transport.is_closing()

    @property
    def is_idle(self) -> bool:
        """Nothing is asked on it, and nobody reads an answer."""
        return self._answer is None and self._response is None

    # From the loop

    def connection_made(self, made: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, made)
        self.idle_since = self._loop.time()
        self._connections.opened(self)

    def data_received(self, data: bytes) -> None:
        if self._answer is None and self._response is None:
            self._transport.abort()  # nobody asked
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self.fail(ProtocolError(f"did not answer in HTTP: {type(error).__name__}"))
            return
        if self._answer is not None and not self._answer.done():
            self._head_bytes += len(data)
            if self._head_bytes > transport.HEAD_BYTES:
                self.fail(ProtocolError(f"the headers are longer than {transport.HEAD_BYTES:,} bytes"))

    def connection_lost(self, error: Exception | None) -> None:
        self._connections.forget(self)
        if self._response is not None and self._ends_with_connection and error is None:
            self._response.end()
            self._response = None
        self.fail(ConnectError(transport.CLOSED_EARLY))

    # From the parser

    def on_message_begin(self) -> None:
        self._headers = []
        if self._answer is None or self._answer.done():
            self._transport.abort()  # a second answer to one question

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200 or self._answer is None or self._answer.done():
            return  # "100 Continue" and the like: the answer comes after it
        self._response = Response(self, status, self._headers)
        self._ends_with_connection = not any(
            name in (b"content-length", b"transfer-encoding") for name, _ in self._headers
        )
        self._answer.set_result(self._response)

    def on_body(self, body: bytes) -> None:
        if self._response is not None and not self._response.take(body) and not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()

    def on_message_complete(self) -> None:
        response = self._response
        if response is None:
            return
        self._answer = self._response = None
        response.end()
        self.resume()
        if not self._parser.should_keep_alive() or not self.is_open:
            self._transport.close()
            return
        self.idle_since = self._loop.time()
        self._unconfirmed = response
        if response.is_kept:
            self.give_back(response)


class Connections:
    """All connections to members."""

    def __init__(self) -> None:
        self._tls = transport.tls_context()
        self._kept: dict[_Pool, list[_Connection]] = {}
        self._open: set[_Connection] = set()
        self._sweep: asyncio.TimerHandle | None = None

    def close(self) -> None:
        if self._sweep is not None:
            self._sweep.cancel()
        for connection in list(self._open):
            connection.fail(ConnectError(transport.CLOSED_EARLY))

    async def request(
        self,
        address: Address,
        verb: str,
        headers: Mapping[str, str],
        body: bytes | None,
        secrets: Collection[str] = (),
        owner: Owner = NOBODY,
        on_write: Callable[[], None] | None = None,
        *,
        is_first: bool = False,
    ) -> Response:
        """The answer, as soon as its head is there. Raises ConnectError and ProtocolError, without `secrets`.

        `on_write()` is called when there is a connection, before the first byte is written to it. `is_first`: on a new
        connection, on which no answer to something else can come.
        """
        request = _written(address, verb, headers, body)
        pool = (address.host, address.port, address.is_tls, owner)
        connection = (None if is_first else self._taken(pool)) or await self._connect(pool, secrets)
        if on_write is not None:
            on_write()
        return await connection.ask(request)

    def _taken(self, pool: _Pool) -> _Connection | None:
        """One that was in use a moment ago: servers close those that idle, and may just be about to."""
        latest = asyncio.get_running_loop().time() - transport.IDLE_SECONDS
        kept = self._kept.get(pool)
        while kept:
            connection = kept.pop()
            if connection.is_open and connection.idle_since > latest:
                return connection
            connection.fail(ConnectError(transport.CLOSED_EARLY))
        return None

    async def _connect(self, pool: _Pool, secrets: Collection[str]) -> _Connection:
        if self._sweep is None:
            self._sweep = asyncio.get_running_loop().call_later(transport.IDLE_SECONDS, self._close_idle)
        host, port, is_tls, _ = pool
        try:
            async with asyncio.timeout(transport.CONNECT_TIMEOUT):
                _, connection = await asyncio.get_running_loop().create_connection(
                    lambda: _Connection(self, pool), host, port, ssl=self._tls if is_tls else None
                )
        except TimeoutError as error:
            raise ConnectError(f"no connection within {transport.CONNECT_TIMEOUT:g} s") from error
        except ssl.SSLError as error:
            text = f"no connection: {error}"
            raise ConnectError(remote.masked(text, secrets)) from error
        except (OSError, UnicodeError) as error:
            is_refusal = isinstance(error, ConnectionRefusedError)
            text = "connection refused" if is_refusal else f"no connection: {error}"
            raise ConnectError(remote.masked(text, secrets), is_refusal=is_refusal) from error
        return connection

    def _close_idle(self) -> None:
        self._sweep = None
        now = asyncio.get_running_loop().time()
        for connection in [one for one in self._open if one.is_idle and now - one.idle_since > transport.IDLE_SECONDS]:
            connection.fail(ConnectError(transport.CLOSED_EARLY))
        if self._open:
            self._sweep = asyncio.get_running_loop().call_later(transport.IDLE_SECONDS, self._close_idle)

    # From connections

    def opened(self, connection: _Connection) -> None:
        self._open.add(connection)

    def put(self, connection: _Connection) -> None:
        """It waits for the next request of its pool."""
        self._kept.setdefault(connection.pool, []).append(connection)

    def forget(self, connection: _Connection) -> None:
        self._open.discard(connection)
        kept = self._kept.get(connection.pool, [])
        if connection in kept:
            kept.remove(connection)
        if not kept:
            self._kept.pop(connection.pool, None)


def _written(address: Address, verb: str, headers: Mapping[str, str], body: bytes | None) -> bytes:
    lines = [f"{verb} {address.target} HTTP/1.1", f"Host: {address.authority}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if body is not None:
        lines.append(f"Content-Length: {len(body)}")
    head = "\r\n".join(lines)
    # Some values came from callers and members: none may become a header of its own.
    if head.count("\n") != len(lines) - 1 or head.count("\r") != len(lines) - 1 or "\0" in head:
        raise ProtocolError("a header would hold a line break")
    return f"{head}\r\n\r\n".encode() + (body or b"")
