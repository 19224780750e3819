"""Upstream sessions: which clients they serve, when they end, and that nothing of an ended process stays in memory."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from typing import Any

import pytest

from mcp_runtime.gateway.messages import Client
from mcp_runtime.gateway.upstream import sessions
from mcp_runtime.gateway.upstream.routes import Upstream
from mcp_runtime.gateway.upstream.sessions import UpstreamSessions
from mcp_runtime.protocol.mcp import MODERN_VERSION
from mcp_runtime.security.access import OPERATOR
from tests.conftest import eventually
from tests.support.agents import META, make_token
from tests.support.gateway_world import (
    Member,
    World,
    discovered,
    event,
    in_background,
    request,
    result,
    text,
    with_session,
)
from tests.support.scripted_server import Request as MemberRequest


def ended_session_ids(member: Member) -> list[str]:
    """Ids of the sessions that were ended with a DELETE."""
    deletions = [
        request for request in member.requests if not request.body and request.headers["Accept"] != "text/event-stream"
    ]
    return [request.headers["Mcp-Session-Id"] for request in deletions]


def test_an_upstream_session_has_the_version_capabilities_and_end_of_its_client_session(world: World) -> None:
    member = world.member()
    client = world.agent().begin("2025-11-25", roots={})
    client.call("notes__echo")
    client.call("notes__echo")
    handshakes = [message["params"] for message in member.messages("initialize")]
    assert [(params["protocolVersion"], params["capabilities"]) for params in handshakes[1:]] == [
        ("2025-11-25", {"roots": {}})
    ]
    assert client.http.delete(client.url, timeout=10).status_code == 204
    eventually(lambda: ended_session_ids(member) == ["s2"])


def test_an_upstream_session_ends_if_its_client_session_ended_during_the_handshake(world: World) -> None:
    may_continue = threading.Event()

    def begin_slowly(incoming: MemberRequest) -> None:
        assert may_continue.wait(10)
        with_session(incoming)

    member = world.member()
    member.behaviours["initialize"] = begin_slowly
    client = world.agent().begin()
    call = client.send_only(request(9, "tools/call", name="notes__echo", arguments={}))
    eventually(lambda: len(member.messages("initialize")) == 2)
    assert client.http.delete(client.url, timeout=10).status_code == 204
    may_continue.set()
    eventually(lambda: ended_session_ids(member) == ["s2"])
    call.close()


def test_modern_clients_with_the_same_capabilities_share_a_session(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "MAX_SHARED_SESSIONS_OF_CLIENT", 2)
    member = world.member()

    def call(**capabilities: Any) -> int:
        meta = {f"{META}clientCapabilities": capabilities}
        assert world.agent().modern("tools/call", name="notes__echo", arguments={}, meta=meta).status_code == 200
        return len(member.messages("initialize"))

    assert [call(), call(odd={}), call(roots={}), call(roots={}), call()] == [2, 2, 3, 3, 3]
    assert ended_session_ids(member) == []
    assert call(sampling={}) == 4
    eventually(lambda: ended_session_ids(member) == ["s2"])


class PendingSession:
    """A session whose handshake has not ended."""

    def add_done_callback(self, _: Any) -> None:
        pass


def test_a_new_session_ends_another_only_above_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "MAX_SHARED_SESSIONS", 10)
    upstream_sessions = UpstreamSessions(upstream=None)  # type: ignore[arg-type]
    for count, expected in [(4, 4), (6, 6), (9, 9), (10, 9), (12, 9)]:
        shared: dict[Any, Any] = {(number, None, ""): PendingSession() for number in range(count)}
        upstream_sessions._make_room(shared, (99, None, ""))
        assert len(shared) == expected


def test_modern_clients_of_two_tokens_share_no_session_and_end_only_their_own(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "MAX_SHARED_SESSIONS_OF_CLIENT", 2)
    member = world.member()
    ann_token, bob_token = make_token(), make_token()  # of one user, because one may have a narrower scope

    def call(token: str, **capabilities: Any) -> None:
        meta = {f"{META}clientCapabilities": capabilities}
        response = world.agent(token=token).modern("tools/call", name="notes__echo", arguments={}, meta=meta)
        assert response.status_code == 200

    call(ann_token)
    call(bob_token)
    assert len(member.messages("initialize")) == 3
    for number in range(3):
        call(bob_token, sampling={"of": number})
    eventually(lambda: ended_session_ids(member) == ["s3", "s4"])
    call(ann_token)
    assert len(member.messages("initialize")) == 6


def test_a_member_of_both_eras_gets_requests_in_the_clients_era(world: World) -> None:
    def discover_on_stream(incoming: MemberRequest) -> None:
        incoming.stream(event(None, "1"), event(result(incoming.id, supportedVersions=[MODERN_VERSION])))
        incoming.hang_up()

    for name, discover in {"a": discovered, "b": discover_on_stream}.items():
        member = world.member(name, {"server/discover": discover})
        eventually(lambda name=name: f"{name}__echo" in world.agent().begin().tools())
        for _ in range(2):
            assert world.agent().modern("tools/call", name=f"{name}__echo", arguments={}).status_code == 200
        assert world.agent().begin().text(f"{name}__echo") == "{}"
        calls = [request for request in member.requests if request.body and request.message["method"] == "tools/call"]
        assert [request.headers["MCP-Protocol-Version"] for request in calls] == [MODERN_VERSION] * 2 + ["2025-06-18"]
        assert len(member.messages("server/discover")) == 1


def test_a_member_with_an_unknown_era_is_probed_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "PROBE_RETRY_SECONDS", 0.0)
    member = world.member(behaviours={"server/discover": lambda incoming: incoming.reset()})
    client = world.agent()
    for _ in range(2):
        assert client.modern("tools/call", name="notes__echo", arguments={}).status_code == 200
    member.behaviours["server/discover"] = discovered
    assert client.modern("tools/call", name="notes__echo", arguments={}).status_code == 200
    assert len(member.messages("server/discover")) == 3
    assert len(member.messages("initialize")) == 2


def test_requests_to_a_member_without_session_ids_have_none(world: World) -> None:
    member = world.member(
        behaviours={"initialize": lambda incoming: incoming.result({"protocolVersion": "2025-06-18"})}
    )
    for _ in range(2):
        assert world.agent().begin().text("notes__echo") == "{}"
    assert len(member.messages("initialize")) == 1
    assert all("Mcp-Session-Id" not in request.headers for request in member.requests)


@pytest.mark.parametrize(
    ("member_versions", "client_version", "expected"),
    [
        (("2025-06-18", "2025-11-25"), "2025-11-25", "2025-11-25"),
        (("2025-03-26", "2025-06-18", "2025-11-25"), "2025-03-26", "2025-03-26"),
        (("2025-06-18",), "2025-11-25", "2025-06-18"),
        (("2025-06-18",), "2024-11-05", "2025-06-18"),  # no version that both know
        (("2025-06-18", "2025-11-25"), "2025-06-18", "2025-06-18"),
    ],
)
def test_a_member_without_sessions_gets_the_newest_version_that_both_sides_know(
    world: World, member_versions: tuple[str, ...], client_version: str, expected: str
) -> None:
    def agree(incoming: MemberRequest) -> None:
        version = incoming.message["params"]["protocolVersion"]
        incoming.result({"protocolVersion": version if version in member_versions else member_versions[-1]})

    member = world.member(behaviours={"initialize": agree})
    client = world.agent().begin(client_version)
    assert [client.text("notes__echo") for _ in range(2)] == ["{}", "{}"]
    calls = [request for request in member.requests if request.body and request.message["method"] == "tools/call"]
    assert [request.headers["MCP-Protocol-Version"] for request in calls] == [expected] * 2
    assert len(member.messages("initialize")) == (1 if client_version == "2025-06-18" else 2)


def test_a_member_without_sessions_gets_the_only_version_that_it_accepts(world: World) -> None:
    def agree(incoming: MemberRequest) -> None:
        if incoming.message["params"]["protocolVersion"] == "2025-06-18":
            incoming.result({"protocolVersion": "2025-06-18"})
        else:
            incoming.error(-32602, "not that one")

    world.member(behaviours={"initialize": agree})
    assert world.agent().begin("2025-11-25").text("notes__echo") == "{}"


def test_the_response_to_a_handshake_may_come_on_a_stream(world: World) -> None:
    member = world.member()

    def begin_on_stream(incoming: MemberRequest) -> None:
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nMcp-Session-Id: streamed\r\n\r\n"
        incoming.send(head + event(result(incoming.id, protocolVersion="2025-06-18", capabilities={})))
        incoming.hang_up()

    member.behaviours |= {
        "initialize": begin_on_stream,
        "tools/call": lambda incoming: incoming.result(text(incoming.headers["Mcp-Session-Id"])),
    }
    clients = [world.agent().begin() for _ in range(2)]
    with in_background(lambda: clients[0].text("notes__echo")) as texts:
        assert clients[1].text("notes__echo") == "streamed"
    assert texts == ["streamed"]
    member.behaviours["notifications/initialized"] = lambda incoming: incoming.http(400)
    assert "HTTP status 400" in world.agent().begin().call("notes__echo")["error"]["message"]


def test_no_route_to_an_ended_process_stays_in_memory(world: World) -> None:
    member = world.member()
    routes: list[weakref.ref[Any]] = []

    async def talk() -> None:
        upstream = Upstream(world, max_bytes=1000)  # type: ignore[arg-type]
        upstream_sessions = UpstreamSessions(upstream)
        for _ in range(3):
            route = upstream.route_to(member.restart(), 1)
            routes.append(weakref.ref(route))
            upstream_session = await upstream_sessions.session_for(route, Client(OPERATOR, None, {}))
            assert upstream_session.id == f"s{len(member.messages('initialize'))}"
            del route, upstream_session
        await asyncio.sleep(0)
        gc.collect()
        assert [reference() is None for reference in routes] == [True, True, False]
        upstream.close()

    asyncio.run(talk())
