"""The catalog in memory, updated from the database, and the process of each member.

Use it only on the gateway's event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial

from django.db import Error

from mcp_runtime.calls.transitions import refusal_of_held
from mcp_runtime.gateway import catalog_rows, failures
from mcp_runtime.gateway.catalog import OfferedMember, Roster
from mcp_runtime.gateway.messages import NOT_SENT_YET, Request
from mcp_runtime.gateway.peers import LOOK_SECONDS, ElsewhereError, Peer, Peers, owner_of
from mcp_runtime.members.availability import Availability
from mcp_runtime.members.lifecycle import Lifecycle
from mcp_runtime.members.live import LiveMember
from mcp_runtime.protocol.errors import MethodError
from mcp_runtime.protocol.jsonrpc import INTERNAL_ERROR
from mcp_runtime.rows.database import unit_of_work
from roster.models import GuildMember

logger = logging.getLogger("guildhall.gateway")

RELOAD_SECONDS = 10.0  # between two reloads without a notification of a change
SHORTEST_RELOAD = 0.05
RELOAD_UNKNOWN_SECONDS = 0.1  # between two reloads because of unknown names
RELOAD_UNKNOWN_SHARE = 0.05  # of the time, for such reloads: loading the roster of a large hall takes long
AVAILABILITY_SECONDS = 0.2  # between two checks whether a member can still become available


class Members:
    """`roster` is replaced when the database has changed. Then `on_reload` is awaited."""

    def __init__(self, lifecycle: Lifecycle, availability: Availability, peers: Peers) -> None:
        self._lifecycle = lifecycle
        self._availability = availability
        self.peers = peers
        self._owners: dict[int, tuple[float, Peer]] = {}  # by member: until when this is believed, and the other node
        self._next_reload_at = 0.0
        self._stale = asyncio.Event()
        self._changes: dict[int, asyncio.Event] = {}  # by member. Set when a member changes that requests wait for
        self.roster = Roster()
        self.on_reload: Callable[[], Awaitable[None]] | None = None

    # The catalog --------------------------------------------------------------------------------------------------

    async def reload_regularly(self) -> None:
        """Reload forever: after each change, and at least every RELOAD_SECONDS."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RELOAD_SECONDS):
                    await self._stale.wait()
            self._stale.clear()
            await self.reload()
            await asyncio.sleep(SHORTEST_RELOAD)

    def reload_soon(self) -> None:
        self._stale.set()

    async def reload(self) -> None:
        """Load the roster. If that fails, continue with the one in memory."""
        load = partial(catalog_rows.load, self.roster)
        try:
            self.roster = await asyncio.get_running_loop().run_in_executor(None, unit_of_work, load)
        except Error as error:
            logger.warning("the roster cannot be read (%s); using the one in memory", str(error).strip())
            return
        except Exception:
            logger.exception("the roster cannot be read; using the one in memory")
            return
        if self.on_reload is not None:
            await self.on_reload()

    async def reload_for_unknown_name(self) -> None:
        """Reload because a client named something that is not in memory. It may be new."""
        started_at = asyncio.get_running_loop().time()
        if started_at > self._next_reload_at:
            self._next_reload_at = started_at + RELOAD_UNKNOWN_SECONDS
            await self.reload()
            # Clients can invent unknown names at no cost.
            duration = asyncio.get_running_loop().time() - started_at
            self._next_reload_at = max(self._next_reload_at, started_at + duration / RELOAD_UNKNOWN_SHARE)

    def member_changed(self, member_id: int) -> None:
        """Handle a change of the member's status or tools."""
        self._stale.set()
        if (event := self._changes.pop(member_id, None)) is not None:
            event.set()

    def get(self, name: str) -> OfferedMember:
        """Return the member. Raise MethodError if it is not on the roster."""
        member = self.roster.members.get(name)
        if member is None:
            text = f"no member {name!r} is on the roster, or it is disabled"
            raise MethodError(INTERNAL_ERROR, text, {"member": name})
        return member

    # Processes ----------------------------------------------------------------------------------------------------

    def seems_connected(self, member: OfferedMember) -> LiveMember | None:
        """Return its process if it is connected, without asking the operating system whether it still runs."""
        return self._lifecycle.connected_member(member.pk)

    def connected_member(self, member: OfferedMember) -> LiveMember | None:
        """Return its process if it is connected and runs now."""
        live_member = self._lifecycle.connected_member(member.pk)
        # Its status changes a bit later than its exit.
        return None if live_member is None or live_member.process.is_over else live_member

    async def wait_until_connected(self, member: OfferedMember, request: Request) -> LiveMember:
        """Return its process as soon as it is connected. Start it if necessary (REQ-MCP-HTTP-19).

        Raise MethodError as soon as waiting is useless, and ElsewhereError if another node owns the member.
        """
        self._require_own(member)
        started_at, seconds = time.monotonic(), request.deadline.seconds
        base_reason = f"it was not connected within {seconds:g} s"
        if request.unsent_reason == NOT_SENT_YET:  # otherwise the last attempt says more, until the row is known
            request.unsent_reason = base_reason
        look = partial(self._no_use_waiting, member.pk, started_at, started_at + seconds)
        while True:
            event = self._changes.setdefault(member.pk, asyncio.Event())
            if (live_member := self.connected_member(member)) is not None:
                return live_member
            peer, reason, last_reason = await asyncio.get_running_loop().run_in_executor(None, unit_of_work, look)
            if peer is not None:
                await self._note_owner(member, peer)
                self._require_own(member)
            if reason:
                raise failures.unavailable(member.name, reason)
            request.unsent_reason = base_reason + (f": {last_reason}" if last_reason else "")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(AVAILABILITY_SECONDS):
                    await event.wait()

    async def require_not_held(self, live_member: LiveMember, tool: str) -> None:
        """Raise MethodError if the tool waits for an approval. The row says more than the last list of the member."""
        look = partial(refusal_of_held, live_member.member_id, live_member.name, tool)
        if refusal := await asyncio.get_running_loop().run_in_executor(None, unit_of_work, look):
            raise failures.held(live_member.name, refusal)

    def _no_use_waiting(self, member_id: int, started_at: float, deadline: float) -> tuple[Peer | None, str, str]:
        """Return the other node that owns the member, or why waiting is useless, and why a member in ERROR failed.

        Both texts may be empty.
        """
        self._availability.ask_for_start(member_id)
        row = GuildMember.objects.get(pk=member_id)
        if (peer := owner_of(row, self._lifecycle.lease_id)) is not None:
            return peer, "", ""
        last_reason = row.last_reason if row.status == GuildMember.Status.ERROR else ""
        return None, self._availability.no_use_waiting(row, started_at, deadline), last_reason

    # Other nodes --------------------------------------------------------------------------------------------------

    async def require_own(self, member: OfferedMember) -> None:
        """Raise ElsewhereError if another node owns the member. A hall with one node knows that without a look."""
        if not self.peers.are_several or self.connected_member(member) is not None:
            return
        self._require_own(member)

        def look() -> Peer | None:
            return owner_of(GuildMember.objects.get(pk=member.pk), self._lifecycle.lease_id)

        if (peer := await asyncio.get_running_loop().run_in_executor(None, unit_of_work, look)) is not None:
            await self._note_owner(member, peer)
            self._require_own(member)

    def _require_own(self, member: OfferedMember) -> None:
        believed_until, peer = self._owners.get(member.pk, (0.0, None))
        if peer is None:
            return
        if believed_until < asyncio.get_running_loop().time():
            del self._owners[member.pk]
        else:
            raise ElsewhereError(member.pk, member.name, peer)

    async def _note_owner(self, member: OfferedMember, peer: Peer) -> None:
        if peer.lease not in self.peers.by_lease:
            await self.peers.look()  # it has just started. Its member may ask the client, who then answers to all nodes
        self._owners[member.pk] = asyncio.get_running_loop().time() + LOOK_SECONDS, peer

    def forget_owner(self, member_id: int) -> None:
        """Look into the rows again for the next request to the member."""
        self._owners.pop(member_id, None)
