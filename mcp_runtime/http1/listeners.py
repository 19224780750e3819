"""The gateway's listening sockets: bound here, or inherited from a parent that keeps them while the runtime restarts.

Without a socket a client gets an error, and many clients then give up for good. With a socket it waits in the backlog.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from mcp_runtime.protocol.errors import AddressTakenError

BACKLOG = 1024
SOCKETS_VARIABLE = "GUILD_HALL_GATEWAY_SOCKETS"  # file descriptors, which the guard passes on


@dataclass(frozen=True)
class Sockets:
    """The sockets of the gateway: for clients, and for other nodes."""

    clients: list[socket.socket]
    nodes: list[socket.socket] = field(default_factory=list)


def inheritance(descriptors: Sequence[int]) -> dict[str, str]:
    """The environment variable that names the sockets for a child process."""
    return {SOCKETS_VARIABLE: ",".join(map(str, descriptors))} if descriptors else {}


def take_inherited() -> list[socket.socket]:
    """The sockets that the parent passed on, if any. Our own children do not inherit them."""
    numbers = os.environ.pop(SOCKETS_VARIABLE, "").split(",")
    sockets = [socket.socket(fileno=int(number)) for number in numbers if number]
    for sock in sockets:
        sock.set_inheritable(False)
    return sockets


def bind_for_nodes(url: str) -> list[socket.socket]:
    """Bind the socket on which other nodes connect, at the host and port of the url. Raises AddressTakenError."""
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or 0
    try:
        address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4][0]
    except OSError as error:
        raise AddressTakenError(f"GUILD_HALL_NODE_URL={url}: the host is unknown here ({error.strerror})") from error
    return [_bind(str(address), port, "GUILD_HALL_NODE_URL")]


def require_usable(certificate: Path | None, ca: Path | None) -> None:
    """Load the files for TLS between nodes. Raises AddressTakenError, because a gateway without them cannot listen."""
    try:
        if certificate is not None:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate)
    except OSError as error:
        text = f"GUILD_HALL_NODE_CERTIFICATE={certificate}: it has no certificate with its key ({error})"
        raise AddressTakenError(text) from error
    try:
        if ca is not None:
            ssl.create_default_context(cafile=ca)
    except OSError as error:
        raise AddressTakenError(f"GUILD_HALL_NODE_CA={ca}: it has no certificates ({error})") from error


def bind(host: str, port: int) -> list[socket.socket]:
    """Bind the gateway's sockets. Raises AddressTakenError."""
    sockets = [_bind(host, port)]
    if host == "127.0.0.1":
        with contextlib.suppress(AddressTakenError):
            sockets.append(_bind("::1", port))  # `localhost` may mean this address too
    return sockets


def own_address(host: str, port: int) -> str:
    """For URLs of programs on this machine. Not `localhost`, because another program may listen there on IPv6."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - compared with, not bound
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _bind(host: str, port: int, setting: str = "GUILD_HALL_GATEWAY_PORT") -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        sock = socket.socket(family)
    except OSError as error:
        raise AddressTakenError(f"the gateway cannot listen on {host}:{port}: {error.strerror}") from error
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family == socket.AF_INET6:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    try:
        sock.bind((host, port))
        sock.listen(BACKLOG)  # now, so that clients wait and are not refused until the loop runs
    except OSError as error:
        sock.close()
        hint = f"; {setting} chooses another port" if error.errno == errno.EADDRINUSE else ""
        raise AddressTakenError(f"the gateway cannot listen on {host}:{port}: {error.strerror}{hint}") from error
    return sock
