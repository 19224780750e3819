"""What is there: the catalog in memory, kept as the rows tell it, and the process of each member.

On the gateway's loop alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial

from django.db import Error

from mcp_runtime.gateway import catalog, failures
from mcp_runtime.gateway.catalog import Extras, OfferedMember, Roster
from mcp_runtime.gateway.messages import Request
from mcp_runtime.members.availability import Availability
from mcp_runtime.members.lifecycle import Lifecycle
from mcp_runtime.members.live import LiveMember
from mcp_runtime.protocol.errors import MethodError
from mcp_runtime.protocol.jsonrpc import INTERNAL_ERROR
from mcp_runtime.rows.database import unit_of_work
from roster.models import GuildMember

logger = logging.getLogger("guildhall.gateway")

RELOAD_SECONDS = 10.0  # rows are the truth: looked at this often even when nobody told of a change
SHORTEST_RELOAD = 0.05
LOOK_AGAIN = 0.1  # between two looks because of a name that nobody knows
LOOK_SHARE = 0.05  # of the time, for such looks: the roster of a large hall takes long to load
AVAILABLE_LOOK = 0.2  # how often who waits for a member asks whether there is any use


class Members:
    """`roster` is replaced whenever rows say something else; `on_reload` is awaited then."""

    def __init__(self, lifecycle: Lifecycle, availability: Availability) -> None:
        self._lifecycle = lifecycle
        self._availability = availability
        self._extras: dict[str, Extras] = {}
        self._look_again_at = 0.0
        self._stale = asyncio.Event()
        self._changes: dict[int, asyncio.Event] = {}  # of members that requests wait for
        self.roster = Roster()
        self.on_reload: Callable[[], Awaitable[None]] | None = None

    # The catalog --------------------------------------------------------------------------------------------------

    async def keep(self) -> None:
        """For ever: read the rows again whenever somebody knows of a change, and now and then."""
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
        """What is in memory serves on where the rows cannot be read."""
        load = partial(catalog.load, dict(self._extras), self.roster)
        try:
            self.roster = await asyncio.get_running_loop().run_in_executor(None, unit_of_work, load)
        except Error as error:
            logger.warning("the roster cannot be read (%s); the one in memory serves", str(error).strip())
            return
        except Exception:
            logger.exception("the roster cannot be read; the one in memory serves")
            return
        if self.on_reload is not None:
            await self.on_reload()

    async def look_again(self) -> None:
        """Somebody names something that is not in memory: it may be that young."""
        began = asyncio.get_running_loop().time()
        if began > self._look_again_at:
            self._look_again_at = began + LOOK_AGAIN
            await self.reload()
            # Names that nobody knows cost nothing to invent.
            took = asyncio.get_running_loop().time() - began
            self._look_again_at = max(self._look_again_at, began + took / LOOK_SHARE)

    def learned(self, name: str, extras: Extras) -> None:
        """The prompts and resources that the member lists now."""
        if extras != self._extras.get(name, Extras()):
            self._extras[name] = extras
            self._stale.set()

    def changed(self, member_id: int) -> None:
        """The member's status or its tools."""
        self._stale.set()
        if (event := self._changes.pop(member_id, None)) is not None:
            event.set()

    def named(self, name: str) -> OfferedMember:
        """Raises MethodError for one that is not on the roster."""
        member = self.roster.members.get(name)
        if member is None:
            text = f"no member {name!r} is on the roster, or it is disabled"
            raise MethodError(INTERNAL_ERROR, text, {"member": name})
        return member

    # Processes ----------------------------------------------------------------------------------------------------

    def seems_connected(self, member: OfferedMember) -> LiveMember | None:
        """Its process if it may be asked, as far as is known without asking the OS."""
        return self._lifecycle.connected_member(member.pk)

    def connected(self, member: OfferedMember) -> LiveMember | None:
        """Its process if it may be asked now."""
        live = self._lifecycle.connected_member(member.pk)
        return None if live is None or live.process.is_over else live  # its status hears of an exit a bit later

    async def live(self, member: OfferedMember, request: Request) -> LiveMember:
        """Its process, as soon as it may be called: it is started if need be (REQ-MCP-HTTP-19).

        Raises MethodError as soon as there is no use in waiting.
        """
        since, seconds = time.monotonic(), request.deadline.seconds
        request.unsent_reason = late = f"it was not connected within {seconds:g} s"
        look = partial(self._no_use_waiting, member.pk, since, since + seconds)
        while True:
            event = self._changes.setdefault(member.pk, asyncio.Event())
            if (live := self.connected(member)) is not None:
                return live
            reason, last_reason = await asyncio.get_running_loop().run_in_executor(None, unit_of_work, look)
            if reason:
                raise failures.unavailable(member.name, reason)
            request.unsent_reason = late + (f": {last_reason}" if last_reason else "")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(AVAILABLE_LOOK):
                    await event.wait()

    def _no_use_waiting(self, member_id: int, since: float, deadline: float) -> tuple[str, str]:
        """Why not, empty while there is some use; and why a member failed that waits for its restart."""
        self._availability.ask_for_start(member_id)
        row = GuildMember.objects.get(pk=member_id)
        last_reason = row.last_reason if row.status == GuildMember.Status.ERROR else ""
        return self._availability.no_use_waiting(row, since, deadline), last_reason
