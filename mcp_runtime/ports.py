"""Choosing a port: which ones to try, and whether the system would give one. No Django.

"Free a moment ago" is no claim: the row with the unique port is the claim (`lifecycle`), the server's bind the proof.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator

import psutil

LOOPBACK = ("127.0.0.1", "::1")
_NOT_THERE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


def candidates(first: int, last: int, preferred: int | None = None) -> Iterator[int]:
    """`preferred` when it lies in the range, then every port of it in sequence (REQ-MCP-HTTP-6)."""
    if preferred is not None and first <= preferred <= last:
        yield preferred
    yield from (port for port in range(first, last + 1) if port != preferred)


def is_free(port: int) -> bool:
    """Whether nobody has bound `port` on this machine's loopback.

    Both families: handed-out addresses say `localhost`, and a stranger on ::1 would answer some of them.
    """
    return all(_can_bind(host, port) for host in LOOPBACK)


def _can_bind(host: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            # As servers do: connections in TIME_WAIT are no reason to pass a port over.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        return error.errno in _NOT_THERE
    return True


def answers(port: int) -> bool:
    """Whether something accepts connections on 127.0.0.1:`port`."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.settimeout(0.5)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def listening_addresses(pid: int, port: int) -> set[str]:
    """Where process `pid` or a descendant of it listens on `port`; empty when none does, or it cannot be told."""
    try:
        process = psutil.Process(pid)
        return _listens(process, port) or {
            address for child in process.children(recursive=True) for address in _listens(child, port)
        }
    except psutil.Error:
        return set()


def _listens(process: psutil.Process, port: int) -> set[str]:
    try:
        connections = process.net_connections(kind="tcp")
    except psutil.Error:
        return set()
    return {c.laddr.ip for c in connections if c.status == psutil.CONN_LISTEN and c.laddr and c.laddr.port == port}


def is_loopback(address: str) -> bool:
    return address == "::1" or address.removeprefix("::ffff:").startswith("127.")
