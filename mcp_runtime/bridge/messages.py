"""JSON-RPC messages as values, as text, and as lines."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

TYPE_CHECKING = False  # as in `typing`, whose import would take 0.6 MB in each bridge
if TYPE_CHECKING:
    from typing import Any

    Message = dict[str, Any]
else:
    Message = dict

READ_BYTES = 65_536  # in one read, from a caller or the server
LINE_ENDS = 512  # bytes that remain at each end of a line that is too long. The id of an answer is in one of them
PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS, INTERNAL_ERROR = -32700, -32600, -32601, -32602, -32603

_ID_FIRST = re.compile(rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*(\d{1,18})\s*,')
_ID_LAST = re.compile(rb'[{,]\s*"id"\s*:\s*(\d{1,18})\s*(?:,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?\}\s*$')


def encode(message: Message) -> bytes:
    """Raises RecursionError if the message, with its envelope, is too deep to be written."""
    try:
        return json.dumps(message, separators=(",", ":"), ensure_ascii=False).encode()
    except UnicodeEncodeError:  # a lone surrogate, which came escaped and is passed on escaped
        return json.dumps(message, separators=(",", ":")).encode()


def decode(text: bytes) -> Any:
    """The JSON value. Raises ValueError if the text is not JSON."""
    try:
        return json.loads(text.decode())  # `loads` of bytes would accept UTF-16 too
    except RecursionError:
        raise ValueError("nested too deep") from None


def error_message(request_id: Any, code: int, text: str) -> Message:
    return {"jsonrpc": "2.0", "id": request_id, "error": {"code": code, "message": text}}


def notification(method: str, params: Message | None = None) -> Message:
    return {"jsonrpc": "2.0", "method": method} | ({} if params is None else {"params": params})


def id_in(line: bytes) -> int | None:
    """The id of an answer that is not JSON, or was cut. In every order of the keys it is near one end."""
    match = _ID_FIRST.match(line[:LINE_ENDS]) or _ID_LAST.search(line[-LINE_ENDS:])
    return int(match[1]) if match else None


def is_id(value: Any) -> bool:
    return isinstance(value, (str, int)) and not isinstance(value, bool)


class Lines:
    """Splits bytes into lines, each with whether it was cut. Only the two ends of a line that is too long remain."""

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._rest = bytearray()
        self._is_cut = False

    def feed(self, chunk: bytes) -> Iterator[tuple[bytes, bool]]:
        *complete, rest = chunk.split(b"\n")
        for part in complete:
            self._take(part)
            yield bytes(self._rest), self._is_cut
            self._rest.clear()
            self._is_cut = False
        self._take(rest)

    @property
    def rest(self) -> bytes:
        """What came after the last newline."""
        return bytes(self._rest)

    def _take(self, part: bytes) -> None:
        self._rest += part
        self._is_cut = self._is_cut or len(self._rest) > self._longest
        if self._is_cut and len(self._rest) > 2 * LINE_ENDS:
            del self._rest[LINE_ENDS:-LINE_ENDS]
