"""Calls through the gateway: members that are down, die, hang or are slow; who may call what; what is written down."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.contrib.auth.models import Group, Permission, User
from django.utils import timezone

from mcp_runtime.control.members import disable_member, enable_member, reserve_member, set_tool_enabled
from roster.models import Call, Token, Tool
from roster.models import Hall as HallRow
from tests.conftest import eventually
from tests.support.agents import GatewayClient, kill, make_token, on_the_roster
from tests.support.hall import PATIENCE, Hall, member, wait_for_status
from tests.support.machine import Stopwatch

pytestmark = pytest.mark.services


@pytest.fixture
def one(hall: Hall) -> Hall:
    hall.add("one", "record", tool_timeouts={"sleep": 1, "exit": 5})
    hall.start()
    on_the_roster(hall, "one")
    return hall


def recorded(**columns: Any) -> Call:
    """The newest call that was written down with these values; it is, within a second."""
    return eventually(lambda: Call.objects.filter(**columns).first(), within=1.5, what=str(columns))  # type: ignore[return-value]


# Members that are not as they should be ---------------------------------------------------------------------------


def test_a_call_starts_what_is_stopped_and_says_why_nothing_else_can_be_called(hall: Hall) -> None:
    hall.add("one")
    hall.add("crash", "exit=7", timeout=5)
    hall.start()
    wait_for_status(hall, "one", "connected")
    wait_for_status(hall, "crash", "error")
    token = make_token()
    agent = GatewayClient(hall, token).begin()
    eventually(lambda: "one__echo" in agent.tools())
    hall.manage("member", "stop", "one")
    wait_for_status(hall, "one", "disconnected")
    assert "one__echo" in agent.tools()
    with ThreadPoolExecutor(8) as threads:
        together = [threads.submit(GatewayClient(hall, token).begin().text, "one__echo", text=str(n)) for n in range(8)]
        assert [one.result() for one in together] == [str(number) for number in range(8)]
    assert (member("one").status, member("one").desired_state) == ("connected", "running")

    watch = Stopwatch()
    crash = GatewayClient(hall, token, "/mcp/crash").begin().call("anything")["error"]
    assert watch.seconds < 6
    assert crash["data"] == {"member": "crash", "kind": "unavailable", "sent": False}
    assert "'crash'" in crash["message"]
    assert "ended with exit code 7" in crash["message"]
    assert "cannot go on like this" not in crash["message"]  # its last lines are for who may read its log
    assert recorded(member__name="crash").error_kind == "unavailable"

    disable_member(member("one"))
    eventually(lambda: "one__echo" not in agent.tools(), within=1)
    refused = agent.call("one__echo", text="x")["error"]
    assert (refused["code"], "disabled" in refused["message"]) == (-32602, True)
    gone = GatewayClient(hall, token, "/mcp/one").send("initialize")
    assert (gone.status_code, "disabled" in gone.text) == (404, True)
    enable_member(member("one"))
    eventually(lambda: "one__echo" in agent.tools())
    assert agent.text("one__echo", text="again") == "again"


def test_a_member_that_is_killed_fails_the_calls_in_it_by_name_and_takes_the_next(one: Hall) -> None:
    agent = GatewayClient(one, make_token()).begin()
    message = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "one__progress", "arguments": {}}}
    message["params"]["_meta"] = {"progressToken": "p"}  # type: ignore[index]
    for number in range(1, 3):
        with ThreadPoolExecutor(2) as threads, GatewayClient(one, make_token()).begin().stream(message) as heard:
            silent = threads.submit(agent.call, "one__dribble")
            assert heard.next()["params"]["progressToken"] == "p"
            eventually(lambda: len(received(one, "one", "dribble")) == number)  # noqa: B023
            kill("one")
            assert agent.text("one__echo", text="the next call") == "the next call"
            for error in (silent.result(5)["error"], heard.until("")["error"]):
                assert (error["code"], error["data"]) == (-32603, {"member": "one", "kind": "transport"})
                assert "member 'one'" in error["message"]
                assert "SIGKILL" in error["message"]
    for tool in ("dribble", "progress"):
        assert recorded(tool_name=tool).error_kind == "transport"


def received(hall: Hall, name: str, tool: str) -> list[dict[str, Any]]:
    """What the member (mode `record`) got of calls of the tool."""
    lines = (hall.members_dir / name / "requests.jsonl").read_text().splitlines()
    return [told for told in map(json.loads, lines) if told["body"].get("params", {}).get("name") == tool]


def cancelled(hall: Hall, name: str) -> dict[str, Any]:
    """What the member was told when it was told to stop."""
    path = hall.members_dir / name / "cancelled.json"
    eventually(lambda: path.exists() and path.read_text(), within=3)
    told = json.loads(path.read_text())["params"]
    path.unlink()
    return dict(told)


# Ends that come too early -----------------------------------------------------------------------------------------


def test_a_call_has_a_deadline_in_total_and_the_member_is_told(one: Hall) -> None:
    one.add("two", "record", tool_timeouts={"sleep": 1})
    on_the_roster(one, "one", "two")
    for name, path, tool in [("one", "/mcp", "one__sleep"), ("two", "/mcp/two", "sleep")]:
        agent = GatewayClient(one, make_token(), path).begin()
        watch = Stopwatch()
        error = agent.call(tool)["error"]
        assert watch.elapsed > 0.9
        assert watch.seconds < 1.8
        assert (error["code"], error["data"]) == (-32603, {"member": name, "kind": "timeout"})
        assert error["message"] == f"tool 'sleep' of member '{name}': no complete answer within 1 s; it may have run"
        assert cancelled(one, name)["requestId"] == received(one, name, "sleep")[-1]["body"]["id"]
        row = recorded(tool_name="sleep", member__name=name)
        assert (row.status, row.error_kind, row.timeout) == ("failed", "timeout", 1.0)
        assert agent.text(tool.replace("sleep", "echo"), text="well") == "well"


def test_who_cancels_or_goes_away_cancels_at_the_member(one: Hall) -> None:
    token = make_token()
    call = {"jsonrpc": "2.0", "id": "mine", "method": "tools/call", "params": {"name": "one__dribble", "arguments": {}}}
    # Two users use the same id; each cancels their own.
    first, second = (
        GatewayClient(one, token).begin(),
        GatewayClient(one, make_token(User.objects.create_superuser("other"))).begin(),
    )
    with ThreadPoolExecutor(2) as threads:
        calls = {agent: threads.submit(agent.post, call) for agent in (first, second)}
        eventually(lambda: len(received(one, "one", "dribble")) == 2)
        ids = {told["body"]["id"] for told in received(one, "one", "dribble")}
        assert len(ids) == 2
        told = []
        for agent in (second, first):
            assert not calls[agent].done()
            watch = Stopwatch()
            assert agent.notify("notifications/cancelled", requestId="mine", reason="enough").status_code == 202
            told.append(cancelled(one, "one"))
            error = calls[agent].result(3).json()["error"]
            assert watch.seconds < 2
            assert error["data"] == {"member": "one", "kind": "cancelled"}
    assert ({one["requestId"] for one in told}, told[0]["reason"]) == (ids, "enough")
    eventually(lambda: Call.objects.filter(tool_name="dribble", status="cancelled").count() == 2, within=1.5)

    modern, headers = first.modern_message("tools/call", name="one__dribble", arguments={})
    (one.members_dir / "one" / "requests.jsonl").unlink()
    for agent, message, named in [(first, call, {}), (GatewayClient(one, token), modern, headers)]:
        gone = agent.send_only(message, **named)
        eventually(lambda: (one.members_dir / "one" / "requests.jsonl").exists() and received(one, "one", "dribble"))
        gone.close()
        assert cancelled(one, "one")["requestId"] == received(one, "one", "dribble")[-1]["body"]["id"]
        (one.members_dir / "one" / "requests.jsonl").unlink()
    eventually(lambda: Call.objects.filter(tool_name="dribble", status="cancelled").count() == 4, within=1.5)


def test_a_member_with_all_its_places_taken_delays_nobody_else(hall: Hall) -> None:
    hall.add("good")
    hall.add("bad", max_concurrency=4, timeout=30)
    hall.start()
    on_the_roster(hall, "good", "bad")
    token = make_token(max_in_flight=200)
    agents = [GatewayClient(hall, token).begin() for _ in range(50)]
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "bad__sleep", "arguments": {}}}
    hanging = [agent.send_only(call) for agent in agents]
    took: list[float] = []

    def work(agent: GatewayClient) -> None:
        for number in range(4):
            watch = Stopwatch()
            assert agent.text("good__echo", text=f"{id(agent)} {number}") == f"{id(agent)} {number}"
            took.append(watch.seconds)

    with ThreadPoolExecutor(50) as threads:
        list(threads.map(work, agents))
    assert sorted(took)[len(took) // 2] < 1, sorted(took)
    eventually(lambda: Call.objects.filter(tool_name="echo", status="succeeded").count() == 200, within=1.5)
    for connection in hanging:
        connection.close()
    # Those who waited for a place leave the line, and those who had one give it back.
    eventually(lambda: Call.objects.filter(tool_name="sleep").count() == 50, within=3)
    assert agents[0].text("bad__echo", text="free") == "free"


# What is written down, what is passed on --------------------------------------------------------------------------


def test_each_call_is_written_down_with_its_end_and_without_its_secrets(one: Hall) -> None:
    user = User.objects.create_superuser("grace")
    row, token = Token.make(user=user, name="laptop", calls_per_minute=0)
    agent = GatewayClient(one, token).begin()
    before = timezone.now()
    assert agent.text("one__echo", text="hello", password="hunter2") == "hello"
    told = recorded(tool_name="echo")
    assert (told.source, told.requested_by, told.token, told.requester) == ("gateway", user, row, "grace (laptop)")
    assert (told.member.name, told.status, told.error_kind) == ("one", "succeeded", "")
    assert told.arguments == {"text": "hello", "password": "********"}
    assert told.result == {"content": [{"type": "text", "text": "hello"}]}
    assert told.started_at
    assert told.finished_at
    assert before <= told.started_at <= told.finished_at <= timezone.now()
    passed = received(one, "one", "echo")[-1]
    assert passed["body"]["params"]["arguments"]["password"] == "hunter2"

    assert agent.call("one__fail")["result"]["isError"] is True
    told = recorded(tool_name="fail")
    assert (told.status, told.error_kind, told.result["isError"]) == ("failed", "tool", True)
    assert "it went wrong" in told.error_message
    refused = agent.call("one__refuse")["error"]
    assert refused == {"code": -32602, "message": "not with me", "data": {"hint": "ask somebody else"}}
    told = recorded(tool_name="refuse")
    assert (told.status, told.error_kind, told.error_code) == ("failed", "protocol", -32602)
    assert told.error_data == {"hint": "ask somebody else"}
    for tool, kind in {"html": "protocol", "wrong_id": "transport"}.items():
        assert agent.call(f"one__{tool}")["error"]["data"] == {"member": "one", "kind": kind}
        assert recorded(tool_name=tool).error_kind == kind
    assert agent.call("one__reset")["error"]["data"] == {"member": "one", "kind": "transport"}
    assert recorded(tool_name="reset").error_kind == "transport"

    assert agent.text("one__echo", text="long " * 2000) == "long " * 2000
    told = recorded(arguments__has_key="guild-hall/cut")
    assert len(json.dumps(told.arguments)) < 5000
    assert len(json.dumps(told.result)) < 5000
    assert told.result["_meta"]["guild-hall/cut"]["bytes"] > 10_000
    assert len(agent.send("tools/call", name="one__large", arguments={}).content) > 3_000_000
    told = recorded(tool_name="large")
    assert (told.status, len(json.dumps(told.result)) < 9000) == ("succeeded", True)
    assert agent.text("one__echo", text="nul \0 and \ud800", password=None).startswith("nul ")
    assert Token.objects.get(pk=row.pk).last_used_at


def test_what_callers_come_in_with_never_reaches_the_member(one: Hall) -> None:
    token = make_token()
    headers = {"Cookie": "sessionid=secret-cookie", "X_Api_Key": "secret-key", "Traceparent": "00-1-2-00"}
    for path, tool in [("/mcp", "one__echo"), ("/mcp/one", "echo")]:
        agent = GatewayClient(one, token, path).begin()
        call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": tool, "arguments": {"text": "x"}}}
        assert agent.post(call, **headers).status_code == 200
        message, named = agent.modern_message("tools/call", name=tool, arguments={"text": "x"})
        assert GatewayClient(one, token, path).post(message, **named, **headers).status_code == 200
    told = (one.members_dir / "one" / "requests.jsonl").read_text()
    assert len(received(one, "one", "echo")) == 4
    for secret in (token, "Bearer", "secret-cookie", "secret-key", str(agent.http.headers["Mcp-Session-Id"])):
        assert secret not in told


# Who may ----------------------------------------------------------------------------------------------------------


def test_what_a_caller_may_not_is_not_there_from_one_moment_to_the_next(hall: Hall) -> None:
    for name in ("one", "two"):
        hall.add(name, "tools=alpha,beta")
    hall.start()
    for name in ("one", "two"):
        wait_for_status(hall, name, "connected")
    user = User.objects.create_user("ada")
    user.user_permissions.add(Permission.objects.get(codename="invoke_tool"))
    row, token = Token.make(user=user, calls_per_minute=0)
    everything = [f"{name}__{tool}" for name in ("one", "two") for tool in ("alpha", "beta")]
    agent = GatewayClient(hall, token).begin()
    eventually(lambda: agent.tools() == everything)
    listen, headers = agent.modern_message("subscriptions/listen", notifications={"toolsListChanged": True})
    with agent.listen() as legacy, GatewayClient(hall, token).stream(listen, **headers) as modern:
        assert modern.next()["method"] == "notifications/subscriptions/acknowledged"

        def changed(*gone: str) -> None:
            watch = Stopwatch()
            for heard in (legacy, modern):
                assert heard.until("notifications/tools/list_changed", within=PATIENCE)
            assert watch.seconds < 1
            assert agent.tools() == [tool for tool in everything if not tool.startswith(gone or ("-",))]
            for tool in everything:
                is_there = "result" in agent.call(tool)
                assert is_there is not tool.startswith(gone or ("-",)), tool

        def tool(member_name: str, name: str) -> Tool:
            return Tool.objects.get(member__name=member_name, name=name)

        set_tool_enabled(tool("one", "alpha"), False)
        changed("one__alpha")
        assert GatewayClient(hall, token, "/mcp/one").begin().tools() == ["beta"]
        assert GatewayClient(hall, token, "/mcp/one").begin().call("alpha")["error"]["code"] == -32602
        hall.manage("tool", "enable", "one", "alpha")
        changed()
        team = Group.objects.create(name="team")
        reserve_member(member("two"), [team])
        changed("two__")
        hidden = GatewayClient(hall, token, "/mcp/two").send("initialize")
        assert (hidden.status_code, GatewayClient(hall, token, "/mcp?members=two").send("ping").status_code) == (
            404,
            404,
        )
        user.groups.add(team)
        changed()
        row.members.set([member("one")])
        row.scope = Token.Scope.MEMBERS
        row.save()
        changed("two__")
        row.tools.set([tool("two", "beta")])
        row.scope = Token.Scope.TOOLS
        row.save()
        changed("one__", "two__alpha")
        user.user_permissions.clear()
        changed("one__", "two__")
        assert (legacy.ended.is_set(), modern.ended.is_set()) == (False, False)
        Token.objects.filter(pk=row.pk).update(revoked_at=timezone.now())
        HallRow.note_access_change()
        watch = Stopwatch()
        eventually(lambda: agent.send("ping").status_code == 401)
        assert legacy.ended.wait(PATIENCE)
        assert modern.ended.wait(PATIENCE)
        assert watch.seconds < 0.6
        assert modern.until("")["result"]["resultType"] == "complete"


def test_the_stream_of_a_member_ends_with_the_right_to_use_it(hall: Hall) -> None:
    hall.add("one", "announce")
    hall.start()
    wait_for_status(hall, "one", "connected")
    user = User.objects.create_user("ada")
    user.user_permissions.add(Permission.objects.get(codename="invoke_tool"))
    token = make_token(user)
    eventually(lambda: GatewayClient(hall, token, "/mcp/one").send("initialize").status_code != 404)
    agent = GatewayClient(hall, token, "/mcp/one").begin()
    with agent.listen() as heard:
        reserve_member(member("one"), [Group.objects.create(name="team")])
        eventually(heard.ended.is_set, within=1)


# The end ----------------------------------------------------------------------------------------------------------


def test_a_stop_with_streams_and_calls_under_way_is_over_in_five_seconds(one: Hall) -> None:
    token = make_token()
    agents = [GatewayClient(one, token).begin() for _ in range(10)]
    listen, headers = agents[0].modern_message("subscriptions/listen", notifications={"toolsListChanged": True})
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "one__dribble", "arguments": {}}}
    progress = {**call, "params": {"name": "one__progress", "arguments": {}, "_meta": {"progressToken": 1}}}
    streams = [agent.listen() for agent in agents]
    streams += [GatewayClient(one, token).stream(listen, **headers) for _ in range(3)]
    streams += [agents[0].stream(progress)]
    connections = [agent.send_only(call) for agent in agents]
    eventually(lambda: len(received(one, "one", "dribble")) == 10)
    watch = Stopwatch()
    one.processes[-1].terminate()
    one.processes[-1].wait(PATIENCE)
    assert watch.seconds < 5
    for stream in streams:
        eventually(stream.ended.is_set, within=1)
        stream.close()
    for connection in connections:
        connection.close()
    assert (one.busy_ports(), one.tagged_processes()) == ([], [])
    one.start()  # its own port is free as well
    wait_for_status(one, "one", "connected")
    assert agents[0].text("one__echo", text="same session") == "same session"
    rows = Call.objects.filter(tool_name="dribble")
    assert [row.status in Call.FINISHED for row in rows] == [True] * 10
