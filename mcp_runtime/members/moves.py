"""Gives members of this node to other nodes: lets the calls of a member end, stops it, and changes its owner."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from mcp_runtime.members.handover import Handover
from mcp_runtime.members.lifecycle import Lifecycle
from mcp_runtime.members.live import LiveMember
from mcp_runtime.rows import ownership
from mcp_runtime.rows.database import give_connection_back
from roster.models import GuildMember, Node

logger = logging.getLogger("guildhall.runtime")

# How long a member that moves waits for its calls to end. It gets no new calls meanwhile, and queued calls wait no
# longer than their timeout, so this must be short.
PATIENCE = 10.0
PAUSE = 20.0  # after a try that did not succeed, because calls ran on
LOOK = 0.05


class Moves:
    """The moves of the members of one runtime. `calls_in(member_id)` counts the queued calls that run in a member."""

    def __init__(
        self,
        lifecycle: Lifecycle,
        handover: Handover,
        calls_in: Callable[[int], int],
        stopping: threading.Event,
    ) -> None:
        self._lifecycle = lifecycle
        self._handover = handover
        self._calls_in = calls_in
        self._stopping = stopping
        self._next_tries: dict[int, float] = {}  # by member id

    def due(self) -> list[tuple[GuildMember, Node]]:
        """The members that should move now, each with its new node."""
        now = time.monotonic()
        departures = self._handover.departures()
        return [(row, target) for row, target in departures if self._next_tries.get(row.pk, now) <= now]

    def move(self, member: GuildMember, target: Node) -> None:
        """Move a member. If its calls go on, or the move was cancelled meanwhile, it stays and gets calls again."""
        live_member = self._lifecycle.live_member(member.pk)
        if live_member is None:
            self._give_away(member, target)
            return
        live_member.is_leaving = True
        try:
            if self._calls_end(live_member):
                self._give_away(member, target)
            else:
                self._next_tries[member.pk] = time.monotonic() + PAUSE
                logger.warning(
                    "member %r does not move to node %r yet: its calls ran for %g s", member.name, target.name, PATIENCE
                )
        finally:
            live_member.is_leaving = False  # it has ended, or it stays

    def _give_away(self, member: GuildMember, target: Node) -> None:
        self._next_tries.pop(member.pk, None)
        if all((row.pk, node.pk) != (member.pk, target.pk) for row, node in self._handover.departures()):
            logger.info("member %r stays here, because its move was cancelled", member.name)
            return
        self._lifecycle.stop(member.pk, cause="move")
        if ownership.give_away(GuildMember.objects.get(pk=member.pk), self._lifecycle.lease_id, target):
            logger.info("member %r moved to node %r", member.name, target.name)

    def _calls_end(self, live_member: LiveMember) -> bool:
        """Wait until no call runs in the member. False if that takes too long."""
        give_connection_back()
        deadline = time.monotonic() + PATIENCE
        while self._calls_in(live_member.member_id) or live_member.relayed_calls:
            if time.monotonic() > deadline or self._stopping.is_set():
                return False
            time.sleep(LOOK)
        return True
