"""What comes unasked: streams that callers hold open, what members say on theirs, and what changes on the roster."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from asyncio import FIRST_COMPLETED
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from weakref import WeakSet

from django.db import Error

from mcp_runtime import jsonrpc, limits, protocol
from mcp_runtime.access import Principal
from mcp_runtime.errors import AccessError, ClientError, HttpStatusError, ProtocolError
from mcp_runtime.gateway import envelope
from mcp_runtime.gateway.connections import Response
from mcp_runtime.gateway.conversations import Conversation, Conversations
from mcp_runtime.gateway.endpoints import Place
from mcp_runtime.gateway.envelope import Message
from mcp_runtime.gateway.messages import Event, Stream
from mcp_runtime.gateway.offers import OfferedMember, Roster, resource_uri
from mcp_runtime.gateway.relay import Relay
from mcp_runtime.gateway.sessions import Caller, CallerSession, Outbox
from mcp_runtime.gateway.wire import Route, Wire
from mcp_runtime.lifecycle import LiveMember
from mcp_runtime.limits import Owner

logger = logging.getLogger("guildhall.gateway")

COMMENT_SECONDS = 15.0  # between two signs of life on a stream that has nothing to say
READY_SECONDS = 2.0  # for members to be listened to before a caller is told that it is
EAR_SECONDS = 5.0  # that a member is still listened to when nobody wants to hear
EAR_SESSION_SECONDS = 900.0  # in a session, after the last request: what is asked may take as long as people take
EAR_LOOK = 0.5
EAR_SESSION_LOOK = 5.0
OPEN_SECONDS = 0.5  # that a request waits for its session's stream to be open
AGAIN_SECONDS = 1.0  # before a member's stream that ended is opened anew
RESOLVED_AT_ONCE = 5  # URIs of a stream; each is compared with templates of all members, and calls go on in between
NO_STREAM = (404, 405, 501)  # a member that offers none

# What a caller may want to hear of: the name in a modern filter, the kind of list, the notification.
KINDS = {
    "toolsListChanged": ("tools", "notifications/tools/list_changed"),
    "promptsListChanged": ("prompts", "notifications/prompts/list_changed"),
    "resourcesListChanged": ("resources", "notifications/resources/list_changed"),
}
RESOURCE_UPDATED = "notifications/resources/updated"
_LIST_CHANGES = frozenset(method for _, method in KINDS.values())


@dataclass(eq=False)
class OpenStream:
    """One stream. `wanted` None: all there is, as callers with sessions get it; else a modern caller's filter."""

    place: Place
    caller: Caller
    outbox: Outbox
    wanted: Mapping[str, Any] | None = None
    listen_id: Any = None
    told: dict[str, bytes] = field(default_factory=dict)  # kind of list -> digest of what the caller may know
    members: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    heard: dict[str, asyncio.Event] = field(default_factory=dict)  # by member: it is listened to, or was tried
    # At the roster, of the URIs of a filter: member and own URI, and what the answer depends on.
    resolved: list[tuple[str, str]] = field(default_factory=list)
    resolved_for: Any = None

    def wants(self, key: str) -> bool:
        return self.wanted is None or self.wanted.get(key) is True

    def put(self, message: dict[str, Any], event_id: str = "") -> None:
        """A notification, tagged with the subscription that it belongs to."""
        if self.wanted is not None:
            params = envelope.fields(message.get("params"))
            meta = {**envelope.fields(params.get("_meta")), f"{protocol.META}subscriptionId": self.listen_id}
            message = {**message, "params": {**params, "_meta": meta}}
        self.outbox.put(envelope.encode(message), event_id)


@dataclass(eq=False)
class Ear:
    """The stream of one session with a member, on which it says what belongs to no request.

    It is read whether or not a client's stream is told of it: what the member asks there has to be answered.
    """

    conversation: Conversation
    session: CallerSession | None
    streams: set[OpenStream] = field(default_factory=set)
    left_at: float = 0.0  # when the last of them went
    is_open: asyncio.Event = field(default_factory=asyncio.Event)
    is_closing: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] = field(init=False)


class TooManyStreamsError(Exception):
    """More open streams than the gateway holds, in all or for this caller."""


class Listening:
    """All open streams. `connected(member)` is the member's process if it may be asked now."""

    def __init__(
        self,
        wire: Wire,
        conversations: Conversations,
        relay: Relay,
        roster: Callable[[], Roster],
        connected: Callable[[OfferedMember], LiveMember | None],
    ) -> None:
        self._wire = wire
        self._with = conversations
        self._relay = relay
        self._roster = roster
        self._connected = connected
        self._open: set[OpenStream] = set()
        self._bytes = limits.bytes_of_streams()
        self._ears: dict[Conversation, Ear] = {}
        self._without_stream: WeakSet[Route] = WeakSet()
        conversations.listen = self._listen_in
        self._member_changed = asyncio.Event()

    # Streams ------------------------------------------------------------------------------------------------------

    async def open(
        self,
        place: Place,
        caller: Caller,
        wanted: Mapping[str, Any] | None = None,
        listen_id: Any = None,
        *,
        give_up: Callable[[], None] = lambda: None,
    ) -> Stream:
        """A new stream, heard from now on; `give_up` ends it when nobody reads it. Raises TooManyStreamsError.

        A modern caller takes the acknowledgement for a promise: members are heard too, or had their time.
        """
        self._require_room(caller.principal)
        outbox = Outbox(caller.principal.owner, self._bytes, give_up)
        stream = OpenStream(place, caller, outbox, wanted, listen_id)
        self._note(stream)
        self._open.add(stream)
        if (session := caller.session) is not None:
            if session.outbox is not None:
                session.outbox.close()  # one at a time: what is said is said once
            session.outbox = stream.outbox
        opened = Stream(self._events(stream), partial(self._close, stream))
        try:
            await self._resolve(stream)
            self._follow_members(stream)
            if wanted is not None:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(READY_SECONDS):
                        for heard in list(stream.heard.values()):
                            await heard.wait()
        except BaseException:
            await opened.aclose()
            raise
        return opened

    def _require_room(self, principal: Principal) -> None:
        of_user = [s.caller.principal for s in self._open if s.caller.principal.user_id == principal.user_id]
        of_token = sum(one.token_id == principal.token_id for one in of_user)
        if (
            len(self._open) >= limits.MAX_STREAMS
            or len(of_user) >= limits.MAX_STREAMS_OF_USER
            or of_token >= limits.MAX_STREAMS_OF_TOKEN
        ):
            raise TooManyStreamsError

    @staticmethod
    async def _events(stream: OpenStream) -> AsyncGenerator[Event]:
        while True:
            said = await stream.outbox.take(COMMENT_SECONDS)
            if stream.caller.principal.is_expired or (said is None and stream.outbox.is_closed):
                return
            yield Event(*said) if said is not None else Event(b"")

    def _close(self, stream: OpenStream) -> None:
        self._open.discard(stream)
        session = stream.caller.session
        if session is not None and session.outbox is stream.outbox:
            session.outbox = None
        for task in stream.members.values():
            task.cancel()
        stream.outbox.discard()
        stream.outbox.sent()

    @staticmethod
    def honoured(asked: Mapping[str, Any]) -> dict[str, Any]:
        """Of what a modern caller wants to hear, what there is, and of that as much as is kept."""
        wanted: dict[str, Any] = {key: True for key in KINDS if asked.get(key) is True}
        uris = asked.get("resourceSubscriptions")
        if isinstance(uris, list) and all(isinstance(uri, str) for uri in uris):
            ends = itertools.accumulate(map(len, uris[: limits.MAX_SUBSCRIPTIONS]))
            kept = sum(end <= limits.MAX_SUBSCRIBED for end in ends)
            wanted["resourceSubscriptions"] = uris[:kept]
        return wanted

    async def look_again(self, principal_of: Callable[[bytes | None], Awaitable[Principal]]) -> None:
        """Somebody may do other things than before: streams go on with what their callers may now, or end."""
        for stream in list(self._open):
            try:
                stream.caller.principal = await principal_of(stream.caller.authorization)
            except (AccessError, Error):  # without the database nobody knows; the caller comes again
                stream.outbox.close()
                continue
            member = stream.place.member
            if member is not None and not stream.caller.principal.may_see(member):
                stream.outbox.close()
        for ear in self._ears.values():
            if any(one.caller.session is ear.session for one in self._open) and self._reader(ear) is None:
                ear.is_closing.set()
        await self.roster_changed()  # what they are shown may be another list now

    def close(self) -> None:
        for stream in list(self._open):
            stream.outbox.close()
        for ear in self._ears.values():
            ear.is_closing.set()

    # The roster ---------------------------------------------------------------------------------------------------

    async def roster_changed(self) -> None:
        """Tell each stream whose lists are others now. Streams may be many: calls go on in between."""
        for stream in list(self._open):
            await asyncio.sleep(0)
            await self._resolve(stream)
            if stream not in self._open:
                continue
            before = stream.told
            self._note(stream)
            for key, (kind, method) in KINDS.items():
                if stream.wants(key) and before.get(kind) != stream.told[kind]:
                    stream.put(jsonrpc.notification(method))
            self._follow_members(stream)

    def member_changed(self) -> None:
        self._member_changed.set()
        self._member_changed = asyncio.Event()
        for ear in self._ears.values():
            if not self._is_current(ear):
                ear.is_closing.set()  # servers that end politely wait for their streams to end

    def _note(self, stream: OpenStream) -> None:
        roster, principal = self._roster(), stream.caller.principal
        scope = stream.place.scope
        stream.told = {kind: roster.digest_of(kind, principal, scope) for kind, _ in KINDS.values()}
        stream.told["resources"] += roster.digest_of("resourceTemplates", principal, scope)  # one notification for both

    # Members ------------------------------------------------------------------------------------------------------

    def subscriptions_changed(self, caller: Caller, member: str) -> None:
        """A caller with a session (un)subscribed to a resource of the member: its stream hears it from now on."""
        for stream in list(self._open):
            if caller.session is not None and stream.caller.session is caller.session:
                self._stop_following(stream, member)
                self._follow_members(stream)

    def _follow_members(self, stream: OpenStream) -> None:
        worth = self._worth_following(stream)
        for name in set(stream.members) - worth:
            self._stop_following(stream, name)
        for name in worth - set(stream.members):
            stream.heard[name] = asyncio.Event()
            stream.members[name] = asyncio.ensure_future(self._follow(stream, name))

    @staticmethod
    def _stop_following(stream: OpenStream, name: str) -> None:
        if (task := stream.members.pop(name, None)) is not None:
            task.cancel()

    def _worth_following(self, stream: OpenStream) -> set[str]:
        """A member's own path: that member. The roster's: those whose resources are subscribed to."""
        if stream.place.member is not None:
            return {stream.place.member} if stream.caller.principal.may_use_all(stream.place.member) else set()
        return {name for name, _ in self._resources(stream)}

    def _resources(self, stream: OpenStream) -> list[tuple[str, str]]:
        """The resources that the stream is about: member and own URI."""
        if stream.wanted is None:
            may, session = stream.caller.principal.may_use_all, stream.caller.session
            subscribed = session.subscriptions.items() if session else ()
            return [(name, uri) for name, uris in subscribed if may(name) for uri in uris]
        if stream.place.member is not None:
            return [(stream.place.member, uri) for uri in stream.wanted.get("resourceSubscriptions") or []]
        may = stream.caller.principal.may_use_all
        return [(name, uri) for name, uri in stream.resolved if may(name)]

    async def _resolve(self, stream: OpenStream) -> None:
        """Find whose resources a filter at the roster names, unless that is known already."""
        if stream.wanted is None or stream.place.member is not None:
            return
        uris = stream.wanted.get("resourceSubscriptions") or []
        while (basis := self._basis(stream)) != stream.resolved_for:
            roster, principal, resolved = self._roster(), stream.caller.principal, []
            for count, uri in enumerate(uris, 1):
                if (found := roster.resource(uri, principal, stream.place.scope)) is not None:
                    resolved.append(found)
                if count % RESOLVED_AT_ONCE == 0:
                    await asyncio.sleep(0)
            stream.resolved, stream.resolved_for = resolved, basis

    def _basis(self, stream: OpenStream) -> Any:
        """All that decides whose a resource is. A roster that was only read again leaves it as it is."""
        roster = self._roster()
        return frozenset(roster.members), roster.extras, stream.caller.principal

    async def _follow(self, stream: OpenStream, name: str) -> None:
        """Hear the member, whenever it is there, for as long as the stream is open."""
        heard: LiveMember | None = None
        was_away = False
        while True:
            member = self._roster().members.get(name)
            live = self._connected(member) if member else None
            if live is None or member is None:
                stream.heard[name].set()
                was_away = True
                await self._member_changed.wait()
                continue
            if (was_away or heard not in (None, live)) and stream.place.member is not None:
                # Another process than before, or the first: lists that came from memory are now the member's own, which
                # may show a client more than it showed the hall.
                self._say_all_changed(stream)
            heard, was_away = live, False
            route = self._wire.route_to(live, member.max_concurrency)
            try:
                await self._hear(stream, route)
            except HttpStatusError as error:
                if error.status in NO_STREAM:
                    stream.heard[name].set()
                    while self._connected(member) is live:
                        await self._member_changed.wait()
            except (ClientError, TimeoutError):
                pass
            except Exception:
                logger.exception("what member %r said could not be passed on; it is heard anew", name)
            stream.heard[name].set()
            await asyncio.sleep(AGAIN_SECONDS)

    async def _hear(self, stream: OpenStream, route: Route) -> None:
        if await self._with.is_modern(route, stream.caller):
            async with contextlib.aclosing(self._relay.listen(route, stream.caller, self._filter(stream))) as messages:
                async for message in messages:
                    stream.heard[route.live.name].set()  # its acknowledgement is the first
                    with contextlib.suppress(ProtocolError):  # nobody can tell whom it is for
                        if self._is_asked_for(stream, route.live.name, message):
                            self._pass(stream, route.live.name, message, "")
                    del message  # as below
            return
        conversation = await self._with.conversation(route, stream.caller)
        uris = [uri for name, uri in self._resources(stream) if name == route.live.name]
        await self._share(stream, conversation, uris)

    # Streams of members with sessions -----------------------------------------------------------------------------

    async def _listen_in(self, conversation: Conversation, session: CallerSession | None) -> None:
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

    def _ear(self, conversation: Conversation, session: CallerSession | None) -> Ear:
        ear = self._ears.get(conversation)
        if ear is None or ear.task.done() or ear.is_closing.is_set():
            ear = self._ears[conversation] = Ear(conversation, session)
            ear.task = asyncio.ensure_future(self._listen_for(ear))
            ear.task.add_done_callback(_take_note)
        return ear

    async def let_go(self, conversation: Conversation) -> None:
        """Close the stream of the session, for a client that goes on with it where it lost it."""
        if (ear := self._ears.get(conversation)) is not None:
            ear.is_closing.set()
            await asyncio.wait({ear.task}, timeout=OPEN_SECONDS)

    async def _tell_of(self, response: Response, ear: Ear) -> None:
        heard = self._relay.hear(response, ear.conversation, ear.session, lambda: self._reader(ear) is not None)
        async with contextlib.aclosing(heard) as events:
            async for event in events:
                if event.data:
                    await self._tell(event, ear)
                del event  # it may have megabytes, and the next one may come in an hour

    async def _tell(self, event: Event, ear: Ear) -> None:
        message = await self._wire.message(event.data, ear.conversation.owner)
        if message.is_request:
            if (reader := self._reader(ear)) is not None:
                reader.outbox.put(event.data, event.event_id if reader in ear.streams else "")
            return
        name = ear.conversation.route.live.name
        for stream in [one for one in ear.streams if not one.outbox.is_closed]:
            with contextlib.suppress(ProtocolError):  # nobody can tell whom it is for
                if ear.conversation.id is not None or self._is_asked_for(stream, name, message):
                    self._pass(stream, name, message, event.event_id)
            if len(event.data) > envelope.MAX_SMALL:
                await asyncio.sleep(0)  # it is written once more for each of them

    def _reader(self, ear: Ear) -> OpenStream | None:
        """The stream of the session's client, at the roster too, where it hears nothing else of the member."""
        if ear.session is None:
            return None
        name, own = ear.conversation.route.live.name, [one for one in self._open if one.caller.session is ear.session]
        return next((one for one in own if not one.outbox.is_closed and one.caller.principal.may_see(name)), None)

    async def _share(self, stream: OpenStream, conversation: Conversation, uris: list[str]) -> None:
        """A session has one stream, whoever is told of it: modern callers of one token share both."""
        if conversation.route in self._without_stream:
            raise HttpStatusError(405)
        ear = self._ear(conversation, stream.caller.session if conversation.id is not None else None)
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
        member = self._roster().members.get(live.name)
        return member is not None and self._connected(member) is live

    @staticmethod
    def _is_idle(ear: Ear) -> bool:
        if ear.session is not None and ear.conversation not in ear.session.begun():
            return True  # the client's session is over
        if ear.streams:
            return False
        now, conversation = asyncio.get_running_loop().time(), ear.conversation
        if conversation.id is None:
            return now - ear.left_at > EAR_SECONDS
        return now - max(ear.left_at, conversation.used_at) > EAR_SESSION_SECONDS

    def _filter(self, stream: OpenStream) -> dict[str, Any]:
        """What a modern member is asked to tell."""
        wanted: dict[str, Any] = {key: True for key in KINDS if stream.wants(key) and stream.place.member is not None}
        if uris := [uri for _, uri in self._resources(stream)]:
            wanted["resourceSubscriptions"] = uris
        return wanted

    def _is_asked_for(self, stream: OpenStream, name: str, message: Message) -> bool:
        """Whether the message of a member without sessions may be for this client.

        Such a member does not know whom it speaks to, so what it logs may be about anybody's call.
        """
        if message.method in _LIST_CHANGES:
            return True
        uri = envelope.text(message.fields.get("uri"))
        own = [known for member, known in self._resources(stream) if member == name]
        return message.method == RESOURCE_UPDATED and any(_is_part(uri, known) for known in own)

    def _pass(self, stream: OpenStream, name: str, message: Message, event_id: str) -> None:
        """A member's message, if this stream is to carry it."""
        method, params, passed = message.method, dict(message.fields), message.parts()
        key = next((key for key, (_, told) in KINDS.items() if told == method), None)
        if method == "notifications/subscriptions/acknowledged":
            return
        if message.params is not None and not envelope.is_object(message.params):
            return
        if key is not None and (stream.place.member is None or not stream.wants(key)):
            return  # of the roster's own lists the roster tells
        if stream.wanted is not None and key is None and method != RESOURCE_UPDATED:
            return
        if method == RESOURCE_UPDATED:
            uri = envelope.text(params.get("uri"))
            if stream.wanted is not None and (name, uri) not in self._resources(stream):
                return
            if stream.place.member is None:
                params["uri"] = self._listed_uri(stream, name, uri)
                passed["params"] = params
        if stream.wanted is not None:
            passed["params"] = params
        if envelope.is_object(params.get("_meta")):
            meta = envelope.fields(params.pop("_meta"))
            kept = {key: value for key, value in meta.items() if key != f"{protocol.META}subscriptionId"}
            passed["params"] = {**params, "_meta": kept} if kept else params
        stream.put(passed, event_id)

    @staticmethod
    def _listed_uri(stream: OpenStream, name: str, uri: str) -> str:
        """As the caller subscribed to it."""
        asked = (stream.wanted or {}).get("resourceSubscriptions") or []
        return uri if uri in asked else resource_uri(name, uri)

    def _say_all_changed(self, stream: OpenStream) -> None:
        for key, (_, method) in KINDS.items():
            if stream.wants(key):
                stream.put(jsonrpc.notification(method))


def _take_note(task: asyncio.Task[None]) -> None:
    """Of how a task ended that often nobody waits for: else asyncio logs its exception as one that was never seen."""
    error = None if task.cancelled() else task.exception()
    if error is not None and not isinstance(error, ClientError):
        logger.error("what a member said could not be passed on", exc_info=error)


def _is_part(uri: str, whole: str) -> bool:
    """Whether a resource is one that was subscribed to, or a part of it (25-11: server/resources, Subscriptions)."""
    return uri == whole or uri.startswith(whole.removesuffix("/") + "/")
