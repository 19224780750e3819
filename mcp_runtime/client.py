"""JsonRpcClient: converses with one member over HTTP. Every call has a total deadline that nothing stretches.

`requests`' timeout bounds each read, so a server that sends a byte a second holds a caller for ever. Here the socket
itself carries the deadline: whatever is read or written, only the time that is left is waited. So no timer, no
thread and no socket outlives a call.
"""

from __future__ import annotations

import contextlib
import http.client
import logging
import re
import reprlib
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import requests
import urllib3
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection
from urllib3.connectionpool import HTTPConnectionPool
from urllib3.util import Timeout

from mcp_runtime import jsonrpc, protocol
from mcp_runtime.errors import (
    ClientError,
    ConnectError,
    HttpStatusError,
    ProtocolError,
    RemoteError,
    RequestCancelledError,
    RequestTimeoutError,
    ToolError,
    TransportError,
)

logger = logging.getLogger("guildhall.runtime")

CLIENT_NAME = "guild-hall"
CLIENT_VERSION = "0.1.0"
INITIALIZE_TIMEOUT = 5.0  # REQ-MCP-HTTP-20
REQUEST_TIMEOUT = 30.0  # REQ-MCP-HTTP-28
CONNECT_TIMEOUT = 5.0
CANCEL_TIMEOUT = 0.5
MAX_BYTES = 4_000_000
MAX_PAGES = 100
MAX_TOOLS = 2_000
MAX_TOOL_NAME = 255
MAX_WARNINGS = 20
READ_BYTES = 65_536
HEAD_BYTES = 256_000  # status line and headers, the answers of "100 Continue" before them included
CLOSED_EARLY = "the connection was closed before the answer was complete"
_SESSION_ID = re.compile("[!-~]{1,1000}")  # visible ASCII, says the specification
# Servers close idle connections (uvicorn and Node after 5 s): one that idled longer is not trusted with a call.
IDLE_SECONDS = 1.0


# Exchanges: one request and its answer, which another thread may abort -------------------------------------------


class Exchange:
    """One request and its answer. `abort()` from any thread ends it: the waiting thread gets RequestCancelledError."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket: _DeadlineSocket | None = None
        self.aborted = False
        self.request_id: int | None = None
        self.deadline = 0.0

    def begin(self, request_id: int | None, timeout: float) -> None:
        """Raises RequestCancelledError when it was aborted before: then nothing is sent, and nobody need be told."""
        with self._lock:
            self._require_wanted()
            self.request_id = request_id
            self.deadline = time.monotonic() + timeout

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
        super().sendall(*args, **kwargs)


class _Connection(HTTPConnection):
    idle_since = 0.0

    def _new_conn(self) -> socket.socket:
        plain = super()._new_conn()
        return _DeadlineSocket(plain.family, plain.type, plain.proto, fileno=plain.detach())

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


class _Adapter(HTTPAdapter):
    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        super().init_poolmanager(*args, **kwargs)
        self.poolmanager.pool_classes_by_scheme = {"http": _ConnectionPool}


# The client -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class InitializeResult:
    """What the handshake told."""

    protocol_version: str
    server_info: dict[str, Any]
    capabilities: dict[str, Any]
    instructions: str


@dataclass
class ToolList:
    """Tool definitions as the member sent them, in its order; `warnings` say what was left out and why."""

    tools: list[dict[str, Any]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


class JsonRpcClient:
    """Speaks MCP with one member at `url`. Safe to use from many threads at once.

    Errors are ClientErrors; `invoke_tool` raises ToolError for a result with `isError`. Timeouts in seconds, total.
    """

    def __init__(self, url: str, *, connections: int = 16, max_bytes: int = MAX_BYTES) -> None:
        self._url = url
        self._max_bytes = max_bytes
        self._ids = jsonrpc.IdCounter()
        self._adapter = _Adapter(pool_connections=1, pool_maxsize=connections, max_retries=0)
        self._protocol_version = protocol.PREFERRED_VERSION
        self._session_id: str | None = None
        self._capabilities: dict[str, Any] = {}

    def close(self) -> None:
        self._adapter.close()

    def initialize(self, timeout: float = INITIALIZE_TIMEOUT, exchange: Exchange | None = None) -> InitializeResult:
        """The handshake's three steps within `timeout` (REQ-MCP-HTTP-13, 20, 25)."""
        deadline = time.monotonic() + timeout
        self._session_id, self._protocol_version = None, protocol.PREFERRED_VERSION
        result = self.call("initialize", protocol.initialize_params(CLIENT_NAME, CLIENT_VERSION), timeout, exchange)
        version = result.get("protocolVersion")
        if version not in protocol.HANDSHAKE_VERSIONS:
            spoken = ", ".join(protocol.HANDSHAKE_VERSIONS)
            said = reprlib.repr(version)
            raise ProtocolError(f"answered initialize with protocol version {said}; the hall speaks {spoken}")
        self._protocol_version = str(version)
        self._capabilities = _object(result.get("capabilities"))
        self.notify("notifications/initialized", timeout=max(0.001, deadline - time.monotonic()))
        return InitializeResult(
            protocol_version=self._protocol_version,
            server_info=_object(result.get("serverInfo")),
            capabilities=self._capabilities,
            instructions=str(result.get("instructions") or "")[:10_000],
        )

    def list_tools(self, timeout: float = REQUEST_TIMEOUT, exchange: Exchange | None = None) -> ToolList:
        """Every page of tools/list, within `timeout` in total (REQ-MCP-HTTP-26), without entries that are no tools."""
        deadline = time.monotonic() + timeout
        found = ToolList()
        cursors: set[str] = set()
        params: dict[str, Any] = {}
        size = 0
        for _ in range(MAX_PAGES):
            try:
                result = self.call("tools/list", params, max(0.001, deadline - time.monotonic()), exchange)
            except RemoteError as error:
                if error.code == jsonrpc.METHOD_NOT_FOUND and "tools" not in self._capabilities:
                    return found  # a server without tools, and it said so
                raise
            size += len(jsonrpc.encode(result))
            if size > self._max_bytes:
                raise ProtocolError(f"tools/list is larger than {self._max_bytes:,} bytes in all")
            _collect_tools(result, found)
            cursor = result.get("nextCursor")
            if cursor is None:
                return found
            if not isinstance(cursor, str) or cursor in cursors:
                raise ProtocolError("tools/list repeats its cursor: the list has no end")
            cursors.add(cursor)
            params = {"cursor": cursor}
        raise ProtocolError(f"tools/list has more than {MAX_PAGES} pages")

    def invoke_tool(
        self,
        name: str,
        arguments: dict[str, Any],
        timeout: float = REQUEST_TIMEOUT,
        exchange: Exchange | None = None,
    ) -> dict[str, Any]:
        """The tool's result (REQ-MCP-HTTP-27). Raises ToolError, which carries it whole, when it has `isError`."""
        result = self.call("tools/call", {"name": name, "arguments": arguments}, timeout, exchange)
        if result.get("isError") is True:
            raise ToolError(protocol.text_of(result)[:2000] or "the tool reported an error without a text", result)
        return result

    def cancel(self, exchange: Exchange, reason: str) -> None:
        """Tell the server (notifications/cancelled), then stop waiting. Never raises: there may be nobody to tell."""
        exchange.mark_aborted()
        if exchange.request_id is not None:
            with contextlib.suppress(ClientError):
                params = {"requestId": exchange.request_id, "reason": reason}
                self.notify("notifications/cancelled", params, CANCEL_TIMEOUT)
        exchange.abort()

    def call(
        self, method: str, params: dict[str, Any], timeout: float, exchange: Exchange | None = None
    ) -> dict[str, Any]:
        """The `result` of one request. Raises RemoteError for a JSON-RPC error object (REQ-MCP-HTTP-29)."""
        request_id = self._ids.take()
        exchange = exchange or Exchange()
        exchange.begin(request_id, timeout)
        with self._post(jsonrpc.request(request_id, method, params), timeout, exchange) as response:
            result = jsonrpc.result_of(self._answer(response, request_id))
            if method == "initialize":
                self._session_id = _session_id(response)
        if exchange.aborted:
            raise RequestCancelledError
        return result

    def notify(self, method: str, params: dict[str, Any] | None = None, timeout: float = REQUEST_TIMEOUT) -> None:
        """A message without an answer. Raises HttpStatusError when it is not accepted."""
        exchange = Exchange()
        exchange.begin(None, timeout)
        with self._post(jsonrpc.notification(method, params), timeout, exchange) as response:
            if not 200 <= response.status_code < 300:
                raise HttpStatusError(response.status_code, jsonrpc.excerpt(self._body(response)))
            if {"Content-Length", "Transfer-Encoding"} & set(response.headers):
                self._body(response)  # so that the connection serves another call; without them it has no end

    # One exchange -------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _post(self, message: dict[str, Any], timeout: float, exchange: Exchange) -> Iterator[requests.Response]:
        """The response to one POST, its body not yet read; foreign errors leave as ours."""
        request = requests.Request("POST", self._url, headers=self._headers(), data=jsonrpc.encode(message)).prepare()
        limit = Timeout(connect=min(CONNECT_TIMEOUT, timeout), total=timeout)
        response = None
        _current.exchange = exchange
        try:
            with _translated(timeout, exchange):
                # The adapter, not Session.send: no cookies, proxies, netrc or redirects, and a third of the CPU.
                response = self._adapter.send(request, stream=True, timeout=cast(Any, limit))
                exchange.expect_body(self._max_bytes)
                yield response
        finally:
            _current.exchange = None
            exchange.detach()
            if response is not None and not response.raw.closed:
                response.close()  # not read to its end, so the connection cannot serve another call

    def _headers(self) -> dict[str, str]:
        headers = {
            "Accept": f"{protocol.JSON}, {protocol.EVENT_STREAM}",
            "Accept-Encoding": "identity",
            "Content-Type": protocol.JSON,
            "User-Agent": f"{CLIENT_NAME}/{CLIENT_VERSION}",
            protocol.VERSION_HEADER: self._protocol_version,
        }
        if self._session_id:
            headers[protocol.SESSION_HEADER] = self._session_id
        return headers

    def _answer(self, response: requests.Response, request_id: int) -> Any:
        """The message that answers `request_id`, from a JSON body or an event stream."""
        kind = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        if response.status_code == 200 and kind == protocol.EVENT_STREAM:
            return self._answer_in_stream(response, request_id)
        body = self._body(response)
        if response.status_code != 200:
            raise _status_error(response.status_code, kind, body)
        if kind != protocol.JSON:
            raise ProtocolError(f"answered with {kind or 'no content type'} instead of JSON: {jsonrpc.excerpt(body)}")
        message = jsonrpc.decode(body)
        answered = message.get("id") if isinstance(message, dict) else None
        # An error that came before the id could be read has none.
        is_anonymous_error = isinstance(message, dict) and answered is None and "error" in message
        if isinstance(message, dict) and not is_anonymous_error and not _same_id(answered, request_id):
            raise ProtocolError(f"answered request {reprlib.repr(answered)}, but {request_id} was asked")
        return message

    def _answer_in_stream(self, response: requests.Response, request_id: int) -> Any:
        stream = protocol.EventStream()
        taken = 0
        while chunk := response.raw.read1(READ_BYTES):
            taken += len(chunk)
            if taken > self._max_bytes:
                raise ProtocolError(f"the answer is larger than {self._max_bytes:,} bytes")
            for data in stream.feed(chunk):
                message = jsonrpc.decode(data)
                if isinstance(message, dict) and "method" not in message and _same_id(message.get("id"), request_id):
                    return message
        raise ProtocolError("the event stream ended without the answer")

    def _body(self, response: requests.Response) -> bytes:
        body: bytes = response.raw.read(self._max_bytes + 1) or b""
        if len(body) > self._max_bytes:
            raise ProtocolError(f"the answer is larger than {self._max_bytes:,} bytes")
        if response.raw.length_remaining:  # a bounded read does not say so itself
            raise ConnectError(CLOSED_EARLY)
        return body


def _same_id(answered: Any, asked: int) -> bool:
    return answered == asked and not isinstance(answered, bool)


def _session_id(response: requests.Response) -> str | None:
    told = response.headers.get(protocol.SESSION_HEADER)
    if told is not None and not _SESSION_ID.fullmatch(told):
        raise ProtocolError(f"its session id is not one line of visible ASCII: {reprlib.repr(told)}")
    return told


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _status_error(status: int, kind: str, body: bytes) -> ClientError:
    """A JSON-RPC error object under an HTTP error status is the better explanation."""
    if kind == protocol.JSON:
        try:
            jsonrpc.result_of(jsonrpc.decode(body))
        except RemoteError as error:
            return error
        except ProtocolError:
            pass
    return HttpStatusError(status, jsonrpc.excerpt(body) if body else "")


def _collect_tools(result: dict[str, Any], found: ToolList) -> None:
    tools = result.get("tools")
    if not isinstance(tools, list):
        raise ProtocolError("the answer to tools/list has no array of tools")
    names = {tool["name"] for tool in found.tools}
    for index, tool in enumerate(tools):
        name = tool.get("name") if isinstance(tool, dict) else None
        if not isinstance(name, str) or not 0 < len(name) <= MAX_TOOL_NAME:
            _warn(found, f"tools/list: entry {index} has no usable name and is left out")
        elif name in names:
            _warn(found, f"tools/list: {name!r} is listed twice; the first counts")
        elif len(found.tools) >= MAX_TOOLS:
            raise ProtocolError(f"tools/list has more than {MAX_TOOLS} tools")
        else:
            names.add(name)
            found.tools.append(tool)


def _warn(found: ToolList, text: str) -> None:
    if len(found.warnings) < MAX_WARNINGS:
        found.warnings.append(text)
    elif len(found.warnings) == MAX_WARNINGS:
        found.warnings.append("tools/list: there is more of the kind")


@contextlib.contextmanager
def _translated(timeout: float, exchange: Exchange) -> Iterator[None]:
    """What requests, urllib3 and sockets raise, as our errors: the one place that knows theirs."""
    try:
        yield
    except ClientError:
        if exchange.aborted:
            raise RequestCancelledError from None
        raise
    except (requests.exceptions.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
        if exchange.aborted:
            raise RequestCancelledError from error
        raise _translate(error, timeout) from error


def _translate(error: Exception, timeout: float) -> TransportError | ProtocolError:
    chain = list(_causes(error))
    if any(isinstance(e, ConnectionRefusedError) for e in chain):
        return ConnectError("connection refused", is_refusal=True)
    if any(isinstance(e, (requests.ConnectTimeout, urllib3.exceptions.ConnectTimeoutError)) for e in chain):
        return ConnectError(f"no connection within {min(CONNECT_TIMEOUT, timeout):g} s")
    timeouts = (requests.ReadTimeout, urllib3.exceptions.ReadTimeoutError, TimeoutError)
    if any(isinstance(e, timeouts) for e in chain):
        return RequestTimeoutError(timeout)
    # Both IncompleteRead are in use: urllib3's own, and the standard library's for a body in chunks.
    broken = (ConnectionError, urllib3.exceptions.IncompleteRead, http.client.IncompleteRead)
    if any(isinstance(e, broken) for e in chain):
        return ConnectError(CLOSED_EARLY)
    return ProtocolError(f"did not answer in HTTP: {chain[-1]}")


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
