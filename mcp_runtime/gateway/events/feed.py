"""Looks at the rows while a stream is open, and tells each stream what has changed for it.

All nodes of a hall write into one database, so each gateway knows the changes of all of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from typing import TypeVar

from django.db import Error

from mcp_runtime.gateway.events import snapshots
from mcp_runtime.gateway.events.snapshots import Snapshot
from mcp_runtime.gateway.events.subscriber import CALLS, MemberChanges, Position, Subscriber
from mcp_runtime.gateway.streams.client_streams import COMMENT_SECONDS, TooManyStreamsError
from mcp_runtime.protocol.errors import AccessError
from mcp_runtime.rows.database import unit_of_work
from mcp_runtime.security import limits
from mcp_runtime.security.access import Principal

logger = logging.getLogger("guildhall.gateway")

T = TypeVar("T")
PrincipalOf = Callable[[bytes | None], Awaitable[Principal]]

LOOK_SECONDS = 0.5  # between two looks at the rows
AFTER_ERROR_SECONDS = 2.0
LONGEST_RESUME_SECONDS = 5.0  # the next look still has the calls that ended meanwhile, if it is less than OVERLAP
STREAMS_AT_ONCE = 50  # streams that get changes before other work may run
COMMENT = b":\n\n"
AWAY_TOO_LONG = "you were away for too long, or more calls ended meanwhile than are sent as events"


class Feed:
    """All open streams of events. Use it only on the gateway's event loop."""

    def __init__(self) -> None:
        self.bytes = limits.bytes_of_streams()
        self._open: set[Subscriber] = set()  # all open streams
        self._subscribers: set[Subscriber] = set()  # those that get changes
        self._access_changes = 0
        self._has_subscribers = asyncio.Event()
        self._snapshot: Snapshot | None = None  # None while nobody listens
        self._since = datetime.max.replace(tzinfo=UTC)  # when the first stream was opened, for the first look

    # Streams ------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def opened(self, subscriber: Subscriber) -> Iterator[None]:
        """Count the stream among the open ones, and keep its rights current. Raises TooManyStreamsError."""
        self._require_room(subscriber.principal)
        self._open.add(subscriber)
        try:
            yield
        finally:
            self._open.discard(subscriber)
            subscriber.outbox.discard()
            subscriber.outbox.finish_sending()

    def _require_room(self, principal: Principal) -> None:
        owners = (stream.principal.owner for stream in self._open)
        if not limits.has_room_for_stream(principal.owner, owners):
            raise TooManyStreamsError

    async def renew_access(self, subscriber: Subscriber, principal_of: PrincipalOf) -> None:
        """Give an open stream the rights of now. Raises what `principal_of` raises."""
        changes = self._access_changes
        principal = await principal_of(subscriber.authorization)
        if changes == self._access_changes:  # otherwise it may be outdated, and `access_changed` knows the stream
            subscriber.change_principal(principal)

    async def events(self, subscriber: Subscriber, since: datetime, position: Position | None) -> AsyncGenerator[bytes]:
        """The events for an open stream since then, until it ends. While it is idle there are comments.

        `position` is where it resumes.
        """
        try:
            if not subscriber.outbox.is_closed:  # otherwise it has its last event already
                await self._join(subscriber, since, position)
            while True:
                message = await subscriber.outbox.take(COMMENT_SECONDS)
                if subscriber.principal.is_expired or (message is None and subscriber.outbox.is_closed):
                    return
                yield message[0] if message is not None else COMMENT
        finally:
            self._subscribers.discard(subscriber)

    async def _join(self, subscriber: Subscriber, since: datetime, position: Position | None) -> None:
        subscriber.at = since
        if position is not None and CALLS in subscriber.selection.topics:
            subscriber.at = position.at
            await self._resume_calls(subscriber, position, since)
        self._subscribers.add(subscriber)
        self._since = min(self._since, since)
        self._has_subscribers.set()

    async def _resume_calls(self, subscriber: Subscriber, position: Position, since: datetime) -> None:
        """Send the calls that ended while the client was away."""
        began = asyncio.get_running_loop().time()
        look = partial(snapshots.calls_since, position.at, subscriber.principal, subscriber.selection.calls)
        calls = await in_thread(look)
        if calls is None or asyncio.get_running_loop().time() - began > LONGEST_RESUME_SECONDS:
            subscriber.ask_to_read(AWAY_TOO_LONG)
        else:
            subscriber.resumed_calls = {call.pk: call for call in calls}
            subscriber.send_calls(calls)
        subscriber.flush(since)

    async def access_changed(self, principal_of: PrincipalOf) -> None:
        """After a change of permissions, end the streams without access. The others get what they may see now."""
        self._access_changes += 1
        for subscriber in list(self._open):
            try:
                await self.renew_access(subscriber, principal_of)
            except (AccessError, Error):  # without the database access cannot be checked. The client can reconnect
                subscriber.outbox.discard()  # also what a slow client has not read, and what still comes for it

    def close(self) -> None:
        for subscriber in self._open:
            subscriber.outbox.close()

    # Looks --------------------------------------------------------------------------------------------------------

    async def look_regularly(self) -> None:
        """Look forever, while a stream is open."""
        while True:
            if not self._subscribers:
                self._snapshot, self._since = None, datetime.max.replace(tzinfo=UTC)
                self._has_subscribers.clear()
                await self._has_subscribers.wait()
            try:
                await self._look()
            except Error as error:
                logger.warning("the rows for events cannot be read (%s); trying again", str(error).strip())
                await asyncio.sleep(AFTER_ERROR_SECONDS)
            except Exception:
                logger.exception("events cannot be sent; trying again")
                await asyncio.sleep(AFTER_ERROR_SECONDS)
            await asyncio.sleep(LOOK_SECONDS)

    async def _look(self) -> None:
        before = self._snapshot
        subscribers = list(self._subscribers)  # one that joins meanwhile may know newer states than this look finds
        selected = frozenset(s.selection.call for s in subscribers if s.selection.call is not None)
        snapshot = await in_thread(partial(snapshots.take, self._since, before, selected))
        members = _changed_members(before, snapshot)
        deleted = selected - snapshot.calls.keys()
        calls = [call for call in snapshot.calls.values() if before and call != before.calls.get(call.pk)]
        for number, subscriber in enumerate(subscribers, 1):
            if number % STREAMS_AT_ONCE == 0:
                await asyncio.sleep(0)
            if subscriber not in self._subscribers:
                continue  # it has ended meanwhile
            if not subscriber.is_current:
                subscriber.catch_up(snapshot)
            else:
                subscriber.send_members(members)
                subscriber.send_calls(calls)
            subscriber.note_missing(snapshot)
            subscriber.flush(snapshot.at)
            if subscriber.selection.call in deleted:
                subscriber.outbox.close()
        self._snapshot = snapshot


def _changed_members(before: Snapshot | None, after: Snapshot) -> MemberChanges:
    if before is None:
        return {}
    old, new = before.members, after.members
    return {name: (old.get(name), new.get(name)) for name in old.keys() | new.keys() if old.get(name) != new.get(name)}


async def in_thread(work: Callable[[], T]) -> T:
    """The result of `work`, which may read the database."""
    return await asyncio.get_running_loop().run_in_executor(None, unit_of_work, work)
