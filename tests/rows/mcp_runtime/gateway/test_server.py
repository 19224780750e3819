"""The gateway as a part of the runtime: its memory of the roster, calls that wait for members, and its stop."""

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

from mcp_runtime.gateway import catalog_rows, extras_loader, members, server
from mcp_runtime.http1 import server as http_server
from roster.models import Call, GuildMember, Tool
from tests.conftest import eventually
from tests.support.agents import GatewayClient
from tests.support.gateway_world import ALL, World, event, in_background, request, result, text
from tests.support.scripted_server import Request as MemberRequest
from tests.support.scripted_server import full_backlog


def pages(*lists: list[dict[str, Any]], kind: str) -> Any:
    """A list in pages. The cursor is the number of the next page."""

    def behave(incoming: MemberRequest) -> None:
        number = int(incoming.message["params"].get("cursor", 0))
        next_cursor = {"nextCursor": str(number + 1)} if number + 1 < len(lists) else {}
        incoming.stream(event(result(incoming.id, **{kind: lists[number], **next_cursor})))
        incoming.hang_up()

    return behave


def list_names(world: World, method: str, kind: str) -> list[str]:
    entries = world.agent().begin().ask(method)["result"][kind]
    return [entry.get("uri") or entry.get("uriTemplate") or entry["name"] for entry in entries]


def test_the_gateway_reads_prompts_and_resources_of_members_page_by_page(world: World) -> None:
    world.agent()
    member = world.member(
        behaviours={
            "prompts/list": pages([{"name": "a"}, {"odd": 1}, 7], [{"name": "b"}], kind="prompts"),  # type: ignore[list-item]
            "resources/list": lambda incoming: incoming.result({"resources": [{"uri": "x:1", "name": "x"}]}),
        },
        capabilities=ALL,
    )
    eventually(lambda: list_names(world, "prompts/list", "prompts") == ["notes__a", "notes__b"])
    # Like many members, this one does not know the method for templates. Only its templates are missing.
    assert member.messages("resources/templates/list")
    assert list_names(world, "resources/list", "resources") == ["guild://notes/x:1"]
    assert list_names(world, "resources/templates/list", "resourceTemplates") == []
    member.behaviours["prompts/list"] = pages([{"name": "c"}], kind="prompts")
    world.gateway.lists_changed(member.row.pk)
    eventually(lambda: list_names(world, "prompts/list", "prompts") == ["notes__c"])


def test_a_list_that_changes_while_it_is_read_is_read_again(world: World) -> None:
    may_continue, first_request = threading.Event(), threading.Event()

    def list_prompts(incoming: MemberRequest) -> None:
        values = {"prompts": [{"name": "old"}]} if not first_request.is_set() else {"prompts": [{"name": "new"}]}
        first_request.set()
        assert may_continue.wait(10)
        incoming.result(values)

    world.agent()
    member = world.member(behaviours={"prompts/list": list_prompts}, capabilities={"prompts": {}})
    assert first_request.wait(5)
    world.gateway.lists_changed(member.row.pk)
    world.gateway.lists_changed(member.row.pk)
    world.agent().begin()  # so the gateway has handled both notifications
    may_continue.set()
    eventually(lambda: list_names(world, "prompts/list", "prompts") == ["notes__new"])
    assert len(member.messages("prompts/list")) == 2


def test_only_a_prompt_that_is_too_large_is_left_out(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras_loader, "MAX_ENTRY", 1_000)
    world.agent()
    large = {"name": "large", "icons": [{"src": "data:" + "x" * 2_000}]}
    world.member(behaviours={"prompts/list": pages([large, {"name": "small"}], kind="prompts")}, capabilities=ALL)
    eventually(lambda: list_names(world, "prompts/list", "prompts") == ["notes__small"])


def test_a_list_that_failed_is_requested_again_later(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras_loader, "RETRY_SECONDS", 0.01)
    world.agent()
    member = world.member(
        behaviours={"prompts/list": lambda incoming: incoming.http(500)}, capabilities={"prompts": {}}
    )
    eventually(lambda: len(member.messages("prompts/list")) > 1)
    member.behaviours["prompts/list"] = pages([{"name": "a"}], kind="prompts")
    eventually(lambda: list_names(world, "prompts/list", "prompts") == ["notes__a"])


def test_an_endless_list_is_cut_off(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras_loader, "MAX_ENTRIES", 3)
    monkeypatch.setattr(extras_loader, "MAX_PAGES", 5)
    world.agent()
    endless = pages(*[[{"name": f"p{number}"}] for number in range(50)], kind="prompts")
    empty = pages(*[[] for _ in range(50)], kind="resources")
    member = world.member(behaviours={"prompts/list": endless, "resources/list": empty}, capabilities=ALL)
    eventually(lambda: list_names(world, "prompts/list", "prompts") == ["notes__p0", "notes__p1", "notes__p2"])
    assert len(member.messages("prompts/list")) == 3
    assert len(member.messages("resources/list")) == 5


def test_reading_lists_does_not_change_the_number_of_concurrent_calls(world: World) -> None:
    open_calls, counts = [], []

    def call(incoming: MemberRequest) -> None:
        open_calls.append(1)
        counts.append(len(open_calls))
        threading.Event().wait(0.05)
        open_calls.pop()
        incoming.result(text("done"))

    world.agent()
    member = world.member(
        behaviours={"tools/call": call, "prompts/list": pages([{"name": "a"}], kind="prompts")},
        capabilities={"prompts": {}},
        max_concurrency=1,
    )
    eventually(lambda: list_names(world, "prompts/list", "prompts") == ["notes__a"])
    clients = [world.agent().begin() for _ in range(3)]
    with in_background(lambda: clients[0].text("notes__echo")), in_background(lambda: clients[1].text("notes__echo")):
        assert clients[2].text("notes__echo") == "done"
    assert max(counts) == 1
    assert len(member.messages("tools/call")) == 3


def test_the_roster_stays_in_memory_while_the_database_is_unavailable(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    member = world.member()
    assert world.agent().begin().tools() == ["notes__echo"]

    def fail(*args: Any) -> None:
        attempt.set()
        raise OperationalError("away")

    attempt = threading.Event()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(catalog_rows, "load", fail)
        world.gateway.member_changed(member.row.pk)
        assert attempt.wait(5)
        assert world.agent().begin().text("notes__echo") == "{}"
    Tool.objects.update(enabled=False)
    world.gateway.member_changed(member.row.pk)
    eventually(lambda: world.agent().begin().tools() == [])


# Members that are not live ----------------------------------------------------------------------------------------


def test_a_call_starts_a_stopped_member_and_waits_until_it_is_connected(world: World) -> None:
    member = world.member()
    live_member = world.live.pop(member.row.pk)
    GuildMember.objects.update(status="disconnected", desired_state="stopped")
    client = world.agent().begin()
    with in_background(lambda: client.text("notes__echo")) as texts:
        eventually(lambda: world.wake_count == 1)
        assert GuildMember.objects.get().desired_state == "running"
        world.live[member.row.pk] = live_member
        world.gateway.member_changed(member.row.pk)
    assert texts == ["{}"]


@pytest.mark.parametrize(
    ("fields", "timeout", "reason"),
    [
        ({"status": "error", "last_error": "it broke", "desired_state": "running"}, 5, "it broke"),
        ({"manifest_error": "no command", "status": "disconnected"}, 5, "no command"),
        ({"status": "starting"}, 0.3, "it was not connected within 0.3 s"),
    ],
)
def test_a_member_that_does_not_start_fails_the_call_with_the_reason(
    world: World, fields: dict[str, Any], timeout: float, reason: str
) -> None:
    member = world.member(timeout=timeout)
    client = world.agent().begin()
    world.live.pop(member.row.pk)
    GuildMember.objects.update(**fields, restarts=9)
    error = client.ask("tools/call", name="notes__echo", arguments={})["error"]
    assert error["code"] == -32603
    assert error["message"] == f"member 'notes' is unavailable: {reason}; the call was not sent"
    assert error["data"] == {"member": "notes", "kind": "unavailable", "sent": False}
    (call,) = world.calls()
    assert (call.error_kind, call.error_message) == ("unavailable", error["message"])
    assert member.messages("tools/call") == []


def test_the_error_of_a_failed_restart_does_not_contain_the_members_output(world: World) -> None:
    member = world.member(timeout=2)
    client = world.agent().begin()
    world.live.pop(member.row.pk)
    last_error = f"it broke{GuildMember.TAIL_MARK}key=sesame"
    restart_time = timezone.now() + timedelta(seconds=1)
    GuildMember.objects.update(
        status="error", desired_state="running", last_error=last_error, next_restart_at=restart_time
    )
    message = error_of_unsent_call(world, client, "notes__echo")
    assert "it broke" in message
    assert "sesame" not in message


def error_of_unsent_call(world: World, client: GatewayClient, tool: str) -> str:
    """The error of a call that was not sent. It is the same for the client and in the row."""
    error = client.call(tool)["error"]
    assert (error["code"], error["data"]) == (-32603, {"member": "notes", "kind": "unavailable", "sent": False})
    (row,) = [call for call in world.calls() if call.tool_name == tool.partition("__")[2]]
    assert (row.status, row.error_kind, row.error_message) == ("failed", "unavailable", error["message"])
    return str(error["message"])


ONE_SLOT = {
    "tools": [{"name": "slow"}, {"name": "echo"}],
    "max_concurrency": 1,
    "tool_timeouts": {"echo": 0.3},
}


def hang_if_slow(incoming: MemberRequest) -> None:
    if incoming.message["params"]["name"] == "slow":
        incoming.hang()
    incoming.result(text("done"))


def test_a_call_that_got_no_slot_in_time_says_that_it_was_not_sent(world: World) -> None:
    member = world.member(behaviours={"tools/call": hang_if_slow}, **ONE_SLOT)
    client = world.agent().begin()
    connection = client.send_only(request(99, "tools/call", name="notes__slow", arguments={}))
    eventually(lambda: member.messages("tools/call"))
    assert error_of_unsent_call(world, client, "notes__echo") == (
        "member 'notes' is unavailable: none of its 1 slots became free within 0.3 s; the call was not sent"
    )
    assert [message["params"]["name"] for message in member.messages("tools/call")] == ["slow"]
    connection.close()


def test_a_call_that_is_cancelled_while_it_waits_for_a_slot_is_not_sent(world: World) -> None:
    member = world.member(behaviours={"tools/call": hang_if_slow}, **ONE_SLOT | {"tool_timeouts": {}})
    client, slow_client = world.agent().begin(), world.agent().begin()
    connection = slow_client.send_only(request(99, "tools/call", name="notes__slow", arguments={}))
    eventually(lambda: member.messages("tools/call"))
    call = request(7, "tools/call", name="notes__echo", arguments={})
    with in_background(lambda: client.post(call).json()["error"]) as errors:
        canceller = GatewayClient(world, None)  # type: ignore[arg-type]
        canceller.http.headers.update(client.http.headers)

        def is_cancelled() -> bool:
            canceller.notify("notifications/cancelled", requestId=7)
            return bool(errors)

        eventually(is_cancelled)
        connection.close()
    assert errors[0]["message"] == "tool 'echo' of member 'notes': it was cancelled before it was sent"
    assert errors[0]["data"] == {"kind": "cancelled", "member": "notes", "sent": False}
    assert client.text("notes__echo") == "done"
    assert [message["params"]["name"] for message in member.messages("tools/call")] == ["slow", "echo"]


def test_a_call_is_not_sent_if_its_upstream_session_does_not_begin(world: World) -> None:
    member = world.member(timeout=1.5)
    client = world.agent().begin()
    member.behaviours["initialize"] = lambda incoming: incoming.hang()
    assert "began no session, within 1.5 s; the call was not sent" in error_of_unsent_call(world, client, "notes__echo")
    member.behaviours["initialize"] = lambda incoming: incoming.error(-32000, "too many sessions")
    Call.objects.all().delete()
    assert "too many sessions" in error_of_unsent_call(world, world.agent().begin(), "notes__echo")
    assert member.messages("tools/call") == []


def test_a_call_is_not_sent_if_the_connection_is_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world, "handle_connection_failure", lambda live, error: None)
    member = world.member()
    client = world.agent().begin()
    member.server.close_listener()
    member.server.drop_idle_connections()
    assert error_of_unsent_call(world, client, "notes__echo") == (
        "member 'notes' is unavailable: connection refused; the call was not sent"
    )


def test_a_call_is_not_sent_if_the_member_accepts_no_connection(world: World) -> None:
    member = world.member(timeout=0.3)
    client = world.agent().begin()
    with full_backlog() as port:
        member.live.client.url = f"http://127.0.0.1:{port}/mcp"
        assert "it accepted no connection" in error_of_unsent_call(world, client, "notes__echo")


def test_a_call_with_a_refused_connection_goes_to_the_next_process(world: World) -> None:
    member, client = world.member(), world.agent().begin()
    next_live_member = world.member("other").live
    member.server.close_listener()
    member.server.drop_idle_connections()
    with in_background(lambda: client.text("notes__echo", a=1)) as texts:
        eventually(lambda: world.failures == ["notes: connection refused"])
        member.live.client.url = next_live_member.client.url
        world.live[member.row.pk] = type(next_live_member)(
            member.row.pk, "notes", 0, next_live_member.client, next_live_member.process, next_live_member.endpoint
        )
        world.gateway.member_changed(member.row.pk)
    assert texts == ['{"a": 1}']


def test_the_error_of_a_call_contains_the_exit_of_the_member(world: World) -> None:
    member = world.member()

    def exit_with_9(incoming: MemberRequest) -> None:
        member.live.process.exit_code = -9
        member.live.process.exited.set()
        incoming.reset()

    member.behaviours["tools/call"] = exit_with_9
    error = world.agent().begin().ask("tools/call", name="notes__echo", arguments={})["error"]
    assert error["message"].endswith("the member exited during the call, with signal SIGKILL")
    assert error["data"] == {"member": "notes", "kind": "transport"}
    assert world.failures == []


def test_the_error_of_a_call_says_that_the_hall_stopped_the_member(world: World) -> None:
    member = world.member()

    def stop(incoming: MemberRequest) -> None:
        member.live.stop_requested.set()
        member.live.process.exit_code = 0
        member.live.process.exited.set()
        incoming.reset()

    member.behaviours["tools/call"] = stop
    error = world.agent().begin().ask("tools/call", name="notes__echo", arguments={})["error"]
    assert error["message"].endswith("the member was stopped during the call")


# The stop ---------------------------------------------------------------------------------------------------------


def test_after_stop_accepting_calls_in_progress_continue_and_no_new_client_connects(world: World) -> None:
    may_continue = threading.Event()

    def call(incoming: MemberRequest) -> None:
        assert may_continue.wait(10)
        incoming.result(text("done"))

    member = world.member(behaviours={"tools/call": call})
    client, other_client = world.agent().begin(), world.agent().begin()
    with (
        in_background(lambda: client.text("notes__echo")) as texts,
        socket.create_connection(("127.0.0.1", world.gateway_port), timeout=10) as slow_socket,
    ):
        eventually(lambda: member.messages("tools/call"))
        token = other_client.http.headers["Authorization"]
        slow_socket.sendall(f"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: {token}\r\n".encode())
        world.gateway.stop_accepting()
        with pytest.raises(requests.ConnectionError):
            other_client.send("ping")
        slow_socket.sendall(b"Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}")
        response = slow_socket.recv(4096)
        assert response.startswith(b"HTTP/1.1 503")
        assert b"retry-after: 2\r\n" in response
        may_continue.set()
    assert texts == ["done"]
    world.gateway.stop()
    assert [call.status for call in world.calls()] == ["succeeded"]
    world.gateway.member_changed(member.row.pk)  # after its stop the gateway ignores it


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


def test_endless_headers_are_refused_and_large_bodies_are_not(world: World) -> None:
    client = world.agent().begin()
    assert client.post(b'{"x": "' + b"y" * 1_000_000 + b'"}').status_code == 400  # read, and validated
    with socket.create_connection(("127.0.0.1", world.gateway_port), timeout=10) as connection:
        connection.sendall(b"POST /mcp HTTP/1.1\r\n")
        with contextlib.suppress(OSError):
            for _ in range(20):
                connection.sendall(b"X-Long: " + b"y" * 10_000 + b"\r\n")
        with contextlib.suppress(OSError):
            assert connection.recv(4096).startswith(b"HTTP/1.1 431")
    assert client.send("ping").status_code == 200


def test_idle_connections_end_first_if_there_are_too_many(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    clients = [world.agent().begin() for _ in range(3)]
    for client in clients:
        client.http.close()
    monkeypatch.setattr(http_server, "MAX_CONNECTIONS", 2)
    with clients[0].listen(), socket.create_connection(("127.0.0.1", world.gateway_port)) as idle_socket:
        idle_socket.settimeout(10)
        with clients[1].listen():
            assert idle_socket.recv(1) == b""
            response = clients[2].send("ping")
            assert (response.status_code, response.headers["retry-after"]) == (503, "2")
        eventually(lambda: clients[2].send("ping").status_code == 200)


def test_the_state_of_sessions_stays_in_the_next_runtime(
    world: World,
) -> None:
    behaviours: dict[str, Any] = {
        "logging/setLevel": lambda incoming: incoming.result({}),
        "resources/subscribe": lambda incoming: incoming.result({}),
        "GET": lambda incoming: incoming.stream() or incoming.hang(),
    }
    member = world.member(behaviours=behaviours, capabilities=ALL)
    client, ended_client = world.agent("/mcp/notes").begin(), world.agent().begin()
    client.ask("logging/setLevel", level="error")
    client.ask("resources/subscribe", uri="x:1")
    assert ended_client.http.delete(ended_client.url, timeout=10).status_code == 204
    world.replace_gateway()
    member.requests.clear()
    for each_client in (client, ended_client):
        each_client.url = world.agent(urlsplit(each_client.url).path).url
    with client.listen():
        eventually(lambda: member.messages("resources/subscribe"))
    assert [message["params"] for message in member.messages("logging/setLevel")] == [{"level": "error"}]
    assert [message["params"] for message in member.messages("resources/subscribe")] == [{"uri": "x:1"}]
    assert ended_client.send("ping").status_code == 404


def test_a_slow_load_of_the_roster_is_not_repeated_for_the_next_unknown_name(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, load = world.agent("/mcp/nobody"), catalog_rows.load
    monkeypatch.setattr(catalog_rows, "load", lambda *known: time.sleep(1.0) or load(*known))
    durations = []
    for _ in range(2):
        start = time.monotonic()
        assert client.send("ping").status_code == 404
        durations.append(time.monotonic() - start)
        time.sleep(2 * members.RELOAD_UNKNOWN_SECONDS)
    first, second = durations
    assert first >= 1.0 > second
