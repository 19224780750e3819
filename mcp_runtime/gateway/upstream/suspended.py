"""Suspend streams while a modern client answers a member's questions (26: basic/patterns/mrtr).

A member with sessions asks on the stream of its response and waits for the answer, so the gateway keeps the stream
open. A modern client gets the question as the result of its first request, and sends the answer with a second request.

A modern member works like that itself and keeps no stream open. The gateway seals the requestState of its result,
because the member does not distinguish clients.
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
# Bytes of a suspended stream without its question: its connection, and the data after the question. The question itself
# is in memory twice, as it came and as it was read. A token may have 50 suspended streams.
SUSPENDED_STREAM_BYTES = 320_000
SALT = "guildhall.gateway.request-state"
# The methods in which a member may ask questions. In other methods the gateway ignores a requestState.
METHODS = frozenset(mcp.NAMED_BY)
# The additional params of a modern client's second request.
INPUT_KEYS = ("requestState", "inputResponses")
UNKNOWN_STATE = "this requestState is unknown, expired, or belongs to another request"
# The capability that a client must declare for each question.
REQUIRED_CAPABILITIES = {
    "sampling/createMessage": "sampling",
    "elicitation/create": "elicitation",
    "roots/list": "roots",
}

_SORTED = msgspec.json.Encoder(order="sorted")

# Identifies the client and its request, see `fingerprint_of`.
Fingerprint = tuple[Any, ...]


@dataclass(eq=False)
class Source:
    """A member's stream, read until the response to `sent_id`. Then `is_over` is set."""

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
        """Return whether it is the response. Raise ForeignAnswerError for the response to another request."""
        if message.is_response:
            envelope.answer_to(self.sent_id, [message])
            self.is_over = True
        return message.is_response


@dataclass(eq=False)
class _Round:
    """One suspended stream. The next request must have the same fingerprint."""

    source: Source
    fingerprint: Fingerprint
    questions: dict[str, Message]
    timer: asyncio.TimerHandle = field(repr=False)
    account: Account


class SuspendedStreams:
    """All suspended streams, by requestState. `on_expiry(source)` ends one whose client did not answer in time."""

    def __init__(self, on_expiry: Callable[[Source], None]) -> None:
        self._rounds: dict[str, _Round] = {}
        self._on_expiry = on_expiry
        self._bytes = limits.bytes_of_suspended()

    def suspend(
        self, source: Source, request: Request, fingerprint: Fingerprint, question: Message, size: int
    ) -> bytes:
        """Suspend the stream, and return the response that asks the client. `size` is the bytes of the question.

        Raise ProtocolError if too many streams are suspended.
        """
        account = Account(self._bytes, request.client.principal.owner)
        try:
            account.change(SUSPENDED_STREAM_BYTES + 2 * size)
        except BudgetError as error:
            text = f"it asked the client a question, but too many suspended streams already wait for answers: {error}"
            raise ProtocolError(text) from error
        source.is_suspended = True
        state = secrets.token_urlsafe(32)
        timer = asyncio.get_running_loop().call_later(QUESTION_SECONDS, self._expire, state)
        self._rounds[state] = _Round(source, fingerprint, {"question": question}, timer, account)
        return self._response(request, state)

    def resume(self, request: Request, fingerprint: Fingerprint) -> tuple[Source, list[tuple[Any, dict[str, Any]]]]:
        """Return the stream, and the answers with the member's own ids.

        Raise MethodError for invalid params, and StillWaitingError if an answer is missing. Then the stream stays
        suspended.
        """
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
        answers = {key: tasks.remove_related_task(responses[key]) for key in suspended_round.questions}
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
    """Answers are missing. `response` asks for them again."""

    def __init__(self, response: bytes, missing: list[str]) -> None:
        super().__init__(f"no answer to {', '.join(missing)}")
        self.response = response


# Modern members -----------------------------------------------------------------------------------------------------


def seal_state(fingerprint: Fingerprint, body: bytes) -> bytes:
    """Return a modern member's response with its requestState sealed for this client and request.

    Raise ProtocolError if the state is too long.
    """
    answer = envelope.read(body)
    result = envelope.fields(answer.result)
    state = result.get("requestState")
    if state is None or not bytes(state).startswith(b'"'):
        return body  # there is no state, or it is not a string
    if len(bytes(state)) > seals.MAX_TEXT:
        raise ProtocolError(f"sent a requestState of more than {seals.MAX_TEXT:,} bytes")
    state = jsonrpc.decode(bytes(state), exact=True)
    sealed_result = {**result, "requestState": seals.seal(SALT, fingerprint, state)}
    return envelope.encode(jsonrpc.result_response(answer.id, sealed_result))


def unseal_state(request: Request, fingerprint: Fingerprint) -> dict[str, Any]:
    """Return the params with the member's own requestState. Raise MethodError if it was not sealed for this request."""
    state = seals.unseal(SALT, fingerprint, request.params["requestState"])
    if state is None:
        raise MethodError(INVALID_PARAMS, UNKNOWN_STATE)
    return {**request.params, "requestState": state}


async def compute_fingerprint(upstream: Upstream, request: Request) -> Fingerprint:
    """Return `fingerprint_of` the request, computed in another thread if the request is large."""
    return await upstream.run_in_thread(request.client.principal.owner, partial(fingerprint_of, request), request.size)


def fingerprint_of(request: Request) -> Fingerprint:
    """Return what identifies the client and its request, so that no other client or request can continue it.

    The keys of the second request may be in another order. Do not call this on the event loop for large arguments.
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
