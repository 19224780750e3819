"""Streams of responses that a client with a session lost and may resume (25-11: basic/transports, Resumability).

Either the client's connection broke, or the member ended the stream early and allows it to be resumed. The call is
still in progress: it runs in the member, uses a slot there and has no end in the call log, until its response comes or
its deadline passes.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any

from mcp_runtime.gateway.messages import ClientSession, Request, Stream

MAX_PAUSED = 1_000
MAX_PAUSED_OF_USER = 200  # a user can have any number of tokens
MAX_PAUSED_OF_CLIENT = 50
MAX_PAUSED_BYTES_OF_CLIENT = 16_000_000  # of the requests
LOOK_SECONDS = 1.0  # between two checks of a deadline, which an answer to a member's question may shorten


class TakenOverError(Exception):
    """The client resumed the stream on another connection."""


@dataclass(eq=False)
class _Reading:
    """A stream that a task is forwarding now."""

    session: ClientSession
    stream: Stream
    task: asyncio.Task[Any] | None
    is_taken_over: bool = False
    is_over: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(eq=False)
class _PausedStream:
    session: ClientSession
    request: Request
    stream: Stream
    pausing: asyncio.Future[None]
    timer: asyncio.TimerHandle | None = None


class ResumableStreams:
    """All streams that wait to be resumed. One that is not resumed in time ends as a cancelled call."""

    def __init__(self) -> None:
        self._readings: dict[Request, _Reading] = {}
        self.paused_streams: dict[Request, _PausedStream] = {}
        self._endings: set[asyncio.Task[None]] = set()
        self._is_closed = False

    @contextlib.asynccontextmanager
    async def reading(self, request: Request, stream: Stream) -> AsyncGenerator[None]:
        """Forward the stream in this context. Then close it, or pause it if the client disconnected too early.

        Raise TakenOverError if the client resumes the stream on another connection, because this one is dead.
        """
        session, may_come_back = request.client.session, True
        if session is not None:
            self._readings[request] = _Reading(session, stream, asyncio.current_task())
        try:
            yield
        except asyncio.CancelledError:
            may_come_back = not request.deadline.timeout.expired()
            reading = self._readings.get(request)
            if reading is None or reading.task is None or not reading.is_taken_over:
                raise
            reading.task.uncancel()
            raise TakenOverError from None
        except BaseException:
            may_come_back = False
            raise
        finally:
            over = self._readings.pop(request, None)
            if session is not None and may_come_back and stream.is_resumable and self._has_room_for(session, request):
                self._pause(session, request, stream)
            else:
                await stream.aclose()
            if over is not None:
                over.is_over.set()

    def _pause(self, session: ClientSession, request: Request, stream: Stream) -> None:
        paused_stream = _PausedStream(session, request, stream, asyncio.ensure_future(stream.pause()))
        self.paused_streams[request] = paused_stream
        request.is_resumable = True
        session.running[request.id] = request  # so that it can be cancelled, and the session is not idle
        self._wait(paused_stream)

    def _has_room_for(self, session: ClientSession, request: Request) -> bool:
        if self._is_closed or len(self.paused_streams) >= MAX_PAUSED:
            return False
        of_user = [
            paused_stream
            for paused_stream in self.paused_streams.values()
            if paused_stream.session.owner[0] == session.owner[0]
        ]
        if len(of_user) >= MAX_PAUSED_OF_USER:
            return False
        sizes = [
            paused_stream.request.size for paused_stream in of_user if paused_stream.session.owner == session.owner
        ]
        return len(sizes) < MAX_PAUSED_OF_CLIENT and sum(sizes) + request.size <= MAX_PAUSED_BYTES_OF_CLIENT

    def _wait(self, paused_stream: _PausedStream) -> None:
        """Wait for the client until the deadline. An answer to a question may change the deadline meanwhile."""
        if (remaining := paused_stream.request.deadline.remaining) > 0:
            paused_stream.timer = asyncio.get_running_loop().call_later(
                min(remaining, LOOK_SECONDS), self._wait, paused_stream
            )
        else:
            self.give_up(paused_stream.request)

    async def take(self, session: ClientSession, event_id: str) -> tuple[Request, Stream] | None:
        """Remove and return the request and the stream with that event. The caller must read the stream at once."""
        for reading in list(self._readings.values()):
            if reading.session is session and reading.task is not None and reading.stream.has_event(event_id):
                reading.is_taken_over = True
                reading.task.cancel()
                await reading.is_over.wait()
        paused_stream = next(
            (d for d in self.paused_streams.values() if d.session is session and d.stream.has_event(event_id)), None
        )
        if paused_stream is None:
            return None
        await asyncio.wait([paused_stream.pausing])  # if the client disconnects meanwhile, the stream stays paused
        if self.paused_streams.get(paused_stream.request) is not paused_stream:
            return None
        self._forget(paused_stream)
        return paused_stream.request, paused_stream.stream

    def _forget(self, paused_stream: _PausedStream) -> None:
        del self.paused_streams[paused_stream.request]
        paused_stream.request.is_resumable = False
        if paused_stream.timer is not None:
            paused_stream.timer.cancel()
        if paused_stream.session.running.get(paused_stream.request.id) is paused_stream.request:
            del paused_stream.session.running[paused_stream.request.id]

    def give_up(self, request: Request) -> None:
        """End the paused stream of the request, if there is one."""
        if (paused_stream := self.paused_streams.get(request)) is not None:
            self._forget(paused_stream)
            task = asyncio.ensure_future(self._end(paused_stream))
            self._endings.add(task)
            task.add_done_callback(self._endings.discard)

    @staticmethod
    async def _end(paused_stream: _PausedStream) -> None:
        await asyncio.wait([paused_stream.pausing])
        await paused_stream.stream.aclose()

    def give_up_all(self, session: ClientSession | None = None) -> None:
        """End all paused streams of the session. None ends those of all sessions."""
        for paused_stream in list(self.paused_streams.values()):
            if session is None or paused_stream.session is session:
                self.give_up(paused_stream.request)

    def close(self) -> None:
        """End all paused streams, and pause no more."""
        self._is_closed = True
        self.give_up_all()

    async def wait_closed(self, seconds: float) -> None:
        """Wait at most `seconds` for streams that are being ended."""
        if self._endings:
            await asyncio.wait(self._endings, timeout=seconds)
