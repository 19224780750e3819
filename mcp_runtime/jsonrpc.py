"""JSON-RPC 2.0 messages as plain values: make them, read them, keep what is read harmless. No I/O.

Source: the JSON-RPC 2.0 specification.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import re
import threading
from typing import Any, NoReturn

from mcp_runtime.errors import ProtocolError, RemoteError

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603

MAX_DEPTH = 100
MAX_MESSAGE = 2000
LARGE_BODY = 250_000

_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_ESCAPED_UNSTORABLE = re.compile(rb"\\u(0000|[dD][89a-fA-F])")


_one_large_at_a_time = threading.Lock()


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


def encode(message: Any) -> bytes:
    return json.dumps(message, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")


def decode(body: bytes) -> Any:
    """The JSON value of `body`. Raises ProtocolError for what is not JSON, nests too deep or holds NaN."""
    # As objects it takes ten times its bytes, and reading it holds the interpreter for tens of milliseconds.
    with _one_large_at_a_time if len(body) > LARGE_BODY else contextlib.nullcontext():
        return _decode(body)


def _decode(body: bytes) -> Any:
    try:
        # Decoded here: `loads` would take UTF-16, and surrogates in UTF-8, past the check for them.
        value = json.loads(body.decode("utf-8-sig"), parse_constant=_refuse_constant)
    except RecursionError as error:
        raise ProtocolError("the answer is nested too deep to be read") from error
    except ValueError as error:  # covers JSONDecodeError, UnicodeDecodeError and integers without end
        raise ProtocolError(f"the answer is not JSON ({error}): {excerpt(body)}") from error
    if _ESCAPED_UNSTORABLE.search(body):
        return storable(value)
    check_depth(value)
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


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
