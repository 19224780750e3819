"""HTTP to one server, under deadlines that nothing stretches: exchanges, sockets, connections, errors that are ours.

`requests`' timeout bounds each read, so a server that sends a byte a second holds a caller for ever. Here the socket
itself carries the deadline: whatever is read or written, only the time that is left is waited. So no timer, no
thread and no socket outlives a call, but for the look-up of a name, which the system ends when it likes.
"""

from __future__ import annotations

import contextlib
import http.client
import ipaddress
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import certifi
import requests
import urllib3
from requests.adapters import HTTPAdapter
from requests.structures import CaseInsensitiveDict
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.exceptions import ConnectTimeoutError, NameResolutionError, NewConnectionError
from urllib3.util import Timeout

from mcp_runtime.client import quick_json, remote
from mcp_runtime.protocol import mcp
from mcp_runtime.protocol.errors import (
    ClientError,
    ConnectError,
    ProtocolError,
    RemoteError,
    RequestCancelledError,
    RequestTimeoutError,
    TransportError,
)
from mcp_runtime.system import console

CONNECT_TIMEOUT = 5.0
HEAD_BYTES = 256_000  # status line and headers, the answers of "100 Continue" before them included
MAX_QUOTED = 300  # characters of what is not HTTP
CLOSED_EARLY = "the connection was closed before the answer was complete"
# Servers close idle connections (uvicorn and Node after 5 s): one that idled longer is not trusted with a call.
IDLE_SECONDS = 1.0


# Exchanges: one request and its answer, which another thread may abort -------------------------------------------


@dataclass(frozen=True)
class Session:
    """How a server is spoken to: in which version of MCP, and under which id, if it gave one."""

    version: str = mcp.PREFERRED_VERSION
    id: str | None = None

    @property
    def is_modern(self) -> bool:
        """Without a session, as from 2026-07-28 on."""
        return self.version == mcp.MODERN_VERSION


class Exchange:
    """One request and its answer. `abort()` from any thread ends it: the waiting thread gets RequestCancelledError.

    `on_progress(params)` is told what the server says of its progress; without it the server is not asked to.
    """

    def __init__(self, on_progress: Callable[[dict[str, Any]], None] | None = None) -> None:
        self.on_progress = on_progress
        self._lock = threading.Lock()
        self._socket: _DeadlineSocket | None = None
        self.aborted = False
        self.request_id: int | None = None
        self.deadline = 0.0
        self.session = Session()
        self.questions = 0
        self.is_sent = False  # the server may have read some of the request

    def begin(self, request_id: int | None, timeout: float) -> None:
        """Raises RequestCancelledError when it was aborted before: then nothing is sent, and nobody need be told."""
        with self._lock:
            self._require_wanted()
            self.request_id = request_id
            self.deadline = time.monotonic() + timeout
            self.questions = 0

    def attach(self, sock: _DeadlineSocket) -> None:
        """What is sent and read from now on belongs to this exchange."""
        with self._lock:
            self._require_wanted()
            self._socket = sock
            sock.deadline = self.deadline
            sock.allow(HEAD_BYTES, "what it sent before its answer")

    def expect_body(self, max_bytes: int) -> None:
        """The head is read. The bound of what follows leaves room for its framing: small chunks double an answer."""
        with self._lock:
            if self._socket is not None:
                self._socket.allow(2 * max_bytes + HEAD_BYTES, "the answer, with what it is wrapped in,")

    def _require_wanted(self) -> None:
        if self.aborted:
            raise RequestCancelledError

    def detach(self) -> None:
        with self._lock:
            self._socket = None

    def require_time(self) -> None:
        """For loops over what has been read already. Raises RequestCancelledError, or TimeoutError at the deadline."""
        with self._lock:
            self._require_wanted()
        if time.monotonic() >= self.deadline:
            raise TimeoutError("the deadline of the request passed")

    def pause(self, seconds: float) -> None:
        """Wait. Raises RequestCancelledError as soon as it is aborted, TimeoutError at the deadline."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self.require_time()
            time.sleep(min(left, 0.02))
        self.require_time()

    def mark_aborted(self) -> None:
        """From now on an answer that still comes is not wanted."""
        with self._lock:
            self.aborted = True

    def abort(self) -> None:
        with self._lock:
            self.aborted = True
            if self._socket is not None:
                _shut(self._socket)


def _shut(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


_current = threading.local()


def begin(exchange: Exchange) -> Exchange | None:
    """What this thread sends and reads from now on belongs to `exchange`; the one that did before.

    There may be one: a server's question is answered while the stream is read that it came on.
    """
    outer, _current.exchange = getattr(_current, "exchange", None), exchange
    return outer


def resume(outer: Exchange | None) -> None:
    """It belongs to the one of before again."""
    _current.exchange = outer


# Sockets whose timeout is a deadline ------------------------------------------------------------------------------


class _DeadlineSocket(socket.socket):
    """Reads and writes wait for what is left until `deadline`, whatever timeout the libraries above set.

    Nor do they read for ever: the libraries have no bound for some things that mean nothing.
    """

    deadline = 0.0
    _allowed = _left = 0
    _allowed_for = ""

    def allow(self, count: int, what: str) -> None:
        """From now on `count` bytes may come; `what` they are, for people."""
        self._allowed = self._left = count
        self._allowed_for = what

    def _arm(self) -> None:
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the deadline of the request passed")
        self.settimeout(left)

    def recv_into(self, *args: Any, **kwargs: Any) -> int:
        self._arm()
        count = super().recv_into(*args, **kwargs)
        self._left -= count
        if self._left < 0:
            raise ProtocolError(f"{self._allowed_for} is larger than {self._allowed:,} bytes")
        return count

    def sendall(self, *args: Any, **kwargs: Any) -> None:
        self._arm()
        _current.exchange.is_sent = True
        super().sendall(*args, **kwargs)


class _DeadlineTlsSocket(_DeadlineSocket, ssl.SSLSocket):
    """The same over TLS, the TLS handshake included."""

    def do_handshake(self, block: bool = False) -> None:
        try:
            _current.exchange.attach(self)  # an abort must reach the TLS handshake too
            self._arm()
        except ClientError:
            self.close()
            raise
        super().do_handshake(block)

    def shutdown(self, how: int) -> None:
        # Not SSLSocket's, which forgets the TLS state first: another thread that is about to send would do so in clear.
        socket.socket.shutdown(self, how)


def tls_context() -> ssl.SSLContext:
    """Certificates are always verified: by what the environment names, else by the system's and certifi's."""
    context = ssl.create_default_context()
    if not (os.environ.get("SSL_CERT_FILE") or os.environ.get("SSL_CERT_DIR")):
        context.load_verify_locations(certifi.where())
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.sslsocket_class = _DeadlineTlsSocket
    return context


def _dial(host: str, port: int, timeout: float, options: Any) -> _DeadlineSocket:
    """A connection within `timeout` in all: each of the host's addresses gets its share of what is left."""
    deadline = time.monotonic() + timeout
    addresses = _look_up(host.strip("[]"), port, timeout)
    for tried, (family, kind, proto, _, address) in enumerate(addresses):
        sock = _DeadlineSocket(family, kind, proto)
        try:
            for option in options or ():
                sock.setsockopt(*option)
            sock.settimeout(max(deadline - time.monotonic(), 0.001) / (len(addresses) - tried))
            sock.connect(address)
        except OSError:
            sock.close()
            if tried == len(addresses) - 1:
                raise
        else:
            return sock
    raise OSError("the host has no address")


def _look_up(host: str, port: int, timeout: float) -> list[Any]:
    """getaddrinfo knows no deadline: a name is looked up in a thread, which is left behind when it takes too long."""
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(host)
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    ends: list[Any] = []

    def look_up() -> None:
        try:
            ends.append(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except (OSError, UnicodeError) as error:
            ends.append(error)

    thread = threading.Thread(target=look_up, name=f"look up {host}", daemon=True)
    thread.start()
    thread.join(timeout)
    if not ends:
        raise TimeoutError(f"looking up {host} takes too long")
    if isinstance(ends[0], UnicodeError):
        raise socket.gaierror(str(ends[0]))
    if isinstance(ends[0], OSError):
        raise ends[0]
    return cast(list[Any], ends[0])


class _Connection(HTTPConnection):
    idle_since = 0.0

    def _new_conn(self) -> socket.socket:
        try:
            return _dial(self.host, self.port or self.default_port, cast(float, self.timeout), self.socket_options)
        except socket.gaierror as error:
            raise NameResolutionError(self.host, self, error) from error
        except TimeoutError as error:
            raise ConnectTimeoutError(self, f"no connection to {self.host} in time") from error
        except OSError as error:
            raise NewConnectionError(self, str(error)) from error

    def connect(self) -> None:
        super().connect()
        self._attach()

    def request(self, *args: Any, **kwargs: Any) -> None:
        if self.sock is not None:  # else `connect` comes first
            self._attach()
        super().request(*args, **kwargs)

    def _attach(self) -> None:
        exchange: Exchange = _current.exchange
        exchange.attach(cast(_DeadlineSocket, self.sock))


class _TlsConnection(_Connection, HTTPSConnection):
    pass


class _ConnectionPool(HTTPConnectionPool):
    ConnectionCls = _Connection

    def _get_conn(self, timeout: float | None = None) -> Any:
        connection = super()._get_conn(timeout)
        if isinstance(connection, _Connection) and time.monotonic() - connection.idle_since > IDLE_SECONDS:
            connection.close()
        return connection

    def _put_conn(self, conn: Any) -> None:
        if isinstance(conn, _Connection):
            conn.idle_since = time.monotonic()
        super()._put_conn(conn)


class _TlsConnectionPool(_ConnectionPool, HTTPSConnectionPool):
    ConnectionCls = _TlsConnection


class Adapter(HTTPAdapter):
    def __init__(self, *, is_tls: bool, **options: Any) -> None:
        self._context = tls_context() if is_tls else None
        super().__init__(**options)

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        super().init_poolmanager(*args, **kwargs, ssl_context=self._context)
        self.poolmanager.pool_classes_by_scheme = {"http": _ConnectionPool, "https": _TlsConnectionPool}

    def cert_verify(self, *args: Any, **kwargs: Any) -> None:
        """The context verifies, and knows by whom; `requests` would read its own bundle into it at every connection."""


# Requests and their responses -------------------------------------------------------------------------------------


class Transport:
    """Requests to one server. `headers` go with each of them; no answer may have more than `max_bytes`."""

    def __init__(self, url: str, *, connections: int, max_bytes: int, headers: remote.Headers) -> None:
        self.url = requests.Request("POST", url).prepare().url or url
        self.max_bytes = max_bytes
        self.headers = headers
        self._adapter = Adapter(
            is_tls=url.startswith("https:"), pool_connections=1, pool_maxsize=connections, max_retries=0
        )

    def close(self) -> None:
        self._adapter.close()

    @contextlib.contextmanager
    def send(
        self,
        verb: str,
        timeout: float,
        exchange: Exchange,
        headers: Mapping[str, str],
        message: dict[str, Any] | None = None,
    ) -> Iterator[requests.Response]:
        """The response to one request, its body not yet read; foreign errors leave as ours."""
        body = None if message is None else quick_json.encode(message)
        request = self._prepared(verb, {**self._headers(exchange.session), **headers}, body)
        limit = Timeout(connect=min(CONNECT_TIMEOUT, timeout), total=timeout)
        response = None
        outer = begin(exchange)
        try:
            with translated(timeout, exchange, self.headers.secrets):
                # The adapter, not Session.send: no cookies, proxies, netrc or redirects, and a third of the CPU.
                response = self._adapter.send(request, stream=True, timeout=cast(Any, limit))
                exchange.expect_body(self.max_bytes)
                yield response
        except ClientError as error:
            error.was_sent = exchange.is_sent
            raise
        finally:
            resume(outer)
            exchange.detach()
            if response is not None and not response.raw.closed:
                response.close()  # not read to its end, so the connection cannot serve another call

    def body(self, response: requests.Response) -> bytes:
        """The whole of it. Raises ProtocolError when it is too large."""
        body: bytes = response.raw.read(self.max_bytes + 1) or b""
        if len(body) > self.max_bytes:
            raise ProtocolError(f"the answer is larger than {self.max_bytes:,} bytes")
        if response.raw.length_remaining:  # a bounded read does not say so itself
            raise ConnectError(CLOSED_EARLY)
        return body

    def _prepared(self, verb: str, headers: Mapping[str, str], body: bytes | None) -> requests.PreparedRequest:
        # Filled in by hand: `Request.prepare` reads and checks the address anew each time, for a fifth of a call's CPU.
        request = requests.PreparedRequest()
        request.method, request.url, request.body, request.hooks = verb, self.url, body, {"response": []}
        length = {} if body is None else {"Content-Length": str(len(body))}
        request.headers = CaseInsensitiveDict({**headers, **length})
        return request

    def _headers(self, session: Session) -> dict[str, str]:
        headers = {
            **self.headers.values,
            "Accept": f"{mcp.JSON}, {mcp.EVENT_STREAM}",
            "Accept-Encoding": "identity",
            "Content-Type": mcp.JSON,
            "User-Agent": f"{mcp.HALL_NAME}/{mcp.HALL_VERSION}",
            mcp.VERSION_HEADER: session.version,
        }
        if session.id:
            headers[mcp.SESSION_HEADER] = session.id
        return headers


def time_left(deadline: float) -> float:
    """Seconds, for a timeout: never none at all."""
    return round(max(0.001, deadline - time.monotonic()), 3)


# Errors --------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def translated(timeout: float, exchange: Exchange, secrets: Collection[str]) -> Iterator[None]:
    """What requests, urllib3 and sockets raise, as our errors: the one place that knows theirs."""
    try:
        yield
    except ClientError as error:
        if exchange.aborted:
            raise RequestCancelledError from None
        _mask(error, secrets)
        raise
    except (requests.exceptions.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
        if exchange.aborted:
            raise RequestCancelledError from error
        raise _translate(error, timeout) from error


def _mask(error: ClientError, secrets: Collection[str]) -> None:
    """Errors are logged, stored and shown; a server may quote in them what it was sent."""
    if secrets:
        error.args = tuple(_without(value, secrets) for value in error.args)
        if isinstance(error, RemoteError):
            error.message = remote.masked(error.message, secrets)
            error.data = _without(error.data, secrets)


def _without(value: Any, secrets: Collection[str]) -> Any:
    if isinstance(value, str):
        return remote.masked(value, secrets)
    if isinstance(value, list):
        return [_without(part, secrets) for part in value]
    if isinstance(value, dict):
        return {_without(key, secrets): _without(part, secrets) for key, part in value.items()}
    return value


def _translate(error: Exception, timeout: float) -> TransportError | ProtocolError:
    chain = list(_causes(error))
    if any(isinstance(e, ConnectionRefusedError) for e in chain):
        return ConnectError("connection refused", is_refusal=True)
    # Before the next ones: urllib3 takes these for timeouts too.
    if unknown := [e for e in chain if isinstance(e, socket.gaierror)]:
        return ConnectError(f"its host name cannot be looked up: {unknown[0].strerror or unknown[0]}")
    if any(isinstance(e, NewConnectionError) for e in chain):
        return ConnectError(f"no connection: {chain[-1]}")
    if any(isinstance(e, (requests.ConnectTimeout, urllib3.exceptions.ConnectTimeoutError)) for e in chain):
        return ConnectError(f"no connection within {min(CONNECT_TIMEOUT, timeout):g} s")
    timeouts = (requests.ReadTimeout, urllib3.exceptions.ReadTimeoutError, TimeoutError)
    if any(isinstance(e, timeouts) for e in chain):
        return RequestTimeoutError(timeout)
    for cause in chain:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return ConnectError(f"its certificate is not trusted: {cause.verify_message}")
        if isinstance(cause, ssl.SSLError) and not isinstance(cause, (ssl.SSLEOFError, ssl.SSLZeroReturnError)):
            return ConnectError(f"TLS failed: {(cause.reason or str(cause)).replace('_', ' ').lower()}")
    # Both IncompleteRead are in use: urllib3's own, and the standard library's for a body in chunks.
    broken = (ConnectionError, ssl.SSLError, urllib3.exceptions.IncompleteRead, http.client.IncompleteRead)
    if any(isinstance(e, broken) for e in chain):
        return ConnectError(CLOSED_EARLY)
    # Libraries quote what came: bytes of the member's, line breaks and escape sequences among them.
    return ProtocolError(f"did not answer in HTTP: {console.visible(str(chain[-1])[:MAX_QUOTED])}")


def _causes(error: BaseException) -> Iterator[BaseException]:
    """`error`, what it wraps, and what caused that: libraries keep the cause in args, `reason`, or the chain."""
    seen: set[int] = set()
    queue: list[Any] = [error]
    while queue:
        current = queue.pop(0)
        if not isinstance(current, BaseException) or id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        queue += [*current.args, getattr(current, "reason", None), current.__cause__, current.__context__]
