"""The calls that run in members now: what they say of their progress, and how they are cancelled."""

from __future__ import annotations

import threading
import uuid
from functools import partial
from typing import Any

from django.db import transaction

from mcp_runtime.calls import invocations
from mcp_runtime.client.transport import Exchange
from mcp_runtime.members.live import LiveMember
from mcp_runtime.protocol import mcp
from roster.models import Invocation


class RunningCalls:
    """From their claim until their end is written down. Safe to use from many threads."""

    def __init__(self, lease_id: uuid.UUID) -> None:
        self._lease_id = lease_id
        self._lock = threading.Lock()
        self._calls: dict[int, tuple[Invocation, LiveMember, Exchange]] = {}
        self._progress: dict[int, dict[str, Any]] = {}  # invocation id -> what was said last, and is not written yet

    def __len__(self) -> int:
        return len(self._calls)

    def __contains__(self, pk: int) -> bool:
        return pk in self._calls

    def begin(self, invocation: Invocation, live: LiveMember) -> Exchange:
        exchange = Exchange(partial(self._note_progress, invocation.pk))
        with self._lock:
            self._calls[invocation.pk] = (invocation, live, exchange)
            live.calls += 1
        return exchange

    def end(self, invocation: Invocation) -> int:
        """Its end is written down; how many are left."""
        with self._lock:
            self._calls.pop(invocation.pk)[1].calls -= 1
            return len(self._calls)

    def in_member(self, member_id: int) -> list[int]:
        with self._lock:
            return [pk for pk, (invocation, _, _) in self._calls.items() if invocation.member_id == member_id]

    def cancel(self, pk: int, reason: str) -> None:
        """Tell its member, once, that the call is not wanted any more."""
        with self._lock:
            running = self._calls.get(pk)
        if running is not None and not running[2].is_aborted:
            # Not here: telling a hung member takes as long as we let it.
            threading.Thread(target=running[1].client.cancel, args=(running[2], reason), daemon=True).start()

    def _note_progress(self, invocation_id: int, params: dict[str, Any]) -> None:
        if progress := mcp.progress_of(params):
            self._progress[invocation_id] = progress

    def write_progress(self) -> None:
        """What members said last: once a second, however often they say it."""
        latest, self._progress = self._progress, {}
        if not latest:
            return
        with transaction.atomic():
            for invocation_id, progress in latest.items():
                invocations.note_progress(invocation_id, progress, self._lease_id)
