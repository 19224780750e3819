"""Forward questions and notifications of members to clients."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from typing import Any

from mcp_runtime.gateway import envelope, eras, tasks
from mcp_runtime.gateway.envelope import Message
from mcp_runtime.gateway.messages import QUESTION_SECONDS, ClientSession, Event, Question, Request
from mcp_runtime.gateway.upstream import suspended
from mcp_runtime.gateway.upstream.routes import Upstream
from mcp_runtime.gateway.upstream.sessions import UpstreamSession, UpstreamSessions
from mcp_runtime.http1.client import Response
from mcp_runtime.protocol import jsonrpc, mcp
from mcp_runtime.protocol.errors import ProtocolError

MAX_QUESTIONS = 100  # unanswered, of one member in one session
# The notifications that a modern client may get before the response.
MODERN_NOTIFICATIONS = ("notifications/progress", "notifications/message")


class Questions:
    """Forwards messages of members. The gateway declines a question that no client can answer."""

    def __init__(self, upstream: Upstream, upstream_sessions: UpstreamSessions) -> None:
        self._upstream = upstream
        self._upstream_sessions = upstream_sessions

    async def forward(
        self, data: bytes, message: Message, upstream_session: UpstreamSession, request: Request
    ) -> bytes | None:
        """Return the message for the client, or None. A question gets an id of ours. A notification stays unchanged."""
        if message.is_request:
            session = request.client.session
            if session is None or not request.takes_stream or not _may_ask(session, message):
                await self._decline(upstream_session, message)
                return None
            return await self.ask(message, upstream_session, session, request)
        if is_of_tasks(message):
            return None
        if request.client.is_modern:
            if message.method not in MODERN_NOTIFICATIONS:
                return None
            if message.method == "notifications/message":
                level = envelope.text(message.fields.get("level"))
                return data if eras.passes_log_level(request.client.log_level, level) else None
        return data

    async def ask(
        self, message: Message, upstream_session: UpstreamSession, session: ClientSession, request: Request | None
    ) -> bytes | None:
        """Return a member's question for the client. Its answer comes in another POST, see `Question`.

        If too many questions wait for an answer, send the member an error and return None.
        """
        live_member, now = upstream_session.route.live_member, asyncio.get_running_loop().time()
        # While a client waits for the result of a task, a member may ask questions for it on either stream.
        task = tasks.find_task(message, [running.task for running in session.running.values()])
        if not self._has_room_for_question(session, live_member.member_id, now):
            text = f"{MAX_QUESTIONS} questions wait for an answer already"
            await self._upstream_sessions.reply(
                upstream_session, jsonrpc.error_response(message.id, jsonrpc.INTERNAL_ERROR, text)
            )
            return None
        our_id, member_id = self._upstream_sessions.new_id(), message.id  # do not keep the message, which may be large

        async def answer(reply: dict[str, Any]) -> None:
            if request is not None:
                request.deadline.resume()
            await self._upstream_sessions.reply(
                upstream_session, {**tasks.restore_task_id(task, reply), "id": member_id}
            )

        session.questions[our_id] = Question(live_member.member_id, now, answer)
        if request is not None:
            request.questions.append(our_id)
            request.deadline.pause()
        question = envelope.encode(message.request_as(our_id))
        # A large question is not read on the event loop. It keeps the member's own id, which is useless for the client.
        return question if task is None or len(question) > envelope.MAX_SMALL else tasks.seal_task_id(task, question)

    def _has_room_for_question(self, session: ClientSession, member_id: int, now: float) -> bool:
        """Remove questions without an answer after QUESTION_SECONDS. Questions outside of calls have no deadline."""
        of_member = {
            our_id: question for our_id, question in session.questions.items() if question.member_id == member_id
        }
        if len(of_member) < MAX_QUESTIONS:
            return True
        expired_ids = [our_id for our_id, question in of_member.items() if now - question.asked_at > QUESTION_SECONDS]
        for our_id in expired_ids:
            error = jsonrpc.error_response(None, jsonrpc.INTERNAL_ERROR, "nobody answered")
            self._upstream_sessions.background.run(session.questions.pop(our_id).answer(error))
        return bool(expired_ids)

    async def _decline(self, upstream_session: UpstreamSession, message: Message) -> None:
        """Answer a member's question on behalf of a client that cannot answer it."""
        if message.method == "ping":
            reply: dict[str, Any] = jsonrpc.result_response(message.id, {})
        else:
            text = f"{str(message.method)[:100]} is not offered here"
            reply = jsonrpc.error_response(message.id, jsonrpc.METHOD_NOT_FOUND, text)
        await self._upstream_sessions.reply(upstream_session, reply)

    async def stream_events(
        self,
        response: Response,
        upstream_session: UpstreamSession,
        session: ClientSession | None,
        has_reader: Callable[[], bool] = lambda: True,
    ) -> AsyncGenerator[Event]:
        """Yield the events of a member's stream for the client. Decline questions that no client can answer."""
        live_member, events = upstream_session.route.live_member, mcp.EventStream()
        try:
            async with contextlib.aclosing(
                self._upstream.events(response, events, member_id=live_member.member_id)
            ) as parts:
                async for data in parts:
                    event_id = f"{live_member.name}/{events.last_event_id}" if events.last_event_id else ""
                    client_data = await self._event_data(data, upstream_session, session, has_reader) if data else data
                    del data  # it may have megabytes, and the next one may come in an hour
                    if client_data is not None:
                        yield Event(client_data, event_id, events.retry_ms)
                    del client_data
        finally:
            response.close()

    async def _event_data(
        self,
        data: bytes,
        upstream_session: UpstreamSession,
        session: ClientSession | None,
        has_reader: Callable[[], bool],
    ) -> bytes | None:
        """Return the data for the client, or None."""
        try:
            message = await self._upstream.message(data, upstream_session.owner)
        except ProtocolError:
            return None  # skip only the unreadable message
        if message.is_request:
            may_ask = session is not None and has_reader() and _may_ask(session, message)
            if session is None or not may_ask or upstream_session.id is None:  # which client is it for?
                await self._decline(upstream_session, message)
                return None
            return await self.ask(message, upstream_session, session, None)
        if message.is_response:
            key = upstream_session.route.live_member.member_id, message.id
            if session is None or key not in session.renamed:
                return None  # nobody waits for this response
            request_id, rewrite = session.renamed[key]
            answer = envelope.encode(message.response_to(request_id))
            return (
                answer
                if rewrite is None
                else await self._upstream.read_in_thread(upstream_session.owner, rewrite, answer)
            )
        return None if is_of_tasks(message) else data


def _may_ask(session: ClientSession, message: Message) -> bool:
    """Return whether the client declared that it answers such questions."""
    return suspended.REQUIRED_CAPABILITIES.get(str(message.method)) in session.capabilities


def is_of_tasks(message: Message) -> bool:
    """Return whether it is a notification about a task. Its client is unknown, and clients can request the status."""
    return message.method is not None and message.method.startswith(tasks.NOTIFICATIONS)
