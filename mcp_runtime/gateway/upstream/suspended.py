"""Between two requests of a modern client, who answers a member's questions with the second (26: basic/patterns/mrtr).

A member with sessions asks on the stream of its answer, and waits: the stream is held open. A modern client is told
what it asks as the result of the first request, and sends the answers with the next one. A modern member asks so
itself, and holds nothing open; what it tells the client to bring back is sealed, for it takes all clients for one.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
from collections import deque
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec

from mcp_runtime.gateway import envelope, seals, tasks
from mcp_runtime.gateway.envelope import Message
from mcp_runtime.gateway.messages import QUESTION_SECONDS, Request
from mcp_runtime.gateway.upstream.routes import Wire
from mcp_runtime.gateway.upstream.sessions import Conversation
from mcp_runtime.http1.client import Response
from mcp_runtime.protocol import jsonrpc, mcp
from mcp_runtime.protocol.errors import MethodError, ProtocolError
from mcp_runtime.protocol.jsonrpc import INVALID_PARAMS
from mcp_runtime.security import limits
from mcp_runtime.security.limits import Account, BudgetError

MAX_TOLD = 100
# Bytes that a stream takes beside its question, which is there as it came and as it was read: its connection, and what
# came behind the question. A token may have 50 of them.
HELD_STREAM = 320_000
SALT = "guildhall.gateway.request-state"
# What a member may answer with questions. In other methods a requestState is no business of the gateway's.
METHODS = frozenset({"tools/call", "prompts/get", "resources/read"})
# The keys of the second request of a client without a session.
KEYS = ("requestState", "inputResponses")
NOT_THEIRS = "this requestState is unknown, of another request, or too old"
# What a client must have declared to be asked it.
CAPABILITIES = {"sampling/createMessage": "sampling", "elicitation/create": "elicitation", "roots/list": "roots"}

_SORTED = msgspec.json.Encoder(order="sorted")

# Who asked what, and where, as `about` makes it.
About = tuple[Any, ...]


@dataclass(eq=False)
class Source:
    """A member's stream, read until the answer to `sent_id`. `is_over`: nothing is owed any more."""

    conversation: Conversation
    sent_id: str
    response: Response
    events: mcp.EventStream
    parts: AsyncGenerator[bytes]
    is_over: bool = False
    is_held: bool = False
    told: deque[str] = field(default_factory=lambda: deque(maxlen=MAX_TOLD))  # ids of its last events, as passed on

    def is_answered_by(self, message: Message) -> bool:
        """Whether it is the answer, and so the end. Raises ForeignAnswerError for another request's."""
        if message.is_response:
            envelope.answer_to(self.sent_id, [message])
            self.is_over = True
        return message.is_response


@dataclass(eq=False)
class _Round:
    """One stream that waits. `about` is what the next request must be the same as."""

    source: Source
    about: About
    questions: dict[str, Message]
    timer: asyncio.TimerHandle = field(repr=False)
    account: Account


class Held:
    """All of them, by the state that the client brings back. `give_up(source)` ends one whose client did not."""

    def __init__(self, give_up: Callable[[Source], None]) -> None:
        self._rounds: dict[str, _Round] = {}
        self._give_up = give_up
        self._bytes = limits.bytes_of_held()

    def hold(self, source: Source, request: Request, about: About, question: Message, size: int) -> bytes:
        """Keep the stream; the response that asks the client. `size` is that of the question in bytes.

        Raises ProtocolError when too much is kept.
        """
        account = Account(self._bytes, request.client.principal.owner)
        try:
            account.change(HELD_STREAM + 2 * size)
        except BudgetError as error:
            text = f"it asks the client something, and too many answers are waited for already: {error}"
            raise ProtocolError(text) from error
        source.is_held = True
        state = secrets.token_urlsafe(32)
        timer = asyncio.get_running_loop().call_later(QUESTION_SECONDS, self._expire, state)
        self._rounds[state] = _Round(source, about, {"question": question}, timer, account)
        return self._response(request, state)

    def take(self, request: Request, about: About) -> tuple[Source, list[tuple[Any, dict[str, Any]]]]:
        """The stream, and the answers by the member's own ids. Raises MethodError; what lacks an answer is kept."""
        state = request.params["requestState"]
        waiting = self._rounds.get(state) if isinstance(state, str) else None
        if waiting is None or waiting.about != about:
            raise MethodError(INVALID_PARAMS, NOT_THEIRS)
        told = request.params.get("inputResponses", {})
        if not isinstance(told, dict) or not all(isinstance(told.get(key, {}), dict) for key in waiting.questions):
            raise MethodError(INVALID_PARAMS, "inputResponses must be an object of objects")
        if missing := [key for key in waiting.questions if key not in told]:
            raise StillWaitingError(self._response(request, str(state)), missing)
        answers = {key: tasks.unrelated(told[key]) for key in waiting.questions}
        del self._rounds[str(state)]
        waiting.account.close()
        waiting.timer.cancel()
        waiting.source.is_held = False
        return waiting.source, [(question.id, answers[key]) for key, question in waiting.questions.items()]

    def _response(self, request: Request, state: str) -> bytes:
        asked = {
            key: {"method": question.method} | ({} if question.params is None else {"params": question.params})
            for key, question in self._rounds[state].questions.items()
        }
        result = {"resultType": "input_required", "inputRequests": asked, "requestState": state}
        return envelope.encode(jsonrpc.result_response(request.id, result))

    def _expire(self, state: str) -> None:
        waiting = self._rounds.pop(state, None)
        if waiting is not None:
            waiting.account.close()
            self._give_up(waiting.source)


class StillWaitingError(Exception):
    """Not everything was answered: `response` asks again."""

    def __init__(self, response: bytes, missing: list[str]) -> None:
        super().__init__(f"no answer to {', '.join(missing)}")
        self.response = response


# Modern members -----------------------------------------------------------------------------------------------------


def sealed(about: About, body: bytes) -> bytes:
    """A modern member's response, its requestState good for nobody else and for nothing else.

    Raises ProtocolError for a state that is longer than a client may bring back.
    """
    answer = envelope.read(body)
    result = envelope.fields(answer.result)
    state = result.get("requestState")
    if state is None or not bytes(state).startswith(b'"'):
        return body  # it has none, or not one that a client may bring back
    if len(bytes(state)) > seals.MAX_TEXT:
        raise ProtocolError(f"told the client a requestState of more than {seals.MAX_TEXT:,} bytes")
    state = jsonrpc.decode(bytes(state), exact=True)
    told = {**result, "requestState": seals.sealed(SALT, about, state)}
    return envelope.encode(jsonrpc.result_response(answer.id, told))


def unsealed(request: Request, about: About) -> dict[str, Any]:
    """The params with the member's own requestState. Raises MethodError for one that this client was not told here."""
    state = seals.unsealed(SALT, about, request.params["requestState"])
    if state is None:
        raise MethodError(INVALID_PARAMS, NOT_THEIRS)
    return {**request.params, "requestState": state}


async def read_about(wire: Wire, request: Request) -> About:
    """The same as `about`, aside where the request is large."""
    return await wire.aside(request.client.principal.owner, partial(about, request), request.size)


def about(request: Request) -> About:
    """Who asked what, and where: nobody else goes on with it, and not as something else.

    A client may write the keys of its second request in another order. Arguments of megabytes are for other threads
    than the loop's.
    """
    principal = request.client.principal
    own = ("_meta", "inputResponses", "requestState")
    params = {key: value for key, value in request.params.items() if key not in own}
    try:
        written = _SORTED.encode(params)
    except UnicodeEncodeError:  # a lone surrogate
        written = json.dumps(params, sort_keys=True).encode()
    digest = hashlib.sha256(written).hexdigest()
    owner = (principal.user_id, principal.token_id)
    return *owner, request.path, request.deadline.member, request.method, digest
