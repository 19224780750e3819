"""The gateway's listening sockets: bound here, or handed down by a parent that keeps them while the runtime restarts.

A client that finds nobody listening gives up, many for good; one that finds a socket waits in its backlog.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Sequence

from mcp_runtime.protocol.errors import AddressTakenError

BACKLOG = 1024
HANDED_DOWN = "GUILD_HALL_GATEWAY_SOCKETS"  # file descriptors; the guard passes them on


def hand_down(sockets: Sequence[socket.socket]) -> dict[str, str]:
    """What a child's environment says of sockets that are passed to it."""
    return {HANDED_DOWN: ",".join(str(one.fileno()) for one in sockets)} if sockets else {}


def take_over() -> list[socket.socket]:
    """What the parent handed down; nothing, if it did not. No child of ours inherits them."""
    numbers = os.environ.pop(HANDED_DOWN, "").split(",")
    sockets = [socket.socket(fileno=int(number)) for number in numbers if number]
    for one in sockets:
        one.set_inheritable(False)
    return sockets


def bind(host: str, port: int) -> list[socket.socket]:
    """Where the gateway will listen. Raises AddressTakenError."""
    sockets = [_bound(host, port)]
    if host == "127.0.0.1":
        with contextlib.suppress(AddressTakenError):
            sockets.append(_bound("::1", port))  # what `localhost` may mean as well
    return sockets


def own_address(host: str, port: int) -> str:
    """For URLs of programs beside the gateway. Not `localhost`: that may be an address where somebody else listens."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - compared with, not bound
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _bound(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        bound = socket.socket(family)
    except OSError as error:
        raise AddressTakenError(f"the gateway cannot listen on {host}:{port}: {error.strerror}") from error
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family == socket.AF_INET6:
        bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    try:
        bound.bind((host, port))
        bound.listen(BACKLOG)  # who comes before the loop runs waits, and is not refused
    except OSError as error:
        bound.close()
        hint = "; GUILD_HALL_GATEWAY_PORT chooses another port" if error.errno == errno.EADDRINUSE else ""
        raise AddressTakenError(f"the gateway cannot listen on {host}:{port}: {error.strerror}{hint}") from error
    return bound
