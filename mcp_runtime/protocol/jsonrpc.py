"""JSON-RPC 2.0 as plain values: create messages, read them, make them safe to store, serve methods. No I/O.

Source: the JSON-RPC 2.0 specification.
"""

from __future__ import annotations

import html
import itertools
import json
import logging
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from mcp_runtime.protocol.errors import MethodError, ProtocolError, RemoteError

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

# UTF-8 has no lone surrogates. They are written as the escapes of JSON.
SURROGATES = "backslashreplace"
PAGE_BYTES = 4096  # in which the title of a page of HTML is looked for
_PAGE = re.compile(r"(?i)\s*(?:<!--.{0,500}?-->\s*)?<(?:!doctype html|html|head|body)\b", re.DOTALL)
_TITLE = re.compile(r"(?i)<(title|h1)[^>]{0,200}>([^\0]{1,300}?)</\1")
_TAG = re.compile(r"<[^>]*>")
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_ESCAPED_UNSTORABLE = re.compile(rb"\\u(0000|[dD][89a-fA-F])")


def object_of(value: Any) -> dict[str, Any]:
    """Return `value` if it is an object, else an empty object."""
    return value if isinstance(value, dict) else {}


def same_id(response_id: Any, request_id: int) -> bool:
    """Whether the id of a response is the request's id. In Python `True` equals 1, so booleans are excluded."""
    return response_id == request_id and not isinstance(response_id, bool)


class IdCounter:
    """Request ids. One counter gives each id once. (The clock reading of the seeds collides under concurrency.)"""

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
    """Raises ValueError for NaN and infinity, which JSON does not have."""
    return _ENCODER.encode(message).encode("utf-8", SURROGATES)


def beginning(value: Any, length: int) -> bytes:
    """The JSON of `value`, or its first `length` bytes and some more. The rest is not encoded."""
    parts = bytearray()
    for part in _ENCODER.iterencode(value):
        parts += part.encode("utf-8", SURROGATES)
        if len(parts) > length:
            break
    return bytes(parts)


def decode(body: bytes, subject: str = "the answer", *, exact: bool = False) -> Any:
    """The JSON value of `body`. Raises ProtocolError if it is not JSON, nests too deep or contains NaN.

    Characters that databases refuse are replaced (`storable`), unless `exact`. `subject` names the body in errors.
    """
    try:
        # Decode the bytes here, because `loads` also accepts UTF-16, and surrogates in UTF-8, which are not checked.
        value = _DECODER.decode(body.decode().removeprefix("\ufeff"))
    except RecursionError as error:
        raise ProtocolError(f"{subject} is nested too deeply") from error
    except ValueError as error:  # covers JSONDecodeError, UnicodeDecodeError and integers without end
        raise ProtocolError(f"{subject} is not JSON ({error}): {excerpt(body)}") from error
    if not exact and is_unstorable(body):
        return storable(value)
    if body.count(b"{") + body.count(b"[") > MAX_DEPTH:  # most messages have too few brackets to be so deep
        check_depth(value)
    return value


def _finite(digits: str) -> float:
    if math.isinf(number := float(digits)):
        raise ProtocolError("a number is too large to be stored")
    return number


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


# Create them once. `dumps` and `loads` with options create one for each message, which takes longer than most messages.
_ENCODER = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False)
_DECODER = json.JSONDecoder(parse_float=_finite, parse_constant=_refuse_constant)


def is_unstorable(body: bytes) -> bool:
    """Whether the JSON text may contain characters that `storable` replaces."""
    return _ESCAPED_UNSTORABLE.search(body) is not None


def check_depth(value: Any, depth: int = 0) -> None:
    """Raise ProtocolError if `value` nests deeper than MAX_DEPTH or contains 1e999. Databases refuse such JSON."""
    if depth > MAX_DEPTH:
        raise ProtocolError(f"nested more than {MAX_DEPTH} levels deep")
    if isinstance(value, (dict, list)):
        for item in value.values() if isinstance(value, dict) else value:
            if isinstance(item, (dict, list, float)):
                check_depth(item, depth + 1)
    elif isinstance(value, float) and not math.isfinite(value):
        raise ProtocolError("a number is too large to be stored")


def storable(value: Any, depth: int = 0) -> Any:
    """Replace NUL characters and lone surrogates in `value`, which PostgreSQL's JSON refuses.

    Raises ProtocolError for a value that `check_depth` refuses.
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
    """The beginning of `body` for an error message, printable and bounded. Of a page of HTML, its title."""
    head = body[:PAGE_BYTES].decode("utf-8", "replace")
    if _PAGE.match(head):
        title = _TITLE.search(head)
        words = " ".join(html.unescape(_TAG.sub(" ", title[2])).split()) if title else ""
        return f"a web page{words and f' with the title {excerpt(words.encode(), length)}'}"
    text = body[:length].decode("utf-8", "replace")
    printable = "".join(char if char.isprintable() else " " for char in text)
    return repr(" ".join(printable.split()) + ("…" if len(body) > length else ""))


def result_of(response: Any) -> dict[str, Any]:
    """The result of a response. Raises RemoteError for its error object, ProtocolError if it is not a response."""
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


@dataclass(frozen=True)
class Request:
    """A request, or a notification, which has no id. `message` is the whole message."""

    message: dict[str, Any]
    id: str | int | float | None = None

    @property
    def method(self) -> str:
        return str(self.message["method"])

    @property
    def params(self) -> Any:
        """An object or an array. An empty object if the message has no params."""
        return self.message.get("params", {})

    @property
    def is_notification(self) -> bool:
        return "id" not in self.message


@dataclass(frozen=True)
class Response:
    """The response of a peer to a request of ours."""

    message: dict[str, Any]


@dataclass(frozen=True)
class Fault:
    """A message that is neither a request nor a response, and the error to answer."""

    error: MethodError
    id: str | int | float | None = None


@dataclass(frozen=True)
class Encoded:
    """A response that is already encoded. None means that there will be no response."""

    text: bytes | None


@dataclass(frozen=True)
class Incoming:
    """One message, or the messages of a batch."""

    parts: list[Request | Response | Fault]
    is_batch: bool = False

    @property
    def requests(self) -> list[Request]:
        """The requests that need an answer."""
        return [part for part in self.parts if isinstance(part, Request) and not part.is_notification]


Handler = Callable[[Request], Any]


class MethodDispatcher:
    """Serves JSON-RPC. A method is a function that takes the request and returns its result, or an Encoded response.

    `answer` returns bytes, or None if there is nothing to answer. It never raises, whatever the message is. A function
    raises MethodError to answer with an error. Any other exception is logged, and the client gets only "Internal
    error". `default` serves methods without a function. `on_response` gets the responses to our own requests. Without
    it responses are invalid messages.
    """

    def __init__(
        self,
        methods: Mapping[str, Handler],
        *,
        default: Handler | None = None,
        on_response: Callable[[Response], None] | None = None,
        max_bytes: int = MAX_BYTES,
        max_batch: int = MAX_BATCH,
    ) -> None:
        self._methods = dict(methods)
        self._default = default or _method_not_found
        self._on_response = on_response
        self._max_bytes = max_bytes
        self._max_batch = max_batch

    def read(self, body: bytes) -> Incoming:
        """Read a message or a batch. A body that cannot be read becomes one part, its Fault."""
        try:
            if len(body) > self._max_bytes:
                raise MethodError(INVALID_REQUEST, f"the message is larger than {self._max_bytes:,} bytes")
            value = decode(body, exact=True)
            if not isinstance(value, list):
                return Incoming([self._validate(value)])
            if not 0 < len(value) <= self._max_batch:
                raise MethodError(INVALID_REQUEST, f"a batch has 1 to {self._max_batch} messages, not {len(value)}")
        except ProtocolError:
            return Incoming([Fault(_standard_error(PARSE_ERROR))])
        except MethodError as error:
            return Incoming([Fault(error)])
        return Incoming([self._validate(message) for message in value], is_batch=True)

    def answer(
        self, incoming: Incoming, each: Callable[[Callable[[Any], bytes | None], list[Any]], Iterable[Any]] = map
    ) -> bytes | None:
        """The answer to one message or a batch. Answers are in the order of the requests.

        `each` serves the parts of a batch. `map` serves one after the other, the `map` of an executor all at once.
        """
        if not incoming.is_batch:
            return self._answer(incoming.parts[0])
        answers = [answer for answer in each(self._answer, incoming.parts) if answer is not None]
        return b"[" + b",".join(answers) + b"]" if answers else None

    def _validate(self, message: Any) -> Request | Response | Fault:
        raw_id = message.get("id") if isinstance(message, dict) else None
        has_good_id = isinstance(raw_id, (str, int, float)) and not isinstance(raw_id, bool)
        response_id = raw_id if has_good_id else None
        if not isinstance(message, dict) or message.get("jsonrpc") != "2.0" or not (has_good_id or raw_id is None):
            return Fault(_standard_error(INVALID_REQUEST), response_id)
        if isinstance(message.get("method"), str) and isinstance(message.get("params", {}), (list, dict)):
            return Request(message, response_id)
        if self._on_response is not None and "method" not in message and ("result" in message) != ("error" in message):
            return Response(message)
        return Fault(_standard_error(INVALID_REQUEST), response_id)

    def _answer(self, part: Request | Response | Fault) -> bytes | None:
        if isinstance(part, Fault):
            return encode(error_response(part.id, part.error.code, part.error.message, part.error.data))
        if isinstance(part, Response):
            self._take_response(part)
            return None
        answer = _serve(self._methods.get(part.method, self._default), part)
        return None if part.is_notification else answer

    def _take_response(self, response: Response) -> None:
        try:
            if self._on_response is not None:
                self._on_response(response)
        except Exception:
            logger.exception("a response could not be handled")


def _standard_error(code: int) -> MethodError:
    return MethodError(code, MEANINGS[code])


def _method_not_found(request: Request) -> NoReturn:
    raise _standard_error(METHOD_NOT_FOUND)


def _serve(handler: Handler, request: Request) -> bytes | None:
    """Run the handler. Returns the response as text."""
    try:
        try:
            result = handler(request)
        except MethodError as error:
            return encode(error_response(request.id, error.code, error.message, error.data))
        return result.text if isinstance(result, Encoded) else encode(result_response(request.id, result))
    except Exception:
        logger.exception("method %r failed", request.method)
        return encode(error_response(request.id, INTERNAL_ERROR, MEANINGS[INTERNAL_ERROR]))
