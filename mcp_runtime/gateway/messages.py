"""A client, its session, its request on the way to a member, and what comes back: an answer, or a stream of events."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from mcp_runtime.client.client import REQUEST_TIMEOUT
from mcp_runtime.gateway.outbox import Outbox
from mcp_runtime.gateway.programs import NAMELESS, Program
from mcp_runtime.gateway.tasks import Task
from mcp_runtime.protocol.mcp import Place
from mcp_runtime.security import limits
from mcp_runtime.security.access import Principal

QUESTION_SECONDS = 600.0  # for the client to answer a member's question: there may be a person
MAX_REMEMBERED = 2_000  # characters of what an id carries; a session with more does not outlive the runtime
CANCEL_GRACE = 1.0  # for the member to say something itself


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole JSON-RPC response, and the HTTP status it goes under."""

    body: bytes
    status: int = 200


@dataclass(frozen=True, slots=True)
class Event:
    """A message on a stream. `event_id` lets a client with a session resume behind it; `is_last`: the response."""

    data: bytes
    event_id: str = ""
    retry_ms: int | None = None
    is_last: bool = False
    status: int = 200  # that the response goes under, if nothing was sent before it


class Resumption(Protocol):
    """What may still come of a stream that nobody takes from."""

    @property
    def is_resumable(self) -> bool:
        """The answer did not come, and there is a way to ask for it."""

    def has_event(self, event_id: str) -> bool:
        """Whether the event of that id was on the stream."""

    def pause(self) -> None:
        """Nobody listens to the member now."""

    def events_after(self, event_id: str) -> AsyncGenerator[Event]:
        """What came, or comes, behind that event."""


class Stream:
    """Events, the response last. `aclose` frees what they hold, also when nobody ever took one.

    Freed before the client has its answer: it may come back at once for what was kept. `inner` is a stream that the
    events are made of; `again` makes them once more of what is left of it.
    """

    def __init__(
        self,
        events: AsyncGenerator[Event],
        on_close: Callable[[], None] | None = None,
        inner: Stream | None = None,
        *,
        again: Callable[[], AsyncGenerator[Event]] | None = None,
        resumption: Resumption | None = None,
    ) -> None:
        self.events = events
        self._on_close = [] if on_close is None else [on_close]
        self._inner = inner
        self._again = again
        self._resumption = resumption

    @property
    def is_resumable(self) -> bool:
        if self._inner is not None:
            return self._again is not None and self._inner.is_resumable
        return self._resumption is not None and self._resumption.is_resumable

    def has_event(self, event_id: str) -> bool:
        source = self._resumption or self._inner
        return source is not None and source.has_event(event_id)

    async def pause(self) -> None:
        """Nobody takes from it for now: what it holds is kept."""
        await self.events.aclose()
        if self._inner is not None:
            await self._inner.pause()
        if self._resumption is not None:
            self._resumption.pause()

    def go_on(self, event_id: str) -> None:
        """From here on `events` are those behind that one. For what is owed alone."""
        if self._inner is not None and self._again is not None:
            self._inner.go_on(event_id)
            self.events = self._again()
        elif self._resumption is not None:
            self.events = self._resumption.events_after(event_id)

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
    """The total of a request; it stands still while the client is asked something. `about`, `member`: in errors."""

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
        with contextlib.suppress(RuntimeError):  # it is over: the answer is on its way to the client, or owed
            self.timeout.reschedule(self._at)


@dataclass(frozen=True, slots=True)
class Question:
    """A member's question, asked of the client: `answer` takes the client's response to where it belongs."""

    member_id: int
    asked_at: float  # in the loop's time
    answer: Callable[[dict[str, Any]], Awaitable[None]]


@dataclass(eq=False)
class ClientSession:
    """One session of one client, at one path."""

    id: str
    owner: tuple[int | None, int | None]  # user and token
    path: str
    version: str
    capabilities: dict[str, Any]
    program: Program = NAMELESS
    log_level: str = ""
    questions: dict[str, Question] = field(default_factory=dict)
    running: dict[Any, Request] = field(default_factory=dict)  # by the client's id; not answered yet
    # Of streams to be resumed: (member, id of ours) -> the client's, and how the answer is rewritten for the client.
    renamed: dict[Any, tuple[Any, Callable[[bytes], bytes] | None]] = field(default_factory=dict)
    outbox: Outbox | None = None
    subscriptions: dict[str, set[str]] = field(default_factory=dict)  # member name -> URIs of its resources

    def beyond_id(self) -> dict[str, Any]:
        """What its id does not carry, as JSON, within bounds; empty where there is nothing."""
        uris = {member: sorted(uris) for member, uris in self.subscriptions.items() if uris}
        if sum(len(uri) for of_member in uris.values() for uri in of_member) > MAX_REMEMBERED:
            uris = {}
        return ({"level": self.log_level} if self.log_level else {}) | ({"uris": uris} if uris else {})

    def subscribe(self, member: str, uri: str) -> None:
        """Note it, so that the member's next process can be told of it too. `uri` is the member's own."""
        uris = self.subscriptions.setdefault(member, set())
        known = [one for uris in self.subscriptions.values() for one in uris]
        has_room = sum(map(len, known)) + len(uri) <= limits.MAX_SUBSCRIBED
        if uri not in uris and len(known) < limits.MAX_SUBSCRIPTIONS and has_room:
            uris.add(uri)

    def unsubscribe(self, member: str, uri: str) -> None:
        self.subscriptions.setdefault(member, set()).discard(uri)


@dataclass(eq=False, slots=True)
class Client:
    """Who asks, and what they can do themselves. `session` None: a modern client."""

    principal: Principal
    session: ClientSession | None
    capabilities: dict[str, Any]
    log_level: str = ""
    authorization: bytes | None = None  # for streams, which may outlive what it stands for
    program: Program = NAMELESS

    @property
    def is_modern(self) -> bool:
        return self.session is None


@dataclass(eq=False, slots=True)
class Request:
    """A client's request on its way to a member."""

    id: Any
    method: str
    params: dict[str, Any]
    client: Client
    deadline: Deadline
    size: int = 0  # bytes that it came in
    path: str = ""  # that it came in at
    parameter_headers: Mapping[str, str] = field(default_factory=dict)  # that the client sent
    client_headers: Mapping[bytes, bytes] = field(default_factory=dict)
    places: Mapping[Place, str] = field(default_factory=dict)  # of arguments that go into headers too, which are named
    task: Task | None = None  # that it is about
    takes_stream: bool = True  # so that it can be asked something on it
    questions: list[str] = field(default_factory=list)  # that the client was asked for it
    rewriting: Callable[[bytes], bytes] | None = None  # of its answer, for its client
    is_resumable: bool = False  # its client lost the stream of its answer, and may come back for it
    send_cancelled: Callable[[str], Awaitable[None]] | None = None  # once the member knows of it
    unsent_reason: str = (
        "it was not asked yet"  # why the member does not have it; empty once it may have read some of it
    )

    @property
    def is_sent(self) -> bool:
        """Whether the member may have acted on it. Until then it is safe to send it again."""
        return not self.unsent_reason

    def begin_sending(self) -> None:
        self.unsent_reason = ""
