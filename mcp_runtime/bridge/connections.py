"""Callers' connections: they read requests, and send replies and streams of events."""

from __future__ import annotations

import selectors
import socket
from collections.abc import Callable

from mcp_runtime.bridge.callers import CallerRequest, Connection, Session
from mcp_runtime.bridge.http_messages import (
    LAST_CHUNK,
    MAX_BODY,
    STREAM_HEAD,
    Head,
    RefusalError,
    check_head,
    event,
    read_head,
    response,
)
from mcp_runtime.bridge.messages import INTERNAL_ERROR, INVALID_REQUEST, READ_BYTES, Message, encode, error_message

MAX_HEAD = 64_000
MAX_UNREAD_EVENTS = 1_000_000  # bytes of unread events, before further ones are dropped
MAX_CONNECTIONS = 2_200  # for calls (a member's `max_concurrency` is at most 1024) and streams of events
MAX_LISTENERS = 1_000


class Connections:
    """All connections. `on_request` gets each whole request, and returns whether the connection serves further ones.

    `on_leave` gets each request whose caller disconnected before the answer.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        listener: socket.socket,
        *,
        on_request: Callable[[Connection, Head, bytes], bool],
        on_leave: Callable[[CallerRequest], None],
    ) -> None:
        self._selector = selector
        self._listener = listener
        self._port: int = listener.getsockname()[1]
        self._on_request = on_request
        self._on_leave = on_leave
        self._open: dict[Connection, None] = {}  # in the order of their last use
        self._is_accepting = False
        self._has_ended = False

    def is_open(self, connection: Connection) -> bool:
        return connection in self._open

    # Opening and closing

    def accept_more(self) -> None:
        if not self._is_accepting and not self._has_ended:
            self._is_accepting = True
            self._selector.register(self._listener, selectors.EVENT_READ, lambda _: self._accept())

    def accept_no_more(self) -> None:
        """Stop accepting connections for ever."""
        self._has_ended = True
        self._pause_accepting()

    def close_all(self) -> None:
        for connection in list(self._open):
            self._close(connection)

    def _pause_accepting(self) -> None:
        if self._is_accepting:
            self._is_accepting = False
            self._selector.unregister(self._listener)

    def _accept(self) -> None:
        if len(self._open) >= MAX_CONNECTIONS and not self._close_oldest_idle():
            self._pause_accepting()  # until a connection is closed
            return
        try:
            sock, _ = self._listener.accept()
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except (BlockingIOError, ConnectionError):
            return
        except OSError:  # no descriptor is left
            if not self._close_oldest_idle():
                self._pause_accepting()
            return
        connection = Connection(sock)
        self._open[connection] = None
        self._selector.register(sock, selectors.EVENT_READ, lambda mask: self._on_ready(connection, mask))

    def _close_oldest_idle(self) -> bool:
        idle = (connection for connection in self._open if not (connection.request or connection.listens_for))
        oldest = next(idle, None)
        if oldest is not None:
            self._close(oldest)
        return oldest is not None

    def _close(self, connection: Connection) -> None:
        """Close a connection. That does not cancel its request (MCP up to 2025-11-25)."""
        if connection not in self._open:
            return
        del self._open[connection]
        self._selector.unregister(connection.sock)
        connection.sock.close()
        if connection.listens_for is not None and connection.listens_for.stream is connection:
            connection.listens_for.stream = None
        if connection.request is not None:
            self._on_leave(connection.request)
        self.accept_more()

    # Requests

    def _on_ready(self, connection: Connection, mask: int) -> None:
        if mask & selectors.EVENT_WRITE:
            self._send(connection)
            if connection in self._open:
                self._serve(connection)
        if mask & selectors.EVENT_READ and connection in self._open:
            self._receive(connection)

    def _receive(self, connection: Connection) -> None:
        try:
            chunk = connection.sock.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            chunk = b""
        if not chunk:
            self._close(connection)
        elif not (connection.is_over or connection.is_listening):
            connection.inbox += chunk
            self._serve(connection)

    def _serve(self, connection: Connection) -> None:
        """Take the requests in `inbox`, until one has to wait for its answer."""
        if connection.is_busy or connection not in self._open:
            return
        connection.is_busy = True
        try:
            # If the caller does not read its answers, take no more requests either.
            while not (connection.request or connection.is_over or connection.outbox):
                if not self._take_request(connection):
                    break
        except RefusalError as refusal:
            message = error_message(None, INVALID_REQUEST, str(refusal))
            self._end_with(connection, response(refusal.status, encode(message), keep_alive=False))
        connection.is_busy = False
        if (connection.request or connection.outbox) and len(connection.inbox) > MAX_BODY + MAX_HEAD:
            self._close(connection)  # no honest caller sends so much before an answer

    def _take_request(self, connection: Connection) -> bool:
        """Take one request. False if it is not complete yet, or if no further one may be taken."""
        if connection not in self._open:
            return False
        if connection.head is None:
            end = connection.inbox.find(b"\r\n\r\n")
            if end < 0 and len(connection.inbox) <= MAX_HEAD:
                return False
            if not 0 <= end <= MAX_HEAD:
                raise RefusalError(431, f"the headers are larger than {MAX_HEAD:,} bytes")
            head = read_head(bytes(connection.inbox[:end]))
            check_head(head, self._port)
            del connection.inbox[: end + 4]
            connection.head = head
            if head.headers.get("expect", "").lower() == "100-continue" and len(connection.inbox) < head.length:
                self._send(connection, b"HTTP/1.1 100 Continue\r\n\r\n")
                return connection in self._open
        if len(connection.inbox) < connection.head.length:
            return False
        head, connection.head = connection.head, None
        body = bytes(connection.inbox[: head.length])
        del connection.inbox[: head.length]
        self._open[connection] = self._open.pop(connection)  # move to the end: it is the last one used
        return self._on_request(connection, head, body)

    # Replies

    def answer(self, request: CallerRequest, message: Message, *, status: int = 200, session_id: str = "") -> None:
        connection = request.connection
        connection.request = None
        try:
            body = encode({**message, "id": request.caller_id})
        except RecursionError:
            text = "the server's answer is nested too deep"
            body = encode(error_message(request.caller_id, INTERNAL_ERROR, text))
        if request.is_streaming:
            self._send(connection, event(body) + LAST_CHUNK)
            if not request.head.keep_alive:
                self._end_with(connection, b"")
        else:
            self.reply(connection, request.head, status, body, session_id)
        self._serve(connection)

    def refuse(self, connection: Connection, head: Head, status: int, fault: str) -> None:
        self.reply(connection, head, status, encode(error_message(None, INVALID_REQUEST, fault)))

    def reply(self, connection: Connection, head: Head, status: int, body: bytes = b"", session: str = "") -> None:
        data = response(status, body, keep_alive=head.keep_alive, session=session)
        if head.keep_alive:
            self._send(connection, data)
        else:
            self._end_with(connection, data)

    def _end_with(self, connection: Connection, data: bytes) -> None:
        """Send the last reply. The connection stays open for now, because a reset could discard the reply."""
        connection.is_over = True
        connection.inbox.clear()
        self._send(connection, data)

    def _send(self, connection: Connection, data: bytes = b"") -> None:
        if connection not in self._open:
            return
        connection.outbox += data
        try:
            if connection.outbox:
                del connection.outbox[: connection.sock.send(connection.outbox)]
        except BlockingIOError:
            pass
        except OSError:
            self._close(connection)
            return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.outbox else 0)
        key = self._selector.get_key(connection.sock)
        if key.events != events:
            self._selector.modify(connection.sock, events, key.data)
        if connection.is_over and not connection.outbox:
            try:
                connection.sock.shutdown(socket.SHUT_WR)
            except OSError:  # it is closed already
                return

    # Streams of events

    def listen(self, connection: Connection, head: Head, session: Session | None) -> bool:
        """Make the connection a stream. Returns whether it serves further requests, which a stream does not."""
        if sum(other.is_listening for other in self._open) >= MAX_LISTENERS:
            self.refuse(connection, head, 503, "too many streams are open")
            return True
        if session is not None:
            self.end_stream(session)  # a session has one stream, which gets each event once
            session.stream, connection.listens_for = connection, session
        connection.is_listening = True
        self._send(connection, STREAM_HEAD)
        return False

    def end_stream(self, session: Session) -> None:
        if (stream := session.stream) is not None:
            session.stream, stream.listens_for, stream.is_listening = None, None, False
            self._end_with(stream, LAST_CHUNK)

    def stream(self, request: CallerRequest, message: Message) -> None:
        """Send a notification before the answer, if the caller accepts a stream. The answer then comes on it too."""
        if request.head.takes_stream:
            if not request.is_streaming:
                request.is_streaming = True
                self._send(request.connection, STREAM_HEAD)
            self.send_event(request.connection, message)

    def tell_listeners(self, message: Message) -> None:
        for connection in [each for each in self._open if each.is_listening]:
            self.send_event(connection, message)

    def send_event(self, connection: Connection, message: Message) -> None:
        if len(connection.outbox) > MAX_UNREAD_EVENTS:
            return
        try:
            data = event(encode(message))
        except RecursionError:
            return
        self._send(connection, data)
