"""What clients send, taken in within budgets: calls, bytes in memory, the shape of a message, time on the loop.

All clients share one loop and one interpreter. A body is counted before it is read, and as long as its request is under
way. A message is measured before it is built, because what builds it cannot be interrupted. And whoever sends large
messages waits until its share of the loop's time allows the next one.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import msgspec

from mcp_runtime.gateway import envelope
from mcp_runtime.gateway.replies import Refusal
from mcp_runtime.http1.server import BODY_SECONDS, MAX_BODY, HttpExchange, TooLargeError
from mcp_runtime.protocol import jsonrpc
from mcp_runtime.protocol.errors import MethodError, ProtocolError, TooManyCallsError
from mcp_runtime.protocol.jsonrpc import INTERNAL_ERROR, INVALID_REQUEST, PARSE_ERROR
from mcp_runtime.security.access import Principal
from mcp_runtime.security.limits import BudgetError, ByteBudget, Limiter, Owner, TimeShare

# Of bodies whose requests are under way. Built and written again a body takes up to three times as much.
BODIES_OF_TOKEN = 16_000_000
BODIES_OF_USER = 32_000_000
BODIES = 96_000_000
# Of one message. 4 MB of text are one value; a program that inserts sixty embeddings sends as many as that.
MAX_VALUES = 100_000
MAX_EXPONENTS = 10_000  # msgspec takes 7 microseconds for 1.123456789012345e-300
MAX_MENDED = 10_000  # values of a message that is read by the slower way, which says more and reads lone surrogates
# Of the loop's time, for reading the messages of one token. Messages so short are not measured: a call costs more than
# its message.
SHARE_OF_LOOP = 0.015
BURST_SECONDS = 0.06
SHORT = 16_384
LISTEN = "subscriptions/listen"

_DECODER = msgspec.json.Decoder()


class Intake:
    """The budgets of all clients. `cpu` tells the seconds that this thread has worked."""

    def __init__(self, cpu: Callable[[], float] = time.thread_time) -> None:
        self._cpu = cpu
        self._bytes = ByteBudget(of_token=BODIES_OF_TOKEN, of_user=BODIES_OF_USER, in_all=BODIES)
        self._time = TimeShare(SHARE_OF_LOOP, BURST_SECONDS)
        self._limiter = Limiter()

    @contextlib.contextmanager
    def bodies_of(self, owner: Owner) -> Iterator[Callable[[int], None]]:
        """Around one request. What is given says how many bytes its body takes, and raises Refusal."""
        taken = 0

        def take(size: int) -> None:
            nonlocal taken
            try:
                self._bytes.take(owner, size - taken)
            except BudgetError as error:
                status, code = (503, INTERNAL_ERROR) if error.is_full else (429, INVALID_REQUEST)
                said = MethodError(code, f"request bodies under way: {error}; try again when some are answered")
                raise Refusal(status, said, headers=[(b"retry-after", b"1")]) from None
            taken = size

        try:
            yield take
        finally:
            self._bytes.give_back(owner, taken)

    @contextlib.contextmanager
    def counted(self, principal: Principal, message: Any) -> Iterator[None]:
        """Around one message of a token. Notices, answers and open streams take no place: others wait for them."""
        is_call = isinstance(message, dict) and "id" in message and message.get("method") not in (None, LISTEN)
        key = principal.token_id or 0
        try:
            self._limiter.enter(key, principal.limits if is_call else replace(principal.limits, max_in_flight=0))
        except TooManyCallsError as error:
            retry = [(b"retry-after", str(max(1, math.ceil(error.retry_after))).encode())]
            raise Refusal(429, MethodError(INVALID_REQUEST, str(error)), message_id_of(message), retry) from error
        if not is_call:
            self._limiter.leave(key)
        try:
            yield
        finally:
            if is_call:
                self._limiter.leave(key)

    async def message(self, owner: Owner, exchange: HttpExchange, take: Callable[[int], None]) -> tuple[int, Any]:
        """How many bytes the body has, and the message in it. Raises Refusal."""
        body = await body_of(exchange, take)
        is_short = len(body) <= SHORT
        if not is_short:
            await self._turn(owner)
        began = 0.0 if is_short else self._cpu()
        try:
            return len(body), read(body)
        except ProtocolError as error:
            raise Refusal(400, MethodError(PARSE_ERROR, str(error))) from error
        finally:
            if not is_short:
                self._time.spend(owner, self._cpu() - began)

    async def _turn(self, owner: Owner) -> None:
        """Wait until this principal's share of the loop's time allows the next message."""
        until = asyncio.get_running_loop().time() + BODY_SECONDS
        while (wait := self._time.wait(owner)) > 0:
            if asyncio.get_running_loop().time() + wait > until:
                text = f"this token sends large messages faster than they are read; the next is due in {wait:.0f} s"
                retry = [(b"retry-after", b"%d" % (wait + 1))]
                raise Refusal(429, MethodError(INVALID_REQUEST, text), headers=retry)
            await asyncio.sleep(wait)


async def body_of(exchange: HttpExchange, take: Callable[[int], None] = lambda size: None) -> bytes:
    """Raises Refusal. `take` as HttpExchange.body has it."""
    try:
        return await exchange.body(take)
    except TooLargeError:
        text = f"the message is larger than {MAX_BODY:,} bytes"
        raise Refusal(413, MethodError(INVALID_REQUEST, text)) from None
    except TimeoutError:
        text = f"the body did not come within {BODY_SECONDS:g} s"
        raise Refusal(408, MethodError(INVALID_REQUEST, text)) from None


def message_id_of(message: Any) -> Any:
    return message.get("id") if isinstance(message, dict) else None


def read(body: bytes) -> Any:
    """A client's message. Raises ProtocolError for what is not JSON, nests too deep, holds too much or NaN."""
    check_shape(body)
    try:
        return _DECODER.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        if max(_brackets(body), body.count(b",")) > MAX_MENDED:
            raise ProtocolError(f"the body is not JSON ({error}): {jsonrpc.excerpt(body)}") from error
    return jsonrpc.decode(body, "the body", exact=True)  # says what is wrong with it, or reads half a surrogate pair


def check_shape(body: bytes) -> None:
    """Raises ProtocolError for more than MAX_VALUES values, or more levels than MAX_DEPTH. Builds nothing."""
    if _brackets(body) <= jsonrpc.MAX_DEPTH and body.count(b",") <= MAX_EXPONENTS:
        return
    # Without strings. Where a backslash stands outside of them the rest is counted wrong, and never read.
    bare = body.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in body else body
    too_many = ProtocolError(f"the body has more than {MAX_VALUES:,} values")
    if bare.count(b'"') > 4 * MAX_VALUES:  # two around each, a key and a value
        raise too_many
    outline = b"".join(bare.split(b'"')[::2])
    if max(_brackets(outline), outline.count(b",")) > MAX_VALUES:
        raise too_many
    letters = outline.count(b"e") + outline.count(b"E") - outline.count(b"true") - outline.count(b"false")
    if letters > MAX_EXPONENTS:
        raise ProtocolError(f"the body has more than {MAX_EXPONENTS:,} numbers with exponents")
    # As deep as jsonrpc.check_depth allows, which counts from the outermost value.
    if envelope.nests_deeper(body, jsonrpc.MAX_DEPTH + 1):
        raise ProtocolError(f"the body is nested more than {jsonrpc.MAX_DEPTH} deep")


def _brackets(text: bytes) -> int:
    return text.count(b"{") + text.count(b"[")
