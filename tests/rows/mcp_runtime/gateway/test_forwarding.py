"""Requests for members of another node, which is a script here, so that it can misbehave."""

from __future__ import annotations

import contextlib
import http.client
import json
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
import requests

from mcp_runtime.gateway import forwarding, peers
from roster.models import Call, GuildMember, Node
from tests.conftest import eventually
from tests.support.agents import messages_of
from tests.support.gateway_world import World
from tests.support.scripted_server import Behaviour, Server
from tests.support.scripted_server import Request as NodeRequest

CALL = {"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": {"name": "notes__echo", "arguments": {}}}


@pytest.fixture
def node(world: World) -> Iterator[Server]:
    """Another node, which owns the member `notes`. Its timeout is 2 s."""
    with contextlib.closing(Server({})) as server:
        lease_id = uuid.uuid4()
        Node.objects.create(name="other", lease_id=lease_id, url=server.url.removesuffix("/mcp"))
        member = world.member("notes", timeout=2)
        world.live.clear()
        GuildMember.objects.filter(pk=member.row.pk).update(lease_id=lease_id)
        yield server


def misdirect(incoming: NodeRequest) -> None:
    incoming.error(-32603, "it is not here", status=421)


def break_off(head: str, body: bytes) -> Behaviour:
    def behave(incoming: NodeRequest) -> None:
        incoming.send(f"HTTP/1.1 200 OK\r\n{head}\r\n\r\n".encode() + body)
        incoming.hang_up()

    return behave


def error_of(response: requests.Response) -> dict[str, Any]:
    error: dict[str, Any] = messages_of(response)[-1]["error"]
    return error


def test_a_request_that_the_other_node_never_accepts_ends_at_its_deadline(world: World, node: Server) -> None:
    node.behaviours = {"tools/call": misdirect}
    agent, started_at = world.agent().begin(), time.monotonic()
    for accept in ("text/event-stream", "application/json"):
        error = error_of(agent.post(CALL, Accept=accept))
        assert "its node 'other' did not take the request" in error["message"]
        assert error["data"]["kind"] == "unavailable"
    assert 3 < time.monotonic() - started_at < 8
    eventually(lambda: Call.objects.filter(status="failed", error_kind="unavailable").count() == 2)


def test_an_unreachable_node_ends_a_request_at_its_deadline(world: World, node: Server) -> None:
    Node.objects.filter(name="other").update(url="http://127.0.0.1:1")
    error = error_of(world.agent().begin().post(CALL))
    assert "connection refused" in error["message"]


def test_a_call_whose_client_leaves_before_it_was_sent_is_in_the_log(world: World, node: Server) -> None:
    node.behaviours = {"tools/call": misdirect}
    connection = world.agent().begin().send_only(CALL)
    eventually(lambda: node.requests)
    connection.close()
    eventually(lambda: Call.objects.filter(status="cancelled").count() == 1)


def test_a_large_reply_that_breaks_off_ends_the_connection(world: World, node: Server) -> None:
    head = "Content-Type: application/json\r\nContent-Length: 1000000"
    node.behaviours = {"tools/call": break_off(head, b" " * 500_000)}
    agent = world.agent().begin()
    connection = agent.send_only(CALL)
    with contextlib.closing(connection):
        response = connection.getresponse()
        assert response.status == 200
        with pytest.raises((http.client.IncompleteRead, ConnectionError)) as raised:
            response.read()
    partial = getattr(raised.value, "partial", b"")
    assert partial.strip() == b""


def test_a_stream_that_breaks_off_within_an_event_ends_with_an_error(world: World, node: Server) -> None:
    event = b'data: {"jsonrpc": "2.0", "method": "notifications/progress", "par'
    node.behaviours = {"tools/call": break_off("Content-Type: text/event-stream\r\nTransfer-Encoding: chunked",
                                               b"%x\r\n%b\r\n" % (len(event), event))}  # fmt: skip
    last = world.agent().begin().post(CALL).content.strip().split(b"\n\n")[-1]
    error = json.loads(last.partition(b"data: ")[2])["error"]
    assert "node 'other'" in error["message"]


@pytest.mark.parametrize("is_batch", [True, False])
def test_a_reply_that_stops_half_way_ends_with_an_error(
    world: World, node: Server, monkeypatch: pytest.MonkeyPatch, is_batch: bool
) -> None:
    monkeypatch.setattr(forwarding, "PART_SECONDS", 0.5)

    def stop(incoming: NodeRequest) -> None:
        incoming.send(b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"json')
        incoming.hang()

    node.behaviours = {"tools/call": stop}
    agent = world.agent().begin(version="2025-03-26")
    assert error_of(agent.post([CALL] if is_batch else CALL))["data"]["member"] == "notes"


def test_a_request_at_the_path_of_a_member_has_the_timeout_of_the_member(
    world: World, node: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "_load", lambda own_lease: (True, []))
    node.behaviours = {"prompts/get": misdirect}
    node.first_line = b"POST /mcp/notes HTTP/1.1\r\n"
    agent, started_at = world.agent("/mcp/notes").begin(), time.monotonic()
    world.gateway.peers.are_several = True
    assert "its node 'other' did not take the request" in agent.ask("prompts/get", name="hint")["error"]["message"]
    assert time.monotonic() - started_at < 10


def test_a_call_of_a_found_tool_goes_to_the_other_node_as_the_client_sent_it(world: World, node: Server) -> None:
    """That node reads the mode in the address, and does what this one would do."""
    node.first_line = b"POST /mcp?mode=search HTTP/1.1\r\n"  # it accepts no other
    node.behaviours = {"tools/call": lambda incoming: incoming.result({"content": []})}
    agent = world.agent("/mcp?mode=search").begin()
    params = {"name": "call_write", "arguments": {"name": "notes__echo", "arguments": {"a": 1}}}
    assert messages_of(agent.post({**CALL, "params": params}))[-1]["result"] == {"content": []}
    assert [each.message["params"] for each in node.requests] == [params]
