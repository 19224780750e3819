"""What a process really holds, whatever its objects say of themselves: in memory, and of sockets."""

from __future__ import annotations

import contextlib
import gc
import os
import socket
from collections import deque
from collections.abc import Iterator
from typing import Any

CONTAINERS = (dict, list, tuple, set, deque)


def bytes_held_by(owner: Any) -> int:
    """Of all `bytes` in the attributes of an object, and in collections among them."""
    size, seen = 0, {id(owner)}
    waiting = gc.get_referents(owner)
    while waiting:
        one = waiting.pop()
        if isinstance(one, (bytes, bytearray)):
            size += len(one)  # each time, for Python has all bytes of length one but once
        elif isinstance(one, CONTAINERS) and id(one) not in seen:
            seen.add(id(one))
            waiting += gc.get_referents(one)
    return size


def entries_held_by(owner: Any) -> int:
    """Of all collections among the attributes of an object: what it remembers of those who came."""
    return sum(len(one) for one in vars(owner).values() if isinstance(one, CONTAINERS))


def accepted_sockets(port: int) -> list[int]:
    """The connections that a server of this process has open, by the ports of its clients; 0 for one that has gone."""
    return [peer for own, peer in _sockets() if own == port]


def connected_sockets(port: int) -> int:
    """How many sockets of this process are connected to that port."""
    return sum(peer == port for _, peer in _sockets())


def _sockets() -> Iterator[tuple[int, int]]:
    """The two ports of each socket of this process that listens to nobody. psutil would read those of the machine."""
    for name in os.listdir("/dev/fd"):
        with contextlib.suppress(OSError):
            yield _ports(int(name))


def _ports(descriptor: int) -> tuple[int, int]:
    one = socket.socket(fileno=descriptor)
    try:
        if one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) or one.family == socket.AF_UNIX:
            raise OSError("it has no peer")
        try:
            return one.getsockname()[1], one.getpeername()[1]
        except OSError:
            return one.getsockname()[1], 0
    finally:
        one.detach()
