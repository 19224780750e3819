"""Read a request safely: its JSON body, the wait that it asks for, its idempotency key."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import IO, Any, NoReturn

import msgspec
from django.conf import settings
from rest_framework.exceptions import ParseError, ValidationError
from rest_framework.parsers import BaseParser
from rest_framework.request import Request

from mcp_runtime.control.calls import wait_for_call
from mcp_runtime.protocol.errors import TooManyCallsError
from mcp_runtime.rows.database import give_connection_back
from mcp_runtime.security.limits import Owner, SharedSlots
from roster.api.errors import LengthRequired
from roster.api.permissions import principal_of
from roster.models import Call

MAX_WAIT = 60
# Bytes of a body that msgspec refuses and `json` decodes. That is slower, but its errors are precise, and it accepts
# lone surrogates.
MAX_FALLBACK_BYTES = 65_536
MAX_IDEMPOTENCY_KEY = 255

# Each request that waits occupies a thread of the web. Half of the threads always stay free for other requests.
seats = SharedSlots(settings.GUILD_HALL_WEB_THREADS // 2)


# The body ---------------------------------------------------------------------------------------------------------


class ObjectParser(BaseParser):
    """Parse a JSON object. Raises RequestDataTooBig if it is larger than DATA_UPLOAD_MAX_MEMORY_SIZE."""

    media_type = "application/json"

    def parse(
        self, stream: IO[Any], media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        # Not `stream.read()`, because only Django's `body` checks the limit.
        body: bytes = (parser_context or {})["request"].body
        try:
            value = _decode(body)
        except RecursionError as error:
            raise ParseError("The body is nested too deep.") from error
        except ValueError as error:
            raise ParseError(f"The body is not JSON: {error}.") from error
        if not isinstance(value, dict):
            raise ParseError("The body must be a JSON object.")
        return value


def _decode(body: bytes) -> Any:
    """Decode with msgspec. Decode again with `json` if msgspec refuses a small body.

    No other thread of the process runs while `json` decodes, so it does not get large bodies.
    """
    try:
        return msgspec.json.decode(body)
    except (ValueError, RecursionError):
        if len(body) > MAX_FALLBACK_BYTES:
            raise
        return json.loads(body, parse_constant=_refuse_constant, parse_float=_parse_float)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _parse_float(text: str) -> float:
    """Refuse numbers such as 1e999. They are valid JSON, but become infinity, which JSON cannot represent."""
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text[:40]} is too large a number")
    return value


def require_content_length(request: Request) -> None:
    """Raise LengthRequired for a body without Content-Length, because WSGI would deliver an empty body."""
    if "HTTP_TRANSFER_ENCODING" in request.META and not request.META.get("CONTENT_LENGTH"):
        raise LengthRequired


def call_arguments(request: Request) -> Any:
    """Return `arguments` of the body, or {}. Raises ValidationError for other keys, because one may be misspelt."""
    body = dict(request.data)
    arguments = body.pop("arguments", {})
    if body:
        raise ValidationError({repr(key): ['This key is unknown; send {"arguments": {...}}.'] for key in body})
    return arguments


def idempotency_key(request: Request) -> str | None:
    """Return the Idempotency-Key header. Raises ValidationError if it is empty or too long."""
    key = request.headers.get("Idempotency-Key")
    if key is not None and not 1 <= len(key) <= MAX_IDEMPOTENCY_KEY:
        raise ValidationError({"Idempotency-Key": [f"Send 1 to {MAX_IDEMPOTENCY_KEY} characters."]})
    return key


# Prefer: wait=N (RFC 7240) ----------------------------------------------------------------------------------------


def preferred_wait(request: Request) -> int:
    """Return the seconds that the client asks to wait, at most MAX_WAIT. 0 if the header is missing or invalid."""
    wait = next(_preferences(request.headers.get("Prefer", ""), "wait"), "")
    return min(int(wait), MAX_WAIT) if re.fullmatch(r"[0-9]{1,9}", wait) else 0


def _preferences(header: str, name: str) -> Iterator[str]:
    for preference in header.split(","):
        token, _, value = preference.partition(";")[0].partition("=")
        if token.strip().lower() == name:
            yield value.strip().strip('"')


@contextmanager
def seat(owner: Owner, environment: Mapping[str, Any]) -> Iterator[bool]:
    """Yield whether there is a free seat for a request that waits. Principals share the seats, see `Slots`."""
    with seats.seat(owner) as has_seat:
        if has_seat:
            wait_callback(environment)()
        yield has_seat


@contextmanager
def seat_for_member(owner: Owner, environment: Mapping[str, Any]) -> Iterator[None]:
    """Use a seat for a request that waits for a member. Raises TooManyCallsError."""
    with seat(owner, environment) as has_seat:
        if not has_seat:
            raise TooManyCallsError("Too many requests wait for members or calls now. Try again in a moment.", 1.0)
        yield


def wait_callback(environment: Mapping[str, Any]) -> Callable[[], None]:
    """Return the function to call before each wait, so that the server lets other threads work."""
    callback: Callable[[], None] = environment.get("guildhall.waits", lambda: None)
    return callback


class SeatedStream:
    """The parts of a streaming response that occupies a seat. `close` releases the seat.

    A generator cannot do this, because its `finally` does not run if the generator never started.
    """

    def __init__(self, parts: Iterator[str], seat: ExitStack) -> None:
        self._parts = parts
        self._seat = seat

    def __iter__(self) -> Iterator[str]:
        return self._parts

    def close(self) -> None:
        self._seat.close()


def wait_for_end(request: Request, call: Call, seconds: int) -> bool:
    """Wait until the call ends. Return whether there was a free seat, not whether the call ended."""
    with seat(principal_of(request).owner, request.META) as has_seat:
        if has_seat:
            give_connection_back()  # other requests may need the connection
            wait_for_call(call.pk, seconds)
    return has_seat
