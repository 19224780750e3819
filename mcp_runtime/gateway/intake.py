"""Read the messages of clients, and limit their number, their size, their shape and the time that they take.

The event loop decodes the messages of all clients, and no other client is served while it decodes one. The shape of a
message is therefore checked first. A large message waits if earlier ones of its token took more than the token's share
of the loop's time. The bytes of a body are reserved before they are read, and released when the request ends.
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
from mcp_runtime.gateway.shares import Shares
from mcp_runtime.http1.server import BODY_SECONDS, MAX_BODY, HttpExchange, TooLargeError
from mcp_runtime.protocol import jsonrpc
from mcp_runtime.protocol.errors import MethodError, ProtocolError, TooManyCallsError
from mcp_runtime.protocol.jsonrpc import INTERNAL_ERROR, INVALID_REQUEST, PARSE_ERROR
from mcp_runtime.security.access import Principal
from mcp_runtime.security.limits import BudgetError, ByteBudget, Limiter, Owner, TimeShare, TokenLimits

# The size of all bodies whose requests are in progress: for one token, for one user, and for all clients. A body needs
# up to three times its size in memory while it is decoded and encoded again.
MAX_BODY_BYTES_PER_TOKEN = 16_000_000
MAX_BODY_BYTES_PER_USER = 32_000_000
MAX_TOTAL_BODY_BYTES = 96_000_000
# Limits of one message. A string of 4 MB is one value. Sixty embeddings in one message are about MAX_VALUES values.
MAX_VALUES = 100_000
MAX_EXPONENTS = 10_000  # msgspec needs 7 microseconds to decode 1.123456789012345e-300
# If msgspec refuses a message, `jsonrpc.decode` decodes it, unless it has more values than this. `jsonrpc.decode` is
# slower, but its errors are precise, and it accepts lone surrogates.
MAX_FALLBACK_VALUES = 10_000
# Decoding the messages of one token may take this share of the event loop's time, and BURST_SECONDS at once. Short
# messages are not measured, because the rest of their request takes longer.
SHARE_OF_LOOP_TIME = 0.015
BURST_SECONDS = 0.06
MAX_SHORT_MESSAGE = 16_384  # bytes

LISTEN_METHOD = "subscriptions/listen"

_DECODER = msgspec.json.Decoder()


class Intake:
    """Read the messages of all clients, and count them against their limits.

    `thread_time` returns the CPU time of the current thread in seconds.
    """

    def __init__(self, shares: Shares, thread_time: Callable[[], float] = time.thread_time) -> None:
        self._shares = shares
        self._thread_time = thread_time
        self._byte_budget = ByteBudget(
            of_token=MAX_BODY_BYTES_PER_TOKEN, of_user=MAX_BODY_BYTES_PER_USER, in_all=MAX_TOTAL_BODY_BYTES
        )
        self._time_share = TimeShare(SHARE_OF_LOOP_TIME, BURST_SECONDS)
        self._limiter = Limiter()

    @contextlib.contextmanager
    def body_budget(self, owner: Owner) -> Iterator[Callable[[int], None]]:
        """Yield a function that reserves the bytes of one body. They are released when the context ends.

        The function takes the total number of bytes, which may be lower than in the last call. It raises Refusal.
        """
        reserved_bytes = 0

        def reserve(size: int) -> None:
            nonlocal reserved_bytes
            try:
                self._byte_budget.take(owner, size - reserved_bytes)
            except BudgetError as error:
                status, code = (503, INTERNAL_ERROR) if error.is_full else (429, INVALID_REQUEST)
                text = f"the requests in progress have too many bytes: {error}; try again when one of them has ended"
                raise Refusal(status, MethodError(code, text), headers=[(b"retry-after", b"1")]) from None
            reserved_bytes = size

        try:
            yield reserve
        finally:
            self._byte_budget.give_back(owner, reserved_bytes)

    @contextlib.contextmanager
    def count_message(self, principal: Principal, message: Any, limits: TokenLimits | None = None) -> Iterator[None]:
        """Count one message against the limits of its token. Raises Refusal.

        `limits` is the result of `take_shares`. Without other gateways, all limits of the token are counted here.

        Every message counts as a call in this minute. A request also counts as a concurrent call until the context
        ends. Notifications and responses do not, because a concurrent call may wait for them. A subscription stream
        does not, because it stays open. A batch does not, because each request in it is counted separately.
        """
        is_concurrent, key = is_concurrent_call(message), principal.token_id or 0
        has_share = limits is not None and is_concurrent and limits.max_in_flight != principal.limits.max_in_flight
        limits = limits or principal.limits
        try:
            try:
                # 0 means no limit.
                self._limiter.enter(key, limits if is_concurrent else replace(limits, max_in_flight=0))
            except TooManyCallsError as error:
                raise _too_many(error, message) from error
            if not is_concurrent:
                self._limiter.leave(key)
            try:
                yield
            finally:
                if is_concurrent:
                    self._limiter.leave(key)
        finally:
            if has_share:
                self._shares.end(key)

    @property
    def has_shares(self) -> bool:
        """Whether there are other gateways. This one alone must not wait for the database."""
        return self._shares.are_needed

    async def take_shares(self, principal: Principal, message: Any) -> TokenLimits:
        """Count one message against the limits of all gateways together. Raises Refusal.

        Returns the limits that no row counts. `count_message` must follow at once.
        """
        try:
            has_share = is_concurrent_call(message) and await self._shares.begin(principal)
            try:
                has_call = await self._shares.take(principal)
            except BaseException:
                if has_share:
                    self._shares.end(principal.token_id or 0)
                raise
        except TooManyCallsError as error:
            raise _too_many(error, message) from error
        limits = replace(principal.limits, calls_per_minute=0) if has_call else principal.limits
        return replace(limits, max_in_flight=0) if has_share else limits

    async def read_message(
        self, owner: Owner, exchange: HttpExchange, reserve: Callable[[int], None]
    ) -> tuple[int, Any]:
        """Return the size of the body in bytes, and its message. Raises Refusal.

        `reserve` is the function that `body_budget` yields.
        """
        body = await read_body(exchange, reserve)
        is_short = len(body) <= MAX_SHORT_MESSAGE
        if not is_short:
            await self._wait_for_share(owner)
        start = 0.0 if is_short else self._thread_time()
        try:
            return len(body), decode_message(body)
        except ProtocolError as error:
            raise Refusal(400, MethodError(PARSE_ERROR, str(error))) from error
        finally:
            if not is_short:
                self._time_share.spend(owner, self._thread_time() - start)

    async def _wait_for_share(self, owner: Owner) -> None:
        """Wait until this token's share allows a large message. Raises Refusal if that would exceed BODY_SECONDS."""
        deadline = asyncio.get_running_loop().time() + BODY_SECONDS
        while (wait := self._time_share.wait(owner)) > 0:
            if asyncio.get_running_loop().time() + wait > deadline:
                text = f"this token sends large messages too fast; try again in {wait:.0f} s"
                headers = [(b"retry-after", b"%d" % (wait + 1))]
                raise Refusal(429, MethodError(INVALID_REQUEST, text), headers=headers)
            await asyncio.sleep(wait)


async def read_body(exchange: HttpExchange, reserve: Callable[[int], None] = lambda size: None) -> bytes:
    """Return the body of the request. `reserve` is passed to `HttpExchange.body`. Raises Refusal."""
    try:
        return await exchange.body(reserve)
    except TooLargeError:
        text = f"the message has more than {MAX_BODY:,} bytes"
        raise Refusal(413, MethodError(INVALID_REQUEST, text)) from None
    except TimeoutError:
        text = f"the request body did not arrive within {BODY_SECONDS:g} s"
        raise Refusal(408, MethodError(INVALID_REQUEST, text)) from None


def is_concurrent_call(message: Any) -> bool:
    return isinstance(message, dict) and "id" in message and message.get("method") not in (None, LISTEN_METHOD)


def _too_many(error: TooManyCallsError, message: Any) -> Refusal:
    headers = [(b"retry-after", str(max(1, math.ceil(error.retry_after))).encode())]
    data = {"kind": "limit", "retryAfter": round(error.retry_after, 1)}
    return Refusal(429, MethodError(INVALID_REQUEST, str(error), data), message_id_of(message), headers)


def message_id_of(message: Any) -> Any:
    return message.get("id") if isinstance(message, dict) else None


def decode_message(body: bytes) -> Any:
    """Decode a client's message.

    Raises ProtocolError for invalid JSON, for a number such as 1e999, and for a message that `check_shape` refuses.
    """
    check_shape(body)
    try:
        return _DECODER.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        if max(_count_opening_brackets(body), body.count(b",")) > MAX_FALLBACK_VALUES:
            raise ProtocolError(f"the body cannot be decoded ({error}): {jsonrpc.excerpt(body)}") from error
    return jsonrpc.decode(body, "the body", exact=True)  # raises a precise error, or accepts a lone surrogate


def check_shape(body: bytes) -> None:
    """Raise ProtocolError for more than MAX_VALUES values, MAX_EXPONENTS numbers with exponents, or MAX_DEPTH levels.

    The message is not decoded. The number of values is estimated from quotes, brackets and commas.
    """
    if _count_opening_brackets(body) <= jsonrpc.MAX_DEPTH and body.count(b",") <= MAX_EXPONENTS:
        return
    # Remove escaped backslashes and quotes, then strings. A backslash outside of a string makes the counts wrong, but
    # such a body is not JSON.
    without_escapes = body.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in body else body
    too_many = ProtocolError(f"the body has more than {MAX_VALUES:,} values")
    if without_escapes.count(b'"') > 4 * MAX_VALUES:  # a key and its value may be two strings
        raise too_many
    outline = b"".join(without_escapes.split(b'"')[::2])
    if max(_count_opening_brackets(outline), outline.count(b",")) > MAX_VALUES:
        raise too_many
    exponents = outline.count(b"e") + outline.count(b"E") - outline.count(b"true") - outline.count(b"false")
    if exponents > MAX_EXPONENTS:
        raise ProtocolError(f"the body has more than {MAX_EXPONENTS:,} numbers with exponents")
    # The same limit as in `jsonrpc.check_depth`, which does not count the outermost value as a level.
    if envelope.nests_deeper(body, jsonrpc.MAX_DEPTH + 1):
        raise ProtocolError(f"the body is nested more than {jsonrpc.MAX_DEPTH} levels deep")


def _count_opening_brackets(text: bytes) -> int:
    return text.count(b"{") + text.count(b"[")
