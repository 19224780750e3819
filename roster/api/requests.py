"""What a request says, read with care: its JSON body, how long it would wait, its idempotency key."""

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
from mcp_runtime.rows.database import give_connection_back
from mcp_runtime.security.limits import Owner, SharedSlots
from roster.api.errors import LengthRequired
from roster.api.permissions import principal_of
from roster.models import Invocation

MAX_WAIT = 60
MAX_MENDED = 65_536  # bytes of a body that is read by the slower way, which says more and reads lone surrogates
MAX_IDEMPOTENCY_KEY = 255

# Each who waits holds a thread of the web; the other half keeps answering.
seats = SharedSlots(settings.GUILD_HALL_WEB_THREADS // 2)


# The body ---------------------------------------------------------------------------------------------------------


class ObjectParser(BaseParser):
    """A JSON object, as large as DATA_UPLOAD_MAX_MEMORY_SIZE allows (beyond: RequestDataTooBig)."""

    media_type = "application/json"

    def parse(
        self, stream: IO[Any], media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        # Not `stream.read()`: only Django's own `body` minds the limit.
        body: bytes = (parser_context or {})["request"].body
        try:
            value = _value_of(body)
        except RecursionError as error:
            raise ParseError("The body is nested too deep.") from error
        except ValueError as error:
            raise ParseError(f"The body is not JSON: {error}.") from error
        if not isinstance(value, dict):
            raise ParseError("The body must be a JSON object.")
        return value


def _value_of(body: bytes) -> Any:
    """While json reads, no other thread of the process runs: it reads what msgspec refuses, and says what is wrong."""
    try:
        return msgspec.json.decode(body)
    except (ValueError, RecursionError):
        if len(body) > MAX_MENDED:
            raise
        return json.loads(body, parse_constant=_refuse_constant, parse_float=_finite)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    """1e999 is JSON, but read as infinity it could not be written down again."""
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text[:40]} is too large a number")
    return value


def refuse_chunks(request: Request) -> None:
    """Raises LengthRequired for a body without a length: WSGI gives none of it, and `{}` would be called instead."""
    if "HTTP_TRANSFER_ENCODING" in request.META and not request.META.get("CONTENT_LENGTH"):
        raise LengthRequired


def call_arguments(request: Request) -> Any:
    """`arguments` of the body, `{}` without. A misspelt key is refused: it would call the tool with nothing."""
    body = dict(request.data)
    arguments = body.pop("arguments", {})
    if body:
        raise ValidationError({repr(key): ['This key is unknown; send {"arguments": {...}}.'] for key in body})
    return arguments


def idempotency_key(request: Request) -> str | None:
    """The Idempotency-Key header. Raises ValidationError for one that is empty or too long."""
    key = request.headers.get("Idempotency-Key")
    if key is not None and not 1 <= len(key) <= MAX_IDEMPOTENCY_KEY:
        raise ValidationError({"Idempotency-Key": [f"Give 1 to {MAX_IDEMPOTENCY_KEY} characters."]})
    return key


# Prefer: wait=N (RFC 7240) ----------------------------------------------------------------------------------------


def preferred_wait(request: Request) -> int:
    """Seconds the client would wait, at most MAX_WAIT; 0 when it did not say, or said it so that nobody can know."""
    wait = next(_preferences(request.headers.get("Prefer", ""), "wait"), "")
    return min(int(wait), MAX_WAIT) if re.fullmatch(r"[0-9]{1,9}", wait) else 0


def _preferences(header: str, name: str) -> Iterator[str]:
    for preference in header.split(","):
        token, _, value = preference.partition(";")[0].partition("=")
        if token.strip().lower() == name:
            yield value.strip().strip('"')


@contextmanager
def seat(owner: Owner, environment: Mapping[str, Any]) -> Iterator[bool]:
    """Around waiting: whether there is a seat for it. Principals share the seats, see `Slots`."""
    with seats.seat(owner) as is_seated:
        if is_seated:
            waits(environment)()
        yield is_seated


def waits(environment: Mapping[str, Any]) -> Callable[[], None]:
    """To be called before each time that a thread waits: the server lets others work meanwhile."""
    tell: Callable[[], None] = environment.get("guildhall.waits", lambda: None)
    return tell


class Seated:
    """Parts of an answer, whose seat is given back however it ends: a generator that never began runs no `finally`."""

    def __init__(self, parts: Iterator[str], seat: ExitStack) -> None:
        self._parts = parts
        self._seat = seat

    def __iter__(self) -> Iterator[str]:
        return self._parts

    def close(self) -> None:
        self._seat.close()


def wait_for_end(request: Request, invocation: Invocation, seconds: int) -> bool:
    """Wait until the call is over; whether there was a seat to wait at all (not: whether it is over)."""
    with seat(principal_of(request).owner, request.META) as is_seated:
        if is_seated:
            give_connection_back()  # waiting is no reason to keep one from those who work
            wait_for_call(invocation.pk, seconds)
    return is_seated
