"""JsonRpcClient: converses with one member over HTTP, in every version of MCP. Every call has a total deadline."""

from __future__ import annotations

import contextlib
import reprlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from mcp_runtime.client import quick_json
from mcp_runtime.client.handshake import (
    AnsweredModernError,
    InitializeResult,
    discovered,
    initialized,
    session_id_of,
)
from mcp_runtime.client.incoming import Incoming
from mcp_runtime.client.remote import Headers
from mcp_runtime.client.streams import Answers, SessionOverError, can_go_on, kind_of
from mcp_runtime.client.tool_list import ToolList
from mcp_runtime.client.transport import Exchange, Session, Transport, time_left, translated
from mcp_runtime.protocol import jsonrpc, mcp
from mcp_runtime.protocol.errors import (
    ClientError,
    ConnectError,
    HttpStatusError,
    ProtocolError,
    RemoteError,
    RequestCancelledError,
    RequestTimeoutError,
    ToolError,
)
from mcp_runtime.protocol.jsonrpc import object_of

CLIENT_NAME = mcp.HALL_NAME
CLIENT_VERSION = mcp.HALL_VERSION
INITIALIZE_TIMEOUT = 5.0  # REQ-MCP-HTTP-20
REQUEST_TIMEOUT = 30.0  # REQ-MCP-HTTP-28
CANCEL_TIMEOUT = 0.5
MAX_BYTES = 4_000_000
MAX_PAGES = 100
MAX_ROUNDS = 10  # of input that one call may ask for
TOOLS_CHANGED = "notifications/tools/list_changed"
PROMPTS_CHANGED = "notifications/prompts/list_changed"
RESOURCES_CHANGED = "notifications/resources/list_changed"
CHANGES = ("toolsListChanged", "promptsListChanged", "resourcesListChanged")  # what a modern server is asked to tell


class JsonRpcClient:
    """Speaks MCP with one member at `url`. Safe to use from many threads at once.

    Errors are ClientErrors; `invoke_tool` raises ToolError for a result with `isError`. Timeouts in seconds, total.

    `capabilities` are told to the server. `on_request(method, params)` gives the results of what it asks in turn
    (sampling, elicitation, roots), or raises MethodError; without it all of that is declined. `on_notification(method,
    params)` is told of what belongs to no call. Both are called in the thread that reads, and must not block.
    """

    def __init__(
        self,
        url: str,
        *,
        connections: int = 16,
        max_bytes: int = MAX_BYTES,
        headers: Headers | None = None,
        capabilities: Mapping[str, Any] | None = None,
        on_request: Callable[[str, dict[str, Any]], dict[str, Any]] | None = None,
        on_notification: Callable[[str, dict[str, Any]], None] = lambda method, params: None,
    ) -> None:
        self.headers = headers or Headers()
        self._transport = Transport(url, connections=connections, max_bytes=max_bytes, headers=self.headers)
        self._incoming = Incoming(self._transport, on_request, on_notification)
        self._answers = Answers(self._transport, self._incoming)
        self.url = self._transport.url
        self._offered = dict(capabilities or {})
        self._on_notification = on_notification
        self._handshake_lock = threading.Lock()
        self._parameter_headers: dict[str, dict[mcp.Place, str]] = {}
        self._ids = jsonrpc.IdCounter()
        self.session = Session()
        self.capabilities: dict[str, Any] = {}

    def close(self) -> None:
        self._transport.close()

    # Beginning ----------------------------------------------------------------------------------------------------

    @property
    def is_modern(self) -> bool:
        """Whether the server is spoken to without a session, as from 2026-07-28 on."""
        return self.session.is_modern

    def connect(
        self, timeout: float = INITIALIZE_TIMEOUT, exchange: Exchange | None = None, *, version: str | None = None
    ) -> InitializeResult:
        """The handshake; with a server that refuses it, or where `version` says so, the modern way, which needs none.

        The specification advises to try the modern way first; the seeds ask for the handshake (REQ-MCP-HTTP-13).
        """
        deadline = time.monotonic() + timeout
        if version == mcp.MODERN_VERSION:
            return self.discover(timeout, exchange)
        try:
            return self.initialize(timeout, exchange)
        except (HttpStatusError, RemoteError, AnsweredModernError) as refusal:
            if isinstance(refusal, HttpStatusError) and refusal.status not in (400, 404, 405):
                raise
            try:
                return self.discover(time_left(deadline), exchange)
            except (HttpStatusError, RemoteError, ProtocolError):
                raise refusal from None

    def discover(self, timeout: float = INITIALIZE_TIMEOUT, exchange: Exchange | None = None) -> InitializeResult:
        """What a modern server tells of itself (`server/discover`)."""
        session = Session(mcp.MODERN_VERSION)
        result = discovered(self.call("server/discover", {}, timeout, exchange, session))
        self.session, self.capabilities = session, result.capabilities
        return result

    def initialize(self, timeout: float = INITIALIZE_TIMEOUT, exchange: Exchange | None = None) -> InitializeResult:
        """The handshake's three steps within `timeout` (REQ-MCP-HTTP-13, 20, 25)."""
        deadline = time.monotonic() + timeout
        exchange = exchange or Exchange()
        params = mcp.initialize_params(CLIENT_NAME, CLIENT_VERSION, self._offered)
        result = initialized(self._request("initialize", params, timeout, exchange, Session()))
        session = replace(exchange.session, version=result.protocol_version)
        self.notify("notifications/initialized", timeout=time_left(deadline), session=session)
        # Only now: until it is begun, and if it cannot be, the one before is what the server may know.
        self.session, self.capabilities = session, result.capabilities
        return result

    def _begin_again(self, session_id: str, timeout: float, exchange: Exchange) -> None:
        """A new session in place of `session_id`, which the server has forgotten; once for all who noticed."""
        deadline = time.monotonic() + timeout
        if not self._handshake_lock.acquire(timeout=timeout):
            raise RequestTimeoutError(timeout)
        try:
            if self.session.id != session_id:
                return
            self.initialize(time_left(deadline), exchange)
        finally:
            self._handshake_lock.release()
        self._on_notification(TOOLS_CHANGED, {})  # it may be another server than before

    def ping(self, timeout: float, exchange: Exchange | None = None) -> None:
        """Ask for a sign of life. Raises ClientError; one that is no timeout and no ConnectError is a sign too."""
        self.call("server/discover" if self.is_modern else "ping", {}, timeout, exchange)

    # Tools --------------------------------------------------------------------------------------------------------

    def list_tools(self, timeout: float = REQUEST_TIMEOUT, exchange: Exchange | None = None) -> ToolList:
        """Every page of tools/list, within `timeout` in total (REQ-MCP-HTTP-26), without entries that are no tools."""
        deadline = time.monotonic() + timeout
        found = ToolList()
        cursors: set[str] = set()
        params: dict[str, Any] = {}
        size = 0
        for _ in range(MAX_PAGES):
            try:
                result = self.call("tools/list", params, time_left(deadline), exchange)
            except RemoteError as error:
                if error.code == jsonrpc.METHOD_NOT_FOUND and "tools" not in self.capabilities:
                    return found  # a server without tools, and it said so
                raise
            size += len(quick_json.encode(result))
            if size > self._transport.max_bytes:
                raise ProtocolError(f"tools/list is larger than {self._transport.max_bytes:,} bytes in all")
            found.add_page(result)
            cursor = result.get("nextCursor")
            if cursor is None:
                if self.is_modern:
                    self._parameter_headers = found.leave_out_bad_headers()
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
        exchange = exchange or Exchange()
        asked = {"name": name, "arguments": arguments}
        deadline = time.monotonic() + timeout
        try:
            result = self.call("tools/call", asked, timeout, exchange)
        except RemoteError as error:
            if error.code != mcp.HEADER_MISMATCH or not self.is_modern:
                raise
            with _turned_away(exchange):
                self.list_tools(time_left(deadline), exchange)  # its schema changed
            result = self.call("tools/call", asked, time_left(deadline), exchange)
        for _ in range(MAX_ROUNDS):
            if not self.is_modern or result.get("resultType") != "input_required":
                break
            result = self.call("tools/call", {**asked, **self._incoming.inputs(result)}, time_left(deadline), exchange)
        else:
            raise ProtocolError(f"asked for input {MAX_ROUNDS} times for one call")
        if result.get("isError") is True:
            raise ToolError(mcp.text_of(result)[:2000] or "the tool reported an error without a text", result)
        return result

    # Conversation -------------------------------------------------------------------------------------------------

    def cancel(self, exchange: Exchange, reason: str) -> None:
        """Tell the server, then stop waiting. Never raises: there may be nobody to tell.

        A modern one is told by the connection that closes, others by notifications/cancelled.
        """
        exchange.mark_aborted()
        if exchange.request_id is not None and not self.is_modern:
            with contextlib.suppress(ClientError):
                params = {"requestId": exchange.request_id, "reason": reason}
                self.notify("notifications/cancelled", params, CANCEL_TIMEOUT)
        exchange.abort()

    def call(
        self,
        method: str,
        params: dict[str, Any],
        timeout: float,
        exchange: Exchange | None = None,
        session: Session | None = None,
    ) -> dict[str, Any]:
        """The `result` of one request. Raises RemoteError for a JSON-RPC error object (REQ-MCP-HTTP-29).

        Asked a second time where the first cannot have been served: the session was forgotten, or the version refused
        that the server says it speaks.
        """
        exchange = exchange or Exchange()
        deadline = time.monotonic() + timeout
        try:
            return self._request(method, params, timeout, exchange, session or self.session)
        except SessionOverError as over:
            with _turned_away(exchange):
                self._begin_again(over.session_id, time_left(deadline), exchange)
        except RemoteError as error:
            supported = object_of(error.data).get("supported")
            speaks_modern = isinstance(supported, list) and mcp.MODERN_VERSION in supported
            if error.code != mcp.UNSUPPORTED_VERSION or not speaks_modern:
                raise
            exchange.is_sent = False
        return self._request(method, params, time_left(deadline), exchange, session or self.session)

    def _request(
        self, method: str, params: dict[str, Any], timeout: float, exchange: Exchange, session: Session
    ) -> dict[str, Any]:
        request_id = self._ids.take()
        exchange.begin(request_id, timeout)
        exchange.session = session
        params, headers = self._dressed(method, params, request_id, exchange)
        stream = mcp.EventStream()
        message = None
        try:
            with self._transport.send(
                "POST", timeout, exchange, headers, jsonrpc.request(request_id, method, params)
            ) as response:
                message = self._answers.read(response, request_id, exchange, stream)
                if method == "initialize":
                    exchange.session = replace(session, id=session_id_of(response))
        except ConnectError:
            if not can_go_on(stream, exchange):
                raise
        while message is None:
            message = self._answers.go_on(request_id, timeout, exchange, stream)
        with translated(timeout, exchange, self.headers.secrets):
            result = jsonrpc.result_of(message)
        if exchange.aborted:
            raise RequestCancelledError
        if session.is_modern:
            _require_known_result(method, result)
        return result

    def _dressed(
        self, method: str, params: dict[str, Any], request_id: int, exchange: Exchange
    ) -> tuple[dict[str, Any], dict[str, str]]:
        """`params` with their `_meta`, and the headers that go with them."""
        headers: dict[str, str] = {}
        meta: dict[str, Any] = {} if exchange.on_progress is None else {"progressToken": request_id}
        if exchange.session.is_modern:
            meta |= mcp.modern_meta(CLIENT_NAME, CLIENT_VERSION, self._offered)
            headers = mcp.modern_headers(method, params)
            if method == "tools/call":
                places = self._parameter_headers.get(params["name"], {})
                headers |= mcp.parameter_values(places, params["arguments"])
        return ({**params, "_meta": meta} if meta else params), headers

    def notify(
        self,
        method: str,
        params: dict[str, Any] | None = None,
        timeout: float = REQUEST_TIMEOUT,
        session: Session | None = None,
    ) -> None:
        """A message without an answer. Raises HttpStatusError when it is not accepted."""
        exchange = Exchange()
        exchange.begin(None, timeout)
        exchange.session = session or self.session
        with self._transport.send("POST", timeout, exchange, {}, jsonrpc.notification(method, params)) as response:
            if not 200 <= response.status_code < 300:
                raise HttpStatusError(response.status_code, jsonrpc.excerpt(self._transport.body(response)))
            if {"Content-Length", "Transfer-Encoding"} & set(response.headers):
                self._transport.body(response)  # so that the connection serves another call; without them it has no end

    def listen(self, exchange: Exchange, timeout: float) -> None:
        """Hear what the server says unasked, for `on_notification`, until it ends that or `timeout` passed.

        Raises HttpStatusError where it offers nothing of the kind: 405 from most.
        """
        exchange.begin(self._ids.take(), timeout)
        exchange.session = self.session
        stream = mcp.EventStream()
        if exchange.session.is_modern:
            params = {"notifications": dict.fromkeys(CHANGES, True)}
            params, headers = self._dressed("subscriptions/listen", params, exchange.request_id or 0, exchange)
            message = jsonrpc.request(exchange.request_id or 0, "subscriptions/listen", params)
            sending = self._transport.send("POST", timeout, exchange, headers, message)
        else:
            sending = self._transport.send("GET", timeout, exchange, {"Accept": mcp.EVENT_STREAM})
        with sending as response:
            if response.status_code != 200 or kind_of(response) != mcp.EVENT_STREAM:
                raise HttpStatusError(response.status_code)
            self._answers.read_stream(response, None, exchange, stream)
        if exchange.aborted:
            raise RequestCancelledError


@contextlib.contextmanager
def _turned_away(exchange: Exchange) -> Iterator[None]:
    """The server did not serve the request. Whatever fails before it is sent again, it has not run."""
    try:
        yield
    except ClientError as error:
        error.was_sent = False
        raise
    exchange.is_sent = False


def _require_known_result(method: str, result: dict[str, Any]) -> None:
    """A modern result says of which type it is (26: basic/index); one that says nothing is complete."""
    kind = result.get("resultType", "complete")
    if kind != "complete" and (kind != "input_required" or method != "tools/call"):
        raise ProtocolError(f"answered {method} with a result of type {reprlib.repr(kind)}")
