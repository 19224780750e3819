"""What must hold of the parsers for all inputs: the targets of `make fuzz` and of its corpus.

The first byte of an input is the size of the pieces into which the rest is cut, as a network cuts it. A target raises
AssertionError, or an error that the parser should not raise.
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

# Heads of complete responses, without 100 Continue.
RESPONSE_HEAD = re.compile(rb"HTTP/1\.1 (?!100)\d{3} [^\r\n]*\r\n(?:[^\r\n]+\r\n)*\r\n")
MIN_COUNTED = 10  # keys or items. envelope.holds_more counts no smaller numbers
Requests = list[tuple[str, str, dict[bytes, bytes], bytes]]


def pieces(data: bytes) -> Iterator[bytes]:
    """The rest of the input in pieces, whose size is the first byte. For 0 the rest is one piece."""
    size, rest = (data[0], data[1:]) if data else (0, b"")
    for start in range(0, len(rest), size or len(rest) or 1):
        yield rest[start : start + (size or len(rest))]


# HTTP ---------------------------------------------------------------------------------------------------------------


class Transport:
    """The output of a connection of the server, and whether it still reads."""

    def __init__(self) -> None:
        self.output = b""
        self.is_closed = False
        self.has_ended = False  # nothing more is written, but input is still read
        self.is_reading = True

    def write(self, data: bytes) -> None:
        assert not self.has_ended, "something is written after the end"
        self.output += data

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.has_ended = True

    def close(self) -> None:
        self.is_closed = True

    abort = close

    def is_closing(self) -> bool:
        return self.is_closed

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default


async def serve(parts: list[bytes]) -> tuple[Requests, bytes]:
    """The requests that were read completely, and the output of the server."""
    requests: Requests = []

    async def respond(exchange: http_server.HttpExchange) -> None:
        try:
            requests.append((exchange.verb, exchange.path, exchange.headers, await exchange.body()))
        except http_server.TooLargeError:
            exchange.reply(413)
        else:
            exchange.reply(200, b"answered")

    server, transport = http_server.HttpServer(respond), Transport()
    # The protocol without a socket, because a fuzzer tries a million inputs.
    connection = http_server._Connection(server)
    connection.connection_made(cast(asyncio.Transport, transport))
    for part in parts:
        for _ in range(5):
            await asyncio.sleep(0)
        if transport.is_closed or not transport.is_reading:
            break
        connection.data_received(part)
    for _ in range(20):
        await asyncio.sleep(0)
    connection.connection_lost(None)
    await server.stop(0)
    return requests, transport.output


def http(data: bytes) -> None:
    """There is at most one response for each request, and one refusal. Heads are well formed. Cuts change nothing."""
    errors: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: errors.append(record.getMessage())  # type: ignore[method-assign]
    log = logging.getLogger("guildhall.gateway")
    log.addHandler(handler)
    try:
        requests_of_pieces, output = _loop().run_until_complete(serve(list(pieces(data))))
        requests_of_whole, _ = _loop().run_until_complete(serve([data[1:]]))
    finally:
        log.removeHandler(handler)
    assert not errors, errors
    heads = RESPONSE_HEAD.findall(output)
    refusal_count = output.count(b"connection: close\r\n")
    assert len(heads) <= len(requests_of_pieces) + max(1, refusal_count), (
        f"{len(heads)} responses to {len(requests_of_pieces)} requests"
    )
    shorter, longer = sorted((requests_of_pieces, requests_of_whole), key=len)
    # An error in the same piece discards requests without a response.
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
    """Events, ids and pauses do not depend on the cuts, and the buffer has only bytes of the input."""
    pieces_stream, whole_stream = EventStream(), EventStream()
    events = [event for part in pieces(data) for event in pieces_stream.feed(part)]
    assert events == list(whole_stream.feed(data[1:]))
    assert (pieces_stream.last_event_id, pieces_stream.retry_ms) == (whole_stream.last_event_id, whole_stream.retry_ms)
    assert pieces_stream.buffered_bytes == whole_stream.buffered_bytes <= len(data)
    assert all(event and b"\r" not in event for event in events)
    assert pieces_stream.last_event_id.isprintable()


# JSON-RPC -----------------------------------------------------------------------------------------------------------


def json_rpc(data: bytes) -> None:
    """`decode` returns a value that can be stored and sent, or raises ProtocolError. The dispatcher takes any input."""
    try:
        value = jsonrpc.decode(data)
    except ProtocolError:
        pass
    else:
        assert jsonrpc.decode(jsonrpc.encode(value)) == value
        jsonrpc.check_depth(value)
        assert "\0" not in json.dumps(value, ensure_ascii=False)
    dispatcher = jsonrpc.MethodDispatcher({"echo": lambda request: [request.id, request.params]})
    response = dispatcher.answer(dispatcher.read(data))
    if response is not None:
        json.loads(response)


def message(data: bytes) -> None:
    """A shallow read finds the same message as a strict reader, and sends the same message on."""
    try:
        shallow = envelope.read(data)
    except ProtocolError:
        return
    pairs = _replace_surrogates(json.loads(data.decode(), object_pairs_hook=Pairs, parse_constant=_refuse))
    keys = [key for key, _ in pairs]
    assert len(set(keys)) == len(keys), "a key is there twice"
    outer = dict(pairs)
    if "method" in outer:  # NUL and lone surrogates become U+FFFD in decoded text
        outer["method"] = jsonrpc.storable(outer["method"])
    assert shallow.method == outer.get("method")
    assert shallow.has_id == ("id" in outer)
    assert jsonrpc.decode(json.dumps(outer.get("id")).encode()) == shallow.id
    sent_pairs = json.loads(envelope.encode(shallow.parts()), object_pairs_hook=Pairs)
    sent = {key: value for key, value in sent_pairs if key != "id"}
    assert sent == {key: outer[key] for key in sent}, "another message is sent on"
    assert not envelope.nests_deeper(data, jsonrpc.MAX_DEPTH + 1)
    _check_counts(data, pairs)
    for part in ("params", "result", "error"):
        if isinstance(value := getattr(shallow, part), Raw):
            _check_counts(bytes(value), outer[part])


def _check_counts(data: bytes, pairs: Any) -> None:
    """The counts of keys and of depth are right for every size of pieces."""
    depth = _depth(pairs)
    for piece in (envelope.PIECE, 1, 7):
        with patch.object(envelope, "PIECE", piece):
            assert envelope.holds_more(data, MIN_COUNTED) == (len(pairs) > MIN_COUNTED)
            assert envelope.nests_deeper(data, depth + 1) is False
            assert depth < 2 or envelope.nests_deeper(data, depth - 1)


def _depth(value: Any) -> int:
    """The depth of brackets. Objects are Pairs."""
    inner = [item for _, item in value] if isinstance(value, Pairs) else value
    return 1 + max(map(_depth, inner), default=0) if isinstance(value, list) else 0


class Pairs(list[Any]):
    """The keys and values of an object, duplicate keys included."""


def _replace_surrogates(value: Any) -> Any:
    """`value` with U+FFFD for halves of surrogate pairs, as in members' responses."""
    if isinstance(value, str):
        return re.sub("[\ud800-\udfff]", "\N{REPLACEMENT CHARACTER}", value)
    return type(value)(map(_replace_surrogates, value)) if isinstance(value, (list, tuple)) else value


def _refuse(word: str) -> Any:
    raise AssertionError(f"{word} was taken for JSON")


TARGETS: dict[str, Callable[[bytes], None]] = {"http": http, "sse": sse, "jsonrpc": json_rpc, "message": message}
