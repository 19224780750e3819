"""Replies of MCP: encoded events, bodies within their limits, and replies that become streams."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any, cast

import pytest

from mcp_runtime.gateway import intake
from mcp_runtime.gateway.messages import Answer, Event
from mcp_runtime.gateway.replies import JSON_HEADERS, STREAM_HEADERS, Refusal, encoded
from mcp_runtime.gateway.responder import Outgoing
from mcp_runtime.http1.server import ClientDisconnectedError, HttpExchange, TooLargeError
from mcp_runtime.protocol import jsonrpc
from mcp_runtime.protocol.errors import MethodError


class RecordedExchange:
    """An exchange that records its output. Reading its body raises `fault`, if there is one."""

    def __init__(self, fault: Exception | None = None) -> None:
        self._fault = fault
        self.has_begun = False
        self.output: list[Any] = []

    async def body(self, take: Any) -> bytes:
        if self._fault is not None:
            raise self._fault
        return b"{}"

    def reply(self, *reply: Any) -> None:
        self.has_begun = True
        self.output.append(reply)

    def begin(self, *head: Any) -> None:
        self.has_begun = True
        self.output.append(head)

    async def write(self, part: bytes) -> None:
        self.output.append(part)

    def end(self) -> None:
        self.output.append("end")


def read_body(exchange: RecordedExchange) -> bytes:
    return asyncio.run(intake.read_body(cast(HttpExchange, exchange)))


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (Event(b"{}"), b"data: {}\n\n"),
        (Event(b"a\nb", "n/1", 5), b"id: n/1\nretry: 5\ndata: a\ndata: b\n\n"),
        (Event(b"", "n/1"), b"id: n/1\ndata:\n\n"),
        (Event(b"", "", 0), b"retry: 0\n\n"),
        (Event(b""), b":\n\n"),
    ],
)
def test_events_are_encoded_as_server_sent_events(event: Event, expected: bytes) -> None:
    assert encoded(event) == expected


@pytest.mark.parametrize(
    ("fault", "status", "text"),
    [
        (TooLargeError(), 413, f"{HTTPStatus(413).phrase}: the message has more than 5,000 bytes"),
        (TimeoutError(), 408, "Request Timeout: the request body did not arrive within 2.5 s"),
    ],
)
def test_a_late_or_large_body_is_refused(
    fault: Exception, status: int, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake, "MAX_BODY", 5_000)
    monkeypatch.setattr(intake, "BODY_SECONDS", 2.5)
    with pytest.raises(Refusal, match=text) as error:
        read_body(RecordedExchange(fault))
    assert error.value.status == status


def test_reading_a_body_gives_its_bytes_or_the_disconnect() -> None:
    assert read_body(RecordedExchange()) == b"{}"
    with pytest.raises(ClientDisconnectedError):
        read_body(RecordedExchange(ClientDisconnectedError()))


def test_a_refusal_is_a_json_rpc_error() -> None:
    error = jsonrpc.decode(Refusal(400, MethodError(-32600, "no", {"a": 1}), 7).body)
    assert error == {
        "jsonrpc": "2.0",
        "id": 7,
        "error": {"code": -32600, "message": "Invalid Request: no", "data": {"a": 1}},
    }


@pytest.mark.parametrize(
    ("status", "code", "text", "message"),
    [
        (400, -32602, "params must be an object", "Invalid params: params must be an object"),
        (404, -32600, "there is no agent 'x'", "Not Found: there is no agent 'x'"),
        (503, -32603, "the runtime is stopping", "Service Unavailable: the runtime is stopping"),
        (400, -32022, "unsupported version", "unsupported version"),
    ],
)
def test_a_refusal_begins_with_the_standard_text(status: int, code: int, text: str, message: str) -> None:
    assert jsonrpc.decode(Refusal(status, MethodError(code, text)).body)["error"]["message"] == message


def test_a_response_alone_is_one_json_body() -> None:
    exchange = RecordedExchange()
    out = Outgoing(cast(HttpExchange, exchange))
    asyncio.run(out.end(Answer(b"{}", 404)))
    assert exchange.output == [(404, b"{}", JSON_HEADERS)]
    assert out.is_started


@pytest.mark.parametrize("response", [None, Answer(b"{}")])
def test_a_response_after_an_event_is_the_last_event_of_the_stream(response: Answer | None) -> None:
    async def send_stream() -> None:
        assert not out.is_started
        await out.put(Event(b"1"))
        out.start()
        await out.put(Event(b"2"))
        await out.end(response)

    exchange = RecordedExchange()
    out = Outgoing(cast(HttpExchange, exchange))
    asyncio.run(send_stream())
    last_event = [b"data: {}\n\n"] if response else []
    assert exchange.output == [(200, STREAM_HEADERS), b"data: 1\n\n", b"data: 2\n\n", *last_event, "end"]


def test_no_response_is_an_empty_stream() -> None:
    exchange = RecordedExchange()
    asyncio.run(Outgoing(cast(HttpExchange, exchange)).end(None))
    assert exchange.output == [(200, STREAM_HEADERS), "end"]
