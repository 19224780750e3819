"""Sessions with members: begun for whom, shared by whom, ended when, and nothing left of a process that is gone."""

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
from tests.support.scripted_server import Request as Asked


def ended(member: Member) -> list[str]:
    """Ids of the sessions that were ended with a DELETE."""
    others = [one for one in member.requests if not one.body and one.headers["Accept"] != "text/event-stream"]
    return [one.headers["Mcp-Session-Id"] for one in others]


def test_a_callers_session_with_a_member_has_its_version_and_capabilities_and_ends_with_it(world: World) -> None:
    member = world.member()
    agent = world.agent().begin("2025-11-25", roots={})
    agent.call("notes__echo")
    agent.call("notes__echo")
    told = [message["params"] for message in member.messages("initialize")]
    assert [(one["protocolVersion"], one["capabilities"]) for one in told[1:]] == [("2025-11-25", {"roots": {}})]
    assert agent.http.delete(agent.url, timeout=10).status_code == 204
    eventually(lambda: ended(member) == ["s2"])


def test_a_session_that_is_still_being_begun_when_its_caller_ends_ends_too(world: World) -> None:
    go_on = threading.Event()

    def slowly(asked: Asked) -> None:
        assert go_on.wait(10)
        with_session(asked)

    member = world.member()
    member.behaviours["initialize"] = slowly
    agent = world.agent().begin()
    call = agent.send_only(request(9, "tools/call", name="notes__echo", arguments={}))
    eventually(lambda: len(member.messages("initialize")) == 2)
    assert agent.http.delete(agent.url, timeout=10).status_code == 204
    go_on.set()
    eventually(lambda: ended(member) == ["s2"])
    call.close()


def test_modern_callers_share_a_session_if_they_can_be_asked_the_same(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "MAX_SHARED_SESSIONS_OF_CLIENT", 2)
    member = world.member()

    def call(**capabilities: Any) -> int:
        meta = {f"{META}clientCapabilities": capabilities}
        assert world.agent().modern("tools/call", name="notes__echo", arguments={}, meta=meta).status_code == 200
        return len(member.messages("initialize"))

    assert [call(), call(odd={}), call(roots={}), call(roots={}), call()] == [2, 2, 3, 3, 3]
    assert ended(member) == []
    assert call(sampling={}) == 4
    eventually(lambda: ended(member) == ["s2"])


class Never:
    """A session that is still being begun."""

    def add_done_callback(self, _: Any) -> None:
        pass


def test_a_newcomer_ends_no_session_before_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "MAX_SHARED_SESSIONS", 10)
    them = UpstreamSessions(upstream=None)  # type: ignore[arg-type]
    for count, left in [(4, 4), (6, 6), (9, 9), (10, 9), (12, 9)]:
        shared: dict[Any, Any] = {(number, None, ""): Never() for number in range(count)}
        them._make_room(shared, (99, None, ""))
        assert len(shared) == left


def test_modern_callers_of_two_tokens_share_no_session_and_end_none_of_each_other(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "MAX_SHARED_SESSIONS_OF_CLIENT", 2)
    member = world.member()
    ann, bob = make_token(), make_token()  # of one user: a token may be narrower than another

    def call(token: str, **capabilities: Any) -> None:
        meta = {f"{META}clientCapabilities": capabilities}
        said = world.agent(token=token).modern("tools/call", name="notes__echo", arguments={}, meta=meta)
        assert said.status_code == 200

    call(ann)
    call(bob)
    assert len(member.messages("initialize")) == 3
    for number in range(3):
        call(bob, sampling={"of": number})
    eventually(lambda: ended(member) == ["s3", "s4"])
    call(ann)
    assert len(member.messages("initialize")) == 6


def test_a_member_that_speaks_both_is_asked_in_the_callers_era(world: World) -> None:
    def on_a_stream(asked: Asked) -> None:
        asked.stream(event(None, "1"), event(result(asked.id, supportedVersions=[MODERN_VERSION])))
        asked.hang_up()

    for name, discover in {"a": discovered, "b": on_a_stream}.items():
        member = world.member(name, {"server/discover": discover})
        eventually(lambda name=name: f"{name}__echo" in world.agent().begin().tools())
        for _ in range(2):
            assert world.agent().modern("tools/call", name=f"{name}__echo", arguments={}).status_code == 200
        assert world.agent().begin().text(f"{name}__echo") == "{}"
        calls = [one for one in member.requests if one.body and one.message["method"] == "tools/call"]
        assert [one.headers["MCP-Protocol-Version"] for one in calls] == [MODERN_VERSION] * 2 + ["2025-06-18"]
        assert len(member.messages("server/discover")) == 1


def test_a_member_that_did_not_say_its_era_is_asked_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "PROBE_RETRY_SECONDS", 0.0)
    member = world.member(behaviours={"server/discover": lambda asked: asked.reset()})
    agent = world.agent()
    for _ in range(2):
        assert agent.modern("tools/call", name="notes__echo", arguments={}).status_code == 200
    member.behaviours["server/discover"] = discovered
    assert agent.modern("tools/call", name="notes__echo", arguments={}).status_code == 200
    assert len(member.messages("server/discover")) == 3
    assert len(member.messages("initialize")) == 2


def test_members_without_session_ids_are_spoken_to_without(world: World) -> None:
    member = world.member(behaviours={"initialize": lambda asked: asked.result({"protocolVersion": "2025-06-18"})})
    for _ in range(2):
        assert world.agent().begin().text("notes__echo") == "{}"
    assert len(member.messages("initialize")) == 1
    assert all("Mcp-Session-Id" not in one.headers for one in member.requests)


@pytest.mark.parametrize(
    ("known", "asked", "spoken"),
    [
        (("2025-06-18", "2025-11-25"), "2025-11-25", "2025-11-25"),
        (("2025-03-26", "2025-06-18", "2025-11-25"), "2025-03-26", "2025-03-26"),
        (("2025-06-18",), "2025-11-25", "2025-06-18"),
        (("2025-06-18",), "2024-11-05", "2025-06-18"),  # nothing that both know
        (("2025-06-18", "2025-11-25"), "2025-06-18", "2025-06-18"),
    ],
)
def test_a_member_without_sessions_is_asked_in_the_newest_version_that_both_sides_know(
    world: World, known: tuple[str, ...], asked: str, spoken: str
) -> None:
    def agree(one: Asked) -> None:
        wanted = one.message["params"]["protocolVersion"]
        one.result({"protocolVersion": wanted if wanted in known else known[-1]})

    member = world.member(behaviours={"initialize": agree})
    agent = world.agent().begin(asked)
    assert [agent.text("notes__echo") for _ in range(2)] == ["{}", "{}"]
    calls = [one for one in member.requests if one.body and one.message["method"] == "tools/call"]
    assert [one.headers["MCP-Protocol-Version"] for one in calls] == [spoken] * 2
    assert len(member.messages("initialize")) == (1 if asked == "2025-06-18" else 2)


def test_a_member_without_sessions_that_takes_one_version_alone_is_asked_in_that(world: World) -> None:
    def agree(one: Asked) -> None:
        if one.message["params"]["protocolVersion"] == "2025-06-18":
            one.result({"protocolVersion": "2025-06-18"})
        else:
            one.error(-32602, "not that one")

    world.member(behaviours={"initialize": agree})
    assert world.agent().begin("2025-11-25").text("notes__echo") == "{}"


def test_a_handshake_may_come_on_a_stream(world: World) -> None:
    member = world.member()

    def on_a_stream(asked: Asked) -> None:
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nMcp-Session-Id: streamed\r\n\r\n"
        asked.send(head + event(result(asked.id, protocolVersion="2025-06-18", capabilities={})))
        asked.hang_up()

    member.behaviours |= {
        "initialize": on_a_stream,
        "tools/call": lambda asked: asked.result(text(asked.headers["Mcp-Session-Id"])),
    }
    agents = [world.agent().begin() for _ in range(2)]
    with in_background(lambda: agents[0].text("notes__echo")) as said:
        assert agents[1].text("notes__echo") == "streamed"
    assert said == ["streamed"]
    member.behaviours["notifications/initialized"] = lambda asked: asked.http(400)
    assert "HTTP status 400" in world.agent().begin().call("notes__echo")["error"]["message"]


def test_nothing_is_kept_of_a_process_that_is_gone(world: World) -> None:
    member = world.member()
    kept: list[weakref.ref[Any]] = []

    async def talk() -> None:
        upstream = Upstream(world, max_bytes=1000)  # type: ignore[arg-type]
        them = UpstreamSessions(upstream)
        for _ in range(3):
            route = upstream.route_to(member.restart(), 1)
            kept.append(weakref.ref(route))
            upstream_session = await them.session_for(route, Client(OPERATOR, None, {}))
            assert upstream_session.id == f"s{len(member.messages('initialize'))}"
            del route, upstream_session
        await asyncio.sleep(0)
        gc.collect()
        assert [one() is None for one in kept] == [True, True, False]
        upstream.close()

    asyncio.run(talk())
