"""HTTP to one server with hard deadlines. It has exchanges, sockets, connections, and the translation of errors.

The timeout of `requests` is for each read, so a server that sends one byte a second could block a call for ever. Here
the socket itself has the deadline. Each read and each write waits only for the remaining time. So no timer, thread or
socket outlives a call. The only exception is the look-up of a name, which the system ends when it wants.
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
# Servers close idle connections (uvicorn and Node after 5 s). A connection that was idle for longer gets no call.
IDLE_SECONDS = 1.0


# Exchanges: one request and its answer, which another thread may abort -------------------------------------------


@dataclass(frozen=True)
class Session:
    """The version of MCP that a server uses, and the session's id if the server gave one."""

    version: str = mcp.PREFERRED_VERSION
    id: str | None = None

    @property
    def is_modern(self) -> bool:
        """Whether MCP has no sessions in this version (2026-07-28 and later)."""
        return self.version == mcp.MODERN_VERSION


class Exchange:
    """One request and its answer. Any thread may `abort()` it. Then the waiting thread gets RequestCancelledError.

    `on_progress(params)` gets the server's progress notifications. Without it the hall does not request them.
    """

    def __init__(self, on_progress: Callable[[dict[str, Any]], None] | None = None) -> None:
        self.on_progress = on_progress
        self._lock = threading.Lock()
        self._socket: _DeadlineSocket | None = None
        self.is_aborted = False
        self.request_id: int | None = None
        self.deadline = 0.0
        self.session = Session()
        self.server_requests = 0  # requests of the server before the answer
        self.is_sent = False  # the server may have read a part of the request

    def begin(self, request_id: int | None, timeout: float) -> None:
        """Start the deadline. Raises RequestCancelledError if it was aborted before. Then nothing has been sent."""
        with self._lock:
            self._require_not_aborted()
            self.request_id = request_id
            self.deadline = time.monotonic() + timeout
            self.server_requests = 0

    def attach(self, sock: _DeadlineSocket) -> None:
        """From now on the socket belongs to this exchange, and has its deadline."""
        with self._lock:
            self._require_not_aborted()
            self._socket = sock
            sock.deadline = self.deadline
            sock.limit_bytes(HEAD_BYTES, "what it sent before its answer")

    def expect_body(self, max_bytes: int) -> None:
        """Set the limit for the body, after the head. It has room for framing, because small chunks double the size."""
        with self._lock:
            if self._socket is not None:
                self._socket.limit_bytes(2 * max_bytes + HEAD_BYTES, "the answer, with what it is wrapped in,")

    def _require_not_aborted(self) -> None:
        if self.is_aborted:
            raise RequestCancelledError

    def detach(self) -> None:
        with self._lock:
            self._socket = None

    def require_time(self) -> None:
        """Raise RequestCancelledError if it was aborted, TimeoutError after the deadline. For loops that do no I/O."""
        with self._lock:
            self._require_not_aborted()
        if time.monotonic() >= self.deadline:
            raise TimeoutError("the deadline of the request passed")

    def pause(self, seconds: float) -> None:
        """Wait `seconds`. Raises RequestCancelledError as soon as it is aborted, TimeoutError at the deadline."""
        end = time.monotonic() + seconds
        while (remaining := end - time.monotonic()) > 0:
            self.require_time()
            time.sleep(min(remaining, 0.02))
        self.require_time()

    def mark_aborted(self) -> None:
        """Ignore all answers from now on."""
        with self._lock:
            self.is_aborted = True

    def abort(self) -> None:
        with self._lock:
            self.is_aborted = True
            if self._socket is not None:
                _shut_down(self._socket)


def _shut_down(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


_current = threading.local()


def enter_exchange(exchange: Exchange) -> Exchange | None:
    """Make `exchange` the current one of this thread. Returns the previous one.

    There may be one. While the hall reads a stream, it answers the server's requests that come on it.
    """
    previous, _current.exchange = getattr(_current, "exchange", None), exchange
    return previous


def leave_exchange(previous: Exchange | None) -> None:
    """Make the previous exchange the current one again."""
    _current.exchange = previous


# Sockets whose timeout is a deadline ------------------------------------------------------------------------------


class _DeadlineSocket(socket.socket):
    """Reads and writes wait until `deadline` at most, whatever timeout the libraries above set.

    They also limit how many bytes may come, because the libraries have no limit for some parts of HTTP.
    """

    deadline = 0.0
    _limit = _remaining = 0
    _subject = ""

    def limit_bytes(self, count: int, subject: str) -> None:
        """From now on at most `count` bytes may come. `subject` names them in the error."""
        self._limit = self._remaining = count
        self._subject = subject

    def _apply_deadline(self) -> None:
        remaining = self.deadline - time.monotonic()
        if remaining <= 0:
            raise TimeoutError("the deadline of the request passed")
        self.settimeout(remaining)

    def recv_into(self, *args: Any, **kwargs: Any) -> int:
        self._apply_deadline()
        count = super().recv_into(*args, **kwargs)
        self._remaining -= count
        if self._remaining < 0:
            raise ProtocolError(f"{self._subject} is larger than {self._limit:,} bytes")
        return count

    def sendall(self, *args: Any, **kwargs: Any) -> None:
        self._apply_deadline()
        _current.exchange.is_sent = True
        super().sendall(*args, **kwargs)


class _DeadlineTlsSocket(_DeadlineSocket, ssl.SSLSocket):
    """A _DeadlineSocket with TLS. The deadline includes the TLS handshake."""

    def do_handshake(self, block: bool = False) -> None:
        try:
            _current.exchange.attach(self)  # so that an abort ends the TLS handshake too
            self._apply_deadline()
        except ClientError:
            self.close()
            raise
        super().do_handshake(block)

    def shutdown(self, how: int) -> None:
        # SSLSocket's own shutdown drops the TLS state first. Then another thread could send in clear.
        socket.socket.shutdown(self, how)


def tls_context() -> ssl.SSLContext:
    """Always verify certificates, with those that the environment names, or else with the system's and certifi's."""
    context = ssl.create_default_context()
    if not (os.environ.get("SSL_CERT_FILE") or os.environ.get("SSL_CERT_DIR")):
        context.load_verify_locations(certifi.where())
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.sslsocket_class = _DeadlineTlsSocket
    return context


def _dial(host: str, port: int, timeout: float, options: Any) -> _DeadlineSocket:
    """Connect within `timeout`. Each of the host's addresses gets an equal share of the remaining time."""
    deadline = time.monotonic() + timeout
    addresses = _look_up(host.strip("[]"), port, timeout)
    for index, (family, kind, proto, _, address) in enumerate(addresses):
        sock = _DeadlineSocket(family, kind, proto)
        try:
            for option in options or ():
                sock.setsockopt(*option)
            sock.settimeout(max(deadline - time.monotonic(), 0.001) / (len(addresses) - index))
            sock.connect(address)
        except OSError:
            sock.close()
            if index == len(addresses) - 1:
                raise
        else:
            return sock
    raise OSError("the host has no address")


def _look_up(host: str, port: int, timeout: float) -> list[Any]:
    """Look up a name in a thread, because getaddrinfo has no deadline. A thread that takes too long is abandoned."""
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(host)
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    results: list[Any] = []

    def look_up() -> None:
        try:
            results.append(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except (OSError, UnicodeError) as error:
            results.append(error)

    thread = threading.Thread(target=look_up, name=f"look up {host}", daemon=True)
    thread.start()
    thread.join(timeout)
    if not results:
        raise TimeoutError(f"looking up {host} takes too long")
    if isinstance(results[0], UnicodeError):
        raise socket.gaierror(str(results[0]))
    if isinstance(results[0], OSError):
        raise results[0]
    return cast(list[Any], results[0])


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
        if self.sock is not None:  # otherwise `connect` does it
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
        """Do nothing: the context verifies. `requests` would load its own certificates at every connection."""


# Requests and their responses -------------------------------------------------------------------------------------


class Transport:
    """Sends requests to one server, each with `headers`. No answer may have more than `max_bytes` bytes."""

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
        """Send one request. Returns the response before its body is read. Errors of libraries become ClientErrors."""
        body = None if message is None else quick_json.encode(message)
        request = self._prepare(verb, {**self._headers(exchange.session), **headers}, body)
        limit = Timeout(connect=min(CONNECT_TIMEOUT, timeout), total=timeout)
        response = None
        previous = enter_exchange(exchange)
        try:
            with translate_errors(timeout, exchange, self.headers.secrets):
                # The adapter, not Session.send: no cookies, proxies, netrc or redirects, and a third of the CPU.
                response = self._adapter.send(request, stream=True, timeout=cast(Any, limit))
                exchange.expect_body(self.max_bytes)
                yield response
        except ClientError as error:
            error.was_sent = exchange.is_sent
            raise
        finally:
            leave_exchange(previous)
            exchange.detach()
            if response is not None and not response.raw.closed:
                response.close()  # its end was not read, so the connection cannot serve another call

    def body(self, response: requests.Response) -> bytes:
        """Read the whole body. Raises ProtocolError if it is too large."""
        body: bytes = response.raw.read(self.max_bytes + 1) or b""
        if len(body) > self.max_bytes:
            raise ProtocolError(f"the answer is larger than {self.max_bytes:,} bytes")
        if response.raw.length_remaining:  # a read with a limit does not raise for this
            raise ConnectError(CLOSED_EARLY)
        return body

    def _prepare(self, verb: str, headers: Mapping[str, str], body: bytes | None) -> requests.PreparedRequest:
        # Not `Request.prepare`: it parses the address again for each request, which is a fifth of a call's CPU time.
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
    """Seconds until `deadline` for use as a timeout, so never zero."""
    return round(max(0.001, deadline - time.monotonic()), 3)


# Errors --------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def translate_errors(timeout: float, exchange: Exchange, secrets: Collection[str]) -> Iterator[None]:
    """Raise errors of requests, urllib3 and sockets as our own. This is the only place that knows theirs."""
    try:
        yield
    except ClientError as error:
        if exchange.is_aborted:
            raise RequestCancelledError from None
        _mask(error, secrets)
        raise
    except (requests.exceptions.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
        if exchange.is_aborted:
            raise RequestCancelledError from error
        raise _translate(error, timeout) from error


def _mask(error: ClientError, secrets: Collection[str]) -> None:
    """Errors are logged, stored and shown. A server may quote in them what the hall sent."""
    if secrets:
        error.args = tuple(_mask_value(value, secrets) for value in error.args)
        if isinstance(error, RemoteError):
            error.message = remote.mask_secrets(error.message, secrets)
            error.data = _mask_value(error.data, secrets)


def _mask_value(value: Any, secrets: Collection[str]) -> Any:
    if isinstance(value, str):
        return remote.mask_secrets(value, secrets)
    if isinstance(value, list):
        return [_mask_value(part, secrets) for part in value]
    if isinstance(value, dict):
        return {_mask_value(key, secrets): _mask_value(part, secrets) for key, part in value.items()}
    return value


def _translate(error: Exception, timeout: float) -> TransportError | ProtocolError:
    chain = list(_causes(error))
    if any(isinstance(e, ConnectionRefusedError) for e in chain):
        return ConnectError("connection refused", is_refusal=True)
    # Check this before timeouts, because urllib3 raises these as timeouts too.
    if lookup_errors := [e for e in chain if isinstance(e, socket.gaierror)]:
        return ConnectError(f"its host name cannot be looked up: {lookup_errors[0].strerror or lookup_errors[0]}")
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
    # There are two classes IncompleteRead: urllib3's, and the standard library's for a body in chunks.
    broken = (ConnectionError, ssl.SSLError, urllib3.exceptions.IncompleteRead, http.client.IncompleteRead)
    if any(isinstance(e, broken) for e in chain):
        return ConnectError(CLOSED_EARLY)
    # Libraries quote the member's bytes, which may include line breaks and escape sequences.
    return ProtocolError(f"did not answer in HTTP: {console.visible(str(chain[-1])[:MAX_QUOTED])}")


def _causes(error: BaseException) -> Iterator[BaseException]:
    """`error` and all its causes. Libraries store a cause in args, in `reason`, or in the chain."""
    visited: set[int] = set()
    queue: list[Any] = [error]
    while queue:
        current = queue.pop(0)
        if not isinstance(current, BaseException) or id(current) in visited:
            continue
        visited.add(id(current))
        yield current
        queue += [*current.args, getattr(current, "reason", None), current.__cause__, current.__context__]
