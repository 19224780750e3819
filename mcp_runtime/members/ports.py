"""Chooses a port: which ports to try, and whether a port is free. No Django.

A port that was free a moment ago is not claimed yet. A row claims it (`starting`), because the port is unique in the
rows of a runtime. The server's bind proves that it was free.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
import sys
from collections.abc import Iterator

import psutil

MAX_PORTS_FOUND = 5
LOOPBACK = ("127.0.0.1", "::1")
# The kernel's interface for sockets: linux/netlink.h, linux/sock_diag.h, linux/inet_diag.h.
NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY = 4, 20
DUMP = (SOCK_DIAG_BY_FAMILY, 0x301)  # type and flags of the message: a request for all that match
LISTENS = 1 << 10  # the only state in the request
DIAG_SECONDS, DIAG_BYTES = 1.0, 65_536
_DIAG_REQUEST = struct.Struct("=IHH8xBB2xI2s46x")
_DIAG_ANSWER = struct.Struct("=IH10xB7x16s44xI")
_DIAG_END = struct.Struct("=16xi")  # a negative errno if the kernel has no answer, otherwise 0
_NOT_THERE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


def candidates(first: int, last: int, last_port: int | None = None) -> Iterator[int]:
    """`last_port` if it is in the range, then all ports of the range in sequence (REQ-MCP-HTTP-6)."""
    if last_port is not None and first <= last_port <= last:
        yield last_port
    yield from (port for port in range(first, last + 1) if port != last_port)


def is_free(port: int) -> bool:
    """Whether nobody has bound `port` on this machine's loopback.

    It checks IPv4 and IPv6. The addresses of members contain `localhost`, so another process on ::1 would get some of
    their requests.
    """
    return all(_can_bind(host, port) for host in LOOPBACK)


def _can_bind(host: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            # As servers do. A port with connections in TIME_WAIT is free.
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
    """The addresses where process `pid` or a descendant listens on `port`. Empty if there are none or it is unknown."""
    listeners = _listeners_on(port)
    try:
        process = psutil.Process(pid)
        addresses = _listens(process, port, listeners)
        if listeners is not None and addresses == set(listeners.values()):
            return addresses  # in most cases. Finding descendants reads all processes of the machine
        return addresses.union(*(_listens(child, port, listeners) for child in process.children(recursive=True)))
    except psutil.Error:
        return set()


def listening_ports(pid: int) -> list[int]:
    """The TCP ports on which process `pid` or a descendant listens. Empty if there are none or they are unknown."""
    listening: set[int] = set()
    try:
        process = psutil.Process(pid)
        for one in (process, *process.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                connections = one.net_connections(kind="tcp")
                listening |= {c.laddr.port for c in connections if c.status == psutil.CONN_LISTEN and c.laddr}
    except (psutil.Error, ValueError):
        pass
    return sorted(listening)[:MAX_PORTS_FOUND]


def _listens(process: psutil.Process, port: int, listeners: dict[str, str] | None) -> set[str]:
    if listeners is not None:
        return {listeners[file] for file in _open_files(process.pid) if file in listeners}
    try:
        connections = process.net_connections(kind="tcp")
    except psutil.Error:
        return set()
    return {c.laddr.ip for c in connections if c.status == psutil.CONN_LISTEN and c.laddr and c.laddr.port == port}


def _listeners_on(port: int) -> dict[str, str] | None:
    """The address of each socket that listens on `port`, by the text of a link to it. None if the system has no answer.

    It queries the kernel for this port only (Linux, sock_diag(7)). The tables in /proc/net contain all connections of
    the machine, which takes a hundred times as long.
    """
    if sys.platform != "linux":
        return None
    listeners: dict[str, str] = {}
    number = port.to_bytes(2, "big")
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, NETLINK_SOCK_DIAG) as kernel:
            kernel.settimeout(DIAG_SECONDS)
            for family in (socket.AF_INET, socket.AF_INET6):
                kernel.send(_DIAG_REQUEST.pack(_DIAG_REQUEST.size, *DUMP, family, socket.IPPROTO_TCP, LISTENS, number))
                error = _take_listeners(kernel, listeners)
                if error and family == socket.AF_INET:  # there is no tcp_diag. Without IPv6 the error means nothing
                    raise OSError(error, os.strerror(error))
    except OSError:
        return None
    return listeners


def _take_listeners(kernel: socket.socket, listeners: dict[str, str]) -> int:
    """Add the sockets of the kernel's answer to `listeners`. Returns the errno at its end, or 0."""
    answer = b""
    while True:
        answer = answer or kernel.recv(DIAG_BYTES)
        size, kind, family, address, inode = _DIAG_ANSWER.unpack_from(answer.ljust(_DIAG_ANSWER.size, b"\0"))
        if kind != SOCK_DIAG_BY_FAMILY:
            code: int = _DIAG_END.unpack_from(answer.ljust(_DIAG_END.size, b"\0"))[0]
            return max(-code, 0)
        width = 4 if family == socket.AF_INET else 16
        listeners[f"socket:[{inode}]"] = socket.inet_ntop(family, address[:width])
        answer = answer[size + -size % 4 :]


def _open_files(pid: int) -> Iterator[str]:
    folder = f"/proc/{pid}/fd"
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            with contextlib.suppress(OSError):  # it was closed in the meantime
                yield os.readlink(f"{folder}/{name}")


def is_loopback(address: str) -> bool:
    return address == "::1" or address.removeprefix("::ffff:").startswith("127.")
