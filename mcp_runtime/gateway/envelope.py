"""Read only the outermost object of JSON-RPC messages, so that large parts pass through without being decoded.

Every message of a member goes through `read`, whatever its size. It must be exactly one message of one kind, and its id
is compared with the id that was sent. The gateway encodes the outermost object again around the unchanged parts, so the
receiver cannot read another message in the same bytes. msgspec checks the syntax of the whole message and decodes
nothing. But it accepts invalid UTF-8, and the last of two equal keys wins. This module rejects both.
"""

from __future__ import annotations

import codecs
import contextlib
import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
from msgspec import Raw

from mcp_runtime.protocol import jsonrpc
from mcp_runtime.protocol.errors import ForeignAnswerError, ProtocolError, RemoteError

MAX_KEYS = 20  # of an outermost object. JSON-RPC has six
MAX_ID = 1_000  # characters. The id of a question is stored until it is answered
MAX_KEY = 1_000  # characters of one key
MAX_SMALL = 65_536  # bytes of a part that is decoded: ids, error codes, questions
# Keys of an object and items of an array that are decoded at once. No other thread runs meanwhile, for 0.2 ms. Objects
# of MCP have ten keys. The 400,000 keys that fit into 4 MB would take 100 ms.
MAX_FIELDS = 1_000
MAX_ITEMS = 10_000
PIECE = 65_536  # bytes at a time, so that other threads can run in between

OBJECTS = msgspec.json.Decoder(dict[str, Raw])
LISTS = msgspec.json.Decoder(list[Raw])
_ANY = msgspec.json.Decoder()
_ENCODER = msgspec.json.Encoder()
_KEY = re.compile(rb'[ \t\n\r]*[{,][ \t\n\r]*("(?:[^"\\]|\\.)*")[ \t\n\r]*:[ \t\n\r]*')
_PLAIN = re.compile(rb'"[ !#-\[\]-~]*"|\d{1,15}|null')
# A surrogate pair, or half of one. The pattern starts with fixed characters, so that text without any is searched fast.
_SURROGATES = re.compile(rb"\\u[dD](?:[89abAB][0-9a-fA-F]{2}(?:\\u[dD][c-fC-F][0-9a-fA-F]{2})?|[c-fC-F][0-9a-fA-F]{2})")
_PAIR = 12  # characters
MAX_HALVES = 1_000
_NO_BRACKET = bytes(set(range(256)) - set(b"[]{}"))
_NO_SEPARATOR = bytes(set(range(256)) - set(b"[]{},"))
# Innermost arrays with few items are removed in one step.
_INNERMOST = re.compile(rb"\[,{0,9}\]")
_SQUARE = re.compile(rb"\[+|\]+")
_BRACKETS = bytes.maketrans(b"{}", b"[]")
OPEN = ord("[")


Read = TypeVar("Read")


@dataclass(slots=True)  # not frozen: creating a frozen one takes three times as long
class Message:
    """A request, a notification or a response. Missing parts are None. `has_id` is set for `null` too."""

    id: Any
    has_id: bool
    method: str | None = None
    params: Raw | None = None
    result: Raw | None = None
    error: Raw | None = None
    opened_fields: dict[str, Any] | None = None  # the keys and values of one of these three, if it is large

    @property
    def is_response(self) -> bool:
        return self.method is None

    @property
    def is_request(self) -> bool:
        return self.method is not None and self.has_id

    def answers(self, sent_id: Any) -> bool:
        """Return whether it is the response to the request with this id."""
        return self.method is None and type(self.id) is type(sent_id) and self.id == sent_id

    @property
    def is_unaddressed_error(self) -> bool:
        """Whether it is an error of a server that could not read the id (JSON-RPC 2.0, section 5)."""
        return self.error is not None and self.id is None

    @property
    def fields(self) -> dict[str, Any]:
        """The keys and values of its params, result or error.

        Raise ProtocolError for a large part without `opened_fields`.
        """
        if self.opened_fields is not None:
            return self.opened_fields
        part = self.params or self.result or self.error
        if is_large(part):
            raise ProtocolError(f"a part of the message has more than {MAX_FIELDS:,} keys")
        return fields(part)

    def parts(self) -> dict[str, Any]:
        """Return the unchanged message, for `encode`."""
        if self.method is None:
            return self.response_to(self.id)
        message: dict[str, Any] = {"jsonrpc": "2.0"} | ({"id": self.id} if self.has_id else {})
        message["method"] = self.method
        return message if self.params is None else {**message, "params": self.params}

    def response_to(self, request_id: Any) -> dict[str, Any]:
        """Return this response with another id and unchanged parts, for `encode`."""
        kind, value = ("error", self.error) if self.error is not None else ("result", self.result)
        return {"jsonrpc": "2.0", "id": request_id, kind: value}

    def opened_response_to(self, request_id: Any) -> dict[str, Any]:
        """Return the same with the keys and values of its result or error, which need no further decoding."""
        return {"jsonrpc": "2.0", "id": request_id, "error" if self.error is not None else "result": self.fields}

    def request_as(self, request_id: Any) -> dict[str, Any]:
        """Return this request with another id."""
        return {**self.parts(), "id": request_id}

    def remote_error(self) -> RemoteError | None:
        """Return the error of an error response, or None. Its `data` is included only if it is short."""
        if self.error is None:
            return None
        error = self.fields
        data = error.get("data")
        is_short = data is not None and len(bytes(data)) <= MAX_SMALL
        message = text(error.get("message"))[: jsonrpc.MAX_MESSAGE]
        return RemoteError(_code(error), message or "no message", small(data) if is_short else None)


# Reading ----------------------------------------------------------------------------------------------------------


def read(data: bytes) -> Message:
    """Return the one message in `data`. Raise ProtocolError for anything else."""
    data = data.removeprefix(codecs.BOM_UTF8)
    check_text(data)
    return _read_tolerantly(_read_object, data)


def read_answer_opened(data: bytes) -> list[Message]:
    return read_answer(data) if len(data) <= MAX_SMALL else [_open_fields(message) for message in read_answer(data)]


def read_answer(data: bytes) -> list[Message]:
    """Return the messages of a body: one, or those of an array, which servers of 2025-03-26 may send."""
    data = data.removeprefix(codecs.BOM_UTF8)
    if not data.lstrip(b" \t\n\r").startswith(b"["):
        return [read(data)]
    check_text(data)
    return _read_tolerantly(_read_array, data)


def read_answer_to(sent_id: Any, data: bytes) -> Message:
    """Return the response in a body to the request with that id. Raise what `answer_to` raises."""
    return answer_to(sent_id, read_answer_opened(data))


def answer_to(sent_id: Any, messages: list[Message]) -> Message:
    """Return the response to the request with that id.

    Raise ForeignAnswerError for the response to another request, and ProtocolError if there is no response.
    """
    responses = [message for message in messages if message.is_response]
    if len(responses) != 1:
        raise ProtocolError("the answer is not a JSON-RPC 2.0 response to this request")
    (answer,) = responses
    if answer.answers(sent_id) or answer.is_unaddressed_error:
        return answer
    raise ForeignAnswerError


def read_opened(data: bytes) -> Message:
    """Return the message with decoded `fields`, so that they can be used on the event loop."""
    return read(data) if len(data) <= MAX_SMALL else _open_fields(read(data))


def _open_fields(message: Message) -> Message:
    part = message.params or message.result or message.error
    if is_large(part):
        with contextlib.suppress(ProtocolError):  # the message can still pass through unchanged
            parts_by_key = fields(part)
            meta = parts_by_key.get("_meta")
            message.opened_fields = (
                {**parts_by_key, "_meta": fields(meta)} if is_large(meta) and is_object(meta) else parts_by_key
            )
    return message


def _read_tolerantly(reader: Callable[[bytes], Read], data: bytes) -> Read:
    """Read JSON that may escape half of a surrogate pair. Servers send that when they cut text inside an emoji.

    msgspec rejects it, so replace the halves and read again.
    """
    try:
        return reader(data)
    except ProtocolError:
        repaired_data = _without_halves(data)
        if repaired_data == data or b"\0" in data:
            raise
        return reader(repaired_data)


def _without_halves(data: bytes) -> bytes:
    """Replace halves of surrogate pairs. Above MAX_HALVES, which no real text has, replace nothing."""
    halves = itertools.count(1)

    def paired(escape: re.Match[bytes]) -> bytes:  # a function, so that other threads can run in between
        if len(escape[0]) == _PAIR:
            return escape[0]
        if next(halves) > MAX_HALVES:
            raise _TooManyHalvesError
        return rb"\ufffd"

    try:
        return _SURROGATES.sub(paired, data.replace(b"\\\\", b"\0\0")).replace(b"\0\0", b"\\\\")
    except _TooManyHalvesError:
        return data


class _TooManyHalvesError(Exception):
    pass


def _read_object(data: bytes) -> Message:
    return _message(_object(data))


def _read_array(data: bytes) -> list[Message]:
    too_many = f"the answer is an array of more than {jsonrpc.MAX_BATCH} messages"
    if len(data) > MAX_SMALL and holds_more(data, jsonrpc.MAX_BATCH):
        raise ProtocolError(too_many)
    parts = _decoded(LISTS, data)
    if len(parts) > jsonrpc.MAX_BATCH:
        raise ProtocolError(too_many)
    return [_message(_object(bytes(part))) for part in parts]


def check_text(data: bytes) -> None:
    """Raise ProtocolError if the data is not UTF-8 or nests deeper than jsonrpc.MAX_DEPTH."""
    if not data.isascii():
        try:
            data.decode()
        except UnicodeDecodeError as error:
            raise ProtocolError(f"the answer is not JSON ({error}): {jsonrpc.excerpt(data)}") from error
    # The same depth as jsonrpc.check_depth, which does not count the outermost value.
    if nests_deeper(data, jsonrpc.MAX_DEPTH + 1):
        raise ProtocolError(f"nested more than {jsonrpc.MAX_DEPTH} levels deep")


def nests_deeper(data: bytes, limit: int) -> bool:
    """Return whether brackets outside of strings nest deeper than `limit`. Linear, and in pieces."""
    if data.count(b"{") + data.count(b"[") <= limit:
        return False
    depth, carry = 0, b""
    for outline in _outlines(data, _NO_BRACKET):
        brackets = carry + outline
        carry, brackets = (b"[", brackets[:-1]) if brackets.endswith(b"[") else (b"", brackets)
        # Remove the innermost pairs at once. That reduces the deepest nesting by one.
        for bracket in brackets.replace(b"[]", b""):
            depth += 1 if bracket == OPEN else -1
            if depth >= limit:
                return True
    return False


def holds_more(data: bytes, most: int) -> bool:
    """Return whether the outermost object or array has more than `most` keys or items. `most` is at least ten.

    Linear, in pieces, and without decoding.
    """
    if data.count(b",") < most:
        return False
    depth = separators = 0
    for outline in _outlines(data, _NO_SEPARATOR):
        brackets, end = _INNERMOST.sub(b"", outline), 0
        for run in _SQUARE.finditer(brackets):
            separators += run.start() - end if depth == 1 else 0
            end = run.end()
            depth += (end - run.start()) * (1 if brackets[end - 1] == OPEN else -1)
        separators += len(brackets) - end if depth == 1 else 0
        if separators >= most:
            return True
    return False


def _outlines(data: bytes, ignored: bytes) -> Iterator[bytes]:
    """Yield, in pieces, the text outside of strings without the `ignored` bytes and with square brackets only."""
    is_in_string, carry = False, b""
    for start in range(0, len(data), PIECE):
        piece = carry + data[start : start + PIECE]
        backslashes = len(piece) - len(piece.rstrip(b"\\"))
        # The character after an odd number of backslashes is in the next piece.
        carry, piece = (piece[-1:], piece[:-1]) if backslashes % 2 else (b"", piece)
        parts = piece.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        yield b"".join(parts[is_in_string::2]).translate(_BRACKETS, ignored)
        is_in_string ^= len(parts) % 2 == 0


def _object(data: bytes) -> dict[str, Raw]:
    is_large = len(data) > MAX_SMALL
    parts_by_key: dict[str, Raw] = {} if is_large and holds_more(data, MAX_KEYS) else _decoded(OBJECTS, data)
    if not 0 < len(parts_by_key) <= MAX_KEYS:
        raise ProtocolError(f"a message without keys, or with more than {MAX_KEYS}")
    if is_large and max(map(len, parts_by_key)) > MAX_KEY:
        raise ProtocolError(f"a message with a key of more than {MAX_KEY:,} characters")
    _reject_duplicate_keys(data, parts_by_key)
    return parts_by_key


def _decoded(decoder: msgspec.json.Decoder[Any], data: bytes | Raw) -> Any:
    try:
        return decoder.decode(data)
    except RecursionError as error:
        raise ProtocolError("the answer is nested too deeply") from error
    except msgspec.ValidationError as error:  # JSON, but no object
        raise ProtocolError("the answer is not a JSON-RPC 2.0 response to this request") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ProtocolError(f"the answer is not JSON ({error}): {jsonrpc.excerpt(bytes(data))}") from error


def _reject_duplicate_keys(data: bytes, parts_by_key: Mapping[str, Raw]) -> None:
    """Raise ProtocolError if a key occurs twice: then the value after its first occurrence is not the decoded one."""
    if len(data) <= MAX_SMALL:  # most messages have one of two formats, and comparing is cheaper than the loop below
        parts = [(key.encode(), bytes(value)) for key, value in parts_by_key.items()]
        if data == b"{%b}" % b",".join([b'"%b":%b' % part for part in parts]):
            return
        if data == b"{%b}" % b", ".join([b'"%b": %b' % part for part in parts]):
            return
    end = 0
    for _ in parts_by_key:
        key = _KEY.match(data, end)
        value = bytes(parts_by_key[_text(key[1])]) if key else b""
        if key is None or not data.startswith(value, key.end()):
            break
        end = key.end() + len(value)
    else:
        if not _KEY.match(data, end):
            return
    raise ProtocolError("a key occurs twice in the message")


def _text(key: bytes) -> str:
    return str(json.loads(key)) if b"\\" in key else key[1:-1].decode()


def _message(parts_by_key: Mapping[str, Raw]) -> Message:
    method, params, result, error = (
        parts_by_key.get("method"),
        parts_by_key.get("params"),
        parts_by_key.get("result"),
        parts_by_key.get("error"),
    )
    if bytes(parts_by_key.get("jsonrpc", b"")) != b'"2.0"' or (method, result, error).count(None) != 2:
        raise ProtocolError("not a JSON-RPC 2.0 message")
    message_id = small(parts_by_key["id"]) if "id" in parts_by_key else None
    if isinstance(message_id, str) and len(message_id) > MAX_ID:
        raise ProtocolError(f"the id of a message has more than {MAX_ID:,} characters")
    if message_id is not None and (not isinstance(message_id, (str, int, float)) or isinstance(message_id, bool)):
        raise ProtocolError("the id of a message is neither a string nor a number")
    if method is not None and _first(method) != b'"':
        raise ProtocolError("the method of a message is not a string")
    if params is not None and bytes(params) == b"null":  # some servers send null for missing params
        params = None
    if params is not None and _first(params) not in (b"{", b"["):
        raise ProtocolError("the params of a message are neither an object nor an array")
    if result is not None and _first(result) != b"{":
        raise ProtocolError("the answer has no result object")
    if error is not None:
        _code(fields(error))
    return Message(message_id, "id" in parts_by_key, None if method is None else text(method), params, result, error)


def _code(error: Mapping[str, Raw]) -> int:
    code = small(error["code"]) if "code" in error else None
    if not isinstance(code, int) or isinstance(code, bool):
        raise ProtocolError("the answer's error object has no integer code")
    return code


# Parts ------------------------------------------------------------------------------------------------------------


def fields(value: Any) -> dict[str, Any]:
    """Return the keys and undecoded values of an object. Empty for anything else.

    Raise ProtocolError for a large object with more than MAX_FIELDS keys. Read large ones outside of the event loop.
    """
    if isinstance(value, Raw):
        if not is_object(value):
            return {}
        if is_large(value) and holds_more(bytes(value), MAX_FIELDS):
            raise ProtocolError(f"a part of the message has more than {MAX_FIELDS:,} keys")
        parts_by_key: dict[str, Any] = OBJECTS.decode(value)
        return parts_by_key
    return value if isinstance(value, dict) else {}


def items(value: Any) -> list[Any]:
    """Return the undecoded items of an array. Empty for anything else.

    Raise ProtocolError for a large array with more than MAX_ITEMS items. Read large ones outside of the event loop.
    """
    if isinstance(value, Raw):
        if _first(value) != b"[":
            return []
        if is_large(value) and holds_more(bytes(value), MAX_ITEMS):
            raise ProtocolError(f"a part of the message has more than {MAX_ITEMS:,} items")
        parts: list[Any] = LISTS.decode(value)
        return parts
    return value if isinstance(value, list) else []


def is_large(value: Any) -> bool:
    """Return whether it is an undecoded part of more than MAX_SMALL bytes."""
    return isinstance(value, Raw) and memoryview(value).nbytes > MAX_SMALL


def is_object(value: Any) -> bool:
    return _first(value) == b"{" if isinstance(value, Raw) else isinstance(value, dict)


def _first(value: Raw) -> bytes:
    return bytes(memoryview(value)[:1])


def text(value: Any) -> str:
    """Return a short string. Empty for any other value."""
    string = small(value) if isinstance(value, Raw) and _first(value) == b'"' else value
    return string if isinstance(string, str) else ""


def small(value: Any, most: int = MAX_SMALL) -> Any:
    """Decode a part. Raise ProtocolError if it has more than `most` bytes."""
    if not isinstance(value, Raw):
        return value
    data = bytes(value)
    if len(data) > most:
        raise ProtocolError(f"a part of the message is larger than {most:,} bytes")
    if _PLAIN.fullmatch(data):  # most ids, methods and names
        return _ANY.decode(data)
    return jsonrpc.decode(data)


def encode(message: Any) -> bytes:
    """Encode a message as JSON. Raw parts stay unchanged."""
    try:
        return _ENCODER.encode(message)
    except UnicodeEncodeError:  # a lone surrogate: JSON can escape it, UTF-8 cannot encode it
        return _escaped(message)


def request(message_id: str, method: str, params: Mapping[str, Any]) -> bytes:
    return encode({"jsonrpc": "2.0", "id": message_id, "method": method, "params": params})


def _escaped(value: Any) -> bytes:
    if isinstance(value, dict):
        return b"{%b}" % b",".join([b"%b:%b" % (_escaped(key), encode(part)) for key, part in value.items()])
    if isinstance(value, (list, tuple)):
        return b"[%b]" % b",".join(map(encode, value))
    return json.dumps(value).encode()
