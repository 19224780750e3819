"""What members say outside calls: that the lists of their tools, prompts or resources are others now."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from django.utils import timezone

from mcp_runtime.client.client import PROMPTS_CHANGED, RESOURCES_CHANGED, TOOLS_CHANGED
from mcp_runtime.members.live import LiveMember, LiveMembers
from mcp_runtime.members.status import Status, Statuses
from mcp_runtime.protocol.errors import ClientError, HttpStatusError

LISTEN_SECONDS = 3600.0
LISTEN_PAUSE = 30.0  # between the beginnings of two
LISTEN_AGAIN = 1.0
REFRESH_PAUSE = 5.0  # between two lists that the member asks for itself


class Announcements:
    """Hears all members of one runtime. `on_lists_changed(member_id)` is told of prompts and resources."""

    def __init__(self, members: LiveMembers, statuses: Statuses, on_lists_changed: Callable[[int], None]) -> None:
        self._members = members
        self._statuses = statuses
        self._on_lists_changed = on_lists_changed
        self._tools_changed: set[int] = set()  # members that said so, and are not listed again yet
        self._requested_at: dict[int, float] = {}

    def hear(self, member_id: int, method: str, params: dict[str, Any]) -> None:
        if method == TOOLS_CHANGED:
            self._tools_changed.add(member_id)
        elif method in (PROMPTS_CHANGED, RESOURCES_CHANGED):
            self._on_lists_changed(member_id)

    def request_refreshes(self) -> None:
        """Have the tools of members that said so listed; every few seconds, however often they say it."""
        now = time.monotonic()
        for member_id in list(self._tools_changed):
            if self._members.get(member_id) is None:
                self._tools_changed.discard(member_id)  # its next start lists them
            elif now >= self._requested_at.get(member_id, 0.0) + REFRESH_PAUSE:
                # First: what it says from now on counts again. One that is starting, or listed just now, waits.
                self._tools_changed.discard(member_id)
                row = self._statuses.own_row(member_id).filter(status=Status.CONNECTED, refresh_requested_at=None)
                if row.update(refresh_requested_at=timezone.now()):
                    self._requested_at[member_id] = now
                else:
                    self._tools_changed.add(member_id)

    def listen_to(self, live: LiveMember) -> None:
        """As long as it is connected, in a thread of its own."""
        threading.Thread(target=self._listen, args=(live,), name=f"listen-{live.name}", daemon=True).start()

    def _listen(self, live: LiveMember) -> None:
        while self._members.connected(live.member_id) is live:
            opened = time.monotonic()
            try:
                live.client.listen(live.listening, LISTEN_SECONDS)
            except HttpStatusError as error:
                if error.status in (404, 405, 501):
                    return  # it has no such stream
            except ClientError:
                pass
            # Soon after one that lasted: what the member asks has to be answered.
            pause = max(LISTEN_PAUSE - (time.monotonic() - opened), min(LISTEN_AGAIN, LISTEN_PAUSE))
            if live.process.exited.wait(pause) or live.stop_asked.is_set():
                return
            if live.announces_changes:
                self._tools_changed.add(live.member_id)  # it may have said so while nobody listened
                self._on_lists_changed(live.member_id)
