"""A client, its session, its request to a member, and the reply: an answer or a stream of events."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from mcp_runtime.client.client import REQUEST_TIMEOUT
from mcp_runtime.gateway.outbox import Outbox
from mcp_runtime.gateway.programs import NAMELESS, Program
from mcp_runtime.gateway.session_rows import SavedState
from mcp_runtime.gateway.tasks import Task
from mcp_runtime.protocol.mcp import Place
from mcp_runtime.security import limits
from mcp_runtime.security.access import Principal

QUESTION_SECONDS = 600.0  # for the client to answer a member's question. It may need to ask a person
MAX_SESSION_STATE = 2_000  # characters of all subscribed URIs that are stored in a session's row
CANCEL_GRACE = 1.0  # for the member to answer a cancelled request itself
NOT_SENT_YET = "it was not sent yet"


@dataclass(frozen=True, slots=True)
class Answer:
    """A complete JSON-RPC response, with its HTTP status."""

    body: bytes
    status: int = 200


@dataclass(frozen=True, slots=True)
class Event:
    """A message on a stream. A client with a session can resume after `event_id`. The last one is the response."""

    data: bytes
    event_id: str = ""
    retry_ms: int | None = None
    is_last: bool = False
    status: int = 200  # of the response, if it is the first event


class Resumption(Protocol):
    """How to continue a stream whose client lost its connection."""

    @property
    def is_resumable(self) -> bool:
        """Whether the response is still to come and can be requested again."""

    def has_event(self, event_id: str) -> bool:
        """Return whether the stream had an event with that id."""

    def pause(self) -> None:
        """Stop reading from the member."""

    def events_after(self, event_id: str) -> AsyncGenerator[Event]:
        """Return the events after that one."""


class Stream:
    """A stream of events. The response is the last one.

    `aclose` releases the resources of the stream, even if no event was read. They are released before the client gets
    its response, because it may send its next request at once. `inner` is the stream that the events come from. After
    it is resumed, `again` creates the events from the rest of it.
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
        """Stop reading the stream, but keep its resources."""
        await self.events.aclose()
        if self._inner is not None:
            await self._inner.pause()
        if self._resumption is not None:
            self._resumption.pause()

    def go_on(self, event_id: str) -> None:
        """Continue after that event: `events` are then the following ones. Only for a paused stream."""
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
    """The total time of a request. It pauses while the client answers a question.

    Error messages contain `about` and `member`.
    """

    def __init__(self, seconds: float = REQUEST_TIMEOUT) -> None:
        self.seconds = seconds
        self.about = ""
        self.member = ""
        self.timeout = asyncio.timeout(seconds)
        self.is_cancelled = False
        self._at = self.timeout.when() or 0.0
        self._set_at: float | None = None
        self._questions = 0
        self._remaining = 0.0

    @property
    def remaining(self) -> float:
        """Remaining seconds."""
        return self._at - asyncio.get_running_loop().time()

    def renew(self) -> asyncio.Timeout:
        """Return a new timeout for the same deadline, because a timeout can be entered only once."""
        self.timeout = asyncio.timeout_at(self._at)
        return self.timeout

    def set(self, seconds: float, about: str, member: str) -> None:
        """Set the total time. It counts from the first call of this method, because a request may be tried again."""
        now = asyncio.get_running_loop().time()
        if self._set_at is None:
            self._set_at = now
        self.seconds, self.about, self.member = seconds, about, member
        self._reschedule(self._set_at + seconds - now)

    def pause(self) -> None:
        if self._questions == 0:
            self._remaining = self.remaining
            self._reschedule(QUESTION_SECONDS)
        self._questions += 1

    def resume(self) -> None:
        self._questions -= 1
        if self._questions == 0:
            self._reschedule(max(self._remaining, 0.001))

    def cancel(self, grace: float = CANCEL_GRACE) -> None:
        """End the request. The member has `grace` seconds left to answer."""
        if not self.is_cancelled:
            self._reschedule(grace)
        self.is_cancelled = True

    def _reschedule(self, seconds: float) -> None:
        if self.is_cancelled or self.timeout.expired():
            return
        self._at = asyncio.get_running_loop().time() + seconds
        with contextlib.suppress(RuntimeError):  # it has ended: the response is being sent, or paused
            self.timeout.reschedule(self._at)


@dataclass(frozen=True, slots=True)
class Question:
    """A member's question to the client. `answer` passes the client's response on to the member."""

    member_id: int
    asked_at: float  # time of the event loop
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
    running: dict[Any, Request] = field(default_factory=dict)  # in progress, by the client's id
    # For streams that can be resumed: (member, id that was sent) -> the client's id, and how to rewrite the response.
    renamed: dict[Any, tuple[Any, Callable[[bytes], bytes] | None]] = field(default_factory=dict)
    outbox: Outbox | None = None
    subscriptions: dict[str, set[str]] = field(default_factory=dict)  # member name -> URIs of its resources
    saved_state: SavedState = field(default_factory=SavedState)  # in the row, as far as this node knows

    def state(self) -> SavedState:
        """Return what the id of the session does not contain. The size is limited."""
        uris = {member: frozenset(uris) for member, uris in self.subscriptions.items() if uris}
        if sum(len(uri) for of_member in uris.values() for uri in of_member) > MAX_SESSION_STATE:
            uris = {}
        return SavedState(log_level=self.log_level, uris=uris)

    def subscribe(self, member: str, uri: str) -> None:
        """Store a subscription, so that it can be repeated for the member's next process. `uri` is the member's own."""
        uris = self.subscriptions.setdefault(member, set())
        uris_of_session = [subscribed_uri for uris in self.subscriptions.values() for subscribed_uri in uris]
        has_room = sum(map(len, uris_of_session)) + len(uri) <= limits.MAX_SUBSCRIBED
        if uri not in uris and len(uris_of_session) < limits.MAX_SUBSCRIPTIONS and has_room:
            uris.add(uri)

    def unsubscribe(self, member: str, uri: str) -> None:
        self.subscriptions.setdefault(member, set()).discard(uri)


@dataclass(eq=False, slots=True)
class Client:
    """The sender of a request, and its capabilities. A modern client has no session."""

    principal: Principal
    session: ClientSession | None
    capabilities: dict[str, Any]
    log_level: str = ""
    authorization: bytes | None = None  # to check access again while a stream is open
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
    size: int = 0  # bytes of the message
    path: str = ""  # of the URL
    parameter_headers: Mapping[str, str] = field(default_factory=dict)  # that the client sent
    client_headers: Mapping[bytes, bytes] = field(default_factory=dict)
    places: Mapping[Place, str] = field(default_factory=dict)  # headers that repeat an argument, by its place
    knows_headers: bool = True  # a modern client sends the headers of `places`. Otherwise the gateway writes them
    task: Task | None = None  # the task that the request is about
    takes_stream: bool = True  # the client can then be asked questions
    questions: list[str] = field(default_factory=list)  # ids of the questions to its client
    rewriting: Callable[[bytes], bytes] | None = None  # how its response is rewritten for the client
    is_resumable: bool = False  # its client lost the stream of the response, and may resume it
    send_cancelled: Callable[[str], Awaitable[None]] | None = None  # set once the request goes to the member
    opened_page: bool | None = None  # whether its user opened the page of a sign-in. None if the client was not asked
    unsent_reason: str = NOT_SENT_YET  # why it was not sent. Empty once the member may have read a part of it

    @property
    def is_sent(self) -> bool:
        """Whether the member may have acted on it. Before that, it is safe to send it again."""
        return not self.unsent_reason

    def begin_sending(self) -> None:
        self.unsent_reason = ""
