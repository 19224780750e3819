"""Exchanges: one request and its response each, with a deadline that the server cannot extend.

The timeout of `requests` is for each read, so a server that sends one byte a second could block a call for ever. Here
the socket itself has the deadline. Each read and each write waits only for the remaining time. So no timer, thread or
socket outlives a call. The only exception is the thread that looks up a host name. It ends when the look-up of the
operating system returns.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import certifi
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.exceptions import ConnectTimeoutError, NameResolutionError, NewConnectionError

from mcp_runtime.protocol import mcp
from mcp_runtime.protocol.errors import ClientError, ProtocolError, RequestCancelledError

CONNECT_TIMEOUT = 5.0
HEAD_BYTES = 256_000  # of the status line and the headers, including those of responses with "100 Continue"
CLOSED_EARLY = "the connection was closed before the response was complete"
# Servers close idle connections (uvicorn and Node after 5 s). So a connection that was idle for longer than this is not
# used again.
IDLE_SECONDS = 1.0


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
        self.nonce = ""  # that the last response gave for the next proof, if the request is sent again
        self.server_requests = 0  # how many requests the server sent before its response
        self.is_sent = False  # whether the server may have received a part of the request

    def begin(self, request_id: int | None, timeout: float) -> None:
        """Set the deadline. Raises RequestCancelledError if the exchange is already aborted. Then nothing is sent."""
        with self._lock:
            self._require_not_aborted()
            self.request_id = request_id
            self.deadline = time.monotonic() + timeout
            self.server_requests = 0

    def extend(self, seconds: float) -> None:
        """Move the deadline to so many seconds from now. A wait for the server notices it when something comes."""
        with self._lock:
            self.deadline = time.monotonic() + seconds
            if self._socket is not None:
                self._socket.deadline = self.deadline

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
    addresses = look_up(host.strip("[]"), port, timeout)
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


def look_up(host: str, port: int, timeout: float) -> list[Any]:
    """Look up a host name in a thread, because getaddrinfo has no deadline.

    If the look-up takes too long, this raises TimeoutError, and the thread continues without effect.
    """
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(host)
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    results: list[Any] = []

    def work() -> None:
        try:
            results.append(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except (OSError, UnicodeError) as error:
            results.append(error)

    thread = threading.Thread(target=work, name=f"look up {host}", daemon=True)
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
