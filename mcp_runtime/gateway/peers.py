"""The other nodes of the hall, for the gateway of this one.

Use `Peers` only on the gateway's event loop.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

from django.db import Error, connection

from mcp_runtime.http1.client import Address
from mcp_runtime.protocol.errors import ClientError, MethodError
from mcp_runtime.rows import lease
from mcp_runtime.rows.database import unit_of_work
from roster.models import GuildMember, Node

logger = logging.getLogger("guildhall.gateway")

LOOK_SECONDS = 1.0  # between two looks at the nodes, in a hall that has several
LOOK_ALONE_SECONDS = 10.0
SHORTEST_LOOK_SECONDS = 0.2


@dataclass(frozen=True)
class Peer:
    """A node with its current runtime. `lease` is the lease of this runtime, in hexadecimal."""

    name: str
    lease: str
    url: str  # empty if other nodes cannot reach it
    address: Address | None = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "address", Address.of(self.url) if self.url else None)


class ElsewhereError(Exception):
    """The member belongs to another node. Nothing was sent to it from here.

    `end_call(error)` ends the call in the log, in case that no other node can do it. None says that the client went
    away.
    """

    def __init__(self, member_id: int, member: str, peer: Peer) -> None:
        super().__init__(f"member {member!r} runs on node {peer.name!r}")
        self.member_id = member_id
        self.member = member
        self.peer = peer
        self.end_call: Callable[[ClientError | MethodError | None], None] = lambda error: None


def owner_of(member: GuildMember, own_lease: uuid.UUID) -> Peer | None:
    """Return the other node whose runtime owns the member now. None if there is none."""
    if member.lease_id in (None, own_lease):
        return None
    row = Node.objects.filter(lease_id=member.lease_id).first()
    return None if row is None else _peer(row)


def _load(own_lease: uuid.UUID) -> tuple[bool, list[Peer]]:
    """Return whether the hall has other nodes, and those that run."""
    if not lease.has_other_nodes():
        return False, []
    rows = Node.objects.exclude(lease_id=None).exclude(lease_id=own_lease)
    return True, [_peer(row) for row in rows]


def _peer(row: Node) -> Peer:
    return Peer(row.name, row.lease_id.hex if row.lease_id else "", row.url)


class Peers:
    """The nodes that run now. `on_change` is called when they have changed.

    A node without an address gets no requests of others, but it sends them.
    """

    def __init__(self, own_lease: uuid.UUID) -> None:
        self.own_lease = own_lease
        self._looked_at = -SHORTEST_LOOK_SECONDS
        self._looking = asyncio.Lock()
        self.are_several = False  # the hall has other nodes, which may not run now
        self.by_lease: dict[str, Peer] = {}
        self.on_change: Callable[[list[Peer]], None] = lambda gone: None

    @property
    def reachable(self) -> dict[str, Peer]:
        """The nodes with an address, by lease."""
        return {lease_id: peer for lease_id, peer in self.by_lease.items() if peer.address is not None}

    async def look_regularly(self) -> None:
        """Look forever. With SQLite there is nothing to see."""
        while connection.vendor != "sqlite":
            try:
                await self.look()
            except Exception:
                logger.exception("the nodes could not be read; the gateway looks again")
            await asyncio.sleep(LOOK_SECONDS if self.are_several else LOOK_ALONE_SECONDS)

    async def look(self) -> None:
        """Read the nodes, but not more often than every SHORTEST_LOOK_SECONDS. After an error, keep those in memory."""
        loop = asyncio.get_running_loop()
        async with self._looking:
            if loop.time() < self._looked_at + SHORTEST_LOOK_SECONDS:
                return
            try:
                self.are_several, peers = await loop.run_in_executor(None, unit_of_work, lambda: _load(self.own_lease))
            except Error as error:
                logger.warning("the nodes cannot be read (%s); using those in memory", str(error).strip())
                return
            finally:
                self._looked_at = loop.time()
        before, self.by_lease = self.by_lease, {peer.lease: peer for peer in peers}
        if before.keys() != self.by_lease.keys():
            self.on_change([peer for lease_id, peer in before.items() if lease_id not in self.by_lease])
