"""A caller's request on its way to a member, and what comes back: an answer in one piece, or a stream of events."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from mcp_runtime.client import REQUEST_TIMEOUT
from mcp_runtime.errors import MethodError
from mcp_runtime.gateway.sessions import Caller
from mcp_runtime.gateway.tasks import Task
from mcp_runtime.jsonrpc import INTERNAL_ERROR
from mcp_runtime.protocol import Place

QUESTION_SECONDS = 600.0  # for the caller to answer a member's question: there may be a person
CANCEL_GRACE = 1.0  # for the member to say something itself


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole JSON-RPC response, and the HTTP status it goes under."""

    body: bytes
    status: int = 200


@dataclass(frozen=True, slots=True)
class Event:
    """A message on a stream. `event_id` lets a caller with a session resume behind it; `is_last`: the response."""

    data: bytes
    event_id: str = ""
    retry_ms: int | None = None
    is_last: bool = False
    status: int = 200  # that the response goes under, if nothing was sent before it


class Rest(Protocol):
    """What may still come of a stream that nobody takes from."""

    @property
    def is_owed(self) -> bool:
        """The answer did not come, and there is a way to ask for it."""

    def has_told(self, event_id: str) -> bool:
        """Whether the event of that id was on the stream."""

    def pause(self) -> None:
        """Nobody listens to the member now."""

    def behind(self, event_id: str) -> AsyncGenerator[Event]:
        """What came, or comes, behind that event."""


class Stream:
    """Events, the response last. `aclose` frees what they hold, also when nobody ever took one.

    Freed before the caller has its answer: it may come back at once for what was kept. `inner` is a stream that the
    events are made of; `again` makes them once more of what is left of it.
    """

    def __init__(
        self,
        events: AsyncGenerator[Event],
        on_close: Callable[[], None] | None = None,
        inner: Stream | None = None,
        *,
        again: Callable[[], AsyncGenerator[Event]] | None = None,
        rest: Rest | None = None,
    ) -> None:
        self.events = events
        self._on_close = [] if on_close is None else [on_close]
        self._inner = inner
        self._again = again
        self._rest = rest

    @property
    def is_owed(self) -> bool:
        if self._inner is not None:
            return self._again is not None and self._inner.is_owed
        return self._rest is not None and self._rest.is_owed

    def has_told(self, event_id: str) -> bool:
        rest = self._rest or self._inner
        return rest is not None and rest.has_told(event_id)

    async def pause(self) -> None:
        """Nobody takes from it for now: what it holds is kept."""
        await self.events.aclose()
        if self._inner is not None:
            await self._inner.pause()
        if self._rest is not None:
            self._rest.pause()

    def go_on(self, event_id: str) -> None:
        """From here on `events` are those behind that one. For what is owed alone."""
        if self._inner is not None and self._again is not None:
            self._inner.go_on(event_id)
            self.events = self._again()
        elif self._rest is not None:
            self.events = self._rest.behind(event_id)

    def on_close(self, free: Callable[[], None]) -> None:
        self._on_close.append(free)

    async def aclose(self) -> None:
        try:
            await self.events.aclose()
            if self._inner is not None:
                await self._inner.aclose()
        finally:
            while self._on_close:
                self._on_close.pop()()


Reply = Answer | Stream


class Deadline:
    """The total of a request; it stands still while the caller is asked something. `about`, `member`: in errors."""

    def __init__(self, seconds: float = REQUEST_TIMEOUT) -> None:
        self.seconds = seconds
        self.about = ""
        self.member = ""
        self.timeout = asyncio.timeout(seconds)
        self.is_cancelled = False
        self._at = self.timeout.when() or 0.0
        self._questions = 0
        self._left = 0.0

    @property
    def left(self) -> float:
        """Seconds."""
        return self._at - asyncio.get_running_loop().time()

    def renewed(self) -> asyncio.Timeout:
        """For who goes on with the request; `timeout` can be waited in once."""
        self.timeout = asyncio.timeout_at(self._at)
        return self.timeout

    def set(self, seconds: float, about: str, member: str) -> None:
        self.seconds, self.about, self.member = seconds, about, member
        self._reschedule(seconds)

    def pause(self) -> None:
        if self._questions == 0:
            self._left = self.left
            self._reschedule(QUESTION_SECONDS)
        self._questions += 1

    def resume(self) -> None:
        self._questions -= 1
        if self._questions == 0:
            self._reschedule(max(self._left, 0.001))

    def cancel(self, grace: float = CANCEL_GRACE) -> None:
        """Nobody wants the answer any more. `grace` is for the member, in seconds."""
        if not self.is_cancelled:
            self._reschedule(grace)
        self.is_cancelled = True

    def _reschedule(self, seconds: float) -> None:
        if self.is_cancelled or self.timeout.expired():
            return
        self._at = asyncio.get_running_loop().time() + seconds
        with contextlib.suppress(RuntimeError):  # it is over: the answer is on its way to the caller, or owed
            self.timeout.reschedule(self._at)


@dataclass(eq=False, slots=True)
class Request:
    """A caller's request on its way to a member."""

    id: Any
    method: str
    params: dict[str, Any]
    caller: Caller
    deadline: Deadline
    size: int = 0  # bytes that it came in
    path: str = ""  # that it came in at
    parameter_headers: Mapping[str, str] = field(default_factory=dict)  # that the caller sent
    caller_headers: Mapping[bytes, bytes] = field(default_factory=dict)
    places: Mapping[Place, str] = field(default_factory=dict)  # of arguments that go into headers too, which are named
    task: Task | None = None  # that it is about
    takes_stream: bool = True  # so that it can be asked something on it
    questions: list[str] = field(default_factory=list)  # that the caller was asked for it
    rewriting: Callable[[bytes], bytes] | None = None  # of its answer, for its caller
    tell_cancelled: Callable[[str], Awaitable[None]] | None = None  # once the member knows of it
    not_sent: str = "it was not asked yet"  # why the member does not have it; empty once it may have read some of it

    @property
    def is_sent(self) -> bool:
        """Whether the member may have acted on it. Until then it is safe to send it again."""
        return not self.not_sent

    def begin_sending(self) -> None:
        self.not_sent = ""


def unavailable(member: str, reason: str) -> MethodError:
    """The error of a request that the member never got."""
    text = f"member {member!r} is unavailable: {reason}; the call was not sent"
    return MethodError(INTERNAL_ERROR, text, {"member": member, "kind": "unavailable", "sent": False})
