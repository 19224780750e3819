"""Streams of sessions with members, on which a member says what belongs to no request.

Each is read whether or not a client's stream is told of it: what the member asks there has to be answered.
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

EAR_SECONDS = 5.0  # that a member is still listened to when nobody wants to hear
EAR_SESSION_SECONDS = 900.0  # in a session, after the last request: what is asked may take as long as people take
EAR_LOOK = 0.5
EAR_SESSION_LOOK = 5.0
OPEN_SECONDS = 0.5  # that a request waits for its session's stream to be open
AGAIN_SECONDS = 1.0  # before a member's stream that ended is opened anew
NO_STREAM = (404, 405, 501)  # a member that offers none


@dataclass(eq=False)
class UpstreamListener:
    """The stream of one session with a member, on which it says what belongs to no request.

    It is read whether or not a client's stream is told of it: what the member asks there has to be answered.
    """

    upstream_session: UpstreamSession
    session: ClientSession | None
    streams: set[OpenStream] = field(default_factory=set)
    left_at: float = 0.0  # when the last of them went
    is_open: asyncio.Event = field(default_factory=asyncio.Event)
    is_closing: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] = field(init=False)


class UpstreamListeners:
    """All of them. `reader_of(listener)` is the stream of the session's client, if it has one."""

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
        upstream_sessions.open_listener = self.listen_in

    def member_changed(self) -> None:
        for listener in self._listeners.values():
            if not self._is_current(listener):
                listener.is_closing.set()  # servers that end politely wait for their streams to end

    def readers_changed(self, sessions: Collection[ClientSession | None]) -> None:
        """Clients with these sessions hold streams open, but may hear less than before."""
        for listener in self._listeners.values():
            if listener.session in sessions and self._reader_of(listener) is None:
                listener.is_closing.set()

    def close(self) -> None:
        for listener in self._listeners.values():
            listener.is_closing.set()

    async def listen_in(self, upstream_session: UpstreamSession, session: ClientSession | None) -> None:
        """Open the stream of a session, as clients do after the handshake: there the member asks what is of no call."""
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
        """Of too many streams that no client is told of the oldest is closed: of the same token, or the same user."""
        idle = [one for one in self._listeners.values() if not one.streams and not one.is_closing.is_set()]
        of_user = [one for one in idle if one.upstream_session.owner[0] == owner[0]]
        of_token = [one for one in of_user if one.upstream_session.owner == owner]
        if len(of_token) >= limits.MAX_STREAMS_OF_TOKEN:
            of_token[0].is_closing.set()
        elif len(of_user) >= limits.MAX_STREAMS_OF_USER:
            of_user[0].is_closing.set()

    def _listener_for(self, upstream_session: UpstreamSession, session: ClientSession | None) -> UpstreamListener:
        listener = self._listeners.get(upstream_session)
        if listener is None or listener.task.done() or listener.is_closing.is_set():
            listener = self._listeners[upstream_session] = UpstreamListener(upstream_session, session)
            listener.task = asyncio.ensure_future(self._listen_for(listener))
            listener.task.add_done_callback(_take_note)
        return listener

    async def share(self, stream: OpenStream, upstream_session: UpstreamSession, uris: list[str]) -> None:
        """A session has one stream, whoever is told of it: modern clients of one token share both."""
        if upstream_session.route in self._without_stream:
            raise HttpStatusError(405)
        listener = self._listener_for(
            upstream_session, stream.client.session if upstream_session.id is not None else None
        )
        listener.streams.add(stream)
        opening = asyncio.ensure_future(listener.is_open.wait())
        try:
            for uri in uris:  # of a session as well: it may be another process now
                await self._upstream_sessions.subscribe(upstream_session, uri)
            await asyncio.wait({listener.task, opening}, return_when=FIRST_COMPLETED)
            if listener.is_open.is_set():
                stream.heard[upstream_session.route.live.name].set()
            await asyncio.wait({listener.task})  # which goes on when this stream is closed
            listener.task.result()
        finally:
            opening.cancel()
            listener.streams.discard(stream)
            listener.left_at = asyncio.get_running_loop().time()

    async def let_go(self, upstream_session: UpstreamSession) -> None:
        """Close the stream of the session, for a client that goes on with it where it lost it."""
        if (listener := self._listeners.get(upstream_session)) is not None:
            listener.is_closing.set()
            await asyncio.wait({listener.task}, timeout=OPEN_SECONDS)

    async def _tell_of(self, response: Response, listener: UpstreamListener) -> None:
        heard = self._questions.stream_events(
            response, listener.upstream_session, listener.session, lambda: self._reader_of(listener) is not None
        )
        async with contextlib.aclosing(heard) as events:
            async for event in events:
                if event.data:
                    await self._tell(event, listener)
                del event  # it may have megabytes, and the next one may come in an hour

    async def _tell(self, event: Event, listener: UpstreamListener) -> None:
        message = await self._upstream.message(event.data, listener.upstream_session.owner)
        if message.is_request:
            if (reader := self._reader_of(listener)) is not None:
                reader.outbox.put(event.data, event.event_id if reader in listener.streams else "")
            return
        name = listener.upstream_session.route.live.name
        for stream in [one for one in listener.streams if not one.outbox.is_closed]:
            with contextlib.suppress(ProtocolError):  # nobody can tell whom it is for
                if listener.upstream_session.id is not None or stream.is_asked_for(name, message):
                    stream.carry(name, message, event.event_id)
            if len(event.data) > envelope.MAX_SMALL:
                await asyncio.sleep(0)  # it is written once more for each of them

    async def _listen_for(self, listener: UpstreamListener) -> None:
        """Until the member is another process, or nobody needs it: the next one often comes at once.

        Raises HttpStatusError where the member offers no stream.
        """
        closing = asyncio.ensure_future(listener.is_closing.wait())
        look = (
            EAR_LOOK if listener.upstream_session.id is None else EAR_SESSION_LOOK
        )  # there may be a thousand of these
        has_stream = True
        try:
            while self._is_current(listener):
                response = await self._upstream_sessions.open_stream(listener.upstream_session)
                listener.is_open.set()
                telling = asyncio.ensure_future(self._tell_of(response, listener))
                telling.add_done_callback(_take_note)
                try:
                    while not (telling.done() or closing.done() or self._is_idle(listener)):
                        await asyncio.wait({telling, closing}, timeout=look, return_when=FIRST_COMPLETED)
                    if not telling.done():
                        return
                    with contextlib.suppress(ClientError):
                        telling.result()
                finally:
                    telling.cancel()
                    response.close()
                await asyncio.wait({closing}, timeout=AGAIN_SECONDS)
                if closing.done() or self._is_idle(listener):
                    return
        except HttpStatusError as error:
            has_stream = error.status not in NO_STREAM
            if not has_stream and error.status != 404:  # which is said of a session that is over as well
                self._without_stream.add(listener.upstream_session.route)
            raise
        finally:
            closing.cancel()
            listener.upstream_session.has_listener = not has_stream
            if self._listeners.get(listener.upstream_session) is listener:
                del self._listeners[listener.upstream_session]

    def _is_current(self, listener: UpstreamListener) -> bool:
        live = listener.upstream_session.route.live
        member = self._members.roster.members.get(live.name)
        return member is not None and self._members.connected(member) is live

    def _is_idle(self, listener: UpstreamListener) -> bool:
        if listener.session is not None and listener.upstream_session not in self._upstream_sessions.sessions_of(
            listener.session
        ):
            return True  # the client's session is over
        if listener.streams:
            return False
        now, upstream_session = asyncio.get_running_loop().time(), listener.upstream_session
        if upstream_session.id is None:
            return now - listener.left_at > EAR_SECONDS
        return now - max(listener.left_at, upstream_session.used_at) > EAR_SESSION_SECONDS


def _take_note(task: asyncio.Task[None]) -> None:
    """Of how a task ended that often nobody waits for: else asyncio logs its exception as one that was never seen."""
    error = None if task.cancelled() else task.exception()
    if error is not None and not isinstance(error, ClientError):
        logger.error("what a member said could not be passed on", exc_info=error)
