"""Callers' connections: requests as they come, replies and streams of events as they go."""

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
MAX_UNREAD_EVENTS = 1_000_000  # bytes of what a caller may miss, and does not read
MAX_CONNECTIONS = 2_200  # a member's `max_concurrency` is 1024 at most, and the streams of events
MAX_LISTENERS = 1_000


class Connections:
    """`on_request` is given each whole request, and says whether the connection serves further ones.

    `on_leave` is given each request whose caller left before it was answered.
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

    # Callers come and go

    def accept_more(self) -> None:
        if not self._is_accepting and not self._has_ended:
            self._is_accepting = True
            self._selector.register(self._listener, selectors.EVENT_READ, lambda _: self._accept())

    def accept_no_more(self) -> None:
        """For good."""
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
        if len(self._open) >= MAX_CONNECTIONS and not self._close_an_idle_one():
            self._pause_accepting()  # until one is closed
            return
        try:
            sock, _ = self._listener.accept()
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except (BlockingIOError, ConnectionError):
            return
        except OSError:  # no descriptor is left
            if not self._close_an_idle_one():
                self._pause_accepting()
            return
        connection = Connection(sock)
        self._open[connection] = None
        self._selector.register(sock, selectors.EVENT_READ, lambda mask: self._on_ready(connection, mask))

    def _close_an_idle_one(self) -> bool:
        idle = (one for one in self._open if not (one.request or one.listens_for))
        oldest = next(idle, None)
        if oldest is not None:
            self._close(oldest)
        return oldest is not None

    def _close(self, connection: Connection) -> None:
        """Its caller left, or has to. What it asked is not cancelled: nobody said so (MCP, until 2025-11-25)."""
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
        """Take the requests that have come, until one has to wait for its answer."""
        if connection.is_served or connection not in self._open:
            return
        connection.is_served = True
        try:
            # Nor is more taken of one who does not read his answers.
            while not (connection.request or connection.is_over or connection.outbox):
                if not self._take_request(connection):
                    break
        except RefusalError as refusal:
            message = error_message(None, INVALID_REQUEST, str(refusal))
            self._end_with(connection, response(refusal.status, encode(message), keep_alive=False))
        connection.is_served = False
        if (connection.request or connection.outbox) and len(connection.inbox) > MAX_BODY + MAX_HEAD:
            self._close(connection)  # nobody sends that much ahead of an answer

    def _take_request(self, connection: Connection) -> bool:
        """Whether there was a whole request."""
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
        self._open[connection] = self._open.pop(connection)  # the last one used
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
        """The last that is sent here. Not closed at once: a caller that still writes would lose it to a reset."""
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
            except OSError:  # it is gone already
                return

    # Streams of events

    def listen(self, connection: Connection, head: Head, session: Session | None) -> bool:
        """Whether the connection serves further requests: as a stream it does not."""
        if sum(one.is_listening for one in self._open) >= MAX_LISTENERS:
            self.refuse(connection, head, 503, "too many streams are open")
            return True
        if session is not None:
            self.end_stream(session)  # what is said is said on one stream
            session.stream, connection.listens_for = connection, session
        connection.is_listening = True
        self._send(connection, STREAM_HEAD)
        return False

    def end_stream(self, session: Session) -> None:
        if (stream := session.stream) is not None:
            session.stream, stream.listens_for, stream.is_listening = None, None, False
            self._end_with(stream, LAST_CHUNK)

    def stream(self, request: CallerRequest, message: Message) -> None:
        """A notification before the answer: the answer becomes a stream of events, if the caller takes one."""
        if request.head.takes_stream:
            if not request.is_streaming:
                request.is_streaming = True
                self._send(request.connection, STREAM_HEAD)
            self.send_event(request.connection, message)

    def tell_listeners(self, message: Message) -> None:
        for connection in [one for one in self._open if one.is_listening]:
            self.send_event(connection, message)

    def send_event(self, connection: Connection, message: Message) -> None:
        if len(connection.outbox) > MAX_UNREAD_EVENTS:
            return
        try:
            data = event(encode(message))
        except RecursionError:
            return
        self._send(connection, data)
