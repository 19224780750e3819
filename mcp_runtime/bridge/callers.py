"""Who asks: a connection, a session, and a request on its way."""

from __future__ import annotations

import socket

from mcp_runtime.bridge.http_messages import Head

TYPE_CHECKING = False  # see messages
if TYPE_CHECKING:
    from typing import Any

# No dataclasses: to import them takes each bridge a megabyte.


class Connection:
    """A caller's connection: one request at a time, while what follows waits in `inbox`."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.inbox = bytearray()
        self.outbox = bytearray()
        self.head: Head | None = None  # of the request whose body is still coming
        self.request: CallerRequest | None = None  # the request that is being answered
        self.is_listening = False  # it gets the events that belong to no request
        self.listens_for: Session | None = None
        self.is_over = False  # the last was sent; what it still sends is thrown away
        self.is_served = False  # `Connections.serve` is at it, and goes on by itself


class Session:
    """One client, with what a server keeps for its client."""

    def __init__(self, session_id: str) -> None:
        self.id = session_id
        self.level = ""  # of log messages; empty: it has asked for none
        self.uris: set[str] = set()  # of the resources that it has subscribed to
        self.stream: Connection | None = None


class CallerRequest:
    """A request on its way: whose it is, and what its caller calls it. `session` None: a caller without one."""

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
