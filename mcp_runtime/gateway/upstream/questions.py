"""What members say beside answers: questions, which go to the client that can answer them, and notifications."""

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

MAX_QUESTIONS = 100  # of one member in one session, that its client has not answered yet
# What a modern client may be told beside the answer.
MODERN_NOTIFICATIONS = ("notifications/progress", "notifications/message")


class Questions:
    """Hands on what members say. A question that nobody here can be asked is declined in the client's place."""

    def __init__(self, upstream: Upstream, upstream_sessions: UpstreamSessions) -> None:
        self._upstream = upstream
        self._upstream_sessions = upstream_sessions

    async def forward(
        self, data: bytes, message: Message, upstream_session: UpstreamSession, request: Request
    ) -> bytes | None:
        """What of it the client is told: questions under an id of ours, notifications as they are."""
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
                return data if eras.wants_log(request.client.log_level, level) else None
        return data

    async def ask(
        self, message: Message, upstream_session: UpstreamSession, session: ClientSession, request: Request | None
    ) -> bytes | None:
        """A member's question, as the client gets it; the answer comes with a POST of its own, see `Question`.

        None where too many wait for an answer already, which the member is told.
        """
        live, now = upstream_session.route.live, asyncio.get_running_loop().time()
        # Members ask for a task on either stream while its result is waited for.
        task = tasks.about(message, [one.task for one in session.running.values()])
        if not self._has_room_for_question(session, live.member_id, now):
            text = f"{MAX_QUESTIONS} questions wait for an answer already"
            await self._upstream_sessions.reply(
                upstream_session, jsonrpc.error_response(message.id, jsonrpc.INTERNAL_ERROR, text)
            )
            return None
        our_id, member_id = self._upstream_sessions.new_id(), message.id  # not the message, which may have megabytes

        async def answer(reply: dict[str, Any]) -> None:
            if request is not None:
                request.deadline.resume()
            await self._upstream_sessions.reply(upstream_session, {**tasks.restored(task, reply), "id": member_id})

        session.questions[our_id] = Question(live.member_id, now, answer)
        if request is not None:
            request.questions.append(our_id)
            request.deadline.pause()
        question = envelope.encode(message.request_as(our_id))
        # What is large is not read on the loop. It keeps the member's own id, which is good for nothing here.
        return question if task is None or len(question) > envelope.MAX_SMALL else tasks.renamed(task, question)

    def _has_room_for_question(self, session: ClientSession, member_id: int, now: float) -> bool:
        """Those that nobody answered for as long as a call would wait make room: one of no call has no deadline."""
        of_member = {our_id: one for our_id, one in session.questions.items() if one.member_id == member_id}
        if len(of_member) < MAX_QUESTIONS:
            return True
        expired_ids = [our_id for our_id, one in of_member.items() if now - one.asked_at > QUESTION_SECONDS]
        for our_id in expired_ids:
            error = jsonrpc.error_response(None, jsonrpc.INTERNAL_ERROR, "nobody answered")
            self._upstream_sessions.background.run(session.questions.pop(our_id).answer(error))
        return bool(expired_ids)

    async def _decline(self, upstream_session: UpstreamSession, message: Message) -> None:
        """Answer a member's question in the place of a client that cannot."""
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
        """What comes on such a stream, as the client gets it. A question is declined at once if nobody can be asked."""
        live, events = upstream_session.route.live, mcp.EventStream()
        try:
            async with contextlib.aclosing(self._upstream.events(response, events, member_id=live.member_id)) as parts:
                async for data in parts:
                    event_id = f"{live.name}/{events.last_event_id}" if events.last_event_id else ""
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
        """What the client gets of it; None: nothing."""
        try:
            message = await self._upstream.message(data, upstream_session.owner)
        except ProtocolError:
            return None  # one that nobody can read costs nobody the others
        if message.is_request:
            may_ask = session is not None and has_reader() and _may_ask(session, message)
            if session is None or not may_ask or upstream_session.id is None:  # without one: about whose call?
                await self._decline(upstream_session, message)
                return None
            return await self.ask(message, upstream_session, session, None)
        if message.is_response:
            key = upstream_session.route.live.member_id, message.id
            if session is None or key not in session.renamed:
                return None  # an answer that nobody here waits for
            request_id, rewrite = session.renamed[key]
            answer = envelope.encode(message.response_to(request_id))
            return (
                answer
                if rewrite is None
                else await self._upstream.read_in_thread(upstream_session.owner, rewrite, answer)
            )
        return None if is_of_tasks(message) else data


def _may_ask(session: ClientSession, message: Message) -> bool:
    """Whether the client said that it answers such questions."""
    return suspended.REQUIRED_CAPABILITIES.get(str(message.method)) in session.capabilities


def is_of_tasks(message: Message) -> bool:
    """Whether it tells how a task is: nobody here knows whose that is, and clients ask for it anyway."""
    return message.method is not None and message.method.startswith(tasks.NOTIFICATIONS)
