"""Send one request to one member: wait for its process and a slot, and use a version that both sides support.

The request gets an id of the gateway, and its response gets the client's id again. The params and the result pass
through as unchanged bytes.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial

from mcp_runtime.gateway import envelope, eras, sign_in_pages
from mcp_runtime.gateway.catalog import OfferedMember
from mcp_runtime.gateway.envelope import Message
from mcp_runtime.gateway.holds import METHODS as METHODS_WITH_HOLDS
from mcp_runtime.gateway.holds import Holds
from mcp_runtime.gateway.members import Members
from mcp_runtime.gateway.messages import Answer, Reply, Request, Stream
from mcp_runtime.gateway.upstream.answer_streams import AnswerStreams
from mcp_runtime.gateway.upstream.modern import ModernMembers
from mcp_runtime.gateway.upstream.routes import OtherSignInError, Route, Upstream
from mcp_runtime.gateway.upstream.sessions import UpstreamSession, UpstreamSessions
from mcp_runtime.http1.client import Response
from mcp_runtime.protocol import jsonrpc, mcp
from mcp_runtime.protocol.errors import (
    ClientError,
    ConnectError,
    HttpStatusError,
    RequestTimeoutError,
    SignInNeededError,
)
from mcp_runtime.protocol.jsonrpc import object_of
from mcp_runtime.security.limits import Owner

MAX_REFUSALS = 3  # refused connections: nothing was sent, so try the member's next process


class _SessionOverError(HttpStatusError):
    """The member does not know the session any more."""


class Relay:
    """Sends the requests of clients to members."""

    def __init__(
        self,
        upstream: Upstream,
        upstream_sessions: UpstreamSessions,
        members: Members,
        holds: Holds,
        modern: ModernMembers,
        streams: AnswerStreams,
    ) -> None:
        self._upstream = upstream
        self._upstream_sessions = upstream_sessions
        self._members = members
        self._holds = holds
        self._modern = modern
        self._streams = streams

    async def ask(self, member: OfferedMember, request: Request) -> Reply:
        """Return the member's reply. It uses a slot of the member until it ends."""
        if "inputResponses" in request.params:
            sign_in_pages.take_answer(request)
        refusals = 0
        while True:
            # Do not ask the operating system each time. A process that just ended refuses connections anyway.
            live_member = None if refusals else self._members.seems_connected(member)
            live_member = live_member or await self._members.wait_until_connected(member, request)
            route = self._upstream.route_to(live_member, member.max_concurrency)
            owner, within = request.client.principal.owner, f"within {request.deadline.seconds:g} s"
            request.unsent_reason = f"none of its {member.max_concurrency} slots became free {within}"
            await route.slots.take(owner)
            request.unsent_reason = f"it accepted no connection, or began no session, {within}"
            live_member.relayed_calls += 1
            try:
                # Its lists may have changed while the request waited for its start or for a slot.
                if request.method == "tools/call":
                    if request.params["name"] in live_member.held_tools:
                        await self._members.require_not_held(live_member, request.params["name"])
                elif request.method in METHODS_WITH_HOLDS:
                    self._holds.require_usable(member.name, request)
                    if member.holds_changes:
                        await self._holds.require_agreed(member, live_member, request)
                # It may have ended while the call waited for a slot.
                if self._members.seems_connected(member) is live_member:
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
        """Return the member's reply, or its beginning. Record in `Silence` whether the member answered."""
        silence, started_at = route.live_member.silence, time.monotonic()
        try:
            reply = await self.ask_at(route, request)
        except (ConnectError, SignInNeededError):  # the member may not have been asked
            raise
        except RequestTimeoutError:  # it did not begin a session
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
        """Return the member's reply to `request`. Raise ClientError if there is none."""
        try:
            reply = await self._ask_once(route, request)
        except ConnectError as error:
            raise await self._upstream.explain(route.live_member, error) from error
        if isinstance(reply, Stream):
            reply.events = self._streams.explain_errors(reply.events, route.live_member)
        return reply

    async def _ask_once(self, route: Route, request: Request) -> Reply:
        if await self._upstream_sessions.is_modern(route, request.client):
            return await self._modern.ask(route, request)
        if request.client.is_modern and request.knows_headers and request.places:
            arguments = object_of(request.params.get("arguments"))
            eras.check_parameter_headers(request.places, arguments, request.client_headers)
        if request.client.is_modern and "requestState" in request.params:
            return await self._streams.next_round(request)
        upstream_session = await self._upstream_sessions.session_for_request(route, request.client)
        if upstream_session.id is None and request.method == "resources/unsubscribe":
            # The member does not distinguish clients. Others may have subscribed to the same resource.
            return Answer(jsonrpc.encode(jsonrpc.result_response(request.id, {})))
        try:
            return await self._ask_in_session(upstream_session, request)
        except (_SessionOverError, OtherSignInError):
            # The member forgot the session, so it did not run the request. It restarted or cleaned up. Or the session
            # is of another account of the user.
            self._upstream_sessions.forget(upstream_session, request.client)
            request.unsent_reason = "it forgot the session, and did not begin another one"
            return await self._ask_in_session(
                await self._upstream_sessions.session_for_request(route, request.client), request
            )

    async def _ask_in_session(self, upstream_session: UpstreamSession, request: Request) -> Reply:
        """Send the request in a session of a handshake version."""
        sent_id, params = self._upstream_sessions.new_id(), request.params
        if request.client.is_modern and "_meta" in params:
            params = {**params, "_meta": eras.without_connection_meta(eras.meta_of({"params": params}))}
        body = envelope.request(sent_id, request.method, params)
        request.send_cancelled = partial(self._upstream_sessions.send_cancelled, upstream_session, sent_id)
        try:
            route, headers = upstream_session.route, upstream_session.headers
            response = await self._upstream.send(
                route,
                "POST",
                headers,
                body,
                upstream_session.owner,
                request.begin_sending,
                sign_in=upstream_session.sign_in,
            )
            if response.status == 200 and response.content_type == mcp.EVENT_STREAM:
                return self._streams.stream_of(response, upstream_session, sent_id, request)
            if response.status == 404 and upstream_session.id:
                answer = await self._error_under_404(response, upstream_session, sent_id)
            else:
                answer = await self._upstream.answer(response, sent_id)
        except asyncio.CancelledError:
            # The deadline has passed or the client disconnected. Nobody waits for the response any more.
            if not request.deadline.is_cancelled:
                self._upstream_sessions.background.run(
                    self._upstream_sessions.send_cancelled(
                        upstream_session, sent_id, "the response is no longer needed"
                    )
                )
            raise
        if request.client.is_modern:
            return eras.restate(answer, request)
        return Answer(envelope.encode(answer.response_to(request.id)))

    async def _error_under_404(self, response: Response, upstream_session: UpstreamSession, sent_id: str) -> Message:
        """Return the member's error to the request. Raise _SessionOverError if the session has ended.

        Raise HttpStatusError if neither is certain.
        """
        data = response.without_secrets(await self._upstream.read(response))
        response.close()
        error = await self._upstream.error_to(response, data, sent_id)
        # Some members report the end of the session in an error with the id of the request.
        if (error is None and response.is_first) or await self._upstream_sessions.is_expired(upstream_session):
            raise _SessionOverError(404, jsonrpc.excerpt(data))
        if error is not None:
            return error
        # It may be a late response to an earlier request on that connection. Then this request is still running.
        self._upstream_sessions.background.run(
            self._upstream_sessions.send_cancelled(
                upstream_session, sent_id, "its response cannot be distinguished from another one"
            )
        )
        raise HttpStatusError(404, jsonrpc.excerpt(data))


def _keep_slot_until_over(route: Route, owner: Owner, reply: Reply) -> Reply:
    """Return the reply. Release its slot when it ends."""
    if isinstance(reply, Stream):
        reply.on_close(lambda: _release_slot(route, owner))
    else:
        _release_slot(route, owner)
    return reply


def _release_slot(route: Route, owner: Owner) -> None:
    route.live_member.relayed_calls -= 1
    route.slots.give_back(owner)
