"""JsonRpcClient: converses with one member over HTTP, in every version of MCP. Every call has a total deadline."""

from __future__ import annotations

import contextlib
import logging
import re
import reprlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

import requests
from requests.structures import CaseInsensitiveDict
from urllib3.util import Timeout

from mcp_runtime import jsonrpc, protocol, transport
from mcp_runtime.errors import (
    ClientError,
    ConnectError,
    HttpStatusError,
    MethodError,
    ProtocolError,
    RemoteError,
    RequestCancelledError,
    RequestTimeoutError,
    ToolError,
)
from mcp_runtime.remote import Headers
from mcp_runtime.transport import CLOSED_EARLY, Adapter, Exchange, Session, translated

logger = logging.getLogger("guildhall.runtime")

CLIENT_NAME = protocol.HALL_NAME
CLIENT_VERSION = protocol.HALL_VERSION
INITIALIZE_TIMEOUT = 5.0  # REQ-MCP-HTTP-20
REQUEST_TIMEOUT = 30.0  # REQ-MCP-HTTP-28
CANCEL_TIMEOUT = 0.5
MAX_BYTES = 4_000_000
MAX_PAGES = 100
MAX_TOOLS = 2_000
MAX_TOOL_NAME = 255
MAX_WARNINGS = 20
MAX_ROUNDS = 10  # of input that one call may ask for
MAX_QUESTIONS = 100  # of a server during one call
RETRY_SECONDS = 0.5  # before a stream is gone on with, unless the server says how long
SHORTEST_RETRY = 0.1
READ_BYTES = 65_536
LARGE_ANSWER = 250_000
STREAM_ENDED = "the event stream ended without the answer"
TOOLS_CHANGED = "notifications/tools/list_changed"
PROMPTS_CHANGED = "notifications/prompts/list_changed"
RESOURCES_CHANGED = "notifications/resources/list_changed"
CHANGES = ("toolsListChanged", "promptsListChanged", "resourcesListChanged")  # what a modern server is asked to tell
_SESSION_ID = re.compile("[!-~]{1,1000}")  # visible ASCII, says the specification


# The client -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class InitializeResult:
    """What the handshake told."""

    protocol_version: str
    server_info: dict[str, Any]
    capabilities: dict[str, Any]
    instructions: str

    @property
    def announces_changes(self) -> bool:
        """Whether it says when a list of its is another."""
        kinds = ("tools", "prompts", "resources")
        return any(_object(self.capabilities.get(kind)).get("listChanged") is True for kind in kinds)


@dataclass
class ToolList:
    """Tool definitions as the member sent them, in its order; `warnings` say what was left out and why."""

    tools: list[dict[str, Any]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


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
        self.url = requests.Request("POST", url).prepare().url or url
        self._max_bytes = max_bytes
        self.headers = headers or Headers()
        self._offered = dict(capabilities or {})
        self._on_request = on_request
        self._on_notification = on_notification
        self._handshake_lock = threading.Lock()
        self._reading_large = threading.Lock()
        self._parameter_headers: dict[str, dict[protocol.Place, str]] = {}
        self._ids = jsonrpc.IdCounter()
        self._adapter = Adapter(
            is_tls=url.startswith("https:"), pool_connections=1, pool_maxsize=connections, max_retries=0
        )
        self.session = Session()
        self.capabilities: dict[str, Any] = {}

    def close(self) -> None:
        self._adapter.close()

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
        if version == protocol.MODERN_VERSION:
            return self.discover(timeout, exchange)
        try:
            return self.initialize(timeout, exchange)
        except (HttpStatusError, RemoteError, _AnsweredModernError) as refusal:
            if isinstance(refusal, HttpStatusError) and refusal.status not in (400, 404, 405):
                raise
            try:
                return self.discover(_left(deadline), exchange)
            except (HttpStatusError, RemoteError, ProtocolError):
                raise refusal from None

    def discover(self, timeout: float = INITIALIZE_TIMEOUT, exchange: Exchange | None = None) -> InitializeResult:
        """What a modern server tells of itself (`server/discover`)."""
        session = Session(protocol.MODERN_VERSION)
        result = self.call("server/discover", {}, timeout, exchange, session)
        versions = result.get("supportedVersions")
        if not isinstance(versions, list) or protocol.MODERN_VERSION not in versions:
            said = reprlib.repr(versions)
            raise ProtocolError(
                f"answered server/discover with versions {said}; the hall speaks {protocol.MODERN_VERSION}"
            )
        self.session, self.capabilities = session, _object(result.get("capabilities"))
        return InitializeResult(
            protocol_version=protocol.MODERN_VERSION,
            server_info=_object(_object(result.get("_meta")).get(f"{protocol.META}serverInfo")),
            capabilities=self.capabilities,
            instructions=str(result.get("instructions") or "")[:10_000],
        )

    def initialize(self, timeout: float = INITIALIZE_TIMEOUT, exchange: Exchange | None = None) -> InitializeResult:
        """The handshake's three steps within `timeout` (REQ-MCP-HTTP-13, 20, 25)."""
        deadline = time.monotonic() + timeout
        exchange = exchange or Exchange()
        params = protocol.initialize_params(CLIENT_NAME, CLIENT_VERSION, self._offered)
        result = self._request("initialize", params, timeout, exchange, Session())
        version = result.get("protocolVersion")
        if version == protocol.MODERN_VERSION:
            raise _AnsweredModernError("answered initialize with a version that has no handshake")
        if version not in protocol.HANDSHAKE_VERSIONS:
            spoken = ", ".join(protocol.HANDSHAKE_VERSIONS)
            said = reprlib.repr(version)
            raise ProtocolError(f"answered initialize with protocol version {said}; the hall speaks {spoken}")
        session = replace(exchange.session, version=str(version))
        self.notify("notifications/initialized", timeout=_left(deadline), session=session)
        # Only now: until it is begun, and if it cannot be, the one before is what the server may know.
        self.session, self.capabilities = session, _object(result.get("capabilities"))
        return InitializeResult(
            protocol_version=session.version,
            server_info=_object(result.get("serverInfo")),
            capabilities=self.capabilities,
            instructions=str(result.get("instructions") or "")[:10_000],
        )

    def _begin_again(self, session_id: str, timeout: float, exchange: Exchange) -> None:
        """A new session in place of `session_id`, which the server has forgotten; once for all who noticed."""
        deadline = time.monotonic() + timeout
        if not self._handshake_lock.acquire(timeout=timeout):
            raise RequestTimeoutError(timeout)
        try:
            if self.session.id != session_id:
                return
            self.initialize(_left(deadline), exchange)
        finally:
            self._handshake_lock.release()
        self._on_notification(TOOLS_CHANGED, {})  # it may be another server than before

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
                result = self.call("tools/list", params, _left(deadline), exchange)
            except RemoteError as error:
                if error.code == jsonrpc.METHOD_NOT_FOUND and "tools" not in self.capabilities:
                    return found  # a server without tools, and it said so
                raise
            size += len(jsonrpc.encode(result))
            if size > self._max_bytes:
                raise ProtocolError(f"tools/list is larger than {self._max_bytes:,} bytes in all")
            _collect_tools(result, found)
            cursor = result.get("nextCursor")
            if cursor is None:
                if self.is_modern:
                    self._parameter_headers = _leave_out_bad_headers(found)
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
            if error.code != protocol.HEADER_MISMATCH or not self.is_modern:
                raise
            with _turned_away(exchange):
                self.list_tools(_left(deadline), exchange)  # its schema changed
            result = self.call("tools/call", asked, _left(deadline), exchange)
        for _ in range(MAX_ROUNDS):
            if not self.is_modern or result.get("resultType") != "input_required":
                break
            result = self.call("tools/call", {**asked, **self._inputs(result)}, _left(deadline), exchange)
        else:
            raise ProtocolError(f"asked for input {MAX_ROUNDS} times for one call")
        if result.get("isError") is True:
            raise ToolError(protocol.text_of(result)[:2000] or "the tool reported an error without a text", result)
        return result

    def _inputs(self, result: dict[str, Any]) -> dict[str, Any]:
        """What a modern server that needs more is sent with its call, the second time (26: basic/patterns/mrtr)."""
        wanted, state = result.get("inputRequests"), result.get("requestState")
        if not isinstance(wanted, dict) and not isinstance(state, str):
            raise ProtocolError("asked for input without saying for which")
        answers = {}
        for key, asked in _object(wanted).items():
            try:
                answers[key] = self._asked(str(_object(asked).get("method")), _object(_object(asked).get("params")))
            except MethodError as error:
                raise ProtocolError(f"asked for input that it is not given: {error}") from error
        return ({"inputResponses": answers} if answers else {}) | ({"requestState": state} if state is not None else {})

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
        except _SessionOverError as over:
            with _turned_away(exchange):
                self._begin_again(over.session_id, _left(deadline), exchange)
        except RemoteError as error:
            supported = _object(error.data).get("supported")
            if error.code != protocol.UNSUPPORTED_VERSION or protocol.MODERN_VERSION not in _list(supported):
                raise
            exchange.is_sent = False
        return self._request(method, params, _left(deadline), exchange, session or self.session)

    def _request(
        self, method: str, params: dict[str, Any], timeout: float, exchange: Exchange, session: Session
    ) -> dict[str, Any]:
        request_id = self._ids.take()
        exchange.begin(request_id, timeout)
        exchange.session = session
        params, headers = self._dressed(method, params, request_id, exchange)
        stream = protocol.EventStream()
        message = None
        try:
            with self._send(
                "POST", timeout, exchange, headers, jsonrpc.request(request_id, method, params)
            ) as response:
                message = self._answer(response, request_id, exchange, stream)
                if method == "initialize":
                    exchange.session = replace(session, id=_session_id(response))
        except ConnectError:
            if not _can_go_on(stream, exchange):
                raise
        while message is None:
            message = self._go_on(request_id, timeout, exchange, stream)
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
            meta |= protocol.modern_meta(CLIENT_NAME, CLIENT_VERSION, self._offered)
            headers = protocol.modern_headers(method, params)
            if method == "tools/call":
                places = self._parameter_headers.get(params["name"], {})
                headers |= protocol.parameter_values(places, params["arguments"])
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
        with self._send("POST", timeout, exchange, {}, jsonrpc.notification(method, params)) as response:
            if not 200 <= response.status_code < 300:
                raise HttpStatusError(response.status_code, jsonrpc.excerpt(self._body(response)))
            if {"Content-Length", "Transfer-Encoding"} & set(response.headers):
                self._body(response)  # so that the connection serves another call; without them it has no end

    def listen(self, exchange: Exchange, timeout: float) -> None:
        """Hear what the server says unasked, for `on_notification`, until it ends that or `timeout` passed.

        Raises HttpStatusError where it offers nothing of the kind: 405 from most.
        """
        exchange.begin(self._ids.take(), timeout)
        exchange.session = self.session
        stream = protocol.EventStream()
        if exchange.session.is_modern:
            params = {"notifications": dict.fromkeys(CHANGES, True)}
            params, headers = self._dressed("subscriptions/listen", params, exchange.request_id or 0, exchange)
            message = jsonrpc.request(exchange.request_id or 0, "subscriptions/listen", params)
            sending = self._send("POST", timeout, exchange, headers, message)
        else:
            sending = self._send("GET", timeout, exchange, {"Accept": protocol.EVENT_STREAM})
        with sending as response:
            if response.status_code != 200 or _kind(response) != protocol.EVENT_STREAM:
                raise HttpStatusError(response.status_code)
            self._read_stream(response, None, exchange, stream)
        if exchange.aborted:
            raise RequestCancelledError

    # One exchange -------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _send(
        self,
        verb: str,
        timeout: float,
        exchange: Exchange,
        headers: Mapping[str, str],
        message: dict[str, Any] | None = None,
    ) -> Iterator[requests.Response]:
        """The response to one request, its body not yet read; foreign errors leave as ours."""
        body = None if message is None else jsonrpc.encode(message)
        request = self._prepared(verb, {**self._headers(exchange.session), **headers}, body)
        limit = Timeout(connect=min(transport.CONNECT_TIMEOUT, timeout), total=timeout)
        response = None
        outer = transport.begin(exchange)
        try:
            with translated(timeout, exchange, self.headers.secrets):
                # The adapter, not Session.send: no cookies, proxies, netrc or redirects, and a third of the CPU.
                response = self._adapter.send(request, stream=True, timeout=cast(Any, limit))
                exchange.expect_body(self._max_bytes)
                yield response
        except ClientError as error:
            error.was_sent = exchange.is_sent
            raise
        finally:
            transport.resume(outer)
            exchange.detach()
            if response is not None and not response.raw.closed:
                response.close()  # not read to its end, so the connection cannot serve another call

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
            "Accept": f"{protocol.JSON}, {protocol.EVENT_STREAM}",
            "Accept-Encoding": "identity",
            "Content-Type": protocol.JSON,
            "User-Agent": f"{CLIENT_NAME}/{CLIENT_VERSION}",
            protocol.VERSION_HEADER: session.version,
        }
        if session.id:
            headers[protocol.SESSION_HEADER] = session.id
        return headers

    def _answer(
        self, response: requests.Response, request_id: int, exchange: Exchange, stream: protocol.EventStream
    ) -> Any:
        """The message that answers `request_id`, from a JSON body or an event stream; None: the stream can go on."""
        kind = _kind(response)
        if response.status_code == 200 and kind == protocol.EVENT_STREAM:
            message = self._read_stream(response, request_id, exchange, stream)
            if message is None and not _can_go_on(stream, exchange):
                raise ProtocolError(STREAM_ENDED)
            return message
        body = self._body(response)
        session_id = response.request.headers.get(protocol.SESSION_HEADER)
        if response.status_code == 404 and session_id:
            raise _SessionOverError(str(session_id), jsonrpc.excerpt(body))
        if response.status_code != 200:
            raise _status_error(response.status_code, kind, body)
        if kind != protocol.JSON:
            raise ProtocolError(f"answered with {kind or 'no content type'} instead of JSON: {jsonrpc.excerpt(body)}")
        message = self._decoded(body, exchange)
        if isinstance(message, list):  # 2025-03-26 allows an answer to come as a batch of one
            message = next((part for part in message if _answers(part, request_id)), None)
        if message is None:
            raise ProtocolError("the answer is not a JSON-RPC 2.0 response")
        answered = message.get("id") if isinstance(message, dict) else None
        # An error that came before the id could be read has none.
        is_anonymous_error = isinstance(message, dict) and answered is None and "error" in message
        if isinstance(message, dict) and not is_anonymous_error and not _same_id(answered, request_id):
            # What it answers may be the request before on this connection, and our answer is still to come there.
            self._adapter.close()
            raise ProtocolError(f"answered request {reprlib.repr(answered)}, but {request_id} was asked")
        return message

    def _read_stream(
        self, response: requests.Response, request_id: int | None, exchange: Exchange, stream: protocol.EventStream
    ) -> Any:
        """The message that answers `request_id`; None when the stream ends without it."""
        taken = 0
        while chunk := response.raw.read1(READ_BYTES):
            taken += len(chunk)
            if taken > self._max_bytes:
                raise ProtocolError(f"the answer is larger than {self._max_bytes:,} bytes")
            for data in stream.feed(chunk):
                value = self._decoded(data, exchange)
                for message in value if isinstance(value, list) else [value]:
                    exchange.require_time()
                    if _answers(message, request_id):
                        return message
                    self._take_in(message, exchange)
        return None

    def _go_on(self, request_id: int, timeout: float, exchange: Exchange, stream: protocol.EventStream) -> Any:
        """The rest of a stream that ended early, from the server that gave its events ids (25-11: basic/transports).

        Raises ConnectError when nobody listens any more: then there is nothing to go on with.
        """
        wait = RETRY_SECONDS if stream.retry_ms is None else max(stream.retry_ms / 1000, SHORTEST_RETRY)
        with translated(timeout, exchange, self.headers.secrets):
            exchange.pause(wait)
        # A header is sent as Latin-1: so its bytes are those of UTF-8.
        last = stream.last_event_id.encode().decode("latin-1")
        headers = {"Accept": protocol.EVENT_STREAM, protocol.LAST_EVENT_HEADER: last}
        stream.go_on()
        try:
            with self._send("GET", _left(exchange.deadline), exchange, headers) as response:
                if response.status_code != 200 or _kind(response) != protocol.EVENT_STREAM:
                    raise ProtocolError(STREAM_ENDED)
                return self._read_stream(response, request_id, exchange, stream)
        except ConnectError as error:
            if error.is_refusal:
                raise
        return None

    def _take_in(self, message: Any, exchange: Exchange) -> None:
        """What comes on a stream beside the answer: questions, and notifications."""
        method = message.get("method") if isinstance(message, dict) else None
        if not isinstance(method, str):
            return
        params = _object(message.get("params"))
        if "id" in message:
            exchange.questions += 1
            if exchange.questions > MAX_QUESTIONS:
                raise ProtocolError(f"asked more than {MAX_QUESTIONS} questions during one call")
            if not exchange.session.is_modern:
                self._reply(message["id"], method, params, exchange)
        elif method == "notifications/progress":
            if exchange.on_progress is not None and _same_id(params.get("progressToken"), exchange.request_id or 0):
                exchange.on_progress(params)
        else:
            self._on_notification(method, params)

    def _reply(self, request_id: Any, method: str, params: dict[str, Any], exchange: Exchange) -> None:
        """The answer to a server's question, by a POST of its own while its stream stays open."""
        try:
            answer = jsonrpc.result_response(request_id, self._asked(method, params))
        except MethodError as error:
            answer = jsonrpc.error_response(request_id, error.code, error.message, error.data)
        reply = Exchange()
        timeout = min(transport.CONNECT_TIMEOUT, _left(exchange.deadline))
        reply.begin(None, timeout)
        reply.session = exchange.session
        with contextlib.suppress(ClientError), self._send("POST", timeout, reply, {}, answer) as response:
            self._body(response)

    def _asked(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        if method == "ping":
            return {}
        if self._on_request is None:
            raise MethodError(jsonrpc.METHOD_NOT_FOUND, f"{method} is not offered here")
        return self._on_request(method, params)

    def _decoded(self, data: bytes, exchange: Exchange) -> Any:
        """Large answers of one member are read one after the other: as objects each takes ten times its bytes, and it
        holds the interpreter for tens of milliseconds. Waiting for that ends at the deadline.
        """
        if len(data) <= LARGE_ANSWER:
            return jsonrpc.decode(data)
        while not self._reading_large.acquire(timeout=0.05):
            exchange.require_time()
        try:
            return jsonrpc.decode(data)
        finally:
            self._reading_large.release()

    def _body(self, response: requests.Response) -> bytes:
        body: bytes = response.raw.read(self._max_bytes + 1) or b""
        if len(body) > self._max_bytes:
            raise ProtocolError(f"the answer is larger than {self._max_bytes:,} bytes")
        if response.raw.length_remaining:  # a bounded read does not say so itself
            raise ConnectError(CLOSED_EARLY)
        return body


class _AnsweredModernError(ProtocolError):
    """The server knows `initialize`, but speaks only the modern way."""


class _SessionOverError(HttpStatusError):
    """The server does not know the session any more."""

    def __init__(self, session_id: str, excerpt: str) -> None:
        super().__init__(404, excerpt)
        self.session_id = session_id


@contextlib.contextmanager
def _turned_away(exchange: Exchange) -> Iterator[None]:
    """The server did not serve the request. Whatever fails before it is sent again, it has not run."""
    try:
        yield
    except ClientError as error:
        error.was_sent = False
        raise
    exchange.is_sent = False


def _left(deadline: float) -> float:
    return round(max(0.001, deadline - time.monotonic()), 3)


def _kind(response: requests.Response) -> str:
    return response.headers.get("Content-Type", "").partition(";")[0].strip().lower()


def _can_go_on(stream: protocol.EventStream, exchange: Exchange) -> bool:
    return bool(stream.last_event_id) and not exchange.session.is_modern


def _answers(message: Any, request_id: int | None) -> bool:
    return (
        isinstance(message, dict)
        and "method" not in message
        and request_id is not None
        and _same_id(message.get("id"), request_id)
    )


def _require_known_result(method: str, result: dict[str, Any]) -> None:
    """A modern result says of which type it is (26: basic/index); one that says nothing is complete."""
    kind = result.get("resultType", "complete")
    if kind != "complete" and (kind != "input_required" or method != "tools/call"):
        raise ProtocolError(f"answered {method} with a result of type {reprlib.repr(kind)}")


def _leave_out_bad_headers(found: ToolList) -> dict[str, dict[protocol.Place, str]]:
    """The headers that calls of each tool carry; tools that ask for them in a way that is not allowed must go."""
    headers: dict[str, dict[protocol.Place, str]] = {}
    kept = []
    for tool in found.tools:
        try:
            headers[tool["name"]] = protocol.parameter_headers(_object(tool.get("inputSchema")))
        except ValueError as error:
            _warn(found, f"tools/list: {tool['name']!r} is left out: {error}")
        else:
            kept.append(tool)
    found.tools = kept
    return headers


def _same_id(answered: Any, asked: int) -> bool:
    return answered == asked and not isinstance(answered, bool)


def _session_id(response: requests.Response) -> str | None:
    told = response.headers.get(protocol.SESSION_HEADER)
    if told is not None and not _SESSION_ID.fullmatch(told):
        raise ProtocolError(f"its session id is not one line of visible ASCII: {reprlib.repr(told)}")
    return told


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


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
        elif fault := protocol.tool_name_fault(name):
            _warn(found, f"tools/list: {name!a} is left out: {fault}")
        elif name in names:
            _warn(found, f"tools/list: {name!r} is listed twice; the first counts")
        elif len(found.tools) >= MAX_TOOLS:
            raise ProtocolError(f"tools/list has more than {MAX_TOOLS} tools")
        else:
            names.add(name)
            found.tools.append(tool)
            if protocol.needs_task(tool):
                _warn(found, f"tools/list: {name!r} {protocol.NEEDS_TASK}")


def _warn(found: ToolList, text: str) -> None:
    if len(found.warnings) < MAX_WARNINGS:
        found.warnings.append(text)
    elif len(found.warnings) == MAX_WARNINGS:
        found.warnings.append("tools/list: there is more of the kind")
