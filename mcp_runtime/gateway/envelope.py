"""JSON-RPC messages read no deeper than their outermost object, so that megabytes pass without being built.

Every message of a member comes through `read`, whatever its size: exactly one message of one kind, whose id the reader
compares with the one that was sent. What passes on is written again around the parts that were read, so the receiver
cannot read another message in the same bytes. msgspec checks the syntax of all of it and builds nothing, but it accepts
invalid UTF-8 and lets the last of two equal keys win: both are refused here.
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

MAX_KEYS = 20  # of an outermost object; JSON-RPC has six
MAX_ID = 1_000  # characters: a question's is kept until it is answered
MAX_KEY = 1_000  # characters of one of them
MAX_SMALL = 65_536  # bytes of a part that is built: ids, error codes, questions
# Keys of an object and items of an array that are built at a stroke, during which no other thread runs: 0.2 ms. MCP's
# own objects have ten keys. The 400,000 that fit into 4 MB take 100 ms.
MAX_FIELDS = 1_000
MAX_ITEMS = 10_000
PIECE = 65_536  # bytes at a time, so that other threads run in between

_OBJECT = msgspec.json.Decoder(dict[str, Raw])
_LIST = msgspec.json.Decoder(list[Raw])
_ANY = msgspec.json.Decoder()
_ENCODER = msgspec.json.Encoder()
_KEY = re.compile(rb'[ \t\n\r]*[{,][ \t\n\r]*("(?:[^"\\]|\\.)*")[ \t\n\r]*:[ \t\n\r]*')
_PLAIN = re.compile(rb'"[ !#-\[\]-~]*"|\d{1,15}|null')
# A pair, or half of one. It begins with fixed characters, for what does not occur is then found out quickly.
_SURROGATES = re.compile(rb"\\u[dD](?:[89abAB][0-9a-fA-F]{2}(?:\\u[dD][c-fC-F][0-9a-fA-F]{2})?|[c-fC-F][0-9a-fA-F]{2})")
_PAIR = 12  # characters
MAX_HALVES = 1_000
_NO_BRACKET = bytes(set(range(256)) - set(b"[]{}"))
_NO_SEPARATOR = bytes(set(range(256)) - set(b"[]{},"))
# What is innermost and has few items goes in one sweep.
_INNERMOST = re.compile(rb"\[,{0,9}\]")
_SQUARE = re.compile(rb"\[+|\]+")
_BRACKETS = bytes.maketrans(b"{}", b"[]")
OPEN = ord("[")


Read = TypeVar("Read")


@dataclass(slots=True)  # not frozen, which takes three times as long to make
class Message:
    """A request, a notification or a response. Parts that are absent are None; `has_id` tells `null` from absent."""

    id: Any
    has_id: bool
    method: str | None = None
    params: Raw | None = None
    result: Raw | None = None
    error: Raw | None = None
    opened: dict[str, Any] | None = None  # the members of a large one of these three

    @property
    def is_response(self) -> bool:
        return self.method is None

    @property
    def is_request(self) -> bool:
        return self.method is not None and self.has_id

    def answers(self, sent_id: Any) -> bool:
        """Whether it is the response to the request that was sent under `sent_id`."""
        return self.method is None and type(self.id) is type(sent_id) and self.id == sent_id

    @property
    def is_unaddressed_error(self) -> bool:
        """An error of a server that could not read the id (JSON-RPC 2.0, section 5)."""
        return self.error is not None and self.id is None

    @property
    def fields(self) -> dict[str, Any]:
        """The members of its params, its result or its error.

        Raises ProtocolError for large ones that were not `opened`, or could not be.
        """
        if self.opened is not None:
            return self.opened
        part = self.params or self.result or self.error
        if is_large(part):
            raise ProtocolError(f"a part of the message has more than {MAX_FIELDS:,} keys")
        return fields(part)

    def parts(self) -> dict[str, Any]:
        """As it came, for `encode`."""
        if self.method is None:
            return self.response_to(self.id)
        message: dict[str, Any] = {"jsonrpc": "2.0"} | ({"id": self.id} if self.has_id else {})
        message["method"] = self.method
        return message if self.params is None else {**message, "params": self.params}

    def response_to(self, request_id: Any) -> dict[str, Any]:
        """This response under another id, its parts as they are: what `encode` writes."""
        kind, value = ("error", self.error) if self.error is not None else ("result", self.result)
        return {"jsonrpc": "2.0", "id": request_id, kind: value}

    def opened_response_to(self, request_id: Any) -> dict[str, Any]:
        """The same, with the members of its result or error as they are: nothing in it is to be built any more."""
        return {"jsonrpc": "2.0", "id": request_id, "error" if self.error is not None else "result": self.fields}

    def request_as(self, request_id: Any) -> dict[str, Any]:
        """This request under another id."""
        return {**self.parts(), "id": request_id}

    def remote_error(self) -> RemoteError | None:
        """The error object of an error response; its `data` only where it is short."""
        if self.error is None:
            return None
        error = self.fields
        data = error.get("data")
        is_short = data is not None and len(bytes(data)) <= MAX_SMALL
        message = text(error.get("message"))[: jsonrpc.MAX_MESSAGE]
        return RemoteError(_code(error), message or "no message", small(data) if is_short else None)


# Reading ----------------------------------------------------------------------------------------------------------


def read(data: bytes) -> Message:
    """The one message in `data`. Raises ProtocolError for anything else."""
    data = data.removeprefix(codecs.BOM_UTF8)
    check_text(data)
    return _tolerant(_one, data)


def read_answer_opened(data: bytes) -> list[Message]:
    return read_answer(data) if len(data) <= MAX_SMALL else [_opened(message) for message in read_answer(data)]


def read_answer(data: bytes) -> list[Message]:
    """The message of a whole answer, or those of an array: servers of 2025-03-26 may wrap what they say."""
    data = data.removeprefix(codecs.BOM_UTF8)
    if not data.lstrip(b" \t\n\r").startswith(b"["):
        return [read(data)]
    check_text(data)
    return _tolerant(_several, data)


def read_answer_to(sent_id: Any, data: bytes) -> Message:
    """The answer in one piece to what was sent under that id. Raises what `answer_to` raises."""
    return answer_to(sent_id, read_answer_opened(data))


def answer_to(sent_id: Any, messages: list[Message]) -> Message:
    """The one response to what was sent. Raises ForeignAnswerError for another's, ProtocolError where there is none."""
    responses = [message for message in messages if message.is_response]
    if len(responses) != 1:
        raise ProtocolError("the answer is not a JSON-RPC 2.0 response to what was asked")
    (answer,) = responses
    if answer.answers(sent_id) or answer.is_unaddressed_error:
        return answer
    raise ForeignAnswerError


def read_opened(data: bytes) -> Message:
    """The same, for who looks into it on the loop."""
    return read(data) if len(data) <= MAX_SMALL else _opened(read(data))


def _opened(message: Message) -> Message:
    part = message.params or message.result or message.error
    if is_large(part):
        with contextlib.suppress(ProtocolError):  # it may pass as it is
            found = fields(part)
            meta = found.get("_meta")
            message.opened = {**found, "_meta": fields(meta)} if is_large(meta) and is_object(meta) else found
    return message


def _tolerant(reader: Callable[[bytes], Read], data: bytes) -> Read:
    """JSON may escape one half of a surrogate pair, as servers do that cut text within an emoji. msgspec refuses it."""
    try:
        return reader(data)
    except ProtocolError:
        whole = _without_halves(data)
        if whole == data or b"\0" in data:
            raise
        return reader(whole)


def _without_halves(data: bytes) -> bytes:
    """Halves of surrogate pairs replaced; nothing is where there are more than MAX_HALVES, which no text has."""
    halves = itertools.count(1)

    def paired(escape: re.Match[bytes]) -> bytes:  # a function, so that other threads run in between
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


def _one(data: bytes) -> Message:
    return _message(_object(data))


def _several(data: bytes) -> list[Message]:
    too_many = f"the answer is an array of more than {jsonrpc.MAX_BATCH} messages"
    if len(data) > MAX_SMALL and holds_more(data, jsonrpc.MAX_BATCH):
        raise ProtocolError(too_many)
    parts = _decoded(_LIST, data)
    if len(parts) > jsonrpc.MAX_BATCH:
        raise ProtocolError(too_many)
    return [_message(_object(bytes(part))) for part in parts]


def check_text(data: bytes) -> None:
    """Raises ProtocolError for what is not UTF-8, or nests deeper than jsonrpc.MAX_DEPTH."""
    if not data.isascii():
        try:
            data.decode()
        except UnicodeDecodeError as error:
            raise ProtocolError(f"the answer is not JSON ({error}): {jsonrpc.excerpt(data)}") from error
    # As deep as jsonrpc.check_depth allows, which counts from the outermost value.
    if nests_deeper(data, jsonrpc.MAX_DEPTH + 1):
        raise ProtocolError(f"nested more than {jsonrpc.MAX_DEPTH} deep")


def nests_deeper(data: bytes, limit: int) -> bool:
    """Whether brackets outside of strings nest deeper than `limit`. Linear, and in pieces."""
    if data.count(b"{") + data.count(b"[") <= limit:
        return False
    depth, begun = 0, b""
    for outline in _outlines(data, _NO_BRACKET):
        brackets = begun + outline
        begun, brackets = (b"[", brackets[:-1]) if brackets.endswith(b"[") else (b"", brackets)
        # The innermost go in one sweep: whatever nests deepest is one less deep without them.
        for bracket in brackets.replace(b"[]", b""):
            depth += 1 if bracket == OPEN else -1
            if depth >= limit:
                return True
    return False


def holds_more(data: bytes, most: int) -> bool:
    """Whether the outermost object or array has more than `most` keys or items, ten at least.

    Linear, in pieces, and builds none.
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


def _outlines(data: bytes, dropped: bytes) -> Iterator[bytes]:
    """What stands outside of strings, without the bytes `dropped` and with all brackets square; in pieces."""
    is_in_string, rest = False, b""
    for start in range(0, len(data), PIECE):
        piece = rest + data[start : start + PIECE]
        backslashes = len(piece) - len(piece.rstrip(b"\\"))
        # What an odd number of backslashes escapes is in the next piece.
        rest, piece = (piece[-1:], piece[:-1]) if backslashes % 2 else (b"", piece)
        parts = piece.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        yield b"".join(parts[is_in_string::2]).translate(_BRACKETS, dropped)
        is_in_string ^= len(parts) % 2 == 0


def _object(data: bytes) -> dict[str, Raw]:
    is_large = len(data) > MAX_SMALL
    found: dict[str, Raw] = {} if is_large and holds_more(data, MAX_KEYS) else _decoded(_OBJECT, data)
    if not 0 < len(found) <= MAX_KEYS:
        raise ProtocolError(f"a message without a key, or with more than {MAX_KEYS}")
    if is_large and max(map(len, found)) > MAX_KEY:
        raise ProtocolError(f"a message with a key of more than {MAX_KEY:,} characters")
    _refuse_doubled(data, found)
    return found


def _decoded(decoder: msgspec.json.Decoder[Any], data: bytes | Raw) -> Any:
    try:
        return decoder.decode(data)
    except RecursionError as error:
        raise ProtocolError("the answer is nested too deep to be read") from error
    except msgspec.ValidationError as error:  # JSON, but no object
        raise ProtocolError("the answer is not a JSON-RPC 2.0 response to what was asked") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ProtocolError(f"the answer is not JSON ({error}): {jsonrpc.excerpt(bytes(data))}") from error


def _refuse_doubled(data: bytes, found: Mapping[str, Raw]) -> None:
    """Walk over the keys: behind each stands the value that was read for it, else the key is there twice."""
    if len(data) <= MAX_SMALL:  # most are written in one of two ways, and a look is cheaper than the walk
        parts = [(key.encode(), bytes(value)) for key, value in found.items()]
        if data == b"{%b}" % b",".join([b'"%b":%b' % part for part in parts]):
            return
        if data == b"{%b}" % b", ".join([b'"%b": %b' % part for part in parts]):
            return
    end = 0
    for _ in found:
        key = _KEY.match(data, end)
        value = bytes(found[_text(key[1])]) if key else b""
        if key is None or not data.startswith(value, key.end()):
            break
        end = key.end() + len(value)
    else:
        if not _KEY.match(data, end):
            return
    raise ProtocolError("a key stands twice in the message")


def _text(key: bytes) -> str:
    return str(json.loads(key)) if b"\\" in key else key[1:-1].decode()


def _message(found: Mapping[str, Raw]) -> Message:
    method, params, result, error = found.get("method"), found.get("params"), found.get("result"), found.get("error")
    if bytes(found.get("jsonrpc", b"")) != b'"2.0"' or (method, result, error).count(None) != 2:
        raise ProtocolError("not a JSON-RPC 2.0 message")
    message_id = small(found["id"]) if "id" in found else None
    if isinstance(message_id, str) and len(message_id) > MAX_ID:
        raise ProtocolError(f"the id of a message has more than {MAX_ID:,} characters")
    if message_id is not None and (not isinstance(message_id, (str, int, float)) or isinstance(message_id, bool)):
        raise ProtocolError("the id of a message is neither text nor a number")
    if method is not None and _first(method) != b'"':
        raise ProtocolError("the method of a message is no text")
    if params is not None and bytes(params) == b"null":  # as some write what is absent
        params = None
    if params is not None and _first(params) not in (b"{", b"["):
        raise ProtocolError("the params of a message are neither an object nor an array")
    if result is not None and _first(result) != b"{":
        raise ProtocolError("the answer has no result object")
    if error is not None:
        _code(fields(error))
    return Message(message_id, "id" in found, None if method is None else text(method), params, result, error)


def _code(error: Mapping[str, Raw]) -> int:
    code = small(error["code"]) if "code" in error else None
    if not isinstance(code, int) or isinstance(code, bool):
        raise ProtocolError("the answer's error object has no integer code")
    return code


# Parts ------------------------------------------------------------------------------------------------------------


def fields(value: Any) -> dict[str, Any]:
    """The members of an object, each as it is; empty for what is none.

    Raises ProtocolError for a large one with more than MAX_FIELDS. What is large is for other threads than the loop's.
    """
    if isinstance(value, Raw):
        if not is_object(value):
            return {}
        if is_large(value) and holds_more(bytes(value), MAX_FIELDS):
            raise ProtocolError(f"a part of the message has more than {MAX_FIELDS:,} keys")
        found: dict[str, Any] = _OBJECT.decode(value)
        return found
    return value if isinstance(value, dict) else {}


def items(value: Any) -> list[Any]:
    """The items of an array, each as it is; empty for what is none.

    Raises ProtocolError for a large one with more than MAX_ITEMS. What is large is for other threads than the loop's.
    """
    if isinstance(value, Raw):
        if _first(value) != b"[":
            return []
        if is_large(value) and holds_more(bytes(value), MAX_ITEMS):
            raise ProtocolError(f"a part of the message has more than {MAX_ITEMS:,} items")
        found: list[Any] = _LIST.decode(value)
        return found
    return value if isinstance(value, list) else []


def is_large(value: Any) -> bool:
    """Whether it is a part of more bytes than are built."""
    return isinstance(value, Raw) and memoryview(value).nbytes > MAX_SMALL


def is_object(value: Any) -> bool:
    return _first(value) == b"{" if isinstance(value, Raw) else isinstance(value, dict)


def _first(value: Raw) -> bytes:
    return bytes(memoryview(value)[:1])


def text(value: Any) -> str:
    """A short string; empty for what is none."""
    found = small(value) if isinstance(value, Raw) and _first(value) == b'"' else value
    return found if isinstance(found, str) else ""


def small(value: Any, most: int = MAX_SMALL) -> Any:
    """A part, built. Raises ProtocolError when it has more than `most` bytes."""
    if not isinstance(value, Raw):
        return value
    data = bytes(value)
    if len(data) > most:
        raise ProtocolError(f"a part of the message is larger than {most:,} bytes")
    if _PLAIN.fullmatch(data):  # what most ids, methods and names are
        return _ANY.decode(data)
    return jsonrpc.decode(data)


def encode(message: Any) -> bytes:
    """JSON, with the parts that are Raw as they are."""
    try:
        return _ENCODER.encode(message)
    except UnicodeEncodeError:  # a lone surrogate, which UTF-8 does not know, and an escape in JSON carries
        return _escaped(message)


def request(message_id: str, method: str, params: Mapping[str, Any]) -> bytes:
    return encode({"jsonrpc": "2.0", "id": message_id, "method": method, "params": params})


def _escaped(value: Any) -> bytes:
    if isinstance(value, dict):
        return b"{%b}" % b",".join([b"%b:%b" % (_escaped(key), encode(part)) for key, part in value.items()])
    if isinstance(value, (list, tuple)):
        return b"[%b]" % b",".join(map(encode, value))
    return json.dumps(value).encode()
