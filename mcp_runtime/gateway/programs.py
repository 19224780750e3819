"""Record which client programs use each token: one row per program, updated at intervals.

A program chooses its own name and version, and may change them each time. So their number and lengths are limited.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from django.db import Error, IntegrityError
from django.db.models import F

from mcp_runtime.members.logs import plain
from mcp_runtime.rows.database import give_connection_back, short_transaction
from mcp_runtime.security.limits import Owner
from roster.models import TokenClient

logger = logging.getLogger("guildhall.gateway")

WRITE_SECONDS = 60.0  # between two writes of one row
FORGET_SECONDS = 600.0
MAX_TALLIES = 1_000  # in memory. Further programs are not recorded until others have been inactive for FORGET_SECONDS
MAX_TALLIES_OF_USER = 200  # a user can have any number of tokens
MAX_TALLIES_OF_TOKEN = 100
MAX_OF_TOKEN = 20  # rows. The least recently seen is deleted
MAX_AT_ONCE = 50  # rows of one write
MAX_NAME = 100
MAX_VERSION = 50


@dataclass(frozen=True, slots=True)
class Program:
    """The name and version that a program sends. A program without a name is not recorded."""

    name: str = ""
    version: str = ""

    @classmethod
    def from_client_info(cls, info: Any) -> Program:
        """Create it from MCP's `clientInfo`, which may be any value."""
        info_fields = info if isinstance(info, dict) else {}
        return cls(_line(info_fields.get("name"), MAX_NAME), _line(info_fields.get("version"), MAX_VERSION))


NAMELESS = Program()


def _line(text: Any, length: int) -> str:
    return " ".join(plain(text[: 2 * length]).split())[:length] if isinstance(text, str) else ""


@dataclass(slots=True)
class _Tally:
    user_id: int | None  # owner of the token
    seen_at: float
    calls: int = 0
    is_new: bool = True  # has changes that are not written
    written_at: float = float("-inf")


class Programs:
    """Records client programs. Any thread may call `note`. One thread waits for `news` and calls `write`.

    Times are in seconds since the epoch.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.news = threading.Event()
        self._clock = clock
        self._lock = threading.Lock()
        self._tallies: dict[tuple[int, Program], _Tally] = {}

    def note(self, owner: Owner, program: Program, *, calls: int = 0) -> None:
        user_id, token_id = owner
        if token_id is None or not program.name:
            return
        with self._lock:
            tally = self._tallies.get((token_id, program))
            if tally is None and not self._has_room_for(owner):
                return
            if tally is None:
                tally = self._tallies[token_id, program] = _Tally(user_id, self._clock())
            tally.seen_at, tally.is_new = self._clock(), True
            tally.calls += calls
        if not self.news.is_set():
            self.news.set()

    def _has_room_for(self, owner: Owner) -> bool:
        """Limit the programs of each token and user, because a program can send a new name each time."""
        user_id, token_id = owner
        tokens = [key[0] for key, tally in self._tallies.items() if tally.user_id == user_id]
        of_token = sum(other_token == token_id for other_token in tokens)
        return (
            len(self._tallies) < MAX_TALLIES and len(tokens) < MAX_TALLIES_OF_USER and of_token < MAX_TALLIES_OF_TOKEN
        )

    def write(self, *, at_once: bool = False) -> None:
        """Write the rows that are due. With `at_once`, write all of them, before a stop."""
        due_keys = self._due_keys(at_once)
        try:
            self._write(due_keys)
        finally:
            if due_keys:
                give_connection_back()

    def _write(self, due_keys: list[tuple[int, Program]]) -> None:
        for token_id, program in due_keys:
            with self._lock:
                tally = self._tallies[token_id, program]
                calls, seen_at = tally.calls, tally.seen_at
                tally.calls, tally.is_new, tally.written_at = 0, False, self._clock()
            try:
                save(token_id, program, calls, datetime.fromtimestamp(seen_at, UTC))
            except IntegrityError:  # the token was deleted
                continue
            except Error as error:
                logger.warning("a client program could not be recorded (%s)", str(error).strip())
                with self._lock:
                    tally.calls, tally.is_new = tally.calls + calls, True
                return

    def _due_keys(self, at_once: bool) -> list[tuple[int, Program]]:
        now = self._clock()
        with self._lock:
            for key in [key for key, tally in self._tallies.items() if _is_silent(tally, now)]:
                del self._tallies[key]
            due_keys = [
                key
                for key, tally in self._tallies.items()
                if tally.is_new and (at_once or tally.written_at + WRITE_SECONDS <= now)
            ]
        return due_keys if at_once else due_keys[:MAX_AT_ONCE]


def _is_silent(tally: _Tally, now: float) -> bool:
    return not tally.is_new and tally.seen_at + FORGET_SECONDS < now


def save(token_id: int, program: Program, calls: int, seen_at: datetime) -> None:
    """Add the calls to the row of the program, which may be the first of this token."""
    of_token = TokenClient.objects.filter(token=token_id)
    row = of_token.filter(name=program.name, version=program.version)
    if row.update(last_seen_at=seen_at, calls=F("calls") + calls):
        return
    with short_transaction():
        newest = list(of_token.order_by("-last_seen_at", "-pk").values_list("pk", flat=True)[: MAX_OF_TOKEN - 1])
        of_token.exclude(pk__in=newest).delete()
        TokenClient.objects.create(
            token_id=token_id,
            name=program.name,
            version=program.version,
            first_seen_at=seen_at,
            last_seen_at=seen_at,
            calls=calls,
        )
