"""What must hold of the parsers for any bytes at all: targets of `make fuzz`, and of the corpus that it left.

The first byte of an input says how the rest is cut into pieces, as a network cuts it. A target raises AssertionError,
or whatever the parser should not have raised.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Callable, Iterator
from typing import Any, cast
from unittest.mock import patch

from msgspec import Raw

from mcp_runtime.gateway import envelope
from mcp_runtime.http1 import server as http_server
from mcp_runtime.protocol import jsonrpc
from mcp_runtime.protocol.errors import ProtocolError
from mcp_runtime.protocol.mcp import EventStream

# Whole ones: 100 Continue is none.
ANSWER = re.compile(rb"HTTP/1\.1 (?!100)\d{3} [^\r\n]*\r\n(?:[^\r\n]+\r\n)*\r\n")
LEAST_COUNTED = 10  # keys or items: envelope.holds_more counts no fewer
Heard = list[tuple[str, str, dict[bytes, bytes], bytes]]


def pieces(data: bytes) -> Iterator[bytes]:
    """The rest of the input in pieces of as many bytes as its first one says; whole for 0."""
    size, rest = (data[0], data[1:]) if data else (0, b"")
    for start in range(0, len(rest), size or len(rest) or 1):
        yield rest[start : start + (size or len(rest))]


# HTTP ---------------------------------------------------------------------------------------------------------------


class Transport:
    """What a connection of the server writes, and whether it still wants to read."""

    def __init__(self) -> None:
        self.written = b""
        self.is_over = False
        self.is_ended = False  # nothing more is written; what comes is still read
        self.is_reading = True

    def write(self, data: bytes) -> None:
        assert not self.is_ended, "something is written behind the end"
        self.written += data

    def write_eof(self) -> None:
        self.is_ended = True

    def close(self) -> None:
        self.is_over = True

    abort = close

    def is_closing(self) -> bool:
        return self.is_over

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default


async def served(parts: list[bytes]) -> tuple[Heard, bytes]:
    """The requests that were heard to their end, and what was answered."""
    heard: Heard = []

    async def answer(exchange: http_server.HttpExchange) -> None:
        try:
            heard.append((exchange.verb, exchange.path, exchange.headers, await exchange.body()))
        except http_server.TooLargeError:
            exchange.reply(413)
        else:
            exchange.reply(200, b"answered")

    server, transport = http_server.HttpServer(answer), Transport()
    # The protocol without a socket: a fuzzer tries a million inputs.
    connection = http_server._Connection(server)
    connection.connection_made(cast(asyncio.Transport, transport))
    for part in parts:
        for _ in range(5):
            await asyncio.sleep(0)
        if transport.is_over or not transport.is_reading:
            break
        connection.data_received(part)
    for _ in range(20):
        await asyncio.sleep(0)
    connection.connection_lost(None)
    await server.stop(0)
    return heard, transport.written


def http(data: bytes) -> None:
    """No more answers than requests but for one refusal; heads that are well formed; the cuts change nothing."""
    errors: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: errors.append(record.getMessage())  # type: ignore[method-assign]
    log = logging.getLogger("guildhall.gateway")
    log.addHandler(handler)
    try:
        cut, written = _loop().run_until_complete(served(list(pieces(data))))
        whole, _ = _loop().run_until_complete(served([data[1:]]))
    finally:
        log.removeHandler(handler)
    assert not errors, errors
    answers = ANSWER.findall(written)
    refused = written.count(b"connection: close\r\n")
    assert len(answers) <= len(cut) + max(1, refused), f"{len(answers)} answers to {len(cut)} requests"
    shorter, longer = sorted((cut, whole), key=len)
    # An error in the same piece takes those with it that nobody has begun to answer.
    assert longer[: len(shorter)] == shorter, "the requests depend on how the bytes were cut"
    for _, _, headers, _ in longer:
        assert not any(b"\n" in value or b"\r" in value or b"\0" in value for value in headers.values())


_loops: list[asyncio.AbstractEventLoop] = []


def _loop() -> asyncio.AbstractEventLoop:
    if not _loops:
        _loops.append(asyncio.new_event_loop())
    return _loops[0]


# Server-sent events -------------------------------------------------------------------------------------------------


def sse(data: bytes) -> None:
    """The events, ids and pauses are the same however the bytes were cut, and nothing is held that did not come."""
    cut, whole = EventStream(), EventStream()
    events = [event for part in pieces(data) for event in cut.feed(part)]
    assert events == list(whole.feed(data[1:]))
    assert (cut.last_event_id, cut.retry_ms) == (whole.last_event_id, whole.retry_ms)
    assert cut.buffered_bytes == whole.buffered_bytes <= len(data)
    assert all(event and b"\r" not in event for event in events)
    assert cut.last_event_id.isprintable()


# JSON-RPC -----------------------------------------------------------------------------------------------------------


def json_rpc(data: bytes) -> None:
    """`decode` gives what can be stored and sent, or ProtocolError; the dispatcher answers anything."""
    try:
        value = jsonrpc.decode(data)
    except ProtocolError:
        pass
    else:
        assert jsonrpc.decode(jsonrpc.encode(value)) == value
        jsonrpc.check_depth(value)
        assert "\0" not in json.dumps(value, ensure_ascii=False)
    dispatcher = jsonrpc.MethodDispatcher({"echo": lambda request: [request.id, request.params]})
    answer = dispatcher.answer(dispatcher.read(data))
    if answer is not None:
        json.loads(answer)


def message(data: bytes) -> None:
    """A message that is read shallowly is the one that a strict reader finds, and passes on as the same."""
    try:
        read = envelope.read(data)
    except ProtocolError:
        return
    strict = _paired(json.loads(data.decode(), object_pairs_hook=Pairs, parse_constant=_refuse))
    keys = [key for key, _ in strict]
    assert len(set(keys)) == len(keys), "a key stands twice"
    outer = dict(strict)
    if "method" in outer:  # NUL and lone surrogates become U+FFFD in what is built
        outer["method"] = jsonrpc.storable(outer["method"])
    assert read.method == outer.get("method")
    assert read.has_id == ("id" in outer)
    assert jsonrpc.decode(json.dumps(outer.get("id")).encode()) == read.id
    again = json.loads(envelope.encode(read.parts()), object_pairs_hook=Pairs)
    kept = {key: value for key, value in again if key != "id"}
    assert kept == {key: outer[key] for key in kept}, "what passes on is another message"
    assert not envelope.nests_deeper(data, jsonrpc.MAX_DEPTH + 1)
    _outlined(data, strict)
    for part in ("params", "result", "error"):
        if isinstance(value := getattr(read, part), Raw):
            _outlined(bytes(value), outer[part])


def _outlined(data: bytes, strict: Any) -> None:
    """What is counted without building it is so many, and so deep, however large the pieces are."""
    depth = _depth(strict)
    for piece in (envelope.PIECE, 1, 7):
        with patch.object(envelope, "PIECE", piece):
            assert envelope.holds_more(data, LEAST_COUNTED) == (len(strict) > LEAST_COUNTED)
            assert envelope.nests_deeper(data, depth + 1) is False
            assert depth < 2 or envelope.nests_deeper(data, depth - 1)


def _depth(value: Any) -> int:
    """Of brackets. Objects are Pairs."""
    inner = [item for _, item in value] if isinstance(value, Pairs) else value
    return 1 + max(map(_depth, inner), default=0) if isinstance(value, list) else 0


class Pairs(list[Any]):
    """The keys and values of an object, also of keys that are there twice."""


def _paired(value: Any) -> Any:
    """`value` with U+FFFD for halves of surrogate pairs, as members' answers are read."""
    if isinstance(value, str):
        return re.sub("[\ud800-\udfff]", "\N{REPLACEMENT CHARACTER}", value)
    return type(value)(map(_paired, value)) if isinstance(value, (list, tuple)) else value


def _refuse(word: str) -> Any:
    raise AssertionError(f"{word} was taken for JSON")


TARGETS: dict[str, Callable[[bytes], None]] = {"http": http, "sse": sse, "jsonrpc": json_rpc, "message": message}
