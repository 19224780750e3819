"""Requests from the gateway of this node to the gateways of others, over connections that are reused."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from mcp_runtime.client import exchanges, remote
from mcp_runtime.gateway import hop_seals
from mcp_runtime.gateway.peers import Peer
from mcp_runtime.http1.client import Address, Connections, Response
from mcp_runtime.protocol.errors import ClientError, ConnectError

NO_URL = "it has no address for other nodes. Set GUILD_HALL_NODE_URL there, or use the gateway of that node"
GONE = "the node ended, or does not answer the database"
TELL_SECONDS = 2.0
WAIT_SECONDS = 0.3
MISDIRECTED = 421  # the other node did not act on the request
# Headers of a client that concern only its own connection to this gateway.
_NOT_FORWARDED = hop_seals.OF_THE_CONNECTION | {
    *("keep-alive", "te", "trailer", "upgrade", "expect", "proxy-authorization", "proxy-connection"),
    *("cookie", "origin", "forwarded", "accept-encoding", hop_seals.HEADER),
}


@dataclass(frozen=True, slots=True)
class _Line:
    """The connections to one runtime, and the numbers of the seals for it.

    The next runtime of the node has the same address, but gets connections of its own.
    """

    connections: Connections
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))


class Hop:
    """Sends requests to other nodes. Use it only on the gateway's event loop."""

    def __init__(self, own_lease: uuid.UUID, key: bytes, plain_http_hosts: list[str], ca: Path | None) -> None:
        self._own_lease = own_lease.hex
        self._key = key
        self._plain_http_hosts = plain_http_hosts
        self._tls = exchanges.tls_context(ca) if ca else None
        self._lines: dict[str, _Line] = {}  # by lease
        self._tasks: set[asyncio.Task[None]] = set()

    async def send(
        self,
        peer: Peer,
        verb: str,
        target: bytes,
        headers: Mapping[str, str],
        body: bytes | None = None,
        on_write: Callable[[], None] | None = None,
    ) -> Response:
        """Send a sealed request, and return the answer as soon as its head has come.

        `target` is the path and query. `on_write()` is called before the first byte is sent. Raise ConnectError and
        ProtocolError.
        """
        if peer.address is None:
            raise ConnectError(NO_URL)
        if fault := remote.plain_http_fault(peer.url, self._plain_http_hosts):
            raise ConnectError(fault)
        if (line := self._lines.get(peer.lease)) is None:
            if self._tls is None and peer.address.is_tls:
                self._tls = exchanges.tls_context()  # for all nodes
            line = self._lines[peer.lease] = _Line(Connections(self._tls))
        sealed = hop_seals.Request(self._own_lease, peer.lease, verb, target, headers, body or b"")
        seal = hop_seals.seal(self._key, sealed, next(line.numbers))
        base = peer.address
        address = Address(base.host, base.port, base.is_tls, base.authority, target.decode("latin-1"))
        return await line.connections.request(
            address, verb, {**headers, hop_seals.HEADER: seal}, body, on_write=on_write
        )

    async def tell_all(
        self, peers: Iterable[Peer], verb: str, target: bytes, headers: Mapping[str, str], body: bytes | None = None
    ) -> None:
        """Send a message that has no response to all these nodes, and ignore errors.

        Wait at most WAIT_SECONDS, because one node may be frozen or cut off. Each request has TELL_SECONDS.
        """

        async def tell(peer: Peer) -> None:
            with contextlib.suppress(ClientError, TimeoutError):
                async with asyncio.timeout(TELL_SECONDS):
                    (await self.send(peer, verb, target, headers, body)).release()

        tasks = [asyncio.ensure_future(tell(peer)) for peer in peers]
        for task in tasks:
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        if tasks:
            await asyncio.wait(tasks, timeout=WAIT_SECONDS)

    def drop(self, peer: Peer) -> None:
        """End all requests to a node that is gone. A machine that freezes leaves its connections open."""
        if (line := self._lines.pop(peer.lease, None)) is not None:
            line.connections.close(ConnectError(GONE))

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        for line in self._lines.values():
            line.connections.close()


def forwarded_headers(headers: Mapping[bytes, bytes]) -> dict[str, str]:
    """Return the headers of a client's request that another node needs. All text is ASCII."""
    texts = ((name.decode("latin-1"), value) for name, value in headers.items() if value.isascii())
    return {
        name: value.decode()
        for name, value in texts
        if name.isascii() and name not in _NOT_FORWARDED and not name.startswith(("x-forwarded-", "sec-"))
    }
