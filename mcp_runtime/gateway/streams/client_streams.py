"""Streams of notifications that clients keep open: messages of members, and changes of the roster."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from django.db import Error

from mcp_runtime.gateway.catalog import Place
from mcp_runtime.gateway.hop import Hop
from mcp_runtime.gateway.members import Members
from mcp_runtime.gateway.messages import Client, Event, Stream
from mcp_runtime.gateway.outbox import Outbox
from mcp_runtime.gateway.streams.open_stream import KINDS, OpenStream
from mcp_runtime.gateway.streams.peer_streams import PeerStreams
from mcp_runtime.gateway.streams.upstream_listeners import AGAIN_SECONDS, NO_STREAM, UpstreamListener, UpstreamListeners
from mcp_runtime.gateway.upstream.modern import ModernMembers
from mcp_runtime.gateway.upstream.questions import Questions
from mcp_runtime.gateway.upstream.routes import Route, Upstream
from mcp_runtime.gateway.upstream.sessions import UpstreamSession, UpstreamSessions
from mcp_runtime.http1.server import HttpExchange
from mcp_runtime.members.live import LiveMember
from mcp_runtime.protocol import jsonrpc
from mcp_runtime.protocol.errors import AccessError, ClientError, HttpStatusError, ProtocolError
from mcp_runtime.security import limits
from mcp_runtime.security.access import Principal

logger = logging.getLogger("guildhall.gateway")

COMMENT_SECONDS = 15.0  # between two comments that keep an idle stream open
READY_SECONDS = 2.0  # to open streams to members before the client gets its acknowledgement
RESOLVED_AT_ONCE = 5  # URIs of a stream before other work may run. Each is compared with the templates of all members


class TooManyStreamsError(Exception):
    """There are too many open streams, in total or for this client."""


class ClientStreams:
    """All open streams."""

    def __init__(
        self,
        upstream: Upstream,
        upstream_sessions: UpstreamSessions,
        modern: ModernMembers,
        questions: Questions,
        members: Members,
        hop: Hop,
        principal_of: Callable[[bytes | None], Awaitable[Principal]],
    ) -> None:
        """`principal_of` returns the principal of an Authorization header, with its rights of now, or raises."""
        self._upstream = upstream
        self._upstream_sessions = upstream_sessions
        self._modern = modern
        self._members = members
        self.principal_of = principal_of
        self._access_changes = 0
        self.open_streams: set[OpenStream] = set()
        self._bytes = limits.bytes_of_streams()
        self._peer_streams = PeerStreams(hop)
        self._listeners = UpstreamListeners(upstream, upstream_sessions, questions, members, self._reader)
        self._member_changed = asyncio.Event()

    async def open(
        self,
        place: Place,
        client: Client,
        exchange: HttpExchange,
        subscriptions: Mapping[str, Any] | None = None,
        message: Any = None,
    ) -> Stream:
        """Open a stream and start to listen to its members. Raise TooManyStreamsError.

        `subscriptions` is the filter in the `message` of a modern client. It relies on the acknowledgement, so wait
        until the gateway listens to its members, but no longer than READY_SECONDS.
        """
        self._require_room(client.principal)
        outbox = Outbox(client.principal.owner, self._bytes, exchange.abort)
        listen_id = message["id"] if message is not None else None
        stream = OpenStream(
            place, client, outbox, exchange, message, subscriptions, listen_id, is_blocked=self._is_blocked
        )
        self._note(stream)
        self.open_streams.add(stream)
        if (session := client.session) is not None:
            if session.outbox is not None:
                session.outbox.close()  # one stream for each session: a message is sent once
            session.outbox = stream.outbox
        open_stream = Stream(self._events(stream), partial(self._close, stream))
        try:
            await self._renew_access(stream)  # a change reaches it from now on, but there may have been one before
            await self._resolve(stream)
            self._follow_members(stream)
            self._follow_peers(stream)
            if subscriptions is not None:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(READY_SECONDS):
                        for event in list(stream.ready.values()):
                            await event.wait()
        except BaseException:
            await open_stream.aclose()
            raise
        return open_stream

    def _is_blocked(self, member: str, uri: str) -> bool:
        extras = self._members.roster.extras.get(member)
        return extras is not None and extras.listed.has_blocks and extras.listed.block_of_uri(uri) is not None

    def _require_room(self, principal: Principal) -> None:
        owners = (stream.client.principal.owner for stream in self.open_streams)
        if not limits.has_room_for_stream(principal.owner, owners):
            raise TooManyStreamsError

    @staticmethod
    async def _events(stream: OpenStream) -> AsyncGenerator[Event]:
        while True:
            message = await stream.outbox.take(COMMENT_SECONDS)
            if stream.client.principal.is_expired or (message is None and stream.outbox.is_closed):
                return
            yield Event(*message) if message is not None else Event(b"")

    def _close(self, stream: OpenStream) -> None:
        self.open_streams.discard(stream)
        session = stream.client.session
        if session is not None and session.outbox is stream.outbox:
            session.outbox = None
        for task in (*stream.members.values(), *stream.peers.values()):
            task.cancel()
        stream.outbox.discard()
        stream.outbox.finish_sending()

    def accepted_filter(self, place: Place, requested: Mapping[str, Any]) -> dict[str, Any]:
        """Return the supported part of a modern client's filter, within the limits.

        At a member's path it has no URIs that are held or disabled now.
        """
        subscriptions: dict[str, Any] = {key: True for key in KINDS if requested.get(key) is True}
        uris = requested.get("resourceSubscriptions")
        if isinstance(uris, list) and all(isinstance(uri, str) for uri in uris):
            ends = itertools.accumulate(map(len, uris[: limits.MAX_SUBSCRIPTIONS]))
            uri_count = sum(end <= limits.MAX_SUBSCRIBED for end in ends)
            accepted = uris[:uri_count]
            if (member := place.member) is not None:
                accepted = [uri for uri in accepted if not self._is_blocked(member, uri)]
            subscriptions["resourceSubscriptions"] = accepted
        return subscriptions

    async def access_changed(self) -> None:
        """After a change of permissions, update each stream to the new ones, or end it."""
        self._access_changes += 1
        for stream in list(self.open_streams):
            try:
                await self._renew_access(stream)
            except (AccessError, Error):  # without the database access cannot be checked. The client can reconnect
                stream.outbox.discard()  # also what a slow client has not read, and what still comes for it
        self._listeners.readers_changed({stream.client.session for stream in self.open_streams})
        await self.roster_changed()  # their lists may be different now

    async def _renew_access(self, stream: OpenStream) -> None:
        """Give an open stream the rights of now. Raises what `principal_of` raises."""
        changes = self._access_changes
        principal = await self.principal_of(stream.client.authorization)
        if changes != self._access_changes:
            return  # it may be outdated, and `access_changed` knows the stream
        stream.client.principal = principal
        member = stream.place.member
        if member is not None and not principal.may_see(member):
            stream.outbox.discard()

    def close(self) -> None:
        for stream in list(self.open_streams):
            stream.outbox.close()
        self._listeners.close()

    async def close_listener(self, upstream_session: UpstreamSession) -> None:
        """Close the listener of the session, because its client resumes the stream itself."""
        await self._listeners.close_listener(upstream_session)

    async def roster_changed(self) -> None:
        """Notify each stream whose lists have changed. There may be many streams, so let other work run in between."""
        for stream in list(self.open_streams):
            await asyncio.sleep(0)
            self._renew_selection(stream)
            await self._resolve(stream)
            if stream not in self.open_streams:
                continue
            before = stream.digests
            self._note(stream)
            for key, (kind, method) in KINDS.items() if not stream.place.is_forwarded else ():
                if stream.wants(key) and before.get(kind) != stream.digests[kind]:
                    stream.put(jsonrpc.notification(method))
            self._follow_members(stream)

    def _renew_selection(self, stream: OpenStream) -> None:
        """At the address of a tool set, select what is in it now. End the stream if its client may not use the set."""
        if not (name := stream.place.selection.tool_set):
            return
        selection = self._members.roster.selection_of_set(name)
        if selection is None or not stream.client.principal.may_use_set(name):
            stream.outbox.discard()
        else:
            selection = replace(selection, searches=stream.place.selection.searches)
            stream.place = replace(stream.place, selection=selection)

    def member_changed(self) -> None:
        self._member_changed.set()
        self._member_changed = asyncio.Event()
        self._listeners.member_changed()

    def _note(self, stream: OpenStream) -> None:
        roster, principal = self._members.roster, stream.client.principal
        selection = stream.place.selection
        stream.digests = {kind: roster.digest_of(kind, principal, selection) for kind, _ in KINDS.values()}
        # Both have the same notification.
        stream.digests["resources"] += roster.digest_of("resourceTemplates", principal, selection)

    def subscriptions_changed(self, client: Client, member: str) -> None:
        """Update the streams of a client with a session after it (un)subscribed to a resource of the member."""
        for stream in list(self.open_streams):
            if client.session is not None and stream.client.session is client.session:
                self._stop_following(stream, member)
                self._follow_members(stream)

    def peers_changed(self) -> None:
        """Listen to the nodes that run now."""
        for stream in self.open_streams:
            self._follow_peers(stream)

    def _follow_peers(self, stream: OpenStream) -> None:
        """Listen to all other nodes, unless this stream is one with which another node listens."""
        peers = {} if stream.place.is_forwarded else self._members.peers.reachable
        for lease in set(stream.peers) - set(peers):
            stream.peers.pop(lease).cancel()
            stream.ready.pop(lease, None)
        for lease in set(peers) - set(stream.peers):
            stream.ready[lease] = asyncio.Event()
            stream.peers[lease] = asyncio.ensure_future(self._peer_streams.follow(stream, peers[lease]))

    def _follow_members(self, stream: OpenStream) -> None:
        worth = self._worth_following(stream)
        for name in set(stream.members) - worth:
            self._stop_following(stream, name)
        for name in worth - set(stream.members):
            stream.ready[name] = asyncio.Event()
            stream.members[name] = asyncio.ensure_future(self._follow(stream, name))

    @staticmethod
    def _stop_following(stream: OpenStream, name: str) -> None:
        if (task := stream.members.pop(name, None)) is not None:
            task.cancel()

    def _worth_following(self, stream: OpenStream) -> set[str]:
        """Return the members to listen to: at a member's path that member, at the roster those with subscriptions."""
        if stream.place.member is not None:
            return {stream.place.member} if stream.client.principal.may_use_all(stream.place.member) else set()
        return {name for name, _ in stream.resources()}

    async def _resolve(self, stream: OpenStream) -> None:
        """Find the members of the resources in a filter at the roster, unless nothing has changed."""
        if stream.subscriptions is None or stream.place.member is not None:
            return
        uris = stream.subscriptions.get("resourceSubscriptions") or []
        while (basis := self._basis(stream)) != stream.resolved_for:
            roster, principal, resolved = self._members.roster, stream.client.principal, []
            for count, uri in enumerate(uris, 1):
                if (resource := roster.resource(uri, principal, stream.place.selection)) is not None:
                    resolved.append(resource)
                if count % RESOLVED_AT_ONCE == 0:
                    await asyncio.sleep(0)
            stream.resolved, stream.resolved_for = resolved, basis

    def _basis(self, stream: OpenStream) -> Any:
        """Return everything that decides which member a resource belongs to. A mere reload does not change it."""
        roster = self._members.roster
        return frozenset(roster.members), roster.extras, stream.client.principal, stream.place.selection

    async def _follow(self, stream: OpenStream, name: str) -> None:
        """Listen to the member whenever it is connected, until the stream is closed."""
        previous: LiveMember | None = None
        was_away = False
        while True:
            member = self._members.roster.members.get(name)
            live_member = self._members.connected_member(member) if member else None
            if live_member is None or member is None:
                stream.ready[name].set()
                was_away = True
                await self._member_changed.wait()
                continue
            if (was_away or previous not in (None, live_member)) and stream.place.member is not None:
                # It is a new process. Lists now come from the member and no longer from memory, and the member may
                # list more for the client than for the hall.
                stream.notify_all_changed()
            previous, was_away = live_member, False
            route = self._upstream.route_to(live_member, member.max_concurrency)
            try:
                await self._listen(stream, route)
            except HttpStatusError as error:
                if error.status in NO_STREAM:
                    stream.ready[name].set()
                    while self._members.connected_member(member) is live_member:
                        await self._member_changed.wait()
            except (ClientError, TimeoutError):
                pass
            except Exception:
                logger.exception("messages of member %r could not be forwarded; the gateway listens to it again", name)
            stream.ready[name].set()
            await asyncio.sleep(AGAIN_SECONDS)

    async def _listen(self, stream: OpenStream, route: Route) -> None:
        if await self._upstream_sessions.is_modern(route, stream.client):
            async with contextlib.aclosing(self._modern.listen(route, stream.client, stream.filter())) as messages:
                async for message in messages:
                    stream.ready[route.live_member.name].set()  # the first message is its acknowledgement
                    with contextlib.suppress(ProtocolError):  # an unreadable message has no receiver
                        if stream.is_for_client(route.live_member.name, message):
                            stream.forward(route.live_member.name, message, "")
                    del message  # as below
            return
        upstream_session = await self._upstream_sessions.session_for(route, stream.client)
        uris = [uri for name, uri in stream.resources() if name == route.live_member.name]
        await self._listeners.share(stream, upstream_session, uris)

    def _reader(self, listener: UpstreamListener) -> OpenStream | None:
        """Return the open stream of the listener's client session, if its client may see the member.

        At the roster, such a stream gets no other messages of the member.
        """
        if listener.session is None:
            return None
        name = listener.upstream_session.route.live_member.name
        streams = [stream for stream in self.open_streams if stream.client.session is listener.session]
        return next(
            (stream for stream in streams if not stream.outbox.is_closed and stream.client.principal.may_see(name)),
            None,
        )
