"""Listen to the streams on which members send notifications and questions outside of requests.

Each stream is read even if no client listens, because the member's questions must be answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from asyncio import FIRST_COMPLETED
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from weakref import WeakSet

from mcp_runtime.gateway import envelope
from mcp_runtime.gateway.members import Members
from mcp_runtime.gateway.messages import ClientSession, Event
from mcp_runtime.gateway.streams.open_stream import OpenStream
from mcp_runtime.gateway.upstream.questions import Questions
from mcp_runtime.gateway.upstream.routes import Route, Upstream
from mcp_runtime.gateway.upstream.sessions import UpstreamSession, UpstreamSessions
from mcp_runtime.http1.client import Response
from mcp_runtime.protocol.errors import ClientError, HttpStatusError, ProtocolError
from mcp_runtime.security import limits
from mcp_runtime.security.limits import Owner

logger = logging.getLogger("guildhall.gateway")

IDLE_SECONDS = 5.0  # to keep a listener without client streams
IDLE_SESSION_SECONDS = 900.0  # the same in a session, after its last request: people may take long to answer
IDLE_CHECK_SECONDS = 0.5
IDLE_SESSION_CHECK_SECONDS = 5.0
OPEN_SECONDS = 0.5  # that a request waits until the stream of its session is open
AGAIN_SECONDS = 1.0  # before a member's stream is opened again after its end
NO_STREAM = (404, 405, 501)  # statuses of a member without such a stream


@dataclass(eq=False)
class UpstreamListener:
    """Reads the stream of one session with a member, for notifications and questions outside of requests.

    It reads even if no client listens, because the member's questions must be answered.
    """

    upstream_session: UpstreamSession
    session: ClientSession | None
    streams: set[OpenStream] = field(default_factory=set)
    unused_since: float = 0.0  # when the last client stream was removed
    is_open: asyncio.Event = field(default_factory=asyncio.Event)
    is_closing: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] = field(init=False)


class UpstreamListeners:
    """All listeners. `reader_of(listener)` returns the stream of the session's client, if there is one."""

    def __init__(
        self,
        upstream: Upstream,
        upstream_sessions: UpstreamSessions,
        questions: Questions,
        members: Members,
        reader_of: Callable[[UpstreamListener], OpenStream | None],
    ) -> None:
        self._upstream = upstream
        self._upstream_sessions = upstream_sessions
        self._questions = questions
        self._members = members
        self._reader_of = reader_of
        self._listeners: dict[UpstreamSession, UpstreamListener] = {}
        self._without_stream: WeakSet[Route] = WeakSet()
        upstream_sessions.open_listener = self.open_listener

    def member_changed(self) -> None:
        for listener in self._listeners.values():
            if not self._is_current(listener):
                listener.is_closing.set()  # a server that shuts down gracefully waits for its streams to end

    def readers_changed(self, sessions: Collection[ClientSession | None]) -> None:
        """Close listeners of these sessions whose clients may no longer see the member.

        Clients without a session share a listener. Those that may not see the member have lost their own stream.
        """
        for listener in self._listeners.values():
            if listener.session is not None and listener.session in sessions and self._reader_of(listener) is None:
                listener.is_closing.set()

    def close(self) -> None:
        for listener in self._listeners.values():
            listener.is_closing.set()

    async def open_listener(self, upstream_session: UpstreamSession, session: ClientSession | None) -> None:
        """Open the stream of a session, as clients do after the handshake, for questions outside of calls."""
        upstream_session.has_listener = True
        if upstream_session.route in self._without_stream:
            return
        self._make_room(upstream_session.owner)
        if len(self._listeners) >= 2 * limits.MAX_STREAMS:
            upstream_session.has_listener = False  # the next request tries again
            return
        listener = self._listener_for(upstream_session, session)
        opening = asyncio.ensure_future(listener.is_open.wait())
        try:
            await asyncio.wait({listener.task, opening}, timeout=OPEN_SECONDS, return_when=FIRST_COMPLETED)
        finally:
            opening.cancel()

    def _make_room(self, owner: Owner) -> None:
        """If there are too many listeners without client streams, close the oldest of the same token or user."""
        idle = [
            listener
            for listener in self._listeners.values()
            if not listener.streams and not listener.is_closing.is_set()
        ]
        of_user = [listener for listener in idle if listener.upstream_session.owner[0] == owner[0]]
        of_token = [listener for listener in of_user if listener.upstream_session.owner == owner]
        if len(of_token) >= limits.MAX_STREAMS_OF_TOKEN:
            of_token[0].is_closing.set()
        elif len(of_user) >= limits.MAX_STREAMS_OF_USER:
            of_user[0].is_closing.set()

    def _listener_for(self, upstream_session: UpstreamSession, session: ClientSession | None) -> UpstreamListener:
        listener = self._listeners.get(upstream_session)
        if listener is None or listener.task.done() or listener.is_closing.is_set():
            listener = self._listeners[upstream_session] = UpstreamListener(upstream_session, session)
            listener.task = asyncio.ensure_future(self._listen_for(listener))
            listener.task.add_done_callback(_log_error)
        return listener

    async def share(self, stream: OpenStream, upstream_session: UpstreamSession, uris: list[str]) -> None:
        """Forward the stream of the session to a client's stream, until it ends.

        A session has only one stream. Modern clients of the same token share the session and its stream.
        """
        if upstream_session.route in self._without_stream:
            raise HttpStatusError(405)
        listener = self._listener_for(
            upstream_session, stream.client.session if upstream_session.id is not None else None
        )
        listener.streams.add(stream)
        opening = asyncio.ensure_future(listener.is_open.wait())
        try:
            for uri in uris:  # also in a session, because the process may be new
                await self._upstream_sessions.subscribe(upstream_session, uri)
            await asyncio.wait({listener.task, opening}, return_when=FIRST_COMPLETED)
            if listener.is_open.is_set():
                stream.ready[upstream_session.route.live_member.name].set()
            await asyncio.wait({listener.task})  # it continues when the client's stream is closed
            listener.task.result()
        finally:
            opening.cancel()
            listener.streams.discard(stream)
            listener.unused_since = asyncio.get_running_loop().time()

    async def close_listener(self, upstream_session: UpstreamSession) -> None:
        """Close the listener of the session, because its client resumes the stream itself."""
        if (listener := self._listeners.get(upstream_session)) is not None:
            listener.is_closing.set()
            await asyncio.wait({listener.task}, timeout=OPEN_SECONDS)

    async def _forward_events(self, response: Response, listener: UpstreamListener) -> None:
        events_of_member = self._questions.stream_events(
            response, listener.upstream_session, listener.session, lambda: self._reader_of(listener) is not None
        )
        async with contextlib.aclosing(events_of_member) as events:
            async for event in events:
                if event.data:
                    await self._forward_event(event, listener)
                del event  # it may have megabytes, and the next one may come in an hour

    async def _forward_event(self, event: Event, listener: UpstreamListener) -> None:
        message = await self._upstream.message(event.data, listener.upstream_session.owner)
        if message.is_request:
            if (reader := self._reader_of(listener)) is not None:
                reader.outbox.put(event.data, event.event_id if reader in listener.streams else "")
            return
        name = listener.upstream_session.route.live_member.name
        for stream in [stream for stream in listener.streams if not stream.outbox.is_closed]:
            with contextlib.suppress(ProtocolError):  # an unreadable message has no receiver
                if listener.upstream_session.id is not None or stream.is_for_client(name, message):
                    stream.forward(name, message, event.event_id)
            if len(event.data) > envelope.MAX_SMALL:
                await asyncio.sleep(0)  # it is encoded again for each stream

    async def _listen_for(self, listener: UpstreamListener) -> None:
        """Read the stream until the member's process changes or the listener is idle. Open it again after its end.

        An idle listener stays open for a while, because the next client often comes soon. Raise HttpStatusError if the
        member has no such stream.
        """
        closing = asyncio.ensure_future(listener.is_closing.wait())
        check_seconds = (
            IDLE_CHECK_SECONDS if listener.upstream_session.id is None else IDLE_SESSION_CHECK_SECONDS
        )  # there may be a thousand sessions
        has_stream = True
        try:
            while self._is_current(listener):
                response = await self._upstream_sessions.open_stream(listener.upstream_session)
                listener.is_open.set()
                forwarding = asyncio.ensure_future(self._forward_events(response, listener))
                forwarding.add_done_callback(_log_error)
                try:
                    while not (forwarding.done() or closing.done() or self._is_idle(listener)):
                        await asyncio.wait({forwarding, closing}, timeout=check_seconds, return_when=FIRST_COMPLETED)
                    if not forwarding.done():
                        return
                    with contextlib.suppress(ClientError):
                        forwarding.result()
                finally:
                    forwarding.cancel()
                    response.close()
                await asyncio.wait({closing}, timeout=AGAIN_SECONDS)
                if closing.done() or self._is_idle(listener):
                    return
        except HttpStatusError as error:
            has_stream = error.status not in NO_STREAM
            if not has_stream and error.status != 404:  # 404 also means that the session has ended
                self._without_stream.add(listener.upstream_session.route)
            raise
        finally:
            closing.cancel()
            listener.upstream_session.has_listener = not has_stream
            if self._listeners.get(listener.upstream_session) is listener:
                del self._listeners[listener.upstream_session]

    def _is_current(self, listener: UpstreamListener) -> bool:
        live_member = listener.upstream_session.route.live_member
        member = self._members.roster.members.get(live_member.name)
        return member is not None and self._members.connected_member(member) is live_member

    def _is_idle(self, listener: UpstreamListener) -> bool:
        if listener.session is not None and listener.upstream_session not in self._upstream_sessions.sessions_of(
            listener.session
        ):
            return True  # the client's session has ended
        if listener.streams:
            return False
        now, upstream_session = asyncio.get_running_loop().time(), listener.upstream_session
        if upstream_session.id is None:
            return now - listener.unused_since > IDLE_SECONDS
        return now - max(listener.unused_since, upstream_session.used_at) > IDLE_SESSION_SECONDS


def _log_error(task: asyncio.Task[None]) -> None:
    """Log the error of a task. Otherwise asyncio logs that its exception was never retrieved."""
    error = None if task.cancelled() else task.exception()
    if error is not None and not isinstance(error, ClientError):
        logger.error("messages of a member could not be forwarded", exc_info=error)
