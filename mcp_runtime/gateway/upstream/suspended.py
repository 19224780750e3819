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
from mcp_runtime.gateway.upstream.routes import Upstream
from mcp_runtime.gateway.upstream.sessions import UpstreamSession
from mcp_runtime.http1.client import Response
from mcp_runtime.protocol import jsonrpc, mcp
from mcp_runtime.protocol.errors import MethodError, ProtocolError
from mcp_runtime.protocol.jsonrpc import INVALID_PARAMS
from mcp_runtime.security import limits
from mcp_runtime.security.limits import Account, BudgetError

MAX_EVENT_IDS = 100
# Bytes that a stream takes beside its question, which is there as it came and as it was read: its connection, and what
# came behind the question. A token may have 50 of them.
SUSPENDED_STREAM_BYTES = 320_000
SALT = "guildhall.gateway.request-state"
# What a member may answer with questions. In other methods a requestState is no business of the gateway's.
METHODS = frozenset(mcp.NAMED_BY)
# The keys of the second request of a client without a session.
INPUT_KEYS = ("requestState", "inputResponses")
UNKNOWN_STATE = "this requestState is unknown, of another request, or too old"
# What a client must have declared to be asked it.
REQUIRED_CAPABILITIES = {
    "sampling/createMessage": "sampling",
    "elicitation/create": "elicitation",
    "roots/list": "roots",
}

_SORTED = msgspec.json.Encoder(order="sorted")

# Who asked what, and where, as `about` makes it.
Fingerprint = tuple[Any, ...]


@dataclass(eq=False)
class Source:
    """A member's stream, read until the answer to `sent_id`. `is_over`: nothing is owed any more."""

    upstream_session: UpstreamSession
    sent_id: str
    response: Response
    events: mcp.EventStream
    parts: AsyncGenerator[bytes]
    is_over: bool = False
    is_suspended: bool = False
    event_ids: deque[str] = field(
        default_factory=lambda: deque(maxlen=MAX_EVENT_IDS)
    )  # ids of its last events, as passed on

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
    fingerprint: Fingerprint
    questions: dict[str, Message]
    timer: asyncio.TimerHandle = field(repr=False)
    account: Account


class SuspendedStreams:
    """All of them, by the state that the client brings back. `give_up(source)` ends one whose client did not."""

    def __init__(self, on_expiry: Callable[[Source], None]) -> None:
        self._rounds: dict[str, _Round] = {}
        self._on_expiry = on_expiry
        self._bytes = limits.bytes_of_suspended()

    def suspend(
        self, source: Source, request: Request, fingerprint: Fingerprint, question: Message, size: int
    ) -> bytes:
        """Keep the stream; the response that asks the client. `size` is that of the question in bytes.

        Raises ProtocolError when too much is kept.
        """
        account = Account(self._bytes, request.client.principal.owner)
        try:
            account.change(SUSPENDED_STREAM_BYTES + 2 * size)
        except BudgetError as error:
            text = f"it asks the client something, and too many answers are waited for already: {error}"
            raise ProtocolError(text) from error
        source.is_suspended = True
        state = secrets.token_urlsafe(32)
        timer = asyncio.get_running_loop().call_later(QUESTION_SECONDS, self._expire, state)
        self._rounds[state] = _Round(source, fingerprint, {"question": question}, timer, account)
        return self._response(request, state)

    def resume(self, request: Request, fingerprint: Fingerprint) -> tuple[Source, list[tuple[Any, dict[str, Any]]]]:
        """The stream, and the answers by the member's own ids. Raises MethodError; what lacks an answer is kept."""
        state = request.params["requestState"]
        suspended_round = self._rounds.get(state) if isinstance(state, str) else None
        if suspended_round is None or suspended_round.fingerprint != fingerprint:
            raise MethodError(INVALID_PARAMS, UNKNOWN_STATE)
        responses = request.params.get("inputResponses", {})
        if not isinstance(responses, dict) or not all(
            isinstance(responses.get(key, {}), dict) for key in suspended_round.questions
        ):
            raise MethodError(INVALID_PARAMS, "inputResponses must be an object of objects")
        if missing := [key for key in suspended_round.questions if key not in responses]:
            raise StillWaitingError(self._response(request, str(state)), missing)
        answers = {key: tasks.unrelated(responses[key]) for key in suspended_round.questions}
        del self._rounds[str(state)]
        suspended_round.account.close()
        suspended_round.timer.cancel()
        suspended_round.source.is_suspended = False
        return suspended_round.source, [
            (question.id, answers[key]) for key, question in suspended_round.questions.items()
        ]

    def _response(self, request: Request, state: str) -> bytes:
        input_requests = {
            key: {"method": question.method} | ({} if question.params is None else {"params": question.params})
            for key, question in self._rounds[state].questions.items()
        }
        result = {"resultType": "input_required", "inputRequests": input_requests, "requestState": state}
        return envelope.encode(jsonrpc.result_response(request.id, result))

    def _expire(self, state: str) -> None:
        suspended_round = self._rounds.pop(state, None)
        if suspended_round is not None:
            suspended_round.account.close()
            self._on_expiry(suspended_round.source)


class StillWaitingError(Exception):
    """Not everything was answered: `response` asks again."""

    def __init__(self, response: bytes, missing: list[str]) -> None:
        super().__init__(f"no answer to {', '.join(missing)}")
        self.response = response


# Modern members -----------------------------------------------------------------------------------------------------


def seal_state(fingerprint: Fingerprint, body: bytes) -> bytes:
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
    sealed_result = {**result, "requestState": seals.seal(SALT, fingerprint, state)}
    return envelope.encode(jsonrpc.result_response(answer.id, sealed_result))


def unseal_state(request: Request, fingerprint: Fingerprint) -> dict[str, Any]:
    """The params with the member's own requestState. Raises MethodError for one that this client was not told here."""
    state = seals.unseal(SALT, fingerprint, request.params["requestState"])
    if state is None:
        raise MethodError(INVALID_PARAMS, UNKNOWN_STATE)
    return {**request.params, "requestState": state}


async def compute_fingerprint(upstream: Upstream, request: Request) -> Fingerprint:
    """The same as `about`, aside where the request is large."""
    return await upstream.run_in_thread(request.client.principal.owner, partial(fingerprint_of, request), request.size)


def fingerprint_of(request: Request) -> Fingerprint:
    """Who asked what, and where: nobody else goes on with it, and not as something else.

    A client may write the keys of its second request in another order. Arguments of megabytes are for other threads
    than the loop's.
    """
    principal = request.client.principal
    volatile = ("_meta", "inputResponses", "requestState")
    params = {key: value for key, value in request.params.items() if key not in volatile}
    try:
        params_json = _SORTED.encode(params)
    except UnicodeEncodeError:  # a lone surrogate
        params_json = json.dumps(params, sort_keys=True).encode()
    digest = hashlib.sha256(params_json).hexdigest()
    owner = (principal.user_id, principal.token_id)
    return *owner, request.path, request.deadline.member, request.method, digest
