"""JsonRpcClient: the MCP client for one member over HTTP, in every version of MCP. Every call has a total deadline."""

from __future__ import annotations

import contextlib
import reprlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from mcp_runtime.client.bearer import TRIES, Bearer
from mcp_runtime.client.exchanges import Exchange, Session
from mcp_runtime.client.handshake import (
    InitializeResult,
    ModernOnlyError,
    parse_discover,
    parse_initialize,
    session_id_of,
)
from mcp_runtime.client.incoming import Incoming
from mcp_runtime.client.streams import AnswerReader, SessionExpiredError, can_resume, challenge_of, content_type
from mcp_runtime.client.tool_list import ToolList
from mcp_runtime.client.transport import Transport, time_left, translate_errors
from mcp_runtime.protocol import jsonrpc, mcp
from mcp_runtime.protocol.errors import (
    ChallengeError,
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
from mcp_runtime.secrets.references import Resolved

CLIENT_NAME = mcp.HALL_NAME
CLIENT_VERSION = mcp.HALL_VERSION
INITIALIZE_TIMEOUT = 5.0  # REQ-MCP-HTTP-20
REQUEST_TIMEOUT = 30.0  # REQ-MCP-HTTP-28
CANCEL_TIMEOUT = 0.5
MAX_BYTES = 4_000_000
MAX_ROUNDS = 10  # how often one call may ask for input
TOOLS_CHANGED = "notifications/tools/list_changed"
PROMPTS_CHANGED = "notifications/prompts/list_changed"
RESOURCES_CHANGED = "notifications/resources/list_changed"
CHANGES = ("toolsListChanged", "promptsListChanged", "resourcesListChanged")  # what the hall subscribes to


class JsonRpcClient:
    """Speaks MCP with one member at `url`. Many threads may use it at once.

    All errors are ClientErrors. `invoke_tool` raises ToolError for a result with `isError`. Timeouts are in seconds,
    and each is for the whole operation.

    `capabilities` are sent to the server. `on_request(method, params)` returns the result of a request from the server
    (sampling, elicitation, roots), or raises MethodError. Without it all such requests are declined.
    `on_notification(method, params)` gets the notifications that belong to no call. Both are called in the thread that
    reads, and must not block. `bearer` has the access token of a server behind OAuth.
    """

    def __init__(
        self,
        url: str,
        *,
        connections: int = 16,
        max_bytes: int = MAX_BYTES,
        headers: Resolved | None = None,
        ca: Path | None = None,
        bearer: Bearer | None = None,
        capabilities: Mapping[str, Any] | None = None,
        on_request: Callable[[str, dict[str, Any]], dict[str, Any]] | None = None,
        on_notification: Callable[[str, dict[str, Any]], None] = lambda method, params: None,
    ) -> None:
        self.headers = headers or Resolved()
        self._transport = Transport(
            url, connections=connections, max_bytes=max_bytes, headers=self.headers, ca=ca, bearer=bearer
        )
        self.bearer = self._transport.bearer
        self._incoming = Incoming(self._transport, on_request, on_notification)
        self._answers = AnswerReader(self._transport, self._incoming)
        self.url = self._transport.url
        self._own_capabilities = dict(capabilities or {})
        self._on_notification = on_notification
        self._handshake_lock = threading.Lock()
        self._parameter_headers: dict[str, dict[mcp.Place, str]] = {}
        self._ids = jsonrpc.IdCounter()
        self.session = Session()
        self.capabilities: dict[str, Any] = {}

    def close(self) -> None:
        self._transport.close()

    # Connecting ---------------------------------------------------------------------------------------------------

    @property
    def is_modern(self) -> bool:
        """Whether the server uses MCP without sessions (2026-07-28 and later)."""
        return self.session.is_modern

    def connect(
        self, timeout: float = INITIALIZE_TIMEOUT, exchange: Exchange | None = None, *, version: str | None = None
    ) -> InitializeResult:
        """Begin with a handshake. If the server refuses it, connect the modern way. `version` can require that.

        The specification recommends to try the modern way first. Our requirements ask for the handshake first
        (REQ-MCP-HTTP-13).
        """
        deadline = time.monotonic() + timeout
        if version == mcp.MODERN_VERSION:
            return self.discover(timeout, exchange)
        try:
            return self.initialize(timeout, exchange)
        except (HttpStatusError, RemoteError, ModernOnlyError) as refusal:
            if isinstance(refusal, HttpStatusError) and refusal.status not in (400, 404, 405):
                raise
            try:
                return self.discover(time_left(deadline), exchange)
            except (HttpStatusError, RemoteError, ProtocolError):
                raise refusal from None

    def discover(self, timeout: float = INITIALIZE_TIMEOUT, exchange: Exchange | None = None) -> InitializeResult:
        """Request the data of a modern server about itself (`server/discover`)."""
        session = Session(mcp.MODERN_VERSION)
        result = parse_discover(self.call("server/discover", {}, timeout, exchange, session))
        self.session, self.capabilities = session, result.capabilities
        return result

    def initialize(self, timeout: float = INITIALIZE_TIMEOUT, exchange: Exchange | None = None) -> InitializeResult:
        """Complete the handshake's three steps within `timeout` seconds (REQ-MCP-HTTP-13, 20, 25)."""
        deadline = time.monotonic() + timeout
        exchange = exchange or Exchange()
        params = mcp.initialize_params(CLIENT_NAME, CLIENT_VERSION, self._own_capabilities)
        result = parse_initialize(self._request("initialize", params, timeout, exchange, Session()))
        session = replace(exchange.session, version=result.protocol_version)
        self.notify("notifications/initialized", timeout=time_left(deadline), session=session)
        # Set this last. If the handshake fails, the server may still know the previous session.
        self.session, self.capabilities = session, result.capabilities
        return result

    def _renew_session(self, session_id: str, timeout: float, exchange: Exchange) -> None:
        """Start a new session because the server forgot `session_id`. Only one of the threads that notice does it."""
        deadline = time.monotonic() + timeout
        if not self._handshake_lock.acquire(timeout=timeout):
            raise RequestTimeoutError(timeout)
        try:
            if self.session.id != session_id:
                return
            self.initialize(time_left(deadline), exchange)
        finally:
            self._handshake_lock.release()
        self._on_notification(TOOLS_CHANGED, {})  # it may be a different server now

    def ping(self, timeout: float, exchange: Exchange | None = None) -> None:
        """Check that the server is alive. A ClientError other than a timeout or a ConnectError shows that too."""
        self.call("server/discover" if self.is_modern else "ping", {}, timeout, exchange)

    # Tools --------------------------------------------------------------------------------------------------------

    def list_tools(self, timeout: float = REQUEST_TIMEOUT, exchange: Exchange | None = None) -> ToolList:
        """Read all pages of tools/list within `timeout` (REQ-MCP-HTTP-26). Entries that are not tools are left out."""
        deadline = time.monotonic() + timeout

        def ask(params: dict[str, Any]) -> dict[str, Any]:
            return self.call("tools/list", params, time_left(deadline), exchange)

        try:
            tools = ToolList.read(ask, self._transport.max_bytes)
        except RemoteError as error:
            if error.code == jsonrpc.METHOD_NOT_FOUND and "tools" not in self.capabilities:
                return ToolList()  # the server has no tools, and its capabilities say so
            raise
        if self.is_modern:
            self._parameter_headers = tools.drop_tools_with_bad_headers()
        return tools

    def invoke_tool(
        self, name: str, arguments: dict[str, Any], timeout: float = REQUEST_TIMEOUT, exchange: Exchange | None = None
    ) -> dict[str, Any]:
        """Call a tool and return its result (REQ-MCP-HTTP-27). A result with `isError` is raised as ToolError."""
        exchange = exchange or Exchange()
        params = {"name": name, "arguments": arguments}
        deadline = time.monotonic() + timeout
        try:
            result = self.call("tools/call", params, timeout, exchange)
        except RemoteError as error:
            if error.code != mcp.HEADER_MISMATCH or not self.is_modern:
                raise
            with _before_resend(exchange):
                self.list_tools(time_left(deadline), exchange)  # the tool's schema changed
            result = self.call("tools/call", params, time_left(deadline), exchange)
        for _ in range(MAX_ROUNDS):
            if not self.is_modern or result.get("resultType") != "input_required":
                break
            inputs = self._incoming.inputs(result)
            result = self.call("tools/call", {**params, **inputs}, time_left(deadline), exchange)
        else:
            raise ProtocolError(f"asked for input {MAX_ROUNDS} times for one call")
        if result.get("isError") is True:
            raise ToolError(mcp.text_of(result)[:2000] or "the tool reported an error without a text", result)
        return result

    # Requests -----------------------------------------------------------------------------------------------------

    def cancel(self, exchange: Exchange, reason: str) -> None:
        """Cancel the call at the server, and stop waiting. Never raises, because the server may not be there any more.

        Closing the connection cancels a call at a modern server. Other servers get notifications/cancelled.
        """
        exchange.mark_aborted()
        if exchange.request_id is not None and not exchange.session.is_modern:
            with contextlib.suppress(ClientError):
                params = {"requestId": exchange.request_id, "reason": reason}
                # In the session of the request. In a later one, another request may have its id.
                self.notify("notifications/cancelled", params, CANCEL_TIMEOUT, exchange.session)
        exchange.abort()

    def call(
        self,
        method: str,
        params: dict[str, Any],
        timeout: float,
        exchange: Exchange | None = None,
        session: Session | None = None,
    ) -> dict[str, Any]:
        """Send one request and return its `result`. A JSON-RPC error is raised as RemoteError (REQ-MCP-HTTP-29).

        The request is sent a second time if the server cannot have served the first. Then the server forgot the
        session, or it refused a version that it lists as supported.
        """
        exchange = exchange or Exchange()
        deadline = time.monotonic() + timeout
        try:
            return self._request(method, params, timeout, exchange, session or self.session)
        except SessionExpiredError as error:
            with _before_resend(exchange):
                self._renew_session(error.session_id, time_left(deadline), exchange)
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
        """Send one request. If the server refuses the token or its proof, renew that, and send the request again."""
        deadline, is_renewed = time.monotonic() + timeout, False
        exchange.nonce = ""  # of another request
        for _ in range(TRIES - 1):
            used, nonce = self.bearer.token, exchange.nonce or self.bearer.nonce
            try:
                return self._request_once(method, params, timeout, exchange, session)
            except ChallengeError as error:
                if not self.bearer.has_new_nonce(nonce, error, exchange.nonce):
                    if is_renewed or not self.bearer.renew(used, error):
                        raise
                    is_renewed = True
            exchange.is_sent, timeout = False, time_left(deadline)
        return self._request_once(method, params, timeout, exchange, session)

    def _request_once(
        self, method: str, params: dict[str, Any], timeout: float, exchange: Exchange, session: Session
    ) -> dict[str, Any]:
        request_id = self._ids.take()
        exchange.begin(request_id, timeout)
        exchange.session = session
        params, headers = self._add_metadata(method, params, request_id, exchange)
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
            if not can_resume(stream, exchange):
                raise
        while message is None:
            message = self._answers.resume(request_id, timeout, exchange, stream)
        with translate_errors(timeout, exchange, self._transport.secrets):
            result = jsonrpc.result_of(message)
        if exchange.is_aborted:
            raise RequestCancelledError
        if session.is_modern:
            _check_result_type(method, result)
        return result

    def _add_metadata(
        self, method: str, params: dict[str, Any], request_id: int, exchange: Exchange
    ) -> tuple[dict[str, Any], dict[str, str]]:
        """`params` with `_meta`, and the headers that belong to them."""
        headers: dict[str, str] = {}
        meta: dict[str, Any] = {} if exchange.on_progress is None else {"progressToken": request_id}
        if exchange.session.is_modern:
            meta |= mcp.modern_meta(CLIENT_NAME, CLIENT_VERSION, self._own_capabilities)
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
        """Send a notification. Raises HttpStatusError if the server does not accept it."""
        exchange = Exchange()
        exchange.begin(None, timeout)
        exchange.session = session or self.session
        with self._transport.send("POST", timeout, exchange, {}, jsonrpc.notification(method, params)) as response:
            if not 200 <= response.status_code < 300:
                raise challenge_of(response) or HttpStatusError(
                    response.status_code, jsonrpc.excerpt(self._transport.read_body(response))
                )
            if {"Content-Length", "Transfer-Encoding"} & set(response.headers):
                # This frees the connection. Without these headers the body has no end.
                self._transport.read_body(response)

    def listen(self, exchange: Exchange, timeout: float, subscriptions: Mapping[str, Any] | None = None) -> None:
        """Pass the server's notifications to `on_notification` until the stream ends or `timeout` has passed.

        From a modern server these are the `subscriptions`, which without it are changes of all lists.
        Raises HttpStatusError if the server has no such stream. Most servers then answer 405.
        """
        exchange.begin(self._ids.take(), timeout)
        exchange.session = self.session
        stream = mcp.EventStream()
        if exchange.session.is_modern:
            params: dict[str, Any] = {"notifications": dict(subscriptions or dict.fromkeys(CHANGES, True))}
            params, headers = self._add_metadata("subscriptions/listen", params, exchange.request_id or 0, exchange)
            message = jsonrpc.request(exchange.request_id or 0, "subscriptions/listen", params)
            reply = self._transport.send("POST", timeout, exchange, headers, message)
        else:
            reply = self._transport.send("GET", timeout, exchange, {"Accept": mcp.EVENT_STREAM})
        with reply as response:
            if response.status_code != 200 or content_type(response) != mcp.EVENT_STREAM:
                raise HttpStatusError(response.status_code)
            self._answers.read_stream(response, None, exchange, stream)
        if exchange.is_aborted:
            raise RequestCancelledError


@contextlib.contextmanager
def _before_resend(exchange: Exchange) -> Iterator[None]:
    """For work between a request that the server refused and its second try. Until then the call has not run."""
    try:
        yield
    except ClientError as error:
        error.was_sent = False
        raise
    exchange.is_sent = False


def _check_result_type(method: str, result: dict[str, Any]) -> None:
    """A modern result names its type (2026-07-28: basic/index). Without a type it is complete."""
    kind = result.get("resultType", "complete")
    if kind != "complete" and (kind != "input_required" or method != "tools/call"):
        raise ProtocolError(f"answered {method} with a result of type {reprlib.repr(kind)}")
