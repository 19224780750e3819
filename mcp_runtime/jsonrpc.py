"""JSON-RPC 2.0 as plain values: make messages, read them, keep what is read harmless, serve methods. No I/O.

Source: the JSON-RPC 2.0 specification.
"""

from __future__ import annotations

import inspect
import itertools
import json
import logging
import math
import re
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NoReturn

from mcp_runtime.errors import MethodError, ProtocolError, RemoteError

logger = logging.getLogger("guildhall.jsonrpc")

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603

SERVER_ERRORS = range(-32099, -31999)  # for implementations to define
MEANINGS = {
    PARSE_ERROR: "Parse error",
    INVALID_REQUEST: "Invalid Request",
    METHOD_NOT_FOUND: "Method not found",
    INVALID_PARAMS: "Invalid params",
    INTERNAL_ERROR: "Internal error",
}

MAX_DEPTH = 100
MAX_BATCH = 100
MAX_BYTES = 4_000_000
MAX_MESSAGE = 2000

# How a lone surrogate is written, which UTF-8 does not know: as JSON escapes it.
SURROGATES = "backslashreplace"
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_ESCAPED_UNSTORABLE = re.compile(rb"\\u(0000|[dD][89a-fA-F])")


class IdCounter:
    """Request ids, never twice from one counter. (The seeds' clock reading collides under concurrency.)"""

    def __init__(self) -> None:
        self._next = itertools.count(1).__next__

    def take(self) -> int:
        return self._next()


def request(request_id: int | str, method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
    message: dict[str, Any] = {"jsonrpc": "2.0", "id": request_id, "method": method}
    if params is not None:
        message["params"] = params
    return message


def notification(method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
    message: dict[str, Any] = {"jsonrpc": "2.0", "method": method}
    if params is not None:
        message["params"] = params
    return message


def result_response(request_id: Any, result: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": request_id, "result": result}


def error_response(request_id: Any, code: int, message: str, data: Any = None) -> dict[str, Any]:
    error = {"code": code, "message": message} | ({} if data is None else {"data": data})
    return {"jsonrpc": "2.0", "id": request_id, "error": error}


def encode(message: Any) -> bytes:
    """Raises ValueError for NaN and infinity, which JSON does not know."""
    return _ENCODER.encode(message).encode("utf-8", SURROGATES)


def beginning(value: Any, length: int) -> bytes:
    """The JSON of `value`, or its first `length` bytes and some more: what is behind them is not encoded."""
    parts = bytearray()
    for part in _ENCODER.iterencode(value):
        parts += part.encode("utf-8", SURROGATES)
        if len(parts) > length:
            break
    return bytes(parts)


def decode(body: bytes, called: str = "the answer", *, exact: bool = False) -> Any:
    """The JSON value of `body`. Raises ProtocolError for what is not JSON, nests too deep or holds NaN.

    What databases do not take is replaced (`storable`), unless it is to be `exact`.
    """
    try:
        # Decoded here: `loads` would take UTF-16, and surrogates in UTF-8, past the check for them.
        value = _DECODER.decode(body.decode().removeprefix("\ufeff"))
    except RecursionError as error:
        raise ProtocolError(f"{called} is nested too deep to be read") from error
    except ValueError as error:  # covers JSONDecodeError, UnicodeDecodeError and integers without end
        raise ProtocolError(f"{called} is not JSON ({error}): {excerpt(body)}") from error
    if not exact and is_unstorable(body):
        return storable(value)
    if body.count(b"{") + body.count(b"[") > MAX_DEPTH:  # most messages have too few for that
        check_depth(value)
    return value


def _finite(digits: str) -> float:
    if math.isinf(number := float(digits)):
        raise ProtocolError("a number is too large to be stored")
    return number


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


# Made once: `dumps` and `loads` with options make one for each message, which takes longer than most messages.
_ENCODER = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False)
_DECODER = json.JSONDecoder(parse_float=_finite, parse_constant=_refuse_constant)


def is_unstorable(body: bytes) -> bool:
    """Whether the JSON text may hold what `storable` replaces."""
    return _ESCAPED_UNSTORABLE.search(body) is not None


def is_storable(value: Any) -> bool:
    """Whether `storable` leaves it as it is. Raises ProtocolError for what `check_depth` refuses."""
    check_depth(value)
    return not is_unstorable(encode(value)) or storable(value) == value


def check_depth(value: Any, depth: int = 0) -> None:
    """Raises ProtocolError when `value` nests deeper than MAX_DEPTH, or holds 1e999: databases refuse such JSON."""
    if depth > MAX_DEPTH:
        raise ProtocolError(f"nested more than {MAX_DEPTH} deep")
    if isinstance(value, (dict, list)):
        for item in value.values() if isinstance(value, dict) else value:
            if isinstance(item, (dict, list, float)):
                check_depth(item, depth + 1)
    elif isinstance(value, float) and not math.isfinite(value):
        raise ProtocolError("a number is too large to be stored")


def storable(value: Any, depth: int = 0) -> Any:
    """`value` with NUL characters and lone surrogates replaced: PostgreSQL's JSON takes neither.

    Raises ProtocolError for what `check_depth` refuses.
    """
    if depth == 0:
        check_depth(value)
    if isinstance(value, str):
        return _UNSTORABLE.sub("\N{REPLACEMENT CHARACTER}", value)
    if isinstance(value, dict):
        return {storable(key, 1): storable(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list):
        return [storable(item, depth + 1) for item in value]
    return value


def excerpt(body: bytes, length: int = 200) -> str:
    """The beginning of `body` for a message: printable, bounded."""
    text = body[:length].decode("utf-8", "replace")
    printable = "".join(char if char.isprintable() else " " for char in text)
    return repr(" ".join(printable.split()) + ("…" if len(body) > length else ""))


def result_of(response: Any) -> dict[str, Any]:
    """The result of a response. Raises RemoteError for its error object, ProtocolError when it is no response."""
    if not isinstance(response, dict) or response.get("jsonrpc") != "2.0":
        raise ProtocolError("the answer is not a JSON-RPC 2.0 response")
    if "error" in response and "result" in response:
        raise ProtocolError("the answer has both a result and an error")
    if "error" in response:
        raise _remote_error(response["error"])
    if not isinstance(response.get("result"), dict):
        raise ProtocolError("the answer has no result object")
    result: dict[str, Any] = response["result"]
    return result


def _remote_error(error: Any) -> RemoteError | ProtocolError:
    code = error.get("code") if isinstance(error, dict) else None
    if not isinstance(code, int) or isinstance(code, bool):
        return ProtocolError("the answer's error object has no integer code")
    message = error.get("message")
    text = message[:MAX_MESSAGE] if isinstance(message, str) else ""
    return RemoteError(code, text or "no message", error.get("data"))


# Serving ----------------------------------------------------------------------------------------------------------

# The id of the request that is served here and now; None in a notification.
request_id: ContextVar[str | int | float | None] = ContextVar("request_id", default=None)


class MethodDispatcher:
    """Serves JSON-RPC: methods are functions, a request's params their arguments, by position or by name.

    Whatever comes in, `answer` gives bytes, or None where nothing is to be answered; it never raises. A function
    raises MethodError to answer with an error of its own; anything else it raises is logged, and told as "Internal
    error" and no more.
    """

    def __init__(
        self, methods: Mapping[str, Callable[..., Any]], *, max_bytes: int = MAX_BYTES, max_batch: int = MAX_BATCH
    ) -> None:
        self._methods = dict(methods)
        self._max_bytes = max_bytes
        self._max_batch = max_batch

    def answer(self, body: bytes) -> bytes | None:
        """The answer to one message or a batch, its parts in the order of the requests; for plain functions."""
        messages, is_batch = self._read(body)
        return _joined([_finish(call, *_run(call)) for call in map(self._call, messages)], is_batch)

    async def answer_async(self, body: bytes) -> bytes | None:
        """The same, for methods of which some are coroutine functions."""
        messages, is_batch = self._read(body)
        return _joined([_finish(call, *await _run_async(call)) for call in map(self._call, messages)], is_batch)

    def _read(self, body: bytes) -> tuple[list[Any], bool]:
        """The messages, and whether they came as a batch. What cannot be read is one that is the error itself."""
        try:
            if len(body) > self._max_bytes:
                raise MethodError(INVALID_REQUEST, f"the message is larger than {self._max_bytes:,} bytes")
            value = decode(body, exact=True)
            if not isinstance(value, list):
                return [value], False
            if not 0 < len(value) <= self._max_batch:
                raise MethodError(INVALID_REQUEST, f"a batch has 1 to {self._max_batch} messages, not {len(value)}")
        except ProtocolError:
            return [MethodError(PARSE_ERROR, MEANINGS[PARSE_ERROR])], False
        except MethodError as error:
            return [error], False
        return value, True

    def _call(self, message: Any) -> _Call:
        if isinstance(message, MethodError):
            return _Call(None, True, _raising(message))
        given_id = message.get("id") if isinstance(message, dict) else None
        has_good_id = isinstance(given_id, (str, int, float)) and not isinstance(given_id, bool)
        answered_id = given_id if has_good_id else None
        if not _is_request(message) or not (has_good_id or given_id is None):
            return _Call(answered_id, True, _raising(MethodError(INVALID_REQUEST, MEANINGS[INVALID_REQUEST])))
        is_answered = "id" in message
        function = self._methods.get(message["method"])
        if function is None:
            return _Call(answered_id, is_answered, _raising(MethodError(METHOD_NOT_FOUND, MEANINGS[METHOD_NOT_FOUND])))
        return _Call(answered_id, is_answered, function, message.get("params", []), message["method"])


@dataclass(frozen=True)
class _Call:
    """A function to be run for a message."""

    request_id: Any
    is_answered: bool
    function: Callable[..., Any]
    params: list[Any] | dict[str, Any] = field(default_factory=list)
    method: str = ""

    def start(self) -> Any:
        positional, named = (self.params, {}) if isinstance(self.params, list) else ([], self.params)
        try:
            inspect.signature(self.function).bind(*positional, **named)
        except TypeError:
            raise MethodError(INVALID_PARAMS, MEANINGS[INVALID_PARAMS]) from None
        request_id.set(self.request_id)
        return self.function(*positional, **named)


def _is_request(message: Any) -> bool:
    return (
        isinstance(message, dict)
        and message.get("jsonrpc") == "2.0"
        and isinstance(message.get("method"), str)
        and isinstance(message.get("params", []), (list, dict))
    )


def _raising(error: MethodError) -> Callable[[], NoReturn]:
    def fail() -> NoReturn:
        raise error

    return fail


def _run(call: _Call) -> tuple[Any, Exception | None]:
    try:
        return call.start(), None
    except Exception as error:  # noqa: BLE001 - told to the caller, and logged, by `_finish`
        return None, error


async def _run_async(call: _Call) -> tuple[Any, Exception | None]:
    try:
        result = call.start()
        return (await result if inspect.isawaitable(result) else result), None
    except Exception as error:  # noqa: BLE001 - as above
        return None, error


def _finish(call: _Call, result: Any, error: Exception | None) -> bytes | None:
    """The response as text; None for a notification."""
    try:
        if error is None:
            answer = encode(result_response(call.request_id, result))
        elif isinstance(error, MethodError):
            answer = encode(error_response(call.request_id, error.code, error.message, error.data))
        else:
            raise error
    except Exception:
        logger.exception("method %r failed", call.method)
        answer = encode(error_response(call.request_id, INTERNAL_ERROR, MEANINGS[INTERNAL_ERROR]))
    return answer if call.is_answered else None


def _joined(answers: list[bytes | None], is_batch: bool) -> bytes | None:
    said = [answer for answer in answers if answer is not None]
    if not said:
        return None
    return b"[" + b",".join(said) + b"]" if is_batch else said[0]
