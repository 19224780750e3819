"""Handles announcements of members outside calls: changes of their lists of tools, prompts or resources."""

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
LISTEN_PAUSE = 30.0  # between the starts of two streams
LISTEN_AGAIN = 1.0
REFRESH_PAUSE = 5.0  # seconds between two refreshes that the member itself requests


class Announcements:
    """The announcements to one runtime. Calls `on_lists_changed(member_id)` for prompts and resources."""

    def __init__(self, members: LiveMembers, statuses: Statuses, on_lists_changed: Callable[[int], None]) -> None:
        self._members = members
        self._statuses = statuses
        self._on_lists_changed = on_lists_changed
        self._pending_refreshes: set[int] = set()  # members whose tools changed since they were listed
        self._last_refreshes: dict[int, float] = {}

    def hear(self, member_id: int, method: str, params: dict[str, Any]) -> None:
        if method == TOOLS_CHANGED:
            self._pending_refreshes.add(member_id)
        elif method in (PROMPTS_CHANGED, RESOURCES_CHANGED):
            self._on_lists_changed(member_id)

    def request_refreshes(self) -> None:
        """Request refreshes of members whose tools changed. At most every few seconds for each member."""
        now = time.monotonic()
        for member_id in list(self._pending_refreshes):
            if self._members.get(member_id) is None:
                self._pending_refreshes.discard(member_id)  # its next start lists them
            elif now >= self._last_refreshes.get(member_id, 0.0) + REFRESH_PAUSE:
                # This comes first, so that its next announcement counts again. A member that is starting waits.
                self._pending_refreshes.discard(member_id)
                row = self._statuses.own_row(member_id).filter(status=Status.CONNECTED, refresh_requested_at=None)
                if row.update(refresh_requested_at=timezone.now()):
                    self._last_refreshes[member_id] = now
                else:
                    self._pending_refreshes.add(member_id)

    def listen_to(self, member: LiveMember) -> None:
        """Listen to the member in a separate thread, as long as it is connected."""
        threading.Thread(target=self._listen, args=(member,), name=f"listen-{member.name}", daemon=True).start()

    def _listen(self, member: LiveMember) -> None:
        while self._members.holds(member) and not member.stop_requested.is_set():
            began_at = time.monotonic()
            try:
                member.client.listen(member.listening, LISTEN_SECONDS)
            except HttpStatusError as error:
                if error.status in (404, 405, 501):
                    return  # the member has no such stream
            except ClientError:
                pass
            # After a long stream the next one begins soon, because requests of the member need an answer.
            pause = max(LISTEN_PAUSE - (time.monotonic() - began_at), min(LISTEN_AGAIN, LISTEN_PAUSE))
            if member.process.exited.wait(pause) or member.stop_requested.is_set():
                return
            if member.announces_changes:
                self._pending_refreshes.add(member.member_id)  # it may have announced changes between two streams
                self._on_lists_changed(member.member_id)
