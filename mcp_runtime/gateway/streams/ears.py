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
from mcp_runtime.gateway.upstream.routes import Route, Wire
from mcp_runtime.gateway.upstream.sessions import Conversation, Conversations
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
class Ear:
    """The stream of one session with a member, on which it says what belongs to no request.

    It is read whether or not a client's stream is told of it: what the member asks there has to be answered.
    """

    conversation: Conversation
    session: ClientSession | None
    streams: set[OpenStream] = field(default_factory=set)
    left_at: float = 0.0  # when the last of them went
    is_open: asyncio.Event = field(default_factory=asyncio.Event)
    is_closing: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] = field(init=False)


class Ears:
    """All of them. `reader_of(ear)` is the stream of the session's client, if it has one."""

    def __init__(
        self,
        wire: Wire,
        conversations: Conversations,
        questions: Questions,
        members: Members,
        reader_of: Callable[[Ear], OpenStream | None],
    ) -> None:
        self._wire = wire
        self._with = conversations
        self._questions = questions
        self._members = members
        self._reader_of = reader_of
        self._ears: dict[Conversation, Ear] = {}
        self._without_stream: WeakSet[Route] = WeakSet()
        conversations.listen = self.listen_in

    def member_changed(self) -> None:
        for ear in self._ears.values():
            if not self._is_current(ear):
                ear.is_closing.set()  # servers that end politely wait for their streams to end

    def readers_changed(self, sessions: Collection[ClientSession | None]) -> None:
        """Clients with these sessions hold streams open, but may hear less than before."""
        for ear in self._ears.values():
            if ear.session in sessions and self._reader_of(ear) is None:
                ear.is_closing.set()

    def close(self) -> None:
        for ear in self._ears.values():
            ear.is_closing.set()

    async def listen_in(self, conversation: Conversation, session: ClientSession | None) -> None:
        """Open the stream of a session, as clients do after the handshake: there the member asks what is of no call."""
        conversation.is_heard = True
        if conversation.route in self._without_stream:
            return
        self._make_room(conversation.owner)
        if len(self._ears) >= 2 * limits.MAX_STREAMS:
            conversation.is_heard = False  # the next request tries again
            return
        ear = self._ear(conversation, session)
        opening = asyncio.ensure_future(ear.is_open.wait())
        try:
            await asyncio.wait({ear.task, opening}, timeout=OPEN_SECONDS, return_when=FIRST_COMPLETED)
        finally:
            opening.cancel()

    def _make_room(self, owner: Owner) -> None:
        """Of too many streams that no client is told of the oldest is closed: of the same token, or the same user."""
        idle = [one for one in self._ears.values() if not one.streams and not one.is_closing.is_set()]
        of_user = [one for one in idle if one.conversation.owner[0] == owner[0]]
        of_token = [one for one in of_user if one.conversation.owner == owner]
        if len(of_token) >= limits.MAX_STREAMS_OF_TOKEN:
            of_token[0].is_closing.set()
        elif len(of_user) >= limits.MAX_STREAMS_OF_USER:
            of_user[0].is_closing.set()

    def _ear(self, conversation: Conversation, session: ClientSession | None) -> Ear:
        ear = self._ears.get(conversation)
        if ear is None or ear.task.done() or ear.is_closing.is_set():
            ear = self._ears[conversation] = Ear(conversation, session)
            ear.task = asyncio.ensure_future(self._listen_for(ear))
            ear.task.add_done_callback(_take_note)
        return ear

    async def share(self, stream: OpenStream, conversation: Conversation, uris: list[str]) -> None:
        """A session has one stream, whoever is told of it: modern clients of one token share both."""
        if conversation.route in self._without_stream:
            raise HttpStatusError(405)
        ear = self._ear(conversation, stream.client.session if conversation.id is not None else None)
        ear.streams.add(stream)
        opening = asyncio.ensure_future(ear.is_open.wait())
        try:
            for uri in uris:  # of a session as well: it may be another process now
                await self._with.subscribe(conversation, uri)
            await asyncio.wait({ear.task, opening}, return_when=FIRST_COMPLETED)
            if ear.is_open.is_set():
                stream.heard[conversation.route.live.name].set()
            await asyncio.wait({ear.task})  # which goes on when this stream is closed
            ear.task.result()
        finally:
            opening.cancel()
            ear.streams.discard(stream)
            ear.left_at = asyncio.get_running_loop().time()

    async def let_go(self, conversation: Conversation) -> None:
        """Close the stream of the session, for a client that goes on with it where it lost it."""
        if (ear := self._ears.get(conversation)) is not None:
            ear.is_closing.set()
            await asyncio.wait({ear.task}, timeout=OPEN_SECONDS)

    async def _tell_of(self, response: Response, ear: Ear) -> None:
        heard = self._questions.hear(response, ear.conversation, ear.session, lambda: self._reader_of(ear) is not None)
        async with contextlib.aclosing(heard) as events:
            async for event in events:
                if event.data:
                    await self._tell(event, ear)
                del event  # it may have megabytes, and the next one may come in an hour

    async def _tell(self, event: Event, ear: Ear) -> None:
        message = await self._wire.message(event.data, ear.conversation.owner)
        if message.is_request:
            if (reader := self._reader_of(ear)) is not None:
                reader.outbox.put(event.data, event.event_id if reader in ear.streams else "")
            return
        name = ear.conversation.route.live.name
        for stream in [one for one in ear.streams if not one.outbox.is_closed]:
            with contextlib.suppress(ProtocolError):  # nobody can tell whom it is for
                if ear.conversation.id is not None or stream.is_asked_for(name, message):
                    stream.carry(name, message, event.event_id)
            if len(event.data) > envelope.MAX_SMALL:
                await asyncio.sleep(0)  # it is written once more for each of them

    async def _listen_for(self, ear: Ear) -> None:
        """Until the member is another process, or nobody needs it: the next one often comes at once.

        Raises HttpStatusError where the member offers no stream.
        """
        closing = asyncio.ensure_future(ear.is_closing.wait())
        look = EAR_LOOK if ear.conversation.id is None else EAR_SESSION_LOOK  # there may be a thousand of these
        has_stream = True
        try:
            while self._is_current(ear):
                response = await self._with.open_stream(ear.conversation)
                ear.is_open.set()
                telling = asyncio.ensure_future(self._tell_of(response, ear))
                telling.add_done_callback(_take_note)
                try:
                    while not (telling.done() or closing.done() or self._is_idle(ear)):
                        await asyncio.wait({telling, closing}, timeout=look, return_when=FIRST_COMPLETED)
                    if not telling.done():
                        return
                    with contextlib.suppress(ClientError):
                        telling.result()
                finally:
                    telling.cancel()
                    response.close()
                await asyncio.wait({closing}, timeout=AGAIN_SECONDS)
                if closing.done() or self._is_idle(ear):
                    return
        except HttpStatusError as error:
            has_stream = error.status not in NO_STREAM
            if not has_stream and error.status != 404:  # which is said of a session that is over as well
                self._without_stream.add(ear.conversation.route)
            raise
        finally:
            closing.cancel()
            ear.conversation.is_heard = not has_stream
            if self._ears.get(ear.conversation) is ear:
                del self._ears[ear.conversation]

    def _is_current(self, ear: Ear) -> bool:
        live = ear.conversation.route.live
        member = self._members.roster.members.get(live.name)
        return member is not None and self._members.connected(member) is live

    def _is_idle(self, ear: Ear) -> bool:
        if ear.session is not None and ear.conversation not in self._with.begun(ear.session):
            return True  # the client's session is over
        if ear.streams:
            return False
        now, conversation = asyncio.get_running_loop().time(), ear.conversation
        if conversation.id is None:
            return now - ear.left_at > EAR_SECONDS
        return now - max(ear.left_at, conversation.used_at) > EAR_SESSION_SECONDS


def _take_note(task: asyncio.Task[None]) -> None:
    """Of how a task ended that often nobody waits for: else asyncio logs its exception as one that was never seen."""
    error = None if task.cancelled() else task.exception()
    if error is not None and not isinstance(error, ClientError):
        logger.error("what a member said could not be passed on", exc_info=error)
