"""Clients of the handshake versions: begin a session, serve its messages, end it."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from mcp_runtime.gateway import eras, tasks
from mcp_runtime.gateway.catalog import Place
from mcp_runtime.gateway.client_sessions import Sessions
from mcp_runtime.gateway.endpoints.introductions import Introductions
from mcp_runtime.gateway.endpoints.params import SUBSCRIBING
from mcp_runtime.gateway.forwarding import Forwarding
from mcp_runtime.gateway.intake import Intake
from mcp_runtime.gateway.messages import CANCEL_GRACE, Client, ClientSession, Deadline, Request
from mcp_runtime.gateway.posts import Post, check_capabilities, checked_id, params_of
from mcp_runtime.gateway.replies import FORBIDDEN, JSON_HEADERS, Refusal, ignores_error_bodies
from mcp_runtime.gateway.responder import Responder
from mcp_runtime.gateway.session_streams import SessionStreams
from mcp_runtime.gateway.upstream.sessions import UpstreamSessions
from mcp_runtime.http1.server import HttpExchange
from mcp_runtime.protocol import jsonrpc, mcp
from mcp_runtime.protocol.errors import AccessError, ClientError, MethodError
from mcp_runtime.protocol.jsonrpc import INVALID_PARAMS, INVALID_REQUEST, object_of
from mcp_runtime.security import access
from mcp_runtime.security.access import Principal

MAX_BATCH = 100


class SessionClients:
    """Serves clients with sessions."""

    def __init__(
        self,
        intake: Intake,
        sessions: Sessions,
        introductions: Introductions,
        upstream_sessions: UpstreamSessions,
        responder: Responder,
        streams: SessionStreams,
        forwarding: Forwarding,
    ) -> None:
        self._intake = intake
        self._sessions = sessions
        self._introductions = introductions
        self._upstream_sessions = upstream_sessions
        self._responder = responder
        self._streams = streams
        self._forwarding = forwarding

    async def initialize(self, post: Post) -> None:
        message_id, params = checked_id(post.message), post.message.get("params")
        try:
            access.require_anything(post.principal)
        except AccessError as error:
            status = 200 if ignores_error_bodies(post.headers) else 403  # as with 401
            raise Refusal(status, MethodError(FORBIDDEN, str(error)), message_id) from error
        if not isinstance(params, dict) or message_id is None:
            raise Refusal(400, MethodError(INVALID_PARAMS, "initialize needs an id and params"), message_id)
        requested, capabilities = params.get("protocolVersion"), params.get("capabilities")
        supported = mcp.HANDSHAKE_VERSIONS
        version = requested if requested in supported else supported[-1]
        accepted_capabilities = capabilities if isinstance(capabilities, dict) else {}
        check_capabilities(accepted_capabilities, message_id)
        program = self._introductions.program(post.principal, params.get("clientInfo"))
        session = self._sessions.begin(post.principal, post.place.path, version, accepted_capabilities, program)
        result = jsonrpc.result_response(message_id, self._introductions.welcome(post.place, post.principal, version))
        session_header = [(mcp.SESSION_HEADER.lower().encode(), session.id.encode())]
        post.exchange.reply(200, jsonrpc.encode(result), [*JSON_HEADERS, *session_header])

    async def in_session(self, post: Post, session: ClientSession) -> None:
        place, message, client = post.place, post.message, post.client(session)
        if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
            raise Refusal(400, MethodError(INVALID_REQUEST, "not a JSON-RPC 2.0 message"))
        if not isinstance(message.get("method"), str):
            await self._receive_answer(post, session, message)
            post.exchange.reply(202)
        elif "id" not in message:
            await self._receive_notification(place, client, session, message)
            if not place.is_forwarded and message["method"] != "notifications/initialized":
                await self._forwarding.tell_others("POST", post.exchange, message)
            post.exchange.reply(202)
        else:
            message_id, size = checked_id(message), post.size
            request = Request(message_id, message["method"], params_of(message), client, Deadline(), size, place.path)
            is_level = request.method == "logging/setLevel" and not place.is_forwarded
            if is_level:  # before the reply, because the client's next call may go to a member of any node
                await self._forwarding.tell_others("POST", post.exchange, message)
            with self._responder.running(session, request):
                await self._responder.reply(post, request)
            if request.method in SUBSCRIBING:
                self._streams.subscriptions_changed(place, client, session)
            if is_level or request.method in SUBSCRIBING:
                await self._sessions.save(session)

    async def _receive_answer(self, post: Post, session: ClientSession, message: dict[str, Any]) -> None:
        """Pass a client's answer on to the member that asked the question."""
        if "result" not in message and "error" not in message:
            raise Refusal(400, MethodError(INVALID_REQUEST, "neither a method, nor a result, nor an error"))
        _without_related_task(object_of(message.get("result")))
        message_id = message.get("id")
        question = session.questions.pop(message_id, None) if isinstance(message_id, str) else None
        if question is None:  # a member of another node asked, or nobody, or the question has expired
            if not post.place.is_forwarded:
                await self._forwarding.tell_others("POST", post.exchange, message)
        else:
            await question.answer({key: message[key] for key in ("jsonrpc", "result", "error") if key in message})

    async def _receive_notification(
        self, place: Place, client: Client, session: ClientSession, message: dict[str, Any]
    ) -> None:
        method, params = message["method"], params_of(message)
        if method == "notifications/cancelled":
            running_request = session.running.get(_hashable(params.get("requestId")))
            if running_request is not None:
                # If the member has the request, it gets time to answer. Otherwise the request must not be sent.
                running_request.deadline.cancel(CANCEL_GRACE if running_request.is_sent else 0)
                if running_request.send_cancelled is not None:
                    with contextlib.suppress(ClientError, TimeoutError):
                        await running_request.send_cancelled(
                            str(params.get("reason") or "the client cancelled it")[:500]
                        )
                self._responder.give_up(running_request)
        elif method == "notifications/roots/list_changed" or (
            # No other methods: a call without an id would reach the member without validation.
            place.member
            and client.principal.may_use_all(place.member)
            and method.startswith("notifications/")
            and method != "notifications/initialized"
            and not method.startswith(tasks.NOTIFICATIONS)
        ):
            # Encode it again: a lenient member could read a related task in another key beside params.
            message = jsonrpc.notification(method, _without_related_task(params) if "params" in message else None)
            for upstream_session in self._upstream_sessions.sessions_of(session):
                with contextlib.suppress(ClientError, TimeoutError):
                    await self._upstream_sessions.forward_notification(upstream_session.route, client, message)

    async def batch(self, post: Post, session: ClientSession) -> None:
        """Serve several messages at once, which only 2025-03-26 allows. Reply with one array in the same order."""
        messages, client = post.message, post.client(session)
        if session.version != "2025-03-26":
            raise Refusal(400, MethodError(INVALID_REQUEST, f"{session.version} has no batches"))
        if not 0 < len(messages) <= MAX_BATCH:
            raise Refusal(400, MethodError(INVALID_REQUEST, f"a batch has 1 to {MAX_BATCH} messages"))

        async def answer_one(message: Any) -> bytes | None:
            try:
                if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
                    raise Refusal(400, MethodError(INVALID_REQUEST, "not a JSON-RPC 2.0 message"))
                if not isinstance(message.get("method"), str):
                    await self._receive_answer(post, session, message)
                elif "id" not in message:
                    await self._receive_notification(post.place, client, session, message)
                    await self._forwarding.tell_others("POST", post.exchange, message)
                else:
                    message_id, size = checked_id(message), post.size // len(messages)
                    params, path = params_of(message), post.place.path
                    request = Request(message_id, message["method"], params, client, Deadline(), size, path)
                    principal = client.principal
                    limits = await self._intake.take_shares(principal, message) if self._intake.has_shares else None
                    with (
                        self._intake.count_message(principal, message, limits),
                        self._responder.running(session, request),
                    ):
                        return (await self._responder.final(post, request, message)).body
            except Refusal as refusal:
                return refusal.body
            return None

        with post.exchange:
            answers = [answer for answer in await asyncio.gather(*map(answer_one, messages)) if answer is not None]
        body = b"[" + b",".join(answers) + b"]" if answers else b""
        post.exchange.reply(200 if answers else 202, body, JSON_HEADERS)

    async def get(self, place: Place, principal: Principal, exchange: HttpExchange) -> None:
        """Send notifications and questions, or with Last-Event-ID the rest of a stream."""
        await self._streams.get(place, principal, await self._session(place, principal, exchange), exchange)

    async def delete(self, place: Place, principal: Principal, exchange: HttpExchange) -> None:
        await self._sessions.end(await self._session(place, principal, exchange))
        if not place.is_forwarded:
            await self._forwarding.tell_others("DELETE", exchange)
        exchange.reply(204)

    async def _session(self, place: Place, principal: Principal, exchange: HttpExchange) -> ClientSession:
        verb, session_id = exchange.verb, eras.text_of(exchange.headers, mcp.SESSION_HEADER)
        if not session_id:
            allow = [(b"allow", b"POST")]
            error = MethodError(INVALID_REQUEST, f"{verb} needs the id of a session")
            raise Refusal(405, error, headers=allow)
        session = await self._sessions.find(session_id, principal, place.path)
        if session is None:
            raise Refusal(404, MethodError(INVALID_REQUEST, "session not found: send initialize to begin a new one"))
        return session


def _hashable(value: Any) -> Any:
    return value if isinstance(value, (str, int, float)) and not isinstance(value, bool) else None


def _without_related_task(part: dict[str, Any]) -> dict[str, Any]:
    """Return the part without its related task. Raise Refusal if it is invalid."""
    try:
        return tasks.remove_related_task(part)
    except MethodError as error:
        raise Refusal(400, error) from error
