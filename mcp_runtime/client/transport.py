"""Sends HTTP requests to one server. Each request has a deadline that the server cannot extend.

The timeout of `requests` is for each read, so a server that sends one byte a second could block a call for ever. Here
the socket itself has the deadline. Each read and each write waits only for the remaining time. So no timer, thread or
socket outlives a call. The only exception is the thread that looks up a host name. It ends when the look-up of the
operating system returns.
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
from pathlib import Path
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

from mcp_runtime.client import quick_json
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
from mcp_runtime.secrets import references
from mcp_runtime.system import console

CONNECT_TIMEOUT = 5.0
HEAD_BYTES = 256_000  # of the status line and the headers, including those of responses with "100 Continue"
MAX_QUOTED = 300  # characters of an invalid response that an error quotes
CLOSED_EARLY = "the connection was closed before the response was complete"
# Servers close idle connections (uvicorn and Node after 5 s). So a connection that was idle for longer than this is not
# used again.
IDLE_SECONDS = 1.0


# Exchanges ---------------------------------------------------------------------------------------------------------


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
    """One request and its response. Any thread may `abort()` it. Then RequestCancelledError is raised in the thread
    that waits for the response.

    `on_progress(params)` is called for each progress notification of the server. If it is None, the hall does not
    request progress.
    """

    def __init__(
        self,
        on_progress: Callable[[dict[str, Any]], None] | None = None,
        require_address: Callable[[str], None] = lambda address: None,
    ) -> None:
        """`require_address` gets each IP address before a connection to it, and raises OSError to prevent it."""
        self.on_progress = on_progress
        self.require_address = require_address
        self._lock = threading.Lock()
        self._socket: _DeadlineSocket | None = None
        self.is_aborted = False
        self.request_id: int | None = None
        self.deadline = 0.0
        self.session = Session()
        self.server_requests = 0  # how many requests the server sent before its response
        self.is_sent = False  # whether the server may have received a part of the request

    def begin(self, request_id: int | None, timeout: float) -> None:
        """Set the deadline. Raises RequestCancelledError if the exchange is already aborted. Then nothing is sent."""
        with self._lock:
            self._require_not_aborted()
            self.request_id = request_id
            self.deadline = time.monotonic() + timeout
            self.server_requests = 0

    def attach(self, sock: _DeadlineSocket) -> None:
        """Use this socket for the exchange. It gets the deadline of the exchange, and an abort shuts it down."""
        with self._lock:
            self._require_not_aborted()
            self._socket = sock
            sock.deadline = self.deadline
            sock.limit_bytes(HEAD_BYTES, "the header section of the response")

    def expect_body(self, max_bytes: int) -> None:
        """Limit the body, after the headers were read.

        The limit is higher than `max_bytes`, because the framing of chunks is read too.
        """
        with self._lock:
            if self._socket is not None:
                self._socket.limit_bytes(2 * max_bytes + HEAD_BYTES, "the response with its framing")

    def _require_not_aborted(self) -> None:
        if self.is_aborted:
            raise RequestCancelledError

    def detach(self) -> None:
        with self._lock:
            self._socket = None

    def require_active(self) -> None:
        """Raise RequestCancelledError if the exchange is aborted, or TimeoutError if its deadline has passed.

        Loops without I/O call this, because only I/O checks the deadline automatically.
        """
        with self._lock:
            self._require_not_aborted()
        if time.monotonic() >= self.deadline:
            raise TimeoutError("the deadline of the request passed")

    def pause(self, seconds: float) -> None:
        """Wait for `seconds`. Raises RequestCancelledError soon after an abort, and TimeoutError at the deadline."""
        end = time.monotonic() + seconds
        while (remaining := end - time.monotonic()) > 0:
            self.require_active()
            time.sleep(min(remaining, 0.02))
        self.require_active()

    def mark_aborted(self) -> None:
        """Abort the exchange, but keep its socket open. A response that still arrives is ignored."""
        with self._lock:
            self.is_aborted = True

    def abort(self) -> None:
        """Abort the exchange and shut its socket down."""
        with self._lock:
            self.is_aborted = True
            if self._socket is not None:
                _shut_down(self._socket)


def _shut_down(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


_current = threading.local()


def enter_exchange(exchange: Exchange) -> Exchange | None:
    """Make `exchange` the current exchange of this thread. Return the exchange that was current before.

    A thread can have a second exchange inside the first. While it reads the stream of one response, the server may send
    a request on this stream, and the thread then sends the answer.
    """
    previous, _current.exchange = getattr(_current, "exchange", None), exchange
    return previous


def leave_exchange(previous: Exchange | None) -> None:
    """Make the previous exchange the current one again."""
    _current.exchange = previous


# Sockets whose timeout is a deadline ------------------------------------------------------------------------------


class _DeadlineSocket(socket.socket):
    """A socket whose reads and writes end at `deadline`, even if urllib3 sets a longer timeout.

    It also limits the number of bytes that it reads, because the libraries have no limit for some parts of HTTP.
    """

    deadline = 0.0
    _limit = _remaining = 0
    _subject = ""

    def limit_bytes(self, count: int, subject: str) -> None:
        """Allow at most `count` more bytes to be read. More bytes raise an error that begins with `subject`."""
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
        # SSLSocket.shutdown discards the TLS state first. After that, another thread could send without encryption.
        socket.socket.shutdown(self, how)


def tls_context(ca: Path | None = None) -> ssl.SSLContext:
    """Return a context that verifies certificates.

    It trusts those in the file `ca`. Without it, it trusts those that the environment names. If the environment names
    none, it trusts those of the system and of certifi. Raises OSError if the file cannot be used.
    """
    context = ssl.create_default_context(cafile=ca)
    if ca is None and not (os.environ.get("SSL_CERT_FILE") or os.environ.get("SSL_CERT_DIR")):
        context.load_verify_locations(certifi.where())
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.sslsocket_class = _DeadlineTlsSocket
    return context


def _open_socket(
    host: str, port: int, timeout: float, options: Any, require_address: Callable[[str], None]
) -> _DeadlineSocket:
    """Connect within `timeout`. Each of the host's addresses gets an equal share of the remaining time.

    What is checked is the address of the connection, so no name can have another address between the two.
    """
    deadline = time.monotonic() + timeout
    addresses = _look_up(host.strip("[]"), port, timeout)
    for index, (family, kind, proto, _, address) in enumerate(addresses):
        sock = _DeadlineSocket(family, kind, proto)
        try:
            for option in options or ():
                sock.setsockopt(*option)
            require_address(address[0])
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
    """Look up a host name in a thread, because getaddrinfo has no deadline.

    If the look-up takes too long, this raises TimeoutError, and the thread continues without effect.
    """
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
            port, timeout = self.port or self.default_port, cast(float, self.timeout)
            return _open_socket(self.host, port, timeout, self.socket_options, _current.exchange.require_address)
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
        if self.sock is not None:  # otherwise `connect` attaches the new socket
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
    def __init__(self, *, is_tls: bool, ca: Path | None = None, **options: Any) -> None:
        self._context = tls_context(ca) if is_tls else None
        super().__init__(**options)

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        super().init_poolmanager(*args, **kwargs, ssl_context=self._context)
        self.poolmanager.pool_classes_by_scheme = {"http": _ConnectionPool, "https": _TlsConnectionPool}

    def cert_verify(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing, because the TLS context verifies certificates.

        `requests` would load its own certificates for every connection.
        """


# Requests and their responses -------------------------------------------------------------------------------------


class Transport:
    """Sends requests to one server, each with `headers`. A response may have at most `max_bytes` bytes."""

    def __init__(
        self, url: str, *, connections: int, max_bytes: int, headers: references.Resolved, ca: Path | None = None
    ) -> None:
        self.url = requests.Request("POST", url).prepare().url or url
        self.max_bytes = max_bytes
        self.headers = headers
        self._adapter = Adapter(
            is_tls=url.startswith("https:"), ca=ca, pool_connections=1, pool_maxsize=connections, max_retries=0
        )

    def close(self) -> None:
        self._adapter.close()

    @contextlib.contextmanager
    def send(
        self,
        method: str,
        timeout: float,
        exchange: Exchange,
        headers: Mapping[str, str],
        message: dict[str, Any] | None = None,
    ) -> Iterator[requests.Response]:
        """Send one request, and yield the response before its body is read. Raises ClientError."""
        body = None if message is None else quick_json.encode(message)
        request = self._prepare(method, {**self._headers(exchange.session), **headers}, body)
        timeouts = Timeout(connect=min(CONNECT_TIMEOUT, timeout), total=timeout)
        response = None
        previous = enter_exchange(exchange)
        try:
            with translate_errors(timeout, exchange, self.headers.secrets):
                # requests.Session.send needs three times the CPU, and adds cookies, proxies, netrc and redirects.
                response = self._adapter.send(request, stream=True, timeout=cast(Any, timeouts))
                exchange.expect_body(self.max_bytes)
                yield response
        except ClientError as error:
            error.was_sent = exchange.is_sent
            raise
        finally:
            leave_exchange(previous)
            exchange.detach()
            if response is not None and not response.raw.closed:
                response.close()  # the body was not read to its end, so the connection cannot be used again

    def read_body(self, response: requests.Response) -> bytes:
        """Read the whole body. Raises ProtocolError if it is too large."""
        body: bytes = response.raw.read(self.max_bytes + 1) or b""
        if len(body) > self.max_bytes:
            raise ProtocolError(f"the response is larger than {self.max_bytes:,} bytes")
        if response.raw.length_remaining:  # incomplete. A read with a limit raises no error for this
            raise ConnectError(CLOSED_EARLY)
        return body

    def _prepare(self, method: str, headers: Mapping[str, str], body: bytes | None) -> requests.PreparedRequest:
        # `requests.Request.prepare` parses the URL again for each request, which is a fifth of the CPU time of a call.
        request = requests.PreparedRequest()
        request.method, request.url, request.body, request.hooks = method, self.url, body, {"response": []}
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
    """Return the seconds until `deadline`. It is never zero, so that it can be a timeout."""
    return round(max(0.001, deadline - time.monotonic()), 3)


# Errors --------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def translate_errors(timeout: float, exchange: Exchange, secrets: Collection[str]) -> Iterator[None]:
    """Convert errors of requests, urllib3 and sockets to ClientErrors. No other code handles their errors."""
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
    """Mask secrets in an error.

    The hall logs, stores and shows errors. An error may contain the server's text, and this may quote the headers that
    the hall sent.
    """
    if secrets:
        error.args = tuple(_mask_value(value, secrets) for value in error.args)
        if isinstance(error, RemoteError):
            error.message = references.mask_secrets(error.message, secrets)
            error.data = _mask_value(error.data, secrets)


def _mask_value(value: Any, secrets: Collection[str]) -> Any:
    if isinstance(value, str):
        return references.mask_secrets(value, secrets)
    if isinstance(value, list):
        return [_mask_value(part, secrets) for part in value]
    if isinstance(value, dict):
        return {_mask_value(key, secrets): _mask_value(part, secrets) for key, part in value.items()}
    return value


def _translate(error: Exception, timeout: float) -> TransportError | ProtocolError:
    chain = list(_causes(error))
    if any(isinstance(e, ConnectionRefusedError) for e in chain):
        return ConnectError("connection refused", is_refusal=True)
    # This check is before the check of timeouts, because urllib3's NameResolutionError is a timeout.
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
    # urllib3 has a class IncompleteRead. The standard library raises another class of this name for a body in chunks.
    broken = (ConnectionError, ssl.SSLError, urllib3.exceptions.IncompleteRead, http.client.IncompleteRead)
    if any(isinstance(e, broken) for e in chain):
        return ConnectError(CLOSED_EARLY)
    # Libraries quote the member's bytes, which may include line breaks and escape sequences.
    return ProtocolError(f"did not respond with HTTP: {console.visible(str(chain[-1])[:MAX_QUOTED])}")


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield `error` and all its causes. Libraries store a cause in `args`, `reason`, `__cause__` or `__context__`."""
    visited: set[int] = set()
    queue: list[Any] = [error]
    while queue:
        current = queue.pop(0)
        if not isinstance(current, BaseException) or id(current) in visited:
            continue
        visited.add(id(current))
        yield current
        queue += [*current.args, getattr(current, "reason", None), current.__cause__, current.__context__]
