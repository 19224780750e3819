"""Who asks: a connection, a session, and a request on its way."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from typing import Any

from mcp_runtime.bridge.http_messages import Head


@dataclass(eq=False)
class Connection:
    """A caller's connection: one request at a time, while what follows waits in `inbox`."""

    sock: socket.socket
    inbox: bytearray = field(default_factory=bytearray)
    outbox: bytearray = field(default_factory=bytearray)
    head: Head | None = None  # of the request whose body is still coming
    request: CallerRequest | None = None  # the request that is being answered
    is_listening: bool = False  # it gets the events that belong to no request
    listens_for: Session | None = None
    is_over: bool = False  # the last was sent; what it still sends is thrown away
    is_served: bool = False  # `Connections.serve` is at it, and goes on by itself


@dataclass(eq=False)
class Session:
    """One client, with what a server keeps for its client."""

    id: str
    level: str = ""  # of log messages; empty: it has asked for none
    uris: set[str] = field(default_factory=set)  # of the resources that it has subscribed to
    stream: Connection | None = None


@dataclass(eq=False)
class CallerRequest:
    """A request on its way: whose it is, and what its caller calls it. `session` None: a caller without one."""

    connection: Connection
    head: Head
    caller_id: str | int
    session: Session | None = None
    own_id: int = 0
    method: str = ""
    progress_token: Any = None
    subscribes_to: str | None = None
    is_cancelled: bool = False
    is_streaming: bool = False
