"""Calls through the gateway: broken and slow members, access control, and the stored rows."""

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
from tests.support.agents import GatewayClient, kill, make_token, wait_for_roster
from tests.support.hall import PATIENCE, Hall, member, wait_for_status
from tests.support.machine import Stopwatch

pytestmark = pytest.mark.services


@pytest.fixture
def running_hall(hall: Hall) -> Hall:
    hall.add("one", "record", tool_timeouts={"sleep": 1, "exit": 5})
    hall.start()
    wait_for_roster(hall, "one")
    return hall


def find_call(**columns: Any) -> Call:
    """The newest stored call with these values. It is stored within a second."""
    return eventually(lambda: Call.objects.filter(**columns).first(), within=1.5, what=str(columns))  # type: ignore[return-value]


# Members that are not as they should be ---------------------------------------------------------------------------


def test_a_call_starts_a_stopped_member_and_fails_for_a_crashed_or_disabled_member(hall: Hall) -> None:
    hall.add("one")
    hall.start()
    wait_for_status(hall, "one", "connected")
    token = make_token()
    agent = GatewayClient(hall, token).begin()
    eventually(lambda: "one__echo" in agent.tools())
    hall.manage("member", "stop", "one")
    wait_for_status(hall, "one", "disconnected")
    assert "one__echo" in agent.tools()
    with ThreadPoolExecutor(8) as threads:
        futures = [threads.submit(GatewayClient(hall, token).begin().text, "one__echo", text=str(n)) for n in range(8)]
        assert [future.result() for future in futures] == [str(number) for number in range(8)]
    assert (member("one").status, member("one").desired_state) == ("connected", "running")

    # Only now, because after each failure the hall waits longer for the next start.
    hall.add("crash", "exit=7", timeout=PATIENCE)
    wait_for_status(hall, "crash", "error", within=PATIENCE)
    watch = Stopwatch()
    error = GatewayClient(hall, token, "/mcp/crash").begin().call("anything")["error"]
    assert watch.seconds < PATIENCE + 1
    assert error["data"] == {"member": "crash", "kind": "unavailable", "sent": False}
    assert "'crash'" in error["message"]
    assert "ended with exit code 7" in error["message"]
    assert "cannot go on like this" not in error["message"]  # only users who may read the log see its last lines
    assert find_call(member__name="crash").error_kind == "unavailable"

    disable_member(member("one"))
    eventually(lambda: "one__echo" not in agent.tools(), within=1)
    refusal = agent.call("one__echo", text="x")["error"]
    assert (refusal["code"], "disabled" in refusal["message"]) == (-32602, True)
    response = GatewayClient(hall, token, "/mcp/one").send("initialize")
    assert (response.status_code, "disabled" in response.text) == (404, True)
    enable_member(member("one"))
    eventually(lambda: "one__echo" in agent.tools())
    assert agent.text("one__echo", text="again") == "again"


def test_calls_in_a_killed_member_fail_with_its_name_and_the_next_call_succeeds(running_hall: Hall) -> None:
    agent = GatewayClient(running_hall, make_token()).begin()
    message = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "one__progress", "arguments": {}}}
    message["params"]["_meta"] = {"progressToken": "p"}  # type: ignore[index]
    for number in range(1, 3):
        with (
            ThreadPoolExecutor(2) as threads,
            GatewayClient(running_hall, make_token()).begin().stream(message) as stream,
        ):
            future = threads.submit(agent.call, "one__dribble")
            assert stream.next()["params"]["progressToken"] == "p"
            eventually(lambda: len(read_requests(running_hall, "one", "dribble")) == number)  # noqa: B023
            kill("one")
            assert agent.text("one__echo", text="the next call") == "the next call"
            for error in (future.result(5)["error"], stream.until("")["error"]):
                assert (error["code"], error["data"]) == (-32603, {"member": "one", "kind": "transport"})
                assert "member 'one'" in error["message"]
                assert "SIGKILL" in error["message"]
    for tool in ("dribble", "progress"):
        assert find_call(tool_name=tool).error_kind == "transport"


def read_requests(hall: Hall, name: str, tool: str) -> list[dict[str, Any]]:
    """The calls of the tool that the member (mode `record`) received."""
    lines = (hall.members_dir / name / "requests.jsonl").read_text().splitlines()
    return [entry for entry in map(json.loads, lines) if entry["body"].get("params", {}).get("name") == tool]


def take_cancellation(hall: Hall, name: str) -> dict[str, Any]:
    """The params of the cancellation that the member received. Deletes its file."""
    path = hall.members_dir / name / "cancelled.json"
    eventually(lambda: path.exists() and path.read_text(), within=3)
    params = json.loads(path.read_text())["params"]
    path.unlink()
    return dict(params)


# Deadlines and cancellation ---------------------------------------------------------------------------------------


def test_a_call_has_a_total_deadline_and_is_then_cancelled_at_the_member(running_hall: Hall) -> None:
    running_hall.add("two", "record", tool_timeouts={"sleep": 1})
    wait_for_roster(running_hall, "one", "two")
    for name, path, tool in [("one", "/mcp", "one__sleep"), ("two", "/mcp/two", "sleep")]:
        agent = GatewayClient(running_hall, make_token(), path).begin()
        watch = Stopwatch()
        error = agent.call(tool)["error"]
        assert watch.elapsed > 0.9
        assert watch.seconds < 1.8
        assert (error["code"], error["data"]) == (-32603, {"member": name, "kind": "timeout"})
        assert error["message"] == f"tool 'sleep' of member '{name}': no complete answer within 1 s; it may have run"
        assert (
            take_cancellation(running_hall, name)["requestId"]
            == read_requests(running_hall, name, "sleep")[-1]["body"]["id"]
        )
        row = find_call(tool_name="sleep", member__name=name)
        assert (row.status, row.error_kind, row.timeout) == ("failed", "timeout", 1.0)
        assert agent.text(tool.replace("sleep", "echo"), text="well") == "well"


def test_a_cancelled_or_disconnected_call_is_cancelled_at_the_member(running_hall: Hall) -> None:
    token = make_token()
    call = {"jsonrpc": "2.0", "id": "mine", "method": "tools/call", "params": {"name": "one__dribble", "arguments": {}}}
    # Two users use the same id, and each cancels their own call.
    first, second = (
        GatewayClient(running_hall, token).begin(),
        GatewayClient(running_hall, make_token(User.objects.create_superuser("other"))).begin(),
    )
    with ThreadPoolExecutor(2) as threads:
        calls = {agent: threads.submit(agent.post, call) for agent in (first, second)}
        eventually(lambda: len(read_requests(running_hall, "one", "dribble")) == 2)
        ids = {entry["body"]["id"] for entry in read_requests(running_hall, "one", "dribble")}
        assert len(ids) == 2
        cancellations = []
        for agent in (second, first):
            assert not calls[agent].done()
            watch = Stopwatch()
            assert agent.notify("notifications/cancelled", requestId="mine", reason="enough").status_code == 202
            cancellations.append(take_cancellation(running_hall, "one"))
            error = calls[agent].result(3).json()["error"]
            assert watch.seconds < 2
            assert error["data"] == {"member": "one", "kind": "cancelled"}
    assert ({params["requestId"] for params in cancellations}, cancellations[0]["reason"]) == (ids, "enough")
    eventually(lambda: Call.objects.filter(tool_name="dribble", status="cancelled").count() == 2, within=1.5)

    modern, headers = first.modern_message("tools/call", name="one__dribble", arguments={})
    (running_hall.members_dir / "one" / "requests.jsonl").unlink()
    for agent, message, message_headers in [(first, call, {}), (GatewayClient(running_hall, token), modern, headers)]:
        connection = agent.send_only(message, **message_headers)
        eventually(
            lambda: (
                (running_hall.members_dir / "one" / "requests.jsonl").exists()
                and read_requests(running_hall, "one", "dribble")
            )
        )
        connection.close()
        assert (
            take_cancellation(running_hall, "one")["requestId"]
            == read_requests(running_hall, "one", "dribble")[-1]["body"]["id"]
        )
        (running_hall.members_dir / "one" / "requests.jsonl").unlink()
    eventually(lambda: Call.objects.filter(tool_name="dribble", status="cancelled").count() == 4, within=1.5)


def test_a_member_without_free_slots_delays_no_other_member(hall: Hall) -> None:
    hall.add("good")
    hall.add("bad", max_concurrency=4, timeout=30)
    hall.start()
    wait_for_roster(hall, "good", "bad")
    token = make_token(max_in_flight=200)
    agents = [GatewayClient(hall, token).begin() for _ in range(50)]
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "bad__sleep", "arguments": {}}}
    connections = [agent.send_only(call) for agent in agents]
    durations: list[float] = []

    def work(agent: GatewayClient) -> None:
        for number in range(4):
            watch = Stopwatch()
            assert agent.text("good__echo", text=f"{id(agent)} {number}") == f"{id(agent)} {number}"
            durations.append(watch.seconds)

    with ThreadPoolExecutor(50) as threads:
        list(threads.map(work, agents))
    assert sorted(durations)[len(durations) // 2] < 1, sorted(durations)
    eventually(lambda: Call.objects.filter(tool_name="echo", status="succeeded").count() == 200, within=1.5)
    for connection in connections:
        connection.close()
    # Waiting calls leave the queue, and running calls release their slots.
    eventually(lambda: Call.objects.filter(tool_name="sleep").count() == 50, within=3)
    assert agents[0].text("bad__echo", text="free") == "free"


# What is stored, and what is passed on ----------------------------------------------------------------------------


def test_each_call_is_stored_with_its_outcome_and_without_its_secrets(running_hall: Hall) -> None:
    user = User.objects.create_superuser("grace")
    token_row, token = Token.make(user=user, name="laptop", calls_per_minute=0)
    agent = GatewayClient(running_hall, token).begin()
    before = timezone.now()
    assert agent.text("one__echo", text="hello", password="hunter2") == "hello"
    call_row = find_call(tool_name="echo")
    assert (call_row.source, call_row.requested_by, call_row.token, call_row.requester) == (
        "gateway",
        user,
        token_row,
        "grace (laptop)",
    )
    assert (call_row.member.name, call_row.status, call_row.error_kind) == ("one", "succeeded", "")
    assert call_row.arguments == {"text": "hello", "password": "********"}
    assert call_row.result == {"content": [{"type": "text", "text": "hello"}]}
    assert call_row.started_at
    assert call_row.finished_at
    assert before <= call_row.started_at <= call_row.finished_at <= timezone.now()
    request = read_requests(running_hall, "one", "echo")[-1]
    assert request["body"]["params"]["arguments"]["password"] == "hunter2"

    assert agent.call("one__fail")["result"]["isError"] is True
    call_row = find_call(tool_name="fail")
    assert (call_row.status, call_row.error_kind, call_row.result["isError"]) == ("failed", "tool", True)
    assert "it went wrong" in call_row.error_message
    error = agent.call("one__refuse")["error"]
    assert error == {"code": -32602, "message": "not with me", "data": {"hint": "ask somebody else"}}
    call_row = find_call(tool_name="refuse")
    assert (call_row.status, call_row.error_kind, call_row.error_code) == ("failed", "protocol", -32602)
    assert call_row.error_data == {"hint": "ask somebody else"}
    for tool, kind in {"html": "protocol", "wrong_id": "transport"}.items():
        assert agent.call(f"one__{tool}")["error"]["data"] == {"member": "one", "kind": kind}
        assert find_call(tool_name=tool).error_kind == kind
    assert agent.call("one__reset")["error"]["data"] == {"member": "one", "kind": "transport"}
    assert find_call(tool_name="reset").error_kind == "transport"

    assert agent.text("one__echo", text="long " * 2000) == "long " * 2000
    call_row = find_call(arguments__has_key="guild-hall/cut")
    assert len(json.dumps(call_row.arguments)) < 5000
    assert len(json.dumps(call_row.result)) < 5000
    assert call_row.result["_meta"]["guild-hall/cut"]["bytes"] > 10_000
    assert len(agent.send("tools/call", name="one__large", arguments={}).content) > 3_000_000
    call_row = find_call(tool_name="large")
    assert (call_row.status, len(json.dumps(call_row.result)) < 9000) == ("succeeded", True)
    assert agent.text("one__echo", text="nul \0 and \ud800", password=None).startswith("nul ")
    assert Token.objects.get(pk=token_row.pk).last_used_at


def test_headers_of_clients_never_reach_the_member(running_hall: Hall) -> None:
    token = make_token()
    headers = {"Cookie": "sessionid=secret-cookie", "X_Api_Key": "secret-key", "Traceparent": "00-1-2-00"}
    for path, tool in [("/mcp", "one__echo"), ("/mcp/one", "echo")]:
        agent = GatewayClient(running_hall, token, path).begin()
        call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": tool, "arguments": {"text": "x"}}}
        assert agent.post(call, **headers).status_code == 200
        message, modern_headers = agent.modern_message("tools/call", name=tool, arguments={"text": "x"})
        assert GatewayClient(running_hall, token, path).post(message, **modern_headers, **headers).status_code == 200
    text = (running_hall.members_dir / "one" / "requests.jsonl").read_text()
    assert len(read_requests(running_hall, "one", "echo")) == 4
    for secret in (token, "Bearer", "secret-cookie", "secret-key", str(agent.http.headers["Mcp-Session-Id"])):
        assert secret not in text


# Access control ---------------------------------------------------------------------------------------------------


def test_a_tool_disappears_as_soon_as_the_client_may_not_call_it(hall: Hall) -> None:
    for name in ("one", "two"):
        hall.add(name, "tools=alpha,beta")
    hall.start()
    for name in ("one", "two"):
        wait_for_status(hall, name, "connected")
    user = User.objects.create_user("ada")
    user.user_permissions.add(Permission.objects.get(codename="invoke_tool"))
    token_row, token = Token.make(user=user, calls_per_minute=0)
    all_tools = [f"{name}__{tool}" for name in ("one", "two") for tool in ("alpha", "beta")]
    agent = GatewayClient(hall, token).begin()
    eventually(lambda: agent.tools() == all_tools)
    listen_message, headers = agent.modern_message("subscriptions/listen", notifications={"toolsListChanged": True})
    with agent.listen() as legacy, GatewayClient(hall, token).stream(listen_message, **headers) as modern:
        assert modern.next()["method"] == "notifications/subscriptions/acknowledged"

        def check_tools(*hidden_prefixes: str) -> None:
            watch = Stopwatch()
            for stream in (legacy, modern):
                assert stream.until("notifications/tools/list_changed", within=PATIENCE)
            assert watch.seconds < 1
            assert agent.tools() == [tool for tool in all_tools if not tool.startswith(hidden_prefixes or ("-",))]
            for tool in all_tools:
                is_callable = "result" in agent.call(tool)
                assert is_callable is not tool.startswith(hidden_prefixes or ("-",)), tool

        def tool(member_name: str, name: str) -> Tool:
            return Tool.objects.get(member__name=member_name, name=name)

        set_tool_enabled(tool("one", "alpha"), False)
        check_tools("one__alpha")
        assert GatewayClient(hall, token, "/mcp/one").begin().tools() == ["beta"]
        assert GatewayClient(hall, token, "/mcp/one").begin().call("alpha")["error"]["code"] == -32602
        hall.manage("tool", "enable", "one", "alpha")
        check_tools()
        team = Group.objects.create(name="team")
        reserve_member(member("two"), [team])
        check_tools("two__")
        response = GatewayClient(hall, token, "/mcp/two").send("initialize")
        assert (response.status_code, GatewayClient(hall, token, "/mcp?members=two").send("ping").status_code) == (
            404,
            404,
        )
        user.groups.add(team)
        check_tools()
        token_row.members.set([member("one")])
        token_row.scope = Token.Scope.MEMBERS
        token_row.save()
        check_tools("two__")
        token_row.tools.set([tool("two", "beta")])
        token_row.scope = Token.Scope.TOOLS
        token_row.save()
        check_tools("one__", "two__alpha")
        user.user_permissions.clear()
        check_tools("one__", "two__")
        assert (legacy.ended.is_set(), modern.ended.is_set()) == (False, False)
        Token.objects.filter(pk=token_row.pk).update(revoked_at=timezone.now())
        HallRow.note_access_change()
        watch = Stopwatch()
        eventually(lambda: agent.send("ping").status_code == 401)
        assert legacy.ended.wait(PATIENCE)
        assert modern.ended.wait(PATIENCE)
        assert watch.seconds < 0.6
        assert modern.until("")["result"]["resultType"] == "complete"


def test_the_stream_of_a_member_ends_when_the_user_loses_access(hall: Hall) -> None:
    hall.add("one", "announce")
    hall.start()
    wait_for_status(hall, "one", "connected")
    user = User.objects.create_user("ada")
    user.user_permissions.add(Permission.objects.get(codename="invoke_tool"))
    token = make_token(user)
    eventually(lambda: GatewayClient(hall, token, "/mcp/one").send("initialize").status_code != 404)
    agent = GatewayClient(hall, token, "/mcp/one").begin()
    with agent.listen() as stream:
        reserve_member(member("one"), [Group.objects.create(name="team")])
        eventually(stream.ended.is_set, within=1)


# The end ----------------------------------------------------------------------------------------------------------


def test_a_stop_with_open_streams_and_running_calls_takes_less_than_five_seconds(running_hall: Hall) -> None:
    token = make_token()
    agents = [GatewayClient(running_hall, token).begin() for _ in range(10)]
    listen_message, headers = agents[0].modern_message("subscriptions/listen", notifications={"toolsListChanged": True})
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "one__dribble", "arguments": {}}}
    progress = {**call, "params": {"name": "one__progress", "arguments": {}, "_meta": {"progressToken": 1}}}
    streams = [agent.listen() for agent in agents]
    streams += [GatewayClient(running_hall, token).stream(listen_message, **headers) for _ in range(3)]
    streams += [agents[0].stream(progress)]
    connections = [agent.send_only(call) for agent in agents]
    eventually(lambda: len(read_requests(running_hall, "one", "dribble")) == 10)
    watch = Stopwatch()
    running_hall.processes[-1].terminate()
    running_hall.processes[-1].wait(PATIENCE)
    assert watch.seconds < 5
    for stream in streams:
        eventually(stream.ended.is_set, within=1)
        stream.close()
    for connection in connections:
        connection.close()
    assert (running_hall.busy_ports(), running_hall.tagged_processes()) == ([], [])
    running_hall.start()  # the port of the gateway is free as well
    wait_for_status(running_hall, "one", "connected")
    assert agents[0].text("one__echo", text="same session") == "same session"
    rows = Call.objects.filter(tool_name="dribble")
    assert [row.status in Call.FINISHED for row in rows] == [True] * 10
