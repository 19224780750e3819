"""A server on stdin and stdout is a member like all others."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests
from django.contrib.auth.models import User
from django.db import connections

from mcp_runtime.control.calls import cancel_call
from mcp_runtime.control.members import stop_member
from tests.conftest import ROOT, eventually
from tests.support.agents import GatewayClient, make_token, messages_of, wait_for_roster
from tests.support.hall import Hall, call, is_live, member, queue, wait_for_status

SERVER = ROOT / "tests" / "support" / "servers" / "stdio_server.py"
WAIT = {"name": "wait", "arguments": {"name": "bob"}}


def add(hall: Hall, name: str, *modes: str, **manifest: Any) -> Path:
    values = {"transport": "stdio", "command": sys.executable, "args": ["stdio_server.py", *modes], **manifest}
    folder = hall.add(name, **values)
    shutil.copy(SERVER, folder)
    return folder


@pytest.fixture
def running_hall(hall: Hall) -> Hall:
    add(hall, "one")
    hall.start()
    wait_for_status(hall, "one", "connected")
    return hall


def server_process() -> psutil.Process:
    """The one child of the member's bridge."""
    (child,) = psutil.Process(member("one").pid).children()
    return child


def text_of(call: Any) -> str:
    assert call.status == "succeeded", call.error_message
    text: str = call.result["content"][0]["text"]
    return text


def test_a_stdio_server_is_connected_and_its_tools_can_be_called(running_hall: Hall) -> None:
    row = member("one")
    assert (row.server_info["name"], row.warnings) == ("stdio test", [])
    assert "echo" in row.tools.values_list("name", flat=True)
    assert text_of(call("one", "echo", {"text": "hi"})) == "hi"
    assert text_of(call("one", "progress")) == "progress"
    assert json.loads(text_of(call("one", "sample")))["error"]["code"] == -32601
    environment = json.loads(text_of(call("one", "environment")))
    assert "GUILD_HALL_DATA_DIR" not in environment
    assert "DATABASE_URL" not in environment


def test_calls_run_in_parallel(running_hall: Hall) -> None:
    slow_call = queue("one", "sleep", {"seconds": 600})
    eventually(lambda: type(slow_call).objects.get(pk=slow_call.pk).status == "running")
    with ThreadPoolExecutor(8) as pool:
        texts = list(pool.map(_echo, range(16)))
    assert texts == [f"text {number}" for number in range(16)]
    cancel_call(slow_call)
    eventually(lambda: type(slow_call).objects.get(pk=slow_call.pk).status == "cancelled")


def _echo(number: int) -> str:
    try:
        return text_of(call("one", "echo", {"text": f"text {number}"}))
    finally:
        connections.close_all()


def test_an_agent_shares_the_server_with_the_hall(running_hall: Hall) -> None:
    url = member("one").port_allocation.endpoint
    params = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "agent", "version": "1"}}
    messages = [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "echo", "arguments": {"text": "hi"}}},
    ]
    responses = [requests.post(url, json=message, timeout=10) for message in messages]
    assert [response.status_code for response in responses] == [200, 202, 200]
    assert responses[2].json()["result"]["content"][0]["text"] == "hi"
    response = requests.post(url, json=messages[0], headers={"Origin": "http://evil.example"}, timeout=10)
    assert response.status_code == 403


def test_messages_for_one_token_reach_no_other_token(hall: Hall) -> None:
    folder = add(hall, "one", "keeps")
    hall.start()
    wait_for_roster(hall, "one")
    users = [User.objects.create_superuser(name) for name in ("ann", "bob")]
    ann, bob = (GatewayClient(hall, make_token(user), "/mcp/one").begin() for user in users)
    with ann.listen() as ann_stream, bob.listen() as bob_stream:
        assert ann.ask("resources/subscribe", uri="x:1")["result"] == {}
        assert ann.ask("logging/setLevel", level="debug")["result"] == {}

        def log_messages(agent: GatewayClient, **arguments: str) -> list[Any]:
            return messages_of(agent.send("tools/call", name="log", arguments=arguments))[:-1]

        (message,) = log_messages(ann, text="ann's secret", level="debug")
        assert message["params"]["data"]["text"] == "ann's secret"
        assert log_messages(bob, text="bob's secret", level="debug") == []
        connection = bob.send_only({"jsonrpc": "2.0", "id": 9, "method": "tools/call", "params": WAIT})
        eventually((folder / "waiting-bob").exists)
        assert log_messages(ann, text="whose is it?") == []
        ann.call("updated", uri="x:1")
        assert ann_stream.until("notifications/resources/updated")["params"] == {"uri": "x:1"}
        ann.call("list_changed")  # all clients get this notification, and bob gets none before it
        bob_stream.until("notifications/tools/list_changed")
        assert bob_stream.all_messages == [{"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}]
        assert "notifications/message" not in [each.get("method") for each in ann_stream.all_messages]
        connection.close()
    eventually(lambda: "whose is it?" in hall.manage("logs", "one").stdout)


def test_a_killed_server_is_an_error_with_an_exit_code_and_restarts(running_hall: Hall) -> None:
    pid = member("one").pid
    server_process().send_signal(signal.SIGKILL)
    eventually(lambda: member("one").status == "error", within=2)
    assert (member("one").exit_code, "signal 9" in member("one").last_error) == (128 + 9, True)
    row = wait_for_status(running_hall, "one", "connected")
    assert row.pid != pid
    assert text_of(call("one", "echo", {"text": "back"})) == "back"


def test_a_server_ends_when_its_bridge_is_killed(running_hall: Hall) -> None:
    process = server_process()
    os.kill(member("one").pid, signal.SIGKILL)
    eventually(lambda: member("one").status == "error", within=2)
    eventually(lambda: not is_live(process))


def test_an_exit_during_a_call_fails_the_call_and_keeps_the_last_output(running_hall: Hall) -> None:
    call_row = call("one", "exit", {"code": 3})
    assert (call_row.status, call_row.error_kind) == ("failed", "transport")
    row = eventually(lambda: member("one").status_changes.filter(new="error").first())
    assert row.exit_code == 3  # type: ignore[attr-defined]
    assert "going down now" in row.log_tail  # type: ignore[attr-defined]


@pytest.mark.parametrize("modes", [(), ("ignore-sigterm",)])
def test_a_stop_leaves_no_process(hall: Hall, modes: tuple[str, ...]) -> None:
    add(hall, "one", *modes)
    hall.start()
    wait_for_status(hall, "one", "connected")
    process = server_process()
    stop_member(member("one"))
    wait_for_status(hall, "one", "disconnected")
    assert not is_live(process)
    assert hall.tagged_processes() == []
    assert hall.busy_ports() == []


def test_a_long_start_shows_its_progress_in_the_roster_and_succeeds(hall: Hall) -> None:
    folder = add(hall, "one", "wait-for=go", start_timeout=60)
    hall.start()
    wait_for_status(hall, "one", "starting")
    eventually(lambda: "Downloading parts" in member("one").start_progress)
    output = hall.manage("roster").stdout
    assert "starting for " in output
    assert "Downloading parts (" in output
    (folder / "go").touch()
    row = wait_for_status(hall, "one", "connected")
    assert (row.progress, row.start_progress) == ("", "")


@pytest.mark.parametrize(
    ("modes", "manifest", "text"),
    [
        (["exit=2"], {}, "exit code 2 before the handshake was done"),
        (["hang"], {"start_timeout": 1}, "within 1 s"),
        (["refuse-initialize"], {}, "not you"),
        ([], {"command": "no-such-command", "args": []}, "command not found: 'no-such-command'"),
    ],
)
def test_a_failed_start_has_its_reason(hall: Hall, modes: list[str], manifest: dict[str, Any], text: str) -> None:
    add(hall, "one", *modes, restart="never", **manifest)
    hall.start()
    row = wait_for_status(hall, "one", "error")
    assert text in row.last_error
    assert row.status_changes.filter(new="starting").count() == 1
    assert hall.tagged_processes() == []


def test_a_killed_worker_leaves_no_bridge_and_no_server(running_hall: Hall) -> None:
    processes = running_hall.tagged_processes()
    assert len(processes) == 2
    os.kill(running_hall.worker_pid, signal.SIGKILL)
    eventually(lambda: not any(is_live(process) for process in processes), within=5)


def test_a_call_that_passes_its_deadline_is_cancelled_at_the_server(hall: Hall) -> None:
    folder = add(hall, "one", tool_timeouts={"wait": 0.5})
    hall.start()
    wait_for_status(hall, "one", "connected")
    assert call("one", "wait", {"name": "late"}).error_kind == "timeout"
    eventually((folder / "cancelled-late").exists)
