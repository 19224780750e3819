"""The gateway as a part of the runtime: its memory of the roster, members that are waited for, its end."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import pytest
import requests
from django.db import OperationalError
from django.utils import timezone

from mcp_runtime.gateway import catalog, extras_loader, members, server, session_file
from mcp_runtime.http1 import server as http_server
from roster.models import Call, GuildMember, Tool
from tests.conftest import eventually
from tests.support.agents import GatewayClient
from tests.support.gateway_world import ALL, World, event, in_background, request, result, text
from tests.support.scripted_server import Request as Asked
from tests.support.scripted_server import full_backlog


def pages(*told: list[dict[str, Any]], kind: str) -> Any:
    """A list in pages; the cursor is the number of the next."""

    def behave(asked: Asked) -> None:
        number = int(asked.message["params"].get("cursor", 0))
        more = {"nextCursor": str(number + 1)} if number + 1 < len(told) else {}
        asked.stream(event(result(asked.id, **{kind: told[number], **more})))
        asked.hang_up()

    return behave


def listed(world: World, method: str, kind: str) -> list[str]:
    entries = world.agent().begin().ask(method)["result"][kind]
    return [entry.get("uri") or entry.get("uriTemplate") or entry["name"] for entry in entries]


def test_what_members_offer_beside_tools_is_learned_page_by_page(world: World) -> None:
    world.agent()
    member = world.member(
        behaviours={
            "prompts/list": pages([{"name": "a"}, {"odd": 1}, 7], [{"name": "b"}], kind="prompts"),  # type: ignore[list-item]
            "resources/list": lambda asked: asked.result({"resources": [{"uri": "x:1", "name": "x"}]}),
        },
        capabilities=ALL,
    )
    eventually(lambda: listed(world, "prompts/list", "prompts") == ["notes__a", "notes__b"])
    # It knows nothing of templates, as many do not; that costs it no more than those.
    assert member.messages("resources/templates/list")
    assert listed(world, "resources/list", "resources") == ["guild://notes/x:1"]
    assert listed(world, "resources/templates/list", "resourceTemplates") == []
    member.behaviours["prompts/list"] = pages([{"name": "c"}], kind="prompts")
    world.gateway.lists_changed(member.row.pk)
    eventually(lambda: listed(world, "prompts/list", "prompts") == ["notes__c"])


def test_a_change_while_a_list_is_learned_is_learned_too(world: World) -> None:
    go_on, asked_for = threading.Event(), threading.Event()

    def prompts(asked: Asked) -> None:
        told = {"prompts": [{"name": "old"}]} if not asked_for.is_set() else {"prompts": [{"name": "new"}]}
        asked_for.set()
        assert go_on.wait(10)
        asked.result(told)

    world.agent()
    member = world.member(behaviours={"prompts/list": prompts}, capabilities={"prompts": {}})
    assert asked_for.wait(5)
    world.gateway.lists_changed(member.row.pk)
    world.gateway.lists_changed(member.row.pk)
    world.agent().begin()  # so the gateway has heard of it
    go_on.set()
    eventually(lambda: listed(world, "prompts/list", "prompts") == ["notes__new"])
    assert len(member.messages("prompts/list")) == 2


def test_a_prompt_that_is_too_large_costs_a_member_no_other(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras_loader, "MAX_ENTRY", 1_000)
    world.agent()
    large = {"name": "large", "icons": [{"src": "data:" + "x" * 2_000}]}
    world.member(behaviours={"prompts/list": pages([large, {"name": "small"}], kind="prompts")}, capabilities=ALL)
    eventually(lambda: listed(world, "prompts/list", "prompts") == ["notes__small"])


def test_a_member_that_does_not_list_is_asked_again_later(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras_loader, "RETRY_SECONDS", 0.01)
    world.agent()
    member = world.member(behaviours={"prompts/list": lambda asked: asked.http(500)}, capabilities={"prompts": {}})
    eventually(lambda: len(member.messages("prompts/list")) > 1)
    member.behaviours["prompts/list"] = pages([{"name": "a"}], kind="prompts")
    eventually(lambda: listed(world, "prompts/list", "prompts") == ["notes__a"])


def test_a_list_without_end_is_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras_loader, "MAX_ENTRIES", 3)
    monkeypatch.setattr(extras_loader, "MAX_PAGES", 5)
    world.agent()
    endless = pages(*[[{"name": f"p{number}"}] for number in range(50)], kind="prompts")
    empty = pages(*[[] for _ in range(50)], kind="resources")
    member = world.member(behaviours={"prompts/list": endless, "resources/list": empty}, capabilities=ALL)
    eventually(lambda: listed(world, "prompts/list", "prompts") == ["notes__p0", "notes__p1", "notes__p2"])
    assert len(member.messages("prompts/list")) == 3
    assert len(member.messages("resources/list")) == 5


def test_learning_does_not_decide_how_many_calls_a_member_takes(world: World) -> None:
    inside, most = [], []

    def call(asked: Asked) -> None:
        inside.append(1)
        most.append(len(inside))
        threading.Event().wait(0.05)
        inside.pop()
        asked.result(text("done"))

    world.agent()
    member = world.member(
        behaviours={"tools/call": call, "prompts/list": pages([{"name": "a"}], kind="prompts")},
        capabilities={"prompts": {}},
        max_concurrency=1,
    )
    eventually(lambda: listed(world, "prompts/list", "prompts") == ["notes__a"])
    agents = [world.agent().begin() for _ in range(3)]
    with in_background(lambda: agents[0].text("notes__echo")), in_background(lambda: agents[1].text("notes__echo")):
        assert agents[2].text("notes__echo") == "done"
    assert max(most) == 1
    assert len(member.messages("tools/call")) == 3


def test_a_database_that_is_away_leaves_the_roster_in_memory(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    member = world.member()
    assert world.agent().begin().tools() == ["notes__echo"]

    def away(*known: Any) -> None:
        tried.set()
        raise OperationalError("away")

    tried = threading.Event()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(catalog, "load", away)
        world.gateway.member_changed(member.row.pk)
        assert tried.wait(5)
        assert world.agent().begin().text("notes__echo") == "{}"
    Tool.objects.update(enabled=False)
    world.gateway.member_changed(member.row.pk)
    eventually(lambda: world.agent().begin().tools() == [])


# Members that are not there ---------------------------------------------------------------------------------------


def test_a_call_has_a_stopped_member_started_and_goes_on_once_it_is_there(world: World) -> None:
    member = world.member()
    live = world.live.pop(member.row.pk)
    GuildMember.objects.update(status="disconnected", desired_state="stopped")
    agent = world.agent().begin()
    with in_background(lambda: agent.text("notes__echo")) as said:
        eventually(lambda: world.wake_count == 1)
        assert GuildMember.objects.get().desired_state == "running"
        world.live[member.row.pk] = live
        world.gateway.member_changed(member.row.pk)
    assert said == ["{}"]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"status": "error", "last_error": "it broke", "desired_state": "running"}, "it broke"),
        ({"manifest_error": "no command", "status": "disconnected"}, "no command"),
        ({"status": "starting"}, "it was not connected within 0.3 s"),
    ],
)
def test_a_member_that_does_not_come_up_fails_the_call_with_the_reason(
    world: World, fields: dict[str, Any], said: str
) -> None:
    member = world.member(timeout=0.3)
    agent = world.agent().begin()
    world.live.pop(member.row.pk)
    GuildMember.objects.update(**fields, restarts=9)
    error = agent.ask("tools/call", name="notes__echo", arguments={})["error"]
    assert error["code"] == -32603
    assert error["message"] == f"member 'notes' is unavailable: {said}; the call was not sent"
    assert error["data"] == {"member": "notes", "kind": "unavailable", "sent": False}
    (call,) = world.calls()
    assert (call.error_kind, call.error_message) == ("unavailable", error["message"])
    assert member.messages("tools/call") == []


def test_a_call_that_waits_for_a_restart_in_vain_is_told_why_without_the_members_last_lines(world: World) -> None:
    member = world.member(timeout=0.4)
    agent = world.agent().begin()
    world.live.pop(member.row.pk)
    last_error = f"it broke{GuildMember.TAIL_MARK}key=sesame"
    soon = timezone.now() + timedelta(seconds=0.2)
    GuildMember.objects.update(status="error", desired_state="running", last_error=last_error, next_restart_at=soon)
    told = failed(world, agent, "notes__echo")
    assert "it broke" in told
    assert "sesame" not in told


def failed(world: World, agent: GatewayClient, tool: str) -> str:
    """Why a call failed that no member got, as the client and the record both say."""
    error = agent.call(tool)["error"]
    assert (error["code"], error["data"]) == (-32603, {"member": "notes", "kind": "unavailable", "sent": False})
    (row,) = [call for call in world.calls() if call.tool_name == tool.partition("__")[2]]
    assert (row.status, row.error_kind, row.error_message) == ("failed", "unavailable", error["message"])
    return str(error["message"])


BUSY = {
    "tools": [{"name": "slow"}, {"name": "echo"}],
    "max_concurrency": 1,
    "tool_timeouts": {"echo": 0.3},
}


def hang_if_slow(asked: Asked) -> None:
    if asked.message["params"]["name"] == "slow":
        asked.hang()
    asked.result(text("done"))


def test_a_call_that_waited_for_a_slot_in_vain_was_not_sent_and_says_so(world: World) -> None:
    member = world.member(behaviours={"tools/call": hang_if_slow}, **BUSY)
    agent = world.agent().begin()
    slow = agent.send_only(request(99, "tools/call", name="notes__slow", arguments={}))
    eventually(lambda: member.messages("tools/call"))
    assert failed(world, agent, "notes__echo") == (
        "member 'notes' is unavailable: none of its 1 slots became free within 0.3 s; the call was not sent"
    )
    assert [message["params"]["name"] for message in member.messages("tools/call")] == ["slow"]
    slow.close()


def test_a_call_that_is_cancelled_while_it_waits_for_a_slot_is_not_sent_any_more(world: World) -> None:
    member = world.member(behaviours={"tools/call": hang_if_slow}, **BUSY | {"tool_timeouts": {}})
    agent, other = world.agent().begin(), world.agent().begin()
    slow = other.send_only(request(99, "tools/call", name="notes__slow", arguments={}))
    eventually(lambda: member.messages("tools/call"))
    call = request(7, "tools/call", name="notes__echo", arguments={})
    with in_background(lambda: agent.post(call).json()["error"]) as ended:
        canceller = GatewayClient(world, None)  # type: ignore[arg-type]
        canceller.http.headers.update(agent.http.headers)

        def is_cancelled() -> bool:
            canceller.notify("notifications/cancelled", requestId=7)
            return bool(ended)

        eventually(is_cancelled)
        slow.close()
    assert ended[0]["message"] == "tool 'echo' of member 'notes': it was cancelled before it was sent"
    assert ended[0]["data"] == {"kind": "cancelled", "member": "notes", "sent": False}
    assert agent.text("notes__echo") == "done"
    assert [message["params"]["name"] for message in member.messages("tools/call")] == ["slow", "echo"]


def test_a_call_whose_session_with_the_member_does_not_begin_was_not_sent(world: World) -> None:
    member = world.member(timeout=1.5)
    agent = world.agent().begin()
    member.behaviours["initialize"] = lambda asked: asked.hang()
    assert "began no session, within 1.5 s; the call was not sent" in failed(world, agent, "notes__echo")
    member.behaviours["initialize"] = lambda asked: asked.error(-32000, "too many sessions")
    Call.objects.all().delete()
    assert "too many sessions" in failed(world, world.agent().begin(), "notes__echo")
    assert member.messages("tools/call") == []


def test_a_call_that_finds_nobody_listening_was_not_sent(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world, "handle_connection_failure", lambda live, error: None)
    member = world.member()
    agent = world.agent().begin()
    member.server.close_listener()
    member.server.drop_idle_connections()
    assert failed(world, agent, "notes__echo") == (
        "member 'notes' is unavailable: connection refused; the call was not sent"
    )


def test_a_member_that_accepts_no_connection_was_not_sent_the_call(world: World) -> None:
    member = world.member(timeout=0.3)
    agent = world.agent().begin()
    with full_backlog() as port:
        member.live.client.url = f"http://127.0.0.1:{port}/mcp"
        assert "it accepted no connection" in failed(world, agent, "notes__echo")


def test_a_call_that_nobody_listened_to_goes_to_the_next_process(world: World) -> None:
    first, agent = world.member(), world.agent().begin()
    next_one = world.member("other").live
    first.server.close_listener()
    first.server.drop_idle_connections()
    with in_background(lambda: agent.text("notes__echo", a=1)) as said:
        eventually(lambda: world.failures == ["notes: connection refused"])
        first.live.client.url = next_one.client.url
        world.live[first.row.pk] = type(next_one)(
            first.row.pk, "notes", 0, next_one.client, next_one.process, next_one.endpoint
        )
        world.gateway.member_changed(first.row.pk)
    assert said == ['{"a": 1}']


def test_a_call_in_a_member_that_exits_fails_with_its_exit(world: World) -> None:
    member = world.member()

    def exit_with_9(asked: Asked) -> None:
        member.live.process.exit_code = -9
        member.live.process.exited.set()
        asked.reset()

    member.behaviours["tools/call"] = exit_with_9
    error = world.agent().begin().ask("tools/call", name="notes__echo", arguments={})["error"]
    assert error["message"].endswith("the member exited during the call, with signal SIGKILL")
    assert error["data"] == {"member": "notes", "kind": "transport"}
    assert world.failures == []


def test_a_call_in_a_member_that_the_hall_stops_says_so(world: World) -> None:
    member = world.member()

    def stop(asked: Asked) -> None:
        member.live.stop_requested.set()
        member.live.process.exit_code = 0
        member.live.process.exited.set()
        asked.reset()

    member.behaviours["tools/call"] = stop
    error = world.agent().begin().ask("tools/call", name="notes__echo", arguments={})["error"]
    assert error["message"].endswith("the member was stopped during the call")


# The end ----------------------------------------------------------------------------------------------------------


def test_after_stop_accepting_calls_in_progress_continue_and_no_new_client_connects(world: World) -> None:
    go_on = threading.Event()

    def call(asked: Asked) -> None:
        assert go_on.wait(10)
        asked.result(text("done"))

    member = world.member(behaviours={"tools/call": call})
    agent, other = world.agent().begin(), world.agent().begin()
    with (
        in_background(lambda: agent.text("notes__echo")) as said,
        socket.create_connection(("127.0.0.1", world.gateway_port), timeout=10) as slow,
    ):
        eventually(lambda: member.messages("tools/call"))
        token = other.http.headers["Authorization"]
        slow.sendall(f"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: {token}\r\n".encode())
        world.gateway.stop_accepting()
        with pytest.raises(requests.ConnectionError):
            other.send("ping")
        slow.sendall(b"Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}")
        refused = slow.recv(4096)
        assert refused.startswith(b"HTTP/1.1 503")
        assert b"retry-after: 2\r\n" in refused
        go_on.set()
    assert said == ["done"]
    world.gateway.stop()
    assert [call.status for call in world.calls()] == ["succeeded"]
    world.gateway.member_changed(member.row.pk)  # nobody is there to hear of it


def test_a_loop_that_cannot_start_is_logged(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(self: Any) -> None:
        await asyncio.sleep(0)
        raise RuntimeError("no loop today")

    monkeypatch.setattr(server.Gateway, "_serve", fail)
    monkeypatch.setattr(server, "START_SECONDS", 0.05)
    assert world.gateway
    eventually(lambda: "the gateway ended" in caplog.text)


def test_headers_without_end_are_cut_off_and_large_bodies_are_not_taken_for_them(world: World) -> None:
    agent = world.agent().begin()
    assert agent.post(b'{"x": "' + b"y" * 1_000_000 + b'"}').status_code == 400  # read, and validated
    with socket.create_connection(("127.0.0.1", world.gateway_port), timeout=10) as connection:
        connection.sendall(b"POST /mcp HTTP/1.1\r\n")
        with contextlib.suppress(OSError):
            for _ in range(20):
                connection.sendall(b"X-Long: " + b"y" * 10_000 + b"\r\n")
        with contextlib.suppress(OSError):
            assert connection.recv(4096).startswith(b"HTTP/1.1 431")
    assert agent.send("ping").status_code == 200


def test_more_connections_than_there_is_room_for_end_idle_ones_first(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    agents = [world.agent().begin() for _ in range(3)]
    for agent in agents:
        agent.http.close()
    monkeypatch.setattr(http_server, "MAX_CONNECTIONS", 2)
    with agents[0].listen(), socket.create_connection(("127.0.0.1", world.gateway_port)) as silent:
        silent.settimeout(10)
        with agents[1].listen():
            assert silent.recv(1) == b""
            refused = agents[2].send("ping")
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "2")
        eventually(lambda: agents[2].send("ping").status_code == 200)


def test_the_state_of_sessions_holds_in_the_next_runtime(
    world: World,
) -> None:
    asked: dict[str, Any] = {
        "logging/setLevel": lambda asked: asked.result({}),
        "resources/subscribe": lambda asked: asked.result({}),
        "GET": lambda asked: asked.stream() or asked.hang(),
    }
    member = world.member(behaviours=asked, capabilities=ALL)
    agent, ended = world.agent("/mcp/notes").begin(), world.agent().begin()
    agent.ask("logging/setLevel", level="error")
    agent.ask("resources/subscribe", uri="x:1")
    assert ended.http.delete(ended.url, timeout=10).status_code == 204
    world.replace_gateway()
    member.requests.clear()
    for one in (agent, ended):
        one.url = world.agent(urlsplit(one.url).path).url
    with agent.listen():
        eventually(lambda: member.messages("resources/subscribe"))
    assert [told["params"] for told in member.messages("logging/setLevel")] == [{"level": "error"}]
    assert [told["params"] for told in member.messages("resources/subscribe")] == [{"uri": "x:1"}]
    assert ended.send("ping").status_code == 404


def test_what_is_known_of_sessions_is_written_while_the_runtime_lives(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "SESSIONS_SECONDS", 0.01)
    agent = world.agent().begin()
    agent.http.delete(agent.url, timeout=10)
    eventually(lambda: len(session_file.load(world.data_dir).get("ended", [])) == 1)


@pytest.mark.parametrize("left", [b"{", b"[]", b'{"ended": 1}'])
def test_a_file_of_sessions_that_cannot_be_read_keeps_nothing_from_starting(
    world: World, caplog: pytest.LogCaptureFixture, left: bytes
) -> None:
    (world.data_dir / session_file.NAME).write_bytes(left)
    assert world.agent().begin().tools() == []
    assert ("sessions continue without it" in caplog.text) == (left != b"[]")


def test_a_roster_that_takes_long_to_load_is_not_loaded_again_for_the_next_unknown_name(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent, load = world.agent("/mcp/nobody"), catalog.load
    monkeypatch.setattr(catalog, "load", lambda *known: time.sleep(1.0) or load(*known))
    took = []
    for _ in range(2):
        began = time.monotonic()
        assert agent.send("ping").status_code == 404
        took.append(time.monotonic() - began)
        time.sleep(2 * members.RELOAD_UNKNOWN_SECONDS)
    first, second = took
    assert first >= 1.0 > second
