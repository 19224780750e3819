"""One request to one member: a slot in it, its process, the way that it and the client both know.

A request goes out under an id of the gateway's own, and its answer goes on under the client's: only the parts in
between pass as the bytes that they are.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial

from mcp_runtime.gateway import envelope, eras
from mcp_runtime.gateway.catalog import OfferedMember
from mcp_runtime.gateway.envelope import Message
from mcp_runtime.gateway.members import Members
from mcp_runtime.gateway.messages import Answer, Reply, Request, Stream
from mcp_runtime.gateway.upstream.answer_streams import AnswerStreams
from mcp_runtime.gateway.upstream.modern import ModernMembers
from mcp_runtime.gateway.upstream.routes import Route, Upstream
from mcp_runtime.gateway.upstream.sessions import UpstreamSession, UpstreamSessions
from mcp_runtime.http1.client import Response
from mcp_runtime.protocol import jsonrpc, mcp
from mcp_runtime.protocol.errors import ClientError, ConnectError, HttpStatusError, RequestTimeoutError
from mcp_runtime.protocol.jsonrpc import object_of
from mcp_runtime.security.limits import Owner

MAX_REFUSALS = 3  # nobody listened, so nothing was sent: the call is for the member's next process


class _SessionOverError(HttpStatusError):
    """The member does not know the session any more."""


class Relay:
    """Asks members for clients."""

    def __init__(
        self,
        upstream: Upstream,
        upstream_sessions: UpstreamSessions,
        members: Members,
        modern: ModernMembers,
        streams: AnswerStreams,
    ) -> None:
        self._upstream = upstream
        self._upstream_sessions = upstream_sessions
        self._members = members
        self._modern = modern
        self._streams = streams

    async def ask(self, member: OfferedMember, request: Request) -> Reply:
        """The member's reply. A place in it is held until that is over."""
        refusals = 0
        while True:
            # A process that just ended has closed its connections, and refuses new ones: no need to ask each time.
            live = None if refusals else self._members.seems_connected(member)
            live = live or await self._members.live(member, request)
            route = self._upstream.route_to(live, member.max_concurrency)
            owner, within = request.client.principal.owner, f"within {request.deadline.seconds:g} s"
            request.unsent_reason = f"none of its {member.max_concurrency} slots became free {within}"
            await route.slots.take(owner)
            request.unsent_reason = f"it took no connection, or began no session, {within}"
            live.relayed_calls += 1
            try:
                if self._members.seems_connected(member) is live:  # it may have gone while the call stood in line
                    return _keep_slot_until_over(route, owner, await self._ask_and_note_silence(route, request))
            except ConnectError as error:
                _release_slot(route, owner)
                refusals += 1
                if not error.is_refusal or refusals > MAX_REFUSALS:
                    raise
            except BaseException:
                _release_slot(route, owner)
                raise
            else:
                _release_slot(route, owner)

    async def _ask_and_note_silence(self, route: Route, request: Request) -> Reply:
        """The member's reply, or the beginning of it; `Silence` is told."""
        silence, started_at = route.live.silence, time.monotonic()
        try:
            reply = await self.ask_at(route, request)
        except ConnectError:
            raise
        except RequestTimeoutError:  # it began no session
            silence.note_timeout(time.monotonic() - started_at)
            raise
        except ClientError:
            silence.note_answer()
            raise
        except asyncio.CancelledError:
            if request.deadline.timeout.expired() and not request.deadline.is_cancelled:
                silence.note_timeout(time.monotonic() - started_at)
            raise
        silence.note_answer()
        return reply

    async def ask_at(self, route: Route, request: Request) -> Reply:
        """The member's answer to `request`. Raises ClientError for what is none."""
        try:
            reply = await self._ask_once(route, request)
        except ConnectError as error:
            raise await self._upstream.explain(route.live, error) from error
        if isinstance(reply, Stream):
            reply.events = self._streams.explain_errors(reply.events, route.live)
        return reply

    async def _ask_once(self, route: Route, request: Request) -> Reply:
        if await self._upstream_sessions.is_modern(route, request.client):
            return await self._modern.ask(route, request)
        if request.client.is_modern and request.places:
            arguments = object_of(request.params.get("arguments"))
            eras.check_parameter_headers(request.places, arguments, request.client_headers)
        if request.client.is_modern and "requestState" in request.params:
            return await self._streams.next_round(request)
        upstream_session = await self._upstream_sessions.session_for_request(route, request.client)
        if upstream_session.id is None and request.method == "resources/unsubscribe":
            # The member takes all clients for one: others may have subscribed to the same.
            return Answer(jsonrpc.encode(jsonrpc.result_response(request.id, {})))
        try:
            return await self._ask_in_session(upstream_session, request)
        except _SessionOverError:
            # Forgotten, so it was not served: a member restarted, or cleaned up.
            self._upstream_sessions.forget(upstream_session, request.client)
            request.unsent_reason = "it forgot the session, and did not begin another one"
            return await self._ask_in_session(
                await self._upstream_sessions.session_for_request(route, request.client), request
            )

    async def _ask_in_session(self, upstream_session: UpstreamSession, request: Request) -> Reply:
        """In a session of a handshake version."""
        sent_id, params = self._upstream_sessions.new_id(), request.params
        if request.client.is_modern and "_meta" in params:
            params = {**params, "_meta": eras.without_hop(eras.meta_of({"params": params}))}
        body = envelope.request(sent_id, request.method, params)
        request.send_cancelled = partial(self._upstream_sessions.send_cancelled, upstream_session, sent_id)
        try:
            route, headers = upstream_session.route, upstream_session.headers
            response = await self._upstream.send(
                route, "POST", headers, body, upstream_session.owner, request.begin_sending
            )
            if response.status == 200 and response.content_type == mcp.EVENT_STREAM:
                return self._streams.stream_of(response, upstream_session, sent_id, request)
            if response.status == 404 and upstream_session.id:
                answer = await self._error_under_404(response, upstream_session, sent_id)
            else:
                answer = await self._upstream.answer(response, sent_id)
        except asyncio.CancelledError:
            # The deadline, or the client went away: either way nobody waits for it any more.
            if not request.deadline.is_cancelled:
                self._upstream_sessions.background.run(
                    self._upstream_sessions.send_cancelled(upstream_session, sent_id, "nobody waits for it any more")
                )
            raise
        if request.client.is_modern:
            return eras.restated(answer, request)
        return Answer(envelope.encode(answer.response_to(request.id)))

    async def _error_under_404(self, response: Response, upstream_session: UpstreamSession, sent_id: str) -> Message:
        """The member's error to what was sent. Raises _SessionOverError, and HttpStatusError for what is neither."""
        data = await self._upstream.read(response)
        response.close()
        error = await self._upstream.error_to(response, data, sent_id)
        # Some say so under the id of the request that the session is over.
        if (error is None and response.is_first) or await self._upstream_sessions.is_expired(upstream_session):
            raise _SessionOverError(404, jsonrpc.excerpt(data))
        if error is not None:
            return error
        # It may be a late answer to an earlier request on that connection, and then this one runs.
        self._upstream_sessions.background.run(
            self._upstream_sessions.send_cancelled(
                upstream_session, sent_id, "its answer cannot be told from another's"
            )
        )
        raise HttpStatusError(404, jsonrpc.excerpt(data))


def _keep_slot_until_over(route: Route, owner: Owner, reply: Reply) -> Reply:
    """The reply; when it is over, so is its place."""
    if isinstance(reply, Stream):
        reply.on_close(lambda: _release_slot(route, owner))
    else:
        _release_slot(route, owner)
    return reply


def _release_slot(route: Route, owner: Owner) -> None:
    route.live.relayed_calls -= 1
    route.slots.give_back(owner)
