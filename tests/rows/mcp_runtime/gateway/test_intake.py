"""The budgets of clients' messages: bytes before they are read, the shape of a message before it is decoded, time."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import socket
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from mcp_runtime.gateway import intake
from mcp_runtime.gateway.intake import Intake, check_shape, decode_message
from mcp_runtime.gateway.peers import Peers
from mcp_runtime.gateway.replies import Refusal
from mcp_runtime.gateway.shares import Shares
from mcp_runtime.protocol import jsonrpc
from mcp_runtime.protocol.errors import ProtocolError
from tests.conftest import eventually
from tests.support.agents import make_token
from tests.support.gateway_world import World, text
from tests.support.scripted_server import Request as MemberRequest

NO_SHARES = Shares(Peers(uuid.uuid4()))
ANN, BOB = (1, 10), (2, 20)


# The shape of a message -------------------------------------------------------------------------------------------


def nested(levels: int) -> bytes:
    return b'{"a":' * levels + b"1" + b"}" * levels


@pytest.mark.parametrize(
    "body",
    [
        b"[" + b"{}," * 99_990 + b"{}]",
        b"[" + b"1," * 99_000 + b"1]",
        b'"' + b"{" * 1_000_000 + b'"',
        json.dumps(json.dumps([{"a": [n]} for n in range(200_000)])).encode(),
        json.dumps("\\" * 999 + '"[' * 300_000).encode(),
        nested(101),
        b"[" * 101 + b"]" * 101,
        b"[" + b",".join([b"[1]"] * 30_000) + b"]",
        b"[" + b"true,false,-1.5e-05," * 9_000 + b"1]",
    ],
    ids=lambda body: f"{body[:8]!r}-{len(body)}",
)
def test_the_shape_of_real_clients_messages_is_accepted(body: bytes) -> None:
    assert decode_message(body) == json.loads(body)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"[" + b"{}," * 1_200_000 + b"{}]", "more than 100,000 values"),
        (b"[" + b"1," * 1_800_000 + b"1]", "more than 100,000 values"),
        (b"[" + b'"",' * 1_200_000 + b'""]', "more than 100,000 values"),
        (b"{" + b",".join(b'"%d":0' % n for n in range(100_002)) + b"}", "more than 100,000 values"),
        (nested(102), "nested more than 100 levels deep"),
        (b"[" * 50_000 + b"]" * 50_000, "nested more than 100 levels deep"),
        (b'{"a":"\\\\","b":' + nested(102) + b"}", "nested more than 100 levels deep"),
        (b"1e999", "too large"),
        (b"NaN", "not JSON"),
        (b'"\xff"', "not JSON"),
        (b'"\xed\xa0\x80"', "not JSON"),
        (b"{", "not JSON"),
        (b"[" + b"{}," * 1_000 + b"\\" + b"{}]", "not JSON"),
        (b"[" + b"1e-300," * 10_001 + b"1]", "more than 10,000 numbers with exponents"),
        (b'["\\ud800"' + b",[]" * 20_000 + b"]", "cannot be decoded .*surrogate"),
    ],
    ids=lambda value: f"{value[:8]!r}-{len(value)}" if isinstance(value, bytes) else "",
)
def test_a_shape_that_no_client_needs_is_refused_with_the_reason(body: bytes, reason: str) -> None:
    with pytest.raises(ProtocolError, match=reason):
        decode_message(body)


@pytest.mark.parametrize(
    "body", [b'"\\ud800"', b'"\\u0000"', b'"\\ud83d\\ude00"', b"\xef\xbb\xbf[1.0, -0, 1e2]", b"12" * 20]
)
def test_messages_are_decoded_as_everywhere_in_the_hall_but_keep_all_characters(body: bytes) -> None:
    assert decode_message(body) == jsonrpc.decode(body, exact=True)


def test_the_worst_message_takes_less_than_a_tenth_of_a_second_of_the_event_loop() -> None:
    bodies = [
        b"[" + b"{}," * 1_200_000 + b"{}]",
        b"[" * 1_900_000 + b"]" * 1_900_000,
        b'["' + b"\\\\" * 1_900_000 + b'"]',
        b"[" + b'"\\"",' * 600_000 + b"1]",
        b"[" + b"{}," * 99_990 + b"{}]",
    ]
    for body in bodies:
        durations = []
        for _ in range(3):
            start = time.thread_time()
            with contextlib.suppress(ProtocolError):
                check_shape(body)
            durations.append(time.thread_time() - start)
        assert min(durations) < 0.1, (body[:8], durations)


# Budgets ----------------------------------------------------------------------------------------------------------


def test_bodies_are_counted_by_token_by_user_and_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "MAX_BODY_BYTES_PER_TOKEN", 100)
    monkeypatch.setattr(intake, "MAX_BODY_BYTES_PER_USER", 150)
    monkeypatch.setattr(intake, "MAX_TOTAL_BODY_BYTES", 200)
    budgets = Intake(NO_SHARES)
    with contextlib.ExitStack() as open_requests:
        for owner, size in (((1, 10), 100), ((1, 11), 50), ((2, 20), 50)):
            open_requests.enter_context(budgets.body_budget(owner))(size)
        for owner, status, reason in (((1, 10), 429, "token"), ((1, 12), 429, "user"), ((3, 30), 503, "together")):
            with budgets.body_budget(owner) as reserve, pytest.raises(Refusal, match=reason) as refusal:
                reserve(1)
            assert (refusal.value.status, refusal.value.headers) == (status, [(b"retry-after", b"1")])
    with budgets.body_budget((3, 30)) as reserve:
        reserve(100)
        reserve(10)  # the body is shorter than the first reservation
        with budgets.body_budget((3, 30)) as reserve_more:
            reserve_more(90)


def test_large_messages_of_one_token_wait_for_its_share_of_the_loop_and_others_do_not() -> None:
    now = 0.0

    class Body:
        async def body(self, reserve: Any) -> bytes:
            return b'"' + b"x" * 20_000 + b'"'

    def thread_time() -> float:  # each message takes half a second
        nonlocal now
        now += 0.5
        return now

    async def use() -> None:
        budgets = Intake(NO_SHARES, thread_time=thread_time)
        await budgets.read_message(ANN, Body(), lambda size: None)  # type: ignore[arg-type]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(intake, "BODY_SECONDS", 0.01)
            with pytest.raises(Refusal, match="too fast") as refusal:
                await budgets.read_message(ANN, Body(), lambda size: None)  # type: ignore[arg-type]
        assert refusal.value.status == 429
        await asyncio.wait_for(budgets.read_message(BOB, Body(), lambda size: None), 1)  # type: ignore[arg-type]

    asyncio.run(use())


# At the gateway ---------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def send_unfinished(world: World, token: str, count: int, length: int = 4_000_000) -> Iterator[list[str]]:
    """Send requests whose bodies do not end, and yield the status line of the response to each."""
    connections, status_lines = [], []
    head = f"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\nExpect: 100-continue\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
    try:
        for _ in range(count):
            connections.append(socket.create_connection(("127.0.0.1", world.gateway_port), 10))
            connections[-1].sendall(head.encode())
            status_lines.append(connections[-1].recv(4096).decode().partition("\r\n")[0])
            connections[-1].sendall(b"[" + b" " * 1000)
        yield status_lines
    finally:
        for connection in connections:
            connection.close()


CONTINUE, TOO_MANY = "HTTP/1.1 100 Continue", "HTTP/1.1 429 Too Many Requests"


def test_bodies_that_do_not_end_are_counted_before_they_are_read(world: World) -> None:
    world.max_bytes = 8_000_000
    world.member()
    token = make_token()
    client, other_client = world.agent(token=token).begin(), world.agent(token=make_token()).begin()
    with send_unfinished(world, token, 10) as status_lines:
        assert status_lines == [CONTINUE] * 4 + [TOO_MANY] * 6
        response = client.send("tools/call", name="notes__echo", arguments={})
        assert (response.status_code, response.headers["retry-after"]) == (429, "1")
        assert "this token may have 16,000,000 bytes" in response.json()["error"]["message"]
        large_text = "x" * 3_500_000
        assert len(other_client.text("notes__echo", a=large_text)) > len(large_text)


def test_the_bytes_of_a_body_are_released_at_its_end(world: World) -> None:
    world.member()
    token = make_token()
    client = world.agent(token=token).begin()

    def all_fit() -> bool:
        with send_unfinished(world, token, 4) as status_lines:
            return status_lines == [CONTINUE] * 4

    for _ in range(3):
        eventually(all_fit)
        assert client.post(b"{").status_code in (400, 429)
    eventually(lambda: "result" in client.call("notes__echo"))


def test_a_body_in_chunks_is_counted_as_it_comes(world: World) -> None:
    world.max_bytes = 8_000_000
    world.member()
    token = make_token()
    client = world.agent(token=token).begin()
    arguments = {"a": base64.b64encode(os.urandom(2_000_000)).decode()}
    message = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {"name": "notes__echo", "arguments": arguments},
    }
    body = json.dumps(message).encode()

    def send_in_chunks(data: bytes) -> Any:
        parts = (data[start : start + 10_000] for start in range(0, len(data), 10_000))
        return client.http.post(client.url, data=parts, headers={"Content-Type": "application/json"}, timeout=20)

    assert json.loads(send_in_chunks(body).json()["result"]["content"][0]["text"]) == arguments
    assert send_in_chunks(body + b" " * 1_400_000).status_code == 413
    with send_unfinished(world, token, 4, 3_900_000) as status_lines:
        assert status_lines == [CONTINUE] * 4
        assert send_in_chunks(body).status_code == 429


def test_a_message_that_is_refused_for_its_shape_gets_the_reason_and_delays_nobody(world: World) -> None:
    def call(incoming: MemberRequest) -> None:
        incoming.result(text("done"))

    world.member(behaviours={"tools/call": call})
    client = world.agent(token=make_token()).begin()
    body = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"notes__echo","arguments":{"a":[%b{}]}}}'
    response = client.post(body % (b"{}," * 1_200_000))
    assert response.status_code == 400
    assert response.json()["error"] == {"code": -32700, "message": "Parse error: the body has more than 100,000 values"}
    assert client.text("notes__echo", a=[{}] * 50_000) == "done"
