"""Receive the messages of clients within budgets: requests, bytes, values of a message, time on the event loop.

All clients share one event loop and one interpreter. The bytes of a body are reserved before the body is read, and
released when its request ends. The shape of a message is checked before the message is decoded, because decoding cannot
be interrupted. A client that sends large messages waits until its share of the event loop's time allows the next one.
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

# Bytes of the bodies whose requests are in progress: of one token, of one user, of all clients. While a body is decoded
# and encoded again, it needs up to three times as much memory.
MAX_TOKEN_BODY_BYTES = 16_000_000
MAX_USER_BODY_BYTES = 32_000_000
MAX_ALL_BODY_BYTES = 96_000_000
# Limits of one message. 4 MB of text are one value. A program that inserts sixty embeddings sends about MAX_VALUES.
MAX_VALUES = 100_000
MAX_EXPONENTS = 10_000  # msgspec needs 7 microseconds to decode 1.123456789012345e-300
# Values of a message that msgspec refuses and jsonrpc decodes. That is slower, but its errors are precise, and it
# accepts lone surrogates.
MAX_FALLBACK_VALUES = 10_000
# The share of the event loop's time that the messages of one token may use. Short messages are not measured, because
# the call costs more than its message.
SHARE_OF_LOOP = 0.015
BURST_SECONDS = 0.06
SHORT_BYTES = 16_384
LISTEN_METHOD = "subscriptions/listen"

_DECODER = msgspec.json.Decoder()


class Intake:
    """The budgets of all clients. `cpu` returns the CPU seconds that this thread has used."""

    def __init__(self, cpu: Callable[[], float] = time.thread_time) -> None:
        self._cpu = cpu
        self._bytes = ByteBudget(of_token=MAX_TOKEN_BODY_BYTES, of_user=MAX_USER_BODY_BYTES, in_all=MAX_ALL_BODY_BYTES)
        self._time = TimeShare(SHARE_OF_LOOP, BURST_SECONDS)
        self._limiter = Limiter()

    @contextlib.contextmanager
    def body_budget(self, owner: Owner) -> Iterator[Callable[[int], None]]:
        """Yield a function that reserves bytes for the body of one request. Release them at the end.

        The function takes the total size of the body. It raises Refusal.
        """
        reserved_bytes = 0

        def reserve(size: int) -> None:
            nonlocal reserved_bytes
            try:
                self._bytes.take(owner, size - reserved_bytes)
            except BudgetError as error:
                status, code = (503, INTERNAL_ERROR) if error.is_full else (429, INVALID_REQUEST)
                text = (
                    f"too many bytes of request bodies in progress: {error}; try again when a request has been answered"
                )
                raise Refusal(status, MethodError(code, text), headers=[(b"retry-after", b"1")]) from None
            reserved_bytes = size

        try:
            yield reserve
        finally:
            self._bytes.give_back(owner, reserved_bytes)

    @contextlib.contextmanager
    def count_message(self, principal: Principal, message: Any) -> Iterator[None]:
        """Count one message against the limits of its token, for as long as the context lasts. Raises Refusal.

        Notifications, responses and subscription streams do not count as concurrent calls. A call may wait for a
        response or a notification, and a stream stays open.
        """
        is_call = isinstance(message, dict) and "id" in message and message.get("method") not in (None, LISTEN_METHOD)
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

    async def read_message(
        self, owner: Owner, exchange: HttpExchange, reserve: Callable[[int], None]
    ) -> tuple[int, Any]:
        """Return the size of the body in bytes, and the message in it. Raises Refusal."""
        body = await read_body(exchange, reserve)
        is_short = len(body) <= SHORT_BYTES
        if not is_short:
            await self._wait_for_share(owner)
        start = 0.0 if is_short else self._cpu()
        try:
            return len(body), decode_message(body)
        except ProtocolError as error:
            raise Refusal(400, MethodError(PARSE_ERROR, str(error))) from error
        finally:
            if not is_short:
                self._time.spend(owner, self._cpu() - start)

    async def _wait_for_share(self, owner: Owner) -> None:
        """Wait until this principal's share of the event loop's time allows the next message. Raises Refusal."""
        deadline = asyncio.get_running_loop().time() + BODY_SECONDS
        while (wait := self._time.wait(owner)) > 0:
            if asyncio.get_running_loop().time() + wait > deadline:
                text = f"this token sends large messages too fast; try again in {wait:.0f} s"
                retry = [(b"retry-after", b"%d" % (wait + 1))]
                raise Refusal(429, MethodError(INVALID_REQUEST, text), headers=retry)
            await asyncio.sleep(wait)


async def read_body(exchange: HttpExchange, reserve: Callable[[int], None] = lambda size: None) -> bytes:
    """Return the body. `reserve` is called as in `HttpExchange.body`. Raises Refusal."""
    try:
        return await exchange.body(reserve)
    except TooLargeError:
        text = f"the message is larger than {MAX_BODY:,} bytes"
        raise Refusal(413, MethodError(INVALID_REQUEST, text)) from None
    except TimeoutError:
        text = f"the body did not come within {BODY_SECONDS:g} s"
        raise Refusal(408, MethodError(INVALID_REQUEST, text)) from None


def message_id_of(message: Any) -> Any:
    return message.get("id") if isinstance(message, dict) else None


def decode_message(body: bytes) -> Any:
    """Decode a client's message. Raises ProtocolError for invalid JSON, NaN, and a shape that `check_shape` refuses."""
    check_shape(body)
    try:
        return _DECODER.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        if max(_count_brackets(body), body.count(b",")) > MAX_FALLBACK_VALUES:
            raise ProtocolError(f"the body is not JSON ({error}): {jsonrpc.excerpt(body)}") from error
    return jsonrpc.decode(body, "the body", exact=True)  # raises a precise error, or accepts a lone surrogate


def check_shape(body: bytes) -> None:
    """Raise ProtocolError for more than MAX_VALUES values, MAX_EXPONENTS exponents or MAX_DEPTH levels.

    The message is not decoded.
    """
    if _count_brackets(body) <= jsonrpc.MAX_DEPTH and body.count(b",") <= MAX_EXPONENTS:
        return
    # Remove escapes, then strings. A backslash outside of a string makes the counts wrong, but such a body is not JSON.
    without_escapes = body.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in body else body
    too_many = ProtocolError(f"the body has more than {MAX_VALUES:,} values")
    if without_escapes.count(b'"') > 4 * MAX_VALUES:  # two quotes around each string; a key and a value
        raise too_many
    outline = b"".join(without_escapes.split(b'"')[::2])
    if max(_count_brackets(outline), outline.count(b",")) > MAX_VALUES:
        raise too_many
    exponents = outline.count(b"e") + outline.count(b"E") - outline.count(b"true") - outline.count(b"false")
    if exponents > MAX_EXPONENTS:
        raise ProtocolError(f"the body has more than {MAX_EXPONENTS:,} numbers with exponents")
    # The same depth as `jsonrpc.check_depth`, which does not count the outermost value.
    if envelope.nests_deeper(body, jsonrpc.MAX_DEPTH + 1):
        raise ProtocolError(f"the body is nested more than {jsonrpc.MAX_DEPTH} deep")


def _count_brackets(text: bytes) -> int:
    return text.count(b"{") + text.count(b"[")
