"""Streams of members with sessions: the answer, and what comes before it, for clients of either era.

A client with a session resumes a stream that ends early itself; for one without, the gateway does.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from functools import partial

from mcp_runtime.gateway import eras
from mcp_runtime.gateway.envelope import Message
from mcp_runtime.gateway.messages import Answer, Event, Reply, Request, Stream
from mcp_runtime.gateway.upstream import suspended
from mcp_runtime.gateway.upstream.questions import Questions
from mcp_runtime.gateway.upstream.routes import STREAM_ENDED, StreamEndedError, Wire
from mcp_runtime.gateway.upstream.sessions import Conversation, Conversations
from mcp_runtime.gateway.upstream.suspended import Held, Source, StillWaitingError
from mcp_runtime.http1.client import Response
from mcp_runtime.members.live import LiveMember
from mcp_runtime.protocol import jsonrpc, mcp
from mcp_runtime.protocol.errors import ConnectError, ProtocolError

MAX_RENAMED = 100  # ids of ours that the client of a session would not know
# Bytes of such a request other than a call: what its answer is rewritten by has its URI, or the id of its task.
MAX_NOTED = 4_096
RESUMES = 20


class AnswerStreams:
    """Makes a Stream of a member's response."""

    def __init__(self, wire: Wire, conversations: Conversations, questions: Questions) -> None:
        self._wire = wire
        self._with = conversations
        self._questions = questions
        self._held = Held(self._give_up)

    def of(self, response: Response, conversation: Conversation, sent_id: str, request: Request) -> Stream:
        """The reply to what was sent under that id."""
        events = mcp.EventStream()
        source = Source(conversation, sent_id, response, events, self._wire.events(response, events))
        return self._stream(source, request)

    def _stream(self, source: Source, request: Request) -> Stream:
        """A stream of a member with sessions, for a client of either era."""
        events = self._events_for_modern if request.client.is_modern else self._events
        rest = None if request.client.is_modern else _Rest(self, source, request)
        return Stream(events(source, request), partial(self._let_go, source, request), rest=rest)

    async def next_round(self, request: Request) -> Reply:
        """A modern client's next round with a member that has sessions: its answers, and what the member says then."""
        try:
            source, answers = self._held.take(request, await suspended.read_about(self._wire, request))
            request.begin_sending()  # it runs since the first request
        except StillWaitingError as waiting:
            return Answer(waiting.response)
        try:
            for question, result in answers:
                await self._with.reply(source.conversation, jsonrpc.result_response(question, result))
        except BaseException:
            self._give_up(source)
            raise
        return self._stream(source, request)

    def _let_go(self, source: Source, request: Request) -> None:
        """The client's side is over. What the member still owes is not wanted, unless the client comes back for it."""
        for question in request.questions:
            if request.client.session is not None:
                request.client.session.questions.pop(question, None)
        if source.is_held:
            return
        source.response.close()
        if not source.is_over and not request.deadline.is_cancelled:
            told = self._with.tell_cancelled(source.conversation, source.sent_id, "nobody waits for it any more")
            self._with.later(told)

    async def _events(self, source: Source, request: Request) -> AsyncGenerator[Event]:
        """For a client with a session, who resumes a stream that ends early itself: event ids are the member's own."""
        prefix, events = f"{source.conversation.route.live.name}/", source.events
        retry_ms: int | None = None
        async with contextlib.aclosing(source.parts) as parts:
            async for data in parts:
                event_id = prefix + events.last_event_id if events.last_event_id else ""
                if event_id:
                    self._note(event_id, source, request)
                message = await self._wire.message(data, source.conversation.owner) if data else None
                if message is not None and source.is_answered_by(message):
                    yield Event(eras.restated(message, request).body, event_id, is_last=True)
                    return
                passed = (
                    await self._questions.passed_on(data, message, source.conversation, request) if message else b""
                )
                if passed is not None:
                    yield Event(passed, event_id, events.retry_ms if events.retry_ms != retry_ms else None)
                    retry_ms = events.retry_ms
        if not events.last_event_id:
            raise StreamEndedError(STREAM_ENDED)

    @staticmethod
    def _note(event_id: str, source: Source, request: Request) -> None:
        """The client may come back with it, and knows its own id alone."""
        if not source.told or source.told[-1] != event_id:
            source.told.append(event_id)
        session, is_light = request.client.session, request.method == "tools/call" or request.size <= MAX_NOTED
        if session is not None and request.takes_stream and is_light:
            sent = source.conversation.route.live.member_id, source.sent_id
            session.renamed[sent] = request.id, request.rewriting
            while len(session.renamed) > MAX_RENAMED:
                del session.renamed[next(iter(session.renamed))]

    def behind(self, event_id: str, source: Source, request: Request) -> AsyncGenerator[Event]:
        """What comes behind that event of a stream whose client lost it."""
        return self.explaining(self._events_behind(event_id, source, request), source.conversation.route.live)

    async def _events_behind(self, event_id: str, source: Source, request: Request) -> AsyncGenerator[Event]:
        source.events.last_event_id = event_id.partition("/")[2]
        await self._reopen(source)
        async with contextlib.aclosing(self._events(source, request)) as events:
            async for event in events:
                yield event

    async def _events_for_modern(self, source: Source, request: Request) -> AsyncGenerator[Event]:
        """For a client without one: what ends early is gone on with here, and questions end the round."""
        for _ in range(RESUMES):
            try:
                async for data in source.parts:
                    message = await self._wire.message(data, source.conversation.owner) if data else None
                    if message is not None and source.is_answered_by(message):
                        answer = eras.restated(message, request)
                        yield Event(answer.body, is_last=True, status=answer.status)
                        return
                    if message is not None and self._may_hold(message, request):
                        about = await suspended.read_about(self._wire, request)
                        yield Event(self._held.hold(source, request, about, message, len(data)), is_last=True)
                        return
                    if message is None:
                        continue
                    passed = await self._questions.passed_on(data, message, source.conversation, request)
                    if passed is not None:
                        yield Event(passed)
            finally:
                if not source.is_held:
                    await source.parts.aclose()
            if not source.events.last_event_id:
                raise StreamEndedError(STREAM_ENDED)
            source.response.close()
            await self._go_on(source)
        raise ProtocolError(f"{STREAM_ENDED}, {RESUMES} times")

    @staticmethod
    def _may_hold(message: Message, request: Request) -> bool:
        needed = suspended.CAPABILITIES.get(str(message.method))
        return message.is_request and needed is not None and needed in request.client.capabilities

    async def _go_on(self, source: Source) -> None:
        """The rest of a stream that ended early, for a client that cannot resume it (25-11: basic/transports)."""
        retry_ms = source.events.retry_ms
        await asyncio.sleep(0.5 if retry_ms is None else max(retry_ms / 1000, 0.1))
        await self._reopen(source)

    async def _reopen(self, source: Source) -> None:
        source.response = await self._with.open_stream(source.conversation, source.events.last_event_id)
        source.events.go_on()
        source.parts = self._wire.events(source.response, source.events)

    def _give_up(self, source: Source) -> None:
        """A client did not come back with its answers, or not for long enough."""
        source.response.close()
        self._with.later(self._with.tell_cancelled(source.conversation, source.sent_id, "the client did not answer"))

    async def explaining(self, events: AsyncGenerator[Event], live: LiveMember) -> AsyncGenerator[Event]:
        try:
            async with contextlib.aclosing(events):
                async for event in events:
                    yield event
        except StreamEndedError as error:
            raise await self._wire.exit_of(live) or error from error
        except ConnectError as error:
            raise await self._wire.explained(live, error) from error


@dataclass(frozen=True, slots=True)
class _Rest:
    """Of a stream of a member with sessions, for a client with one."""

    streams: AnswerStreams
    source: Source
    request: Request

    @property
    def is_owed(self) -> bool:
        is_over = self.source.is_over or self.request.deadline.is_cancelled
        return not is_over and bool(self.source.events.last_event_id)

    def has_told(self, event_id: str) -> bool:
        return event_id in self.source.told

    def pause(self) -> None:
        self.source.response.close()

    def behind(self, event_id: str) -> AsyncGenerator[Event]:
        return self.streams.behind(event_id, self.source, self.request)
