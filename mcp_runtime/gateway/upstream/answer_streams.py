"""Streams of members with sessions, for clients of both eras: the response, and the events before it.

If a stream ends early, a client with a session resumes it itself. For a modern client, the gateway resumes it.
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
from mcp_runtime.gateway.upstream.routes import STREAM_ENDED, StreamEndedError, Upstream
from mcp_runtime.gateway.upstream.sessions import UpstreamSession, UpstreamSessions
from mcp_runtime.gateway.upstream.suspended import Source, StillWaitingError, SuspendedStreams
from mcp_runtime.http1.client import Response
from mcp_runtime.members.live import LiveMember
from mcp_runtime.protocol import jsonrpc, mcp
from mcp_runtime.protocol.errors import ConnectError, ProtocolError

MAX_RESUMABLE_IDS = 100  # ids of our requests, which the client of a session does not know
# Bytes of a request other than a call: the function that rewrites its response holds its URI, or the id of its task.
MAX_RESUMABLE_REQUEST = 4_096
RESUMES = 20


class AnswerStreams:
    """Creates a Stream from a member's response."""

    def __init__(self, upstream: Upstream, upstream_sessions: UpstreamSessions, questions: Questions) -> None:
        self._upstream = upstream
        self._upstream_sessions = upstream_sessions
        self._questions = questions
        self._suspended = SuspendedStreams(self._abandon)

    def stream_of(
        self, response: Response, upstream_session: UpstreamSession, sent_id: str, request: Request
    ) -> Stream:
        """Return the reply to the request with that id."""
        events = mcp.EventStream()
        source = Source(upstream_session, sent_id, response, events, self._upstream.events(response, events))
        return self._stream(source, request)

    def _stream(self, source: Source, request: Request) -> Stream:
        """Return a stream for a client of either era."""
        events = self._events_for_modern if request.client.is_modern else self._events
        resumption = None if request.client.is_modern else _Resumption(self, source, request)
        return Stream(events(source, request), partial(self._close, source, request), resumption=resumption)

    async def next_round(self, request: Request) -> Reply:
        """Send a modern client's answers to a member with sessions, and return the rest of the stream."""
        try:
            source, answers = self._suspended.resume(
                request, await suspended.compute_fingerprint(self._upstream, request)
            )
            request.begin_sending()  # the member has it since the first request
        except StillWaitingError as error:
            return Answer(error.response)
        try:
            for question, result in answers:
                await self._upstream_sessions.reply(source.upstream_session, jsonrpc.result_response(question, result))
        except BaseException:
            self._abandon(source)
            raise
        return self._stream(source, request)

    def _close(self, source: Source, request: Request) -> None:
        """Release the stream after the client's side ended. Cancel the request, unless it ended or is suspended."""
        for question in request.questions:
            if request.client.session is not None:
                request.client.session.questions.pop(question, None)
        if source.is_suspended:
            return
        source.response.close()
        if not source.is_over and not request.deadline.is_cancelled:
            cancellation = self._upstream_sessions.send_cancelled(
                source.upstream_session, source.sent_id, "the response is no longer needed"
            )
            self._upstream_sessions.background.run(cancellation)

    async def _events(self, source: Source, request: Request) -> AsyncGenerator[Event]:
        """Yield the events for a client with a session. It gets the member's event ids, to resume the stream itself."""
        prefix, events = f"{source.upstream_session.route.live_member.name}/", source.events
        retry_ms: int | None = None
        async with contextlib.aclosing(source.parts) as parts:
            async for data in parts:
                event_id = prefix + events.last_event_id if events.last_event_id else ""
                if event_id:
                    self._note_event(event_id, source, request)
                message = await self._upstream.message(data, source.upstream_session.owner) if data else None
                if message is not None and source.is_answered_by(message):
                    yield Event(eras.restate(message, request).body, event_id, is_last=True)
                    return
                client_data = (
                    await self._questions.forward(data, message, source.upstream_session, request) if message else b""
                )
                if client_data is not None:
                    yield Event(client_data, event_id, events.retry_ms if events.retry_ms != retry_ms else None)
                    retry_ms = events.retry_ms
        if not events.last_event_id:
            raise StreamEndedError(STREAM_ENDED)

    @staticmethod
    def _note_event(event_id: str, source: Source, request: Request) -> None:
        """Store the event id, and the client's request id, because the client may resume after this event."""
        if not source.event_ids or source.event_ids[-1] != event_id:
            source.event_ids.append(event_id)
        session, is_small = (
            request.client.session,
            request.method == "tools/call" or request.size <= MAX_RESUMABLE_REQUEST,
        )
        if session is not None and request.takes_stream and is_small:
            key = source.upstream_session.route.live_member.member_id, source.sent_id
            session.renamed[key] = request.id, request.rewriting
            while len(session.renamed) > MAX_RESUMABLE_IDS:
                del session.renamed[next(iter(session.renamed))]

    def events_after(self, event_id: str, source: Source, request: Request) -> AsyncGenerator[Event]:
        """Yield the events after that one, for a client that lost the stream."""
        return self.explain_errors(
            self._reopened_events(event_id, source, request), source.upstream_session.route.live_member
        )

    async def _reopened_events(self, event_id: str, source: Source, request: Request) -> AsyncGenerator[Event]:
        source.events.last_event_id = event_id.partition("/")[2]
        await self._reopen(source)
        async with contextlib.aclosing(self._events(source, request)) as events:
            async for event in events:
                yield event

    async def _events_for_modern(self, source: Source, request: Request) -> AsyncGenerator[Event]:
        """Yield the events for a modern client. Resume a stream that ends early. A question ends the round."""
        for _ in range(RESUMES):
            try:
                async for data in source.parts:
                    message = await self._upstream.message(data, source.upstream_session.owner) if data else None
                    if message is not None and source.is_answered_by(message):
                        answer = eras.restate(message, request)
                        yield Event(answer.body, is_last=True, status=answer.status)
                        return
                    if message is not None and self._can_suspend(message, request):
                        fingerprint = await suspended.compute_fingerprint(self._upstream, request)
                        yield Event(
                            self._suspended.suspend(source, request, fingerprint, message, len(data)), is_last=True
                        )
                        return
                    if message is None:
                        continue
                    client_data = await self._questions.forward(data, message, source.upstream_session, request)
                    if client_data is not None:
                        yield Event(client_data)
            finally:
                if not source.is_suspended:
                    await source.parts.aclose()
            if not source.events.last_event_id:
                raise StreamEndedError(STREAM_ENDED)
            source.response.close()
            await self._resume(source)
        raise ProtocolError(f"{STREAM_ENDED}, {RESUMES} times")

    @staticmethod
    def _can_suspend(message: Message, request: Request) -> bool:
        needed = suspended.REQUIRED_CAPABILITIES.get(str(message.method))
        return message.is_request and needed is not None and needed in request.client.capabilities

    async def _resume(self, source: Source) -> None:
        """Resume a stream that ended early, for a client that cannot do it itself (25-11: basic/transports)."""
        retry_ms = source.events.retry_ms
        await asyncio.sleep(0.5 if retry_ms is None else max(retry_ms / 1000, 0.1))
        await self._reopen(source)

    async def _reopen(self, source: Source) -> None:
        source.response = await self._upstream_sessions.open_stream(
            source.upstream_session, source.events.last_event_id
        )
        source.events.go_on()
        source.parts = self._upstream.events(source.response, source.events)

    def _abandon(self, source: Source) -> None:
        """End a stream whose client did not send its answers in time."""
        source.response.close()
        self._upstream_sessions.background.run(
            self._upstream_sessions.send_cancelled(source.upstream_session, source.sent_id, "the client did not answer")
        )

    async def explain_errors(self, events: AsyncGenerator[Event], live_member: LiveMember) -> AsyncGenerator[Event]:
        try:
            async with contextlib.aclosing(events):
                async for event in events:
                    yield event
        except StreamEndedError as error:
            raise await self._upstream.exit_error(live_member) or error from error
        except ConnectError as error:
            raise await self._upstream.explain(live_member, error) from error


@dataclass(frozen=True, slots=True)
class _Resumption:
    """Resumes the stream of a member with sessions, for a client with a session."""

    streams: AnswerStreams
    source: Source
    request: Request

    @property
    def is_resumable(self) -> bool:
        is_over = self.source.is_over or self.request.deadline.is_cancelled
        return not is_over and bool(self.source.events.last_event_id)

    def has_event(self, event_id: str) -> bool:
        return event_id in self.source.event_ids

    def pause(self) -> None:
        self.source.response.close()

    def events_after(self, event_id: str) -> AsyncGenerator[Event]:
        return self.streams.events_after(event_id, self.source, self.request)
