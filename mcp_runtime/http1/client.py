"""HTTP/1.1 to members, on the gateway's loop. Connections are reused, and answers are passed on as they come.

A reused connection serves one principal. It gets the next request only after its reader confirms with `keep` that the
answer was the right one. So nobody else gets the answer of a member that answers twice or late.

The module is small because each call pays for all of its code. The parser is httptools, as in the gateway's server.
There are no redirects, cookies, proxies or compression.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import ssl
from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import cast
from urllib.parse import urlsplit

import httptools

from mcp_runtime.client import exchanges
from mcp_runtime.http1.names import Names
from mcp_runtime.protocol.errors import ClientError, ConnectError, ProtocolError
from mcp_runtime.secrets import references
from mcp_runtime.security.limits import Account, BudgetError, Owner

# Host, port, is_tls and owner. Each connection of a pool can serve the pool's next request.
_Pool = tuple[str, int, bool, Owner]
# For requests of the hall itself. No token has the id 0, so that nobody else has it: the operator is (None, None).
HALL_OWNER: Owner = (None, 0)

MAX_BUFFERED = 262_144  # unread bytes of an answer. With more, its sender waits
PART_OVERHEAD = 64  # bytes that each part takes beyond its own, because a member may send single bytes
MAX_DISCARDED = 65_536  # bytes of a discarded answer. With more, the connection is closed
DISCARD_SECONDS = 5.0


@dataclass(frozen=True)
class Address:
    """A member's address, with the parts that a connection and a request need."""

    host: str
    port: int
    is_tls: bool
    authority: str  # for the Host header
    target: str  # path and query

    @classmethod
    def of(cls, url: str) -> Address:
        parts = urlsplit(url)
        is_tls = parts.scheme == "https"
        target = parts._replace(scheme="", netloc="", fragment="").geturl()
        authority = parts.netloc.rpartition("@")[2]
        return cls(parts.hostname or "", parts.port or (443 if is_tls else 80), is_tls, authority, target or "/")


class Response:
    """An answer whose head has come. `chunks` or `read` give its body.

    Then `keep` gives the connection back for the next request, or `close` ends it. `release` discards the body.
    """

    def __init__(self, connection: _Connection, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self.status = status
        self._headers = headers
        self._connection = connection
        self._parts: collections.deque[bytes] = collections.deque()
        self._unread_bytes = 0
        self._account: Account | None = None
        self._is_complete = False
        self._is_discarded = False
        self.is_kept = False
        self._error: ClientError | None = None
        self._reader: asyncio.Future[None] | None = None
        self.secrets: Collection[str] = ()  # of the request. The server may quote them
        # Nothing was sent on the connection before, so it cannot be a second answer to another request.
        self.is_first = connection.request_count == 1
        self.content_type = (self.header("content-type") or "").partition(";")[0].strip().lower()

    @property
    def owner(self) -> Owner:
        """The owner of the request."""
        return self._connection.pool[3]

    def header(self, name: str) -> str | None:
        """The value of a header. Case does not matter in its name."""
        lower_name = name.lower().encode()
        return next((value.decode("latin-1") for key, value in self._headers if key == lower_name), None)

    def without_secrets(self, data: bytes) -> bytes:
        """The data with the secrets of the request masked. The same object if it has none of them.

        For errors alone, because results stay as they are.
        """
        if not any(secret.encode() in data for secret in self.secrets):
            return data
        return references.mask_secrets(data.decode("latin-1"), self.secrets).encode("latin-1")

    async def chunks(self) -> AsyncGenerator[bytes]:
        """The body as it comes. Raises ConnectError or ProtocolError if it breaks off."""
        while True:
            if self._parts:  # join them, because there may be thousands of one byte each
                part = self._parts.popleft() if len(self._parts) == 1 else b"".join(self._parts)
                self._parts.clear()
                if self._account is not None:
                    self._account.change(len(part) - self._unread_bytes)
                self._unread_bytes = 0
                yield part
                del part  # free its memory, because the next part may come in an hour
                continue
            if self._error is not None:
                raise self._error
            if self._is_complete:
                return
            self._connection.resume()
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader

    async def read(self, max_bytes: int) -> bytes:
        """The whole body. Raises ProtocolError if it is longer than `max_bytes`."""
        if (
            self._is_complete
            and self._error is None
            and len(self._parts) <= 1
            and self._unread_bytes <= max_bytes + PART_OVERHEAD
        ):
            return self._parts.popleft() if self._parts else b""
        data = bytearray()
        try:
            async for chunk in self.chunks():
                data += chunk
                if len(data) > max_bytes:
                    raise ProtocolError(f"the response is larger than {max_bytes:,} bytes")
        except BaseException:
            self.close()
            raise
        return bytes(data)

    def count(self, account: Account) -> None:
        """Charge unread bytes to `account` from now on. Whoever takes a chunk discharges it."""
        account.change(self._unread_bytes)
        self._account = account

    def keep(self) -> None:
        """Confirm the answer. Once it is complete, its connection may serve the next request."""
        self.is_kept = True
        if self._is_complete:
            self._connection.give_back(self)

    def release(self) -> None:
        """Discard the body. The connection is reused if the body is short."""
        self._is_discarded = True
        self._parts.clear()
        if not self._is_complete:
            asyncio.get_running_loop().call_later(DISCARD_SECONDS, self.close)
        self.keep()

    def close(self) -> None:
        """End the answer for its reader with an error. Closes the connection unless `keep` gave it back."""
        if not self._is_complete or not self.is_kept:
            self._connection.end(self)

    # From the connection

    def take(self, part: bytes) -> bool:
        """Add a part of the body. False asks the connection to pause."""
        size = len(part) + PART_OVERHEAD
        self._unread_bytes += size
        if self._account is not None:
            try:
                self._account.change(size)
            except BudgetError:
                self._unread_bytes -= size
                self._connection.fail(ProtocolError("too many bytes of answers wait to be read"))
                return True
        if self._is_discarded:
            if self._unread_bytes > MAX_DISCARDED:
                self.close()
            return True
        self._parts.append(part)
        self._wake()
        return self._unread_bytes < MAX_BUFFERED

    def end(self, error: ClientError | None = None) -> None:
        self._is_complete, self._error = True, error
        self._wake()

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)


class _Connection(asyncio.Protocol):
    """One connection with one exchange at a time."""

    _transport: asyncio.Transport

    def __init__(self, connections: Connections, pool: _Pool) -> None:
        self._connections = connections
        self.pool = pool
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpResponseParser(self)
        self._answer: asyncio.Future[Response] | None = None
        self._response: Response | None = None
        self._unconfirmed: Response | None = None  # complete, but not yet confirmed by its reader
        self._headers: list[tuple[bytes, bytes]] = []
        self._head_bytes = 0
        self._ends_with_connection = False
        self._is_paused = False
        self.idle_since = 0.0
        self.request_count = 0  # so far

    async def send(self, request: bytes) -> Response:
        """Send a request. Raises ConnectError and ProtocolError. A cancelled wait closes the connection."""
        answer: asyncio.Future[Response] = self._loop.create_future()
        self._answer = answer
        self.request_count += 1
        self._head_bytes = 0
        self._transport.write(request)
        try:
            return await answer
        except asyncio.CancelledError:
            # The answer may have come at the same moment. Then this connection may already serve another request.
            if answer.done() and not answer.cancelled() and answer.exception() is None:
                answer.result().close()
            elif self._answer is answer:
                self.fail(ConnectError(exchanges.CLOSED_EARLY))
            raise

    def give_back(self, response: Response) -> None:
        """Reuse the connection, because the answer was the right one."""
        if self._unconfirmed is response:
            self._unconfirmed = None
            self.idle_since = self._loop.time()
            self._connections.put(self)

    def end(self, response: Response) -> None:
        """Close the connection, because the answer was wrong or is not needed."""
        if response in (self._response, self._unconfirmed):
            self.fail(ConnectError(exchanges.CLOSED_EARLY))

    def resume(self) -> None:
        if self._is_paused:
            self._is_paused = False
            self._transport.resume_reading()

    def fail(self, error: ClientError) -> None:
        """End the connection and its exchange with an error."""
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
        """No request waits for its answer, and nobody reads an answer."""
        return self._answer is None and self._response is None

    # From the loop

    def connection_made(self, base_transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, base_transport)
        self.idle_since = self._loop.time()
        self._connections.add(self)

    def data_received(self, data: bytes) -> None:
        if self._answer is None and self._response is None:
            self._transport.abort()  # there was no request
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self.fail(ProtocolError(f"did not respond with HTTP: {type(error).__name__}"))
            return
        if self._answer is not None and not self._answer.done():
            self._head_bytes += len(data)
            if self._head_bytes > exchanges.HEAD_BYTES:
                self.fail(ProtocolError(f"the headers are longer than {exchanges.HEAD_BYTES:,} bytes"))

    def connection_lost(self, error: Exception | None) -> None:
        self._connections.forget(self)
        if self._response is not None and self._ends_with_connection and error is None:
            self._response.end()
            self._response = None
        self.fail(ConnectError(exchanges.CLOSED_EARLY))

    # From the parser

    def on_message_begin(self) -> None:
        self._headers = []
        if self._answer is None or self._answer.done():
            self._transport.abort()  # a second answer to one request

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200 or self._answer is None or self._answer.done():
            return  # such as "100 Continue". The answer comes after it
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
    """All connections to members, or to other nodes.

    `tls` is used for https. Without it the first connection with https loads the certificates of the machine, because
    most halls never need them here, and they cost 20 ms and a megabyte.
    """

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self._idle: dict[_Pool, list[_Connection]] = {}
        self._open: set[_Connection] = set()
        self._names = Names()
        self._attempts: set[asyncio.Timeout] = set()  # to connect
        self._failures: dict[asyncio.Timeout, ClientError] = {}  # of attempts that `close` ended
        self._sweep_timer: asyncio.TimerHandle | None = None

    def close(self, error: ClientError | None = None) -> None:
        """End all connections, and their exchanges with an error. With `error`, also end attempts to connect."""
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        for connection in list(self._open):
            connection.fail(error or ConnectError(exchanges.CLOSED_EARLY))
        if error is None:
            return
        for attempt in self._attempts:
            self._failures[attempt] = error
            with contextlib.suppress(RuntimeError):  # it is expiring already
                attempt.reschedule(asyncio.get_running_loop().time())

    async def request(
        self,
        address: Address,
        verb: str,
        headers: Mapping[str, str],
        body: bytes | None,
        secrets: Collection[str] = (),
        owner: Owner = HALL_OWNER,
        on_write: Callable[[], None] | None = None,
        *,
        is_first: bool = False,
    ) -> Response:
        """Send a request. Returns the answer as soon as its head has come.

        Raises ConnectError and ProtocolError, with `secrets` masked. `on_write()` is called when there is a connection,
        before the first byte is written to it. `is_first` requires a new connection, on which no answer to another
        request can come.
        """
        request = _encode_request(address, verb, headers, body)
        pool = (address.host, address.port, address.is_tls, owner)
        connection = (None if is_first else self._take_idle(pool)) or await self._connect(pool, secrets)
        if on_write is not None:
            on_write()
        response = await connection.send(request)
        response.secrets = secrets
        return response

    def _take_idle(self, pool: _Pool) -> _Connection | None:
        """A connection that was used a moment ago. Servers close idle ones, and may do so right now."""
        latest = asyncio.get_running_loop().time() - exchanges.IDLE_SECONDS
        idle = self._idle.get(pool)
        while idle:
            connection = idle.pop()
            if connection.is_open and connection.idle_since > latest:
                return connection
            connection.fail(ConnectError(exchanges.CLOSED_EARLY))
        return None

    async def _connect(self, pool: _Pool, secrets: Collection[str]) -> _Connection:
        if self._sweep_timer is None:
            self._sweep_timer = asyncio.get_running_loop().call_later(exchanges.IDLE_SECONDS, self._close_idle)
        attempt = asyncio.timeout(exchanges.CONNECT_TIMEOUT)
        self._attempts.add(attempt)
        try:
            async with attempt:
                return await self._open_connection(pool)
        except TimeoutError as error:
            failure = self._failures.get(attempt)
            raise failure or ConnectError(f"no connection within {exchanges.CONNECT_TIMEOUT:g} s") from error
        except ssl.SSLError as error:
            text = f"no connection: {error}"
            raise ConnectError(references.mask_secrets(text, secrets)) from error
        except (OSError, UnicodeError) as error:
            is_refusal = isinstance(error, ConnectionRefusedError)
            text = "connection refused" if is_refusal else f"no connection: {error}"
            raise ConnectError(references.mask_secrets(text, secrets), is_refusal=is_refusal) from error
        finally:
            self._attempts.discard(attempt)
            self._failures.pop(attempt, None)

    async def _open_connection(self, pool: _Pool) -> _Connection:
        """Connect to the first address of the host that accepts it. Raise OSError and UnicodeError."""
        host, port, is_tls, _ = pool
        if is_tls and self._tls is None:
            self._tls = exchanges.tls_context()
        tls, server_hostname = (self._tls, host) if is_tls else (None, None)
        failure: OSError = OSError("the host has no address")
        for address in await self._names.look_up(host):
            try:
                _, connection = await asyncio.get_running_loop().create_connection(
                    lambda: _Connection(self, pool), address, port, ssl=tls, server_hostname=server_hostname
                )
            except ssl.SSLError:
                raise
            except OSError as error:
                failure = error
            else:
                return connection
        raise failure

    def _close_idle(self) -> None:
        self._sweep_timer = None
        now = asyncio.get_running_loop().time()
        for connection in list(self._open):
            if connection.is_idle and now - connection.idle_since > exchanges.IDLE_SECONDS:
                connection.fail(ConnectError(exchanges.CLOSED_EARLY))
        if self._open:
            self._sweep_timer = asyncio.get_running_loop().call_later(exchanges.IDLE_SECONDS, self._close_idle)

    # From connections

    def add(self, connection: _Connection) -> None:
        self._open.add(connection)

    def put(self, connection: _Connection) -> None:
        """Make the connection available for the next request of its pool."""
        self._idle.setdefault(connection.pool, []).append(connection)

    def forget(self, connection: _Connection) -> None:
        self._open.discard(connection)
        idle = self._idle.get(connection.pool, [])
        if connection in idle:
            idle.remove(connection)
        if not idle:
            self._idle.pop(connection.pool, None)


def _encode_request(address: Address, verb: str, headers: Mapping[str, str], body: bytes | None) -> bytes:
    lines = [f"{verb} {address.target} HTTP/1.1", f"Host: {address.authority}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if body is not None:
        lines.append(f"Content-Length: {len(body)}")
    head = "\r\n".join(lines)
    # Some values came from clients and members. None may add a header.
    if head.count("\n") != len(lines) - 1 or head.count("\r") != len(lines) - 1 or "\0" in head:
        raise ProtocolError("a header contains a line break")
    return f"{head}\r\n\r\n".encode() + (body or b"")
