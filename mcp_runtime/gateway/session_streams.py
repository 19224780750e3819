"""Serve GET requests of clients with sessions: notifications and questions, or the rest of a lost stream."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator

from mcp_runtime.gateway import eras
from mcp_runtime.gateway.auth import Principals
from mcp_runtime.gateway.catalog import Place
from mcp_runtime.gateway.forwarding import Forwarding
from mcp_runtime.gateway.hop import MISDIRECTED
from mcp_runtime.gateway.members import Members
from mcp_runtime.gateway.messages import Client, ClientSession, Event, Stream
from mcp_runtime.gateway.peers import ElsewhereError
from mcp_runtime.gateway.posts import client_in
from mcp_runtime.gateway.replies import Refusal
from mcp_runtime.gateway.responder import Responder
from mcp_runtime.gateway.streams.client_streams import ClientStreams
from mcp_runtime.gateway.streams.http_streams import open_stream, send_stream
from mcp_runtime.gateway.upstream.questions import Questions
from mcp_runtime.gateway.upstream.sessions import UpstreamSessions
from mcp_runtime.http1.server import HttpExchange
from mcp_runtime.protocol import mcp
from mcp_runtime.protocol.errors import AccessError, ClientError, MethodError
from mcp_runtime.protocol.jsonrpc import INTERNAL_ERROR
from mcp_runtime.security.access import Principal


class SessionStreams:
    """Serves the streams of clients with sessions."""

    def __init__(
        self,
        principals: Principals,
        client_streams: ClientStreams,
        upstream_sessions: UpstreamSessions,
        questions: Questions,
        responder: Responder,
        members: Members,
        forwarding: Forwarding,
    ) -> None:
        self._principals = principals
        self._client_streams = client_streams
        self._upstream_sessions = upstream_sessions
        self._questions = questions
        self._responder = responder
        self._members = members
        self._forwarding = forwarding

    def subscriptions_changed(self, place: Place, client: Client, session: ClientSession) -> None:
        """Handle a changed subscription of the client."""
        for member in [place.member] if place.member else list(session.subscriptions):
            self._client_streams.subscriptions_changed(client, member)

    async def get(self, place: Place, principal: Principal, session: ClientSession, exchange: HttpExchange) -> None:
        """Send notifications and questions, or with Last-Event-ID the rest of a stream."""
        client = client_in(session, principal, exchange.headers)
        last_event_id = eras.text_of(exchange.headers, mcp.LAST_EVENT_HEADER)
        with exchange:
            if last_event_id and await self._responder.resume(session, last_event_id, exchange):
                return
            if last_event_id and not place.is_forwarded and await self._is_resumed_elsewhere(last_event_id, exchange):
                return
            stream = await self._resume_member_stream(session, client, last_event_id) if last_event_id else None
            if stream is None and last_event_id and place.is_forwarded:
                # A stream of this node has only the messages of its own members. The sender has those of all.
                raise Refusal(MISDIRECTED, MethodError(INTERNAL_ERROR, "no stream here has that event"))
            await send_stream(stream or await open_stream(self._client_streams, place, client, exchange), exchange)

    async def _is_resumed_elsewhere(self, last_event_id: str, exchange: HttpExchange) -> bool:
        """Forward the GET if another node has the member. Return False if that is not so, or fails."""
        member = self._members.roster.members.get(last_event_id.partition("/")[0])
        if member is None:
            return False
        try:
            await self._members.require_own(member)
        except ElsewhereError as error:
            with contextlib.suppress(ClientError):
                await self._forwarding.get(error.peer, exchange)
                return True
        return False

    async def _resume_member_stream(self, session: ClientSession, client: Client, last_event_id: str) -> Stream | None:
        """Resume a stream of a member after that event. The event id is the member's name and its own event id."""
        name, _, own_event_id = last_event_id.partition("/")
        upstream_session = next(
            (
                candidate
                for candidate in self._upstream_sessions.sessions_of(session)
                if candidate.route.live_member.name == name
            ),
            None,
        )
        if upstream_session is None or not client.principal.may_use_all(name):
            return None
        await self._client_streams.close_listener(upstream_session)
        try:
            response = await self._upstream_sessions.open_stream(upstream_session, own_event_id)
        except ClientError:
            return None
        events = self._while_allowed(self._questions.stream_events(response, upstream_session, session), client, name)
        return Stream(events, response.close)

    async def _while_allowed(self, events: AsyncGenerator[Event], client: Client, member: str) -> AsyncGenerator[Event]:
        """Yield events while the token is valid and may use the member. The stream may be open longer."""
        async with contextlib.aclosing(events):
            async for event in events:
                try:
                    principal = await self._principals.principal(client.authorization)
                except AccessError:
                    return
                if not principal.may_use_all(member):
                    return
                yield event
