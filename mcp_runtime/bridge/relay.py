"""Routes requests, answers and other messages between many callers and one server.

One child serves many callers, which know nothing of each other. The bridge shakes hands with the child once, and every
caller gets the same result. Each request gets the bridge's id on the way in, and its answer the caller's id on the way
out. For the child there is only one client. So the bridge has a session for each caller, with its subscriptions and its
log level. A message of the child goes to the session to which it belongs, or to nobody if that is not known.
"""

from __future__ import annotations

import itertools
import selectors
import signal
import socket
from collections.abc import Callable

from mcp_runtime.bridge.callers import CallerRequest, Connection, Session
from mcp_runtime.bridge.complaints import Noise, complain
from mcp_runtime.bridge.connections import Connections
from mcp_runtime.bridge.handshake import NOT_PASSED_ON, Handshake
from mcp_runtime.bridge.http_messages import Head
from mcp_runtime.bridge.messages import (
    INTERNAL_ERROR,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    READ_BYTES,
    Message,
    decode,
    encode,
    error_message,
    id_in,
    is_id,
    notification,
)
from mcp_runtime.bridge.pending import Pending
from mcp_runtime.bridge.sessions import Sessions, is_for
from mcp_runtime.bridge.stdio_server import StdioServer

SESSION_OVER = "this session is over: begin a new one with initialize"
# Notifications of callers that are not passed on, because the bridge itself sends `initialized` and has no roots.
IGNORED = ("notifications/initialized", "notifications/roots/list_changed")
# Notifications of the server for all callers. They contain nothing about a caller.
LIST_CHANGES = tuple(f"notifications/{kind}/list_changed" for kind in ("tools", "prompts", "resources"))


class Bridge:
    """Connects callers with one server. `run()` returns the exit code after the server has ended."""

    def __init__(self, listener: socket.socket, argv: list[str], max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._selector = selectors.DefaultSelector()
        self._ids = itertools.count(1)
        self._server = StdioServer(self._selector, argv, max_bytes, on_line=self._take_line, on_end=self._begin_end)
        self._connections = Connections(self._selector, listener, on_request=self._take_request, on_leave=self._forget)
        self._pending = Pending()
        self._sessions = Sessions(self._ask_server)
        self._handshake = Handshake(self._ids, self._server.send, self._welcome)
        self._noise = Noise()
        self._stop_requested = False

    def run(self) -> int:
        wakeup_reader, wakeup_writer = socket.socketpair()
        for end in (wakeup_reader, wakeup_writer):
            end.setblocking(False)
        signal.set_wakeup_fd(wakeup_writer.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_stop_signal)
        self._selector.register(wakeup_reader, selectors.EVENT_READ, lambda _: wakeup_reader.recv(READ_BYTES))
        if code := self._server.start():
            return code
        self._connections.accept_more()
        while (status := self._server.poll()) is None:
            if self._stop_requested:
                self._begin_end()
            for key, mask in self._selector.select(self._server.patience()):
                callback: Callable[[int], object] = key.data
                callback(mask)
        self._server.read_rest()
        self._connections.close_all()
        if not self._handshake.is_complete:
            self._noise.explain_silence(self._server.unfinished_line)
        if status < 0 and not self._stop_requested:
            complain(f"the server was ended by signal {-status}")
        return status if status >= 0 else 128 - status

    def _on_stop_signal(self, *_: object) -> None:
        self._stop_requested = True

    def _begin_end(self) -> None:
        """End the server and accept no more callers, after a stop signal or the end of the server's output."""
        self._connections.accept_no_more()
        self._server.begin_end()

    def _ask_server(self, method: str, params: Message) -> None:
        """Send a request of the bridge itself. Nothing waits for its answer."""
        self._server.send({"jsonrpc": "2.0", "id": next(self._ids), "method": method, "params": params})

    # From the server

    def _take_line(self, line: bytes, is_cut: bool) -> None:
        if is_cut:
            self._take_unreadable(line, f"is larger than {self._max_bytes:,} bytes")
            return
        if not line.strip():
            return
        try:
            value = decode(line)
        except ValueError:
            self._take_unreadable(line, "cannot be read")
            return
        for message in value if isinstance(value, list) else [value]:  # batches, of 2025-03-26
            if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
                self._noise.take_stray(line)
            elif "method" not in message and is_id(message.get("id")):
                self._take_answer(message)
            elif "method" not in message:
                self._noise.take_stray(line)
            elif "id" in message:
                self._decline(message)
            elif isinstance(message["method"], str):
                self._take_notification(message)

    def _take_unreadable(self, line: bytes, reason: str) -> None:
        """Handle a line that cannot be read. If it was an answer, its caller gets an error at once."""
        request_id = id_in(line)
        if request_id in self._pending or (request_id and self._handshake.is_answered_by(request_id)):
            self._take_answer(error_message(request_id, INTERNAL_ERROR, f"the server's answer {reason}"))
        else:
            self._noise.take_stray(line)

    def _take_answer(self, message: Message) -> None:
        request_id = message["id"]
        if self._handshake.is_answered_by(request_id):
            self._handshake.end(message)
        elif request := self._pending.take(request_id):
            self._sessions.end_subscribing(request, is_done="result" in message)
            self._connections.answer(request, message)

    def _decline(self, message: Message) -> None:
        """Decline a request of the server, because it is not known for which caller it is. Only `ping` is answered."""
        if message["method"] == "ping":
            self._server.send({"jsonrpc": "2.0", "id": message["id"], "result": {}})
        else:
            text = f"{str(message['method'])[:80]} is not offered: this client has declared no such capability"
            self._server.send(error_message(message["id"], METHOD_NOT_FOUND, text))

    def _take_notification(self, message: Message) -> None:
        params = message.get("params")
        if message["method"] == "notifications/progress" and isinstance(params, dict):
            if request := self._pending.with_progress(params.get("progressToken")):
                caller_params = {**params, "progressToken": request.progress_token}
                self._connections.stream(request, {**message, "params": caller_params})
        elif message["method"] in LIST_CHANGES:
            self._connections.tell_listeners(notification(message["method"]))
        elif message["method"] == "notifications/resources/updated":
            uri = params.get("uri") if isinstance(params, dict) else None
            for session in self._sessions.subscribers_of(uri) if isinstance(uri, str) else ():
                if session.stream is not None:
                    self._connections.send_event(session.stream, message)
        elif message["method"] != "notifications/cancelled":  # it is about the server's requests, already answered
            self._take_unaddressed(message)

    def _take_unaddressed(self, message: Message) -> None:
        """Handle a log message or an unknown notification. It may quote the arguments of a call, but does not name it.

        It is passed on if the server works only for one client. Otherwise only the operator gets it.
        """
        requests = self._pending.of_one_client()
        if not requests:
            self._report(message)
            return
        session = requests[0].session
        if not is_for(message, session):
            return
        if len(requests) == 1 and requests[0].head.takes_stream:
            self._connections.stream(requests[0], message)
        elif session is not None and session.stream is not None:
            self._connections.send_event(session.stream, message)

    def _report(self, message: Message) -> None:
        """Write the message to stderr, for the operator."""
        try:
            line = encode(message)
        except RecursionError:
            return
        self._noise.report(line)

    # From callers

    def _take_request(self, connection: Connection, head: Head, body: bytes) -> bool:
        """Handle a request. Returns whether the connection serves further requests."""
        try:
            if head.method == "GET":
                return self._connections.listen(connection, head, self._sessions.use(head.session_id))
            if head.method == "DELETE":
                session = self._sessions.find(head.session_id)
                self._sessions.end(session)
                self._connections.end_stream(session)
                self._connections.reply(connection, head, 200)
                return True
        except KeyError:
            self._connections.refuse(connection, head, 404, SESSION_OVER)
            return True
        self._take_body(connection, head, body)
        return True

    def _take_body(self, connection: Connection, head: Head, body: bytes) -> None:
        try:
            message = decode(body)
        except ValueError:
            refusal = error_message(None, PARSE_ERROR, "the body is not JSON")
            self._connections.reply(connection, head, 400, encode(refusal))
            return
        try:
            is_first = isinstance(message, dict) and message.get("method") == "initialize"
            session = None if is_first else self._sessions.use(head.session_id)
        except KeyError:
            self._connections.refuse(connection, head, 404, SESSION_OVER)
            return
        if fault := fault_of(message):
            self._connections.refuse(connection, head, 400, fault)
        elif "method" not in message:  # an answer, although the bridge sends callers no requests
            self._connections.reply(connection, head, 202)
        elif "id" not in message:
            self._pass_on_notification(session, message)
            self._connections.reply(connection, head, 202)
        else:
            connection.request = CallerRequest(connection, head, message["id"], session)
            self._pass_on_request(connection.request, message)

    def _pass_on_request(self, request: CallerRequest, message: Message) -> None:
        params = message.get("params", {})
        if message["method"] == "initialize":
            self._handshake.shake(request, params)
            return
        answer = self._sessions.answer(request, message["method"], params, self._handshake.capabilities)
        if answer is not None:
            self._connections.answer(request, answer)
            return
        request.own_id, request.method = next(self._ids), message["method"]
        meta = params.get("_meta")
        if isinstance(meta, dict) and is_id(meta.get("progressToken")):
            request.progress_token = meta["progressToken"]
            message = {**message, "params": {**params, "_meta": {**meta, "progressToken": request.own_id}}}
        self._pending.add(request)
        if not self._server.send({**message, "id": request.own_id}):
            self._pending.drop(request)
            self._sessions.end_subscribing(request, is_done=False)
            self._connections.answer(request, error_message(None, INTERNAL_ERROR, NOT_PASSED_ON), status=503)

    def _pass_on_notification(self, session: Session | None, message: Message) -> None:
        if message["method"] in IGNORED:
            return
        if message["method"] == "notifications/cancelled":
            params = message.get("params", {})
            request = self._pending.cancel(session, params.get("requestId"))
            if request is None:
                return
            message = {**message, "params": {**params, "requestId": request.own_id}}
        self._server.send(message)

    def _welcome(self, request: CallerRequest, message: Message) -> None:
        """Answer `initialize`, and begin a session."""
        session = None
        if isinstance(message.get("result"), dict):
            session = self._sessions.begin(busy=self._pending.sessions())
        self._connections.answer(request, message, session_id=session.id if session else "")

    def _forget(self, request: CallerRequest) -> None:
        """Handle the end of a connection before its request was answered."""
        self._pending.limit_abandoned(self._connections.is_open)
        self._handshake.forget(request)


def fault_of(message: object) -> str:
    """Why a body is not a message. Empty if it is one."""
    if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
        return "the body is not one JSON-RPC 2.0 message"
    if "method" not in message and ("result" in message or "error" in message):
        return ""
    if not isinstance(message.get("method"), str) or not isinstance(message.get("params", {}), dict):
        return "method must be a string, and params an object"
    if "id" in message and not is_id(message["id"]):
        return "id must be a string or a whole number"
    return ""
