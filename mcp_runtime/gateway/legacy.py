"""Clients of the handshake versions, which have sessions: how one begins, what is said in it, how it ends."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Any

from mcp_runtime.gateway import eras, tasks
from mcp_runtime.gateway.auth import Principals
from mcp_runtime.gateway.catalog import Place
from mcp_runtime.gateway.client_sessions import Sessions
from mcp_runtime.gateway.endpoints.introductions import Introductions
from mcp_runtime.gateway.endpoints.params import SUBSCRIBING
from mcp_runtime.gateway.intake import Intake
from mcp_runtime.gateway.messages import CANCEL_GRACE, Client, ClientSession, Deadline, Event, Request, Stream
from mcp_runtime.gateway.posts import Post, check_capabilities, checked_id, client_in, params_of
from mcp_runtime.gateway.programs import Program, Programs
from mcp_runtime.gateway.replies import FORBIDDEN, JSON_HEADERS, Refusal, is_deaf
from mcp_runtime.gateway.replying import Replying
from mcp_runtime.gateway.streams.held_open import hold, opened
from mcp_runtime.gateway.streams.listening import Listening
from mcp_runtime.gateway.streams.resumable import Owed
from mcp_runtime.gateway.upstream.questions import Questions
from mcp_runtime.gateway.upstream.sessions import Conversations
from mcp_runtime.http1.server import HttpExchange
from mcp_runtime.protocol import jsonrpc, mcp
from mcp_runtime.protocol.errors import AccessError, ClientError, MethodError
from mcp_runtime.protocol.jsonrpc import INVALID_PARAMS, INVALID_REQUEST, object_of
from mcp_runtime.security import access
from mcp_runtime.security.access import Principal

MAX_BATCH = 100


class SessionClients:
    """Serves them."""

    def __init__(
        self,
        principals: Principals,
        intake: Intake,
        sessions: Sessions,
        programs: Programs,
        introductions: Introductions,
        listening: Listening,
        conversations: Conversations,
        questions: Questions,
        owed: Owed,
        replying: Replying,
    ) -> None:
        self._principals = principals
        self._intake = intake
        self._sessions = sessions
        self._programs = programs
        self._introductions = introductions
        self._listening = listening
        self._conversations = conversations
        self._questions = questions
        self._owed = owed
        self._replying = replying

    async def initialize(self, post: Post) -> None:
        message_id, params = checked_id(post.message), post.message.get("params")
        try:
            access.require_anything(post.principal)
        except AccessError as error:
            status = 200 if is_deaf(post.headers) else 403  # as with 401
            raise Refusal(status, MethodError(FORBIDDEN, str(error)), message_id) from error
        if not isinstance(params, dict) or message_id is None:
            raise Refusal(400, MethodError(INVALID_PARAMS, "initialize has an id, and params"), message_id)
        asked, capabilities = params.get("protocolVersion"), params.get("capabilities")
        spoken = mcp.HANDSHAKE_VERSIONS
        version = asked if asked in spoken else spoken[-1]
        kept = capabilities if isinstance(capabilities, dict) else {}
        check_capabilities(kept, message_id)
        program = Program.told(params.get("clientInfo"))
        self._programs.saw(post.principal.owner, program)
        session = self._sessions.begin(post.principal, post.place.path, version, kept, program)
        result = jsonrpc.result_response(message_id, self._introductions.welcome(post.place, version))
        told = [(mcp.SESSION_HEADER.lower().encode(), session.id.encode())]
        post.exchange.reply(200, jsonrpc.encode(result), [*JSON_HEADERS, *told])

    async def in_session(self, post: Post, session: ClientSession) -> None:
        place, message, client = post.place, post.message, post.client(session)
        if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
            raise Refusal(400, MethodError(INVALID_REQUEST, "this is no JSON-RPC 2.0 message"))
        if not isinstance(message.get("method"), str):
            await self._answered(session, message)
            post.exchange.reply(202)
        elif "id" not in message:
            await self._notified(place, client, session, message)
            post.exchange.reply(202)
        else:
            message_id, size = checked_id(message), post.size
            request = Request(message_id, message["method"], params_of(message), client, Deadline(), size, place.path)
            with self._replying.running(session, request):
                await self._replying.reply(post, request)
            if request.method in SUBSCRIBING:
                for member in [place.member] if place.member else list(session.subscriptions):
                    self._listening.subscriptions_changed(client, member)

    @staticmethod
    async def _answered(session: ClientSession, message: dict[str, Any]) -> None:
        """A client's answer to a member's question."""
        if "result" not in message and "error" not in message:
            raise Refusal(400, MethodError(INVALID_REQUEST, "neither a method, nor a result, nor an error"))
        _unrelated(object_of(message.get("result")))
        message_id = message.get("id")
        question = session.questions.pop(message_id, None) if isinstance(message_id, str) else None
        if question is not None:  # else nobody asked, or has given up
            await question.answer({key: message[key] for key in ("jsonrpc", "result", "error") if key in message})

    async def _notified(self, place: Place, client: Client, session: ClientSession, message: dict[str, Any]) -> None:
        method, params = message["method"], params_of(message)
        if method == "notifications/cancelled":
            running = session.running.get(_hashable(params.get("requestId")))
            if running is not None:
                # The member may say something itself, if it has it. If not, it shall not get it any more.
                running.deadline.cancel(CANCEL_GRACE if running.is_sent else 0)
                if running.tell_cancelled is not None:
                    with contextlib.suppress(ClientError, TimeoutError):
                        await running.tell_cancelled(str(params.get("reason") or "the client cancelled it")[:500])
                self._owed.give_up(running)
        elif method == "notifications/roots/list_changed" or (
            # Nothing else: a call without an id would be one that nobody judged.
            place.member
            and client.principal.may_use_all(place.member)
            and method.startswith("notifications/")
            and method != "notifications/initialized"
            and not method.startswith(tasks.NOTIFICATIONS)
        ):
            # Built again: from another key beside params a lenient member would read that it is about a task.
            message = jsonrpc.notification(method, _unrelated(params) if "params" in message else None)
            for conversation in self._conversations.begun(session):
                with contextlib.suppress(ClientError, TimeoutError):
                    await self._conversations.pass_on(conversation.route, client, message)

    async def batch(self, post: Post, session: ClientSession) -> None:
        """Several messages at once, which 2025-03-26 alone allows; answered in one array, in their order."""
        messages, client = post.message, post.client(session)
        if session.version != "2025-03-26":
            raise Refusal(400, MethodError(INVALID_REQUEST, f"{session.version} has no batches"))
        if not 0 < len(messages) <= MAX_BATCH:
            raise Refusal(400, MethodError(INVALID_REQUEST, f"a batch has 1 to {MAX_BATCH} messages"))

        async def one(message: Any) -> bytes | None:
            try:
                if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
                    raise Refusal(400, MethodError(INVALID_REQUEST, "this is no JSON-RPC 2.0 message"))
                if not isinstance(message.get("method"), str):
                    await self._answered(session, message)
                elif "id" not in message:
                    await self._notified(post.place, client, session, message)
                else:
                    message_id, size = checked_id(message), post.size // len(messages)
                    params, path = params_of(message), post.place.path
                    request = Request(message_id, message["method"], params, client, Deadline(), size, path)
                    with self._intake.counted(client.principal, message), self._replying.running(session, request):
                        return (await self._replying.final(post.place, request)).body
            except Refusal as refusal:
                return refusal.body
            return None

        with post.exchange:
            answers = [answer for answer in await asyncio.gather(*map(one, messages)) if answer is not None]
        body = b"[" + b",".join(answers) + b"]" if answers else b""
        post.exchange.reply(200 if answers else 202, body, JSON_HEADERS)

    async def get(self, place: Place, principal: Principal, exchange: HttpExchange) -> None:
        """What is said unasked; or with Last-Event-ID the rest of a stream."""
        session = self._session(place, principal, exchange)
        client = client_in(session, principal, exchange.headers)
        last_event_id = eras.text_of(exchange.headers, mcp.LAST_EVENT_HEADER)
        with exchange:
            if last_event_id and (owed := await self._owed.take(session, last_event_id)):
                request, stream = owed
                with self._replying.running(session, request):
                    await self._replying.go_on(request, stream, last_event_id, exchange)
                return
            rest = await self._rest(session, client, last_event_id) if last_event_id else None
            await hold(rest or await opened(self._listening, place, client, exchange), exchange)

    async def delete(self, place: Place, principal: Principal, exchange: HttpExchange) -> None:
        self._sessions.end(self._session(place, principal, exchange))
        exchange.reply(204)

    async def _rest(self, session: ClientSession, client: Client, last_event_id: str) -> Stream | None:
        """Event ids are the member's own, behind its name: it is asked to go on."""
        name, _, own = last_event_id.partition("/")
        conversation = next((one for one in self._conversations.begun(session) if one.route.live.name == name), None)
        if conversation is None or not client.principal.may_use_all(name):
            return None
        await self._listening.let_go(conversation)
        try:
            response = await self._conversations.open_stream(conversation, own)
        except ClientError:
            return None
        events = self._as_long_as_allowed(self._questions.hear(response, conversation, session), client, name)
        return Stream(events, response.close)

    async def _as_long_as_allowed(
        self, events: AsyncGenerator[Event], client: Client, member: str
    ) -> AsyncGenerator[Event]:
        """`events`, while the token is good and for this member: a stream may outlive both."""
        async with contextlib.aclosing(events):
            async for event in events:
                try:
                    principal = await self._principals.principal(client.authorization)
                except AccessError:
                    return
                if not principal.may_use_all(member):
                    return
                yield event

    def _session(self, place: Place, principal: Principal, exchange: HttpExchange) -> ClientSession:
        verb, session_id = exchange.verb, eras.text_of(exchange.headers, mcp.SESSION_HEADER)
        if not session_id:
            allow = [(b"allow", b"POST")]
            raise Refusal(405, MethodError(INVALID_REQUEST, f"{verb} needs the id of a session"), headers=allow)
        session = self._sessions.find(session_id, principal, place.path)
        if session is None:
            raise Refusal(404, MethodError(INVALID_REQUEST, "this session is over: begin a new one with initialize"))
        return session


def _hashable(value: Any) -> Any:
    return value if isinstance(value, (str, int, float)) and not isinstance(value, bool) else None


def _unrelated(part: dict[str, Any]) -> dict[str, Any]:
    """Raises Refusal."""
    try:
        return tasks.unrelated(part)
    except MethodError as error:
        raise Refusal(400, error) from error
