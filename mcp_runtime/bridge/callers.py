"""The callers: a connection, a session, and a request in progress."""

from __future__ import annotations

import socket

from mcp_runtime.bridge.http_messages import Head

TYPE_CHECKING = False  # see messages
if TYPE_CHECKING:
    from typing import Any

# No dataclasses, because importing them takes a megabyte in each bridge.


class Connection:
    """A caller's connection. It serves one request at a time. Later requests wait in `inbox`."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.inbox = bytearray()
        self.outbox = bytearray()
        self.head: Head | None = None  # of the request whose body is still coming
        self.request: CallerRequest | None = None  # the request that is being answered
        self.is_listening = False  # it gets the events that belong to no request
        self.listens_for: Session | None = None
        self.is_over = False  # the last reply was sent. Further input is discarded
        self.is_busy = False  # `Connections._serve` is taking its requests, and continues with the next ones


class Session:
    """One client, with the state that a server has for its client."""

    def __init__(self, session_id: str) -> None:
        self.id = session_id
        self.level = ""  # of log messages. Empty if the client has set none
        self.uris: set[str] = set()  # of the resources to which it is subscribed
        self.stream: Connection | None = None


class CallerRequest:
    """A request in progress, with its caller and the caller's id for it. `session` is None if the caller has none."""

    def __init__(
        self, connection: Connection, head: Head, caller_id: str | int, session: Session | None = None
    ) -> None:
        self.connection = connection
        self.head = head
        self.caller_id = caller_id
        self.session = session
        self.own_id = 0
        self.method = ""
        self.progress_token: Any = None
        self.subscribes_to: str | None = None
        self.is_cancelled = False
        self.is_streaming = False
