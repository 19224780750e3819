"""Callers' sessions, which handshake versions have: who is there, and what they were told to expect.

A session's id is its own memory, signed: version, capabilities, whose it is. So it outlives a restart of the runtime,
which many clients would take for the end. What it does not carry, and clients say once, is told apart, by the digest of
the id: which sessions were ended, log levels, subscriptions. All else that is kept here can be made anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import secrets
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import astuple, dataclass, field
from datetime import timedelta
from itertools import islice
from typing import TYPE_CHECKING, Any

from django.core import signing

from mcp_runtime import limits
from mcp_runtime.access import Principal
from mcp_runtime.gateway.clients import NAMELESS, ClientName
from mcp_runtime.limits import BudgetError, ByteBudget, Owner

if TYPE_CHECKING:
    from mcp_runtime.gateway.conversations import Conversation
    from mcp_runtime.gateway.messages import Request

logger = logging.getLogger("guildhall.gateway")

MAX_ENDED = 10_000
MAX_AGE = timedelta(days=7)
MAX_REMEMBERED = 2_000  # characters of what an id carries; a session with more does not outlive the runtime
MAX_WAITING = 1_000  # messages for a stream that is not read
MAX_WAITING_BYTES = 1_000_000  # of them, or a single larger one
SALT = "guildhall.gateway.session"


@dataclass(frozen=True, slots=True)
class Question:
    """A member's question, asked of the caller: `answer` takes the caller's response to where it belongs."""

    member_id: int
    asked_at: float  # in the loop's time
    answer: Callable[[dict[str, Any]], Awaitable[None]]


class Outbox:
    """What is to be said on one open stream, within `budget`, that of all streams.

    Too many messages: the oldest goes, for a notification is only ever a hint. Too many bytes: nobody reads, so the
    stream is given up, and `give_up` is called to end it. Its client can come back, and resume where the member can.
    """

    def __init__(
        self,
        owner: Owner = (None, None),
        budget: ByteBudget | None = None,
        give_up: Callable[[], None] = lambda: None,
    ) -> None:
        self._owner, self._give_up = owner, give_up
        self._budget = budget or limits.bytes_of_streams()
        self._waiting: deque[tuple[bytes, str, int | None]] = deque()
        self._bytes = 0  # that wait
        self._in_hand = 0  # bytes of the message that was taken last: it is being sent until the next one is taken
        self._is_given_up = False
        self._bell = asyncio.Event()
        self.is_closed = False

    def put(self, data: bytes, event_id: str = "", retry_ms: int | None = None) -> None:
        if self._is_given_up:
            return
        while len(self._waiting) >= MAX_WAITING:
            self._forget(len(self._waiting.popleft()[0]))
        try:
            if self._waiting and self._bytes + len(data) > MAX_WAITING_BYTES:
                raise BudgetError(f"a stream may have {MAX_WAITING_BYTES:,} bytes")
            self._budget.take(self._owner, len(data))
        except BudgetError as error:
            logger.info("a stream that is not read was ended: of what waits to be sent %s", error)
            self.discard()
            self._give_up()
            return
        self._bytes += len(data)
        self._waiting.append((data, event_id, retry_ms))
        self._bell.set()

    def _forget(self, size: int) -> None:
        self._bytes -= size
        self._budget.give_back(self._owner, size)

    def close(self) -> None:
        self.is_closed = True
        self._bell.set()

    def discard(self) -> None:
        """Close it, and keep nothing. What is being sent stays counted as long as `sent` was not called."""
        self._is_given_up = True
        self._forget(self._bytes)
        self._waiting.clear()
        self.close()

    def sent(self) -> None:
        """The message that was taken last is not held any more."""
        self._budget.give_back(self._owner, self._in_hand)
        self._in_hand = 0

    async def take(self, seconds: float) -> tuple[bytes, str, int | None] | None:
        """The next message, the one before it being sent; None when none came in time, or none will."""
        self.sent()
        if not self._waiting and not self.is_closed:
            self._bell.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._bell.wait()
        if not self._waiting:
            return None
        taken = self._waiting.popleft()
        self._in_hand = len(taken[0])
        self._bytes -= self._in_hand
        return taken


@dataclass(eq=False)
class CallerSession:
    """One session of one caller, at one path. `conversations` are the sessions with members that belong to it."""

    id: str
    owner: tuple[int | None, int | None]  # user and token
    path: str
    version: str
    capabilities: dict[str, Any]
    client: ClientName = NAMELESS
    log_level: str = ""
    conversations: dict[int, asyncio.Future[Conversation]] = field(default_factory=dict)
    questions: dict[str, Question] = field(default_factory=dict)
    running: dict[Any, Request] = field(default_factory=dict)  # by the caller's id; not answered yet
    # Of streams to be resumed: (member, id of ours) -> the caller's, and how the answer is rewritten for the caller.
    renamed: dict[Any, tuple[Any, Callable[[bytes], bytes] | None]] = field(default_factory=dict)
    outbox: Outbox | None = None
    subscriptions: dict[str, set[str]] = field(default_factory=dict)  # member name -> URIs of its resources

    def beyond_id(self) -> dict[str, Any]:
        """What its id does not carry, as JSON, within bounds; empty where there is nothing."""
        uris = {member: sorted(uris) for member, uris in self.subscriptions.items() if uris}
        if sum(len(uri) for of_member in uris.values() for uri in of_member) > MAX_REMEMBERED:
            uris = {}
        return ({"level": self.log_level} if self.log_level else {}) | ({"uris": uris} if uris else {})

    def begun(self) -> list[Conversation]:
        """The sessions with members that are there."""
        ready = (one for one in self.conversations.values() if one.done() and not one.cancelled())
        return [one.result() for one in ready if not one.exception()]


@dataclass(eq=False, slots=True)
class Caller:
    """Who asks, and what they can do themselves. `session` None: a modern caller."""

    principal: Principal
    session: CallerSession | None
    capabilities: dict[str, Any]
    log_level: str = ""
    authorization: bytes | None = None  # for streams, which may outlive what it stands for
    client: ClientName = NAMELESS

    @property
    def is_modern(self) -> bool:
        return self.session is None


class Sessions:
    """All of them. `on_drop(session)` is called for each that leaves the memory."""

    def __init__(self, on_drop: Callable[[CallerSession], None]) -> None:
        self._sessions: OrderedDict[str, CallerSession] = OrderedDict()
        self._ended: OrderedDict[str, None] = OrderedDict()  # by digest
        self._told: OrderedDict[str, dict[str, Any]] = OrderedDict()  # of those not in memory, by digest
        self._on_drop = on_drop

    def begin(
        self,
        principal: Principal,
        path: str,
        version: str,
        capabilities: dict[str, Any],
        client: ClientName = NAMELESS,
    ) -> CallerSession:
        owner = (principal.user_id, principal.token_id)
        told = {"o": owner, "p": path, "v": version, "c": capabilities, "i": astuple(client)}
        told["n"] = secrets.token_urlsafe(12)
        if len(json.dumps(told)) <= MAX_REMEMBERED:
            session_id = signing.dumps(told, salt=SALT, compress=True)
        else:
            session_id = secrets.token_urlsafe(32)
        session = CallerSession(session_id, owner, path, version, capabilities, client)
        self._keep(session)
        return session

    def find(self, session_id: str, principal: Principal, path: str) -> CallerSession | None:
        """The session, if it is this caller's, begun at this path and not ended."""
        session = self._sessions.get(session_id) or self._remembered(session_id)
        if session is None or session.path != path or session.owner != (principal.user_id, principal.token_id):
            return None
        self._sessions.move_to_end(session_id)
        return session

    def end(self, session: CallerSession) -> None:
        if self._sessions.pop(session.id, None) is not None:
            self._drop(session)
        self._ended[_digest(session.id)] = None
        while len(self._ended) > MAX_ENDED:
            self._ended.popitem(last=False)

    def beyond_ids(self) -> dict[str, Any]:
        """For `restore` in the next runtime, as JSON."""
        here = {_digest(one.id): told for one in self._sessions.values() if (told := one.beyond_id())}
        return {"ended": list(self._ended), "told": {**self._told, **here}}

    def restore(self, known: dict[str, Any]) -> None:
        """Raises LookupError, TypeError, ValueError or AttributeError for what `beyond_ids` did not make."""
        for digest, told in known["told"].items():
            uris = {member: [str(uri) for uri in uris] for member, uris in told.get("uris", {}).items()}
            self._told[digest] = {"level": str(told.get("level", "")), "uris": uris}
        self._ended.update((str(digest), None) for digest in known["ended"])

    def _remembered(self, session_id: str) -> CallerSession | None:
        """A session from its id: it was begun before the runtime was started, or is not in memory any more."""
        digest = _digest(session_id)
        if digest in self._ended:
            return None
        try:
            told = signing.loads(session_id, salt=SALT, max_age=MAX_AGE)
        except signing.BadSignature:
            return None
        client = ClientName(*told.get("i", ()))  # ids of earlier versions have none
        session = CallerSession(session_id, tuple(told["o"]), told["p"], told["v"], told["c"], client)
        beyond = self._told.pop(digest, {})
        session.log_level = beyond.get("level", "")
        session.subscriptions = {member: set(uris) for member, uris in beyond.get("uris", {}).items()}
        self._keep(session)
        return session

    def _keep(self, session: CallerSession) -> None:
        self._sessions[session.id] = session
        of_user = [one for one in self._sessions.values() if one.owner[0] == session.owner[0]]
        of_token = [one for one in of_user if one.owner == session.owner]
        self._make_room(of_token, limits.MAX_SESSIONS_OF_TOKEN, session)
        self._make_room(of_user, limits.MAX_SESSIONS_OF_USER, session)
        self._make_room(self._sessions.values(), limits.MAX_SESSIONS, session)

    def _make_room(self, among: Iterable[CallerSession], most: int, newest: CallerSession) -> None:
        """Of too many those used longest ago leave the memory: they are made anew from their ids.

        Not one whose stream is open, or that has something under way: of those others bound the number.
        """
        kept = [one for one in among if one.id in self._sessions]
        idle = (one for one in kept if not one.running and one.outbox is None and one is not newest)
        for spare in islice(idle, max(len(kept) - most, 0)):
            del self._sessions[spare.id]
            self._drop(spare)
            if told := spare.beyond_id():
                self._told[_digest(spare.id)] = told
                while len(self._told) > limits.MAX_SESSIONS:
                    self._told.popitem(last=False)

    def _drop(self, session: CallerSession) -> None:
        if session.outbox is not None:
            session.outbox.close()
        self._on_drop(session)


def _digest(session_id: str) -> str:
    return hashlib.sha256(session_id.encode()).hexdigest()
