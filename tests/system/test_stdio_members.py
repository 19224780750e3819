"""A server on stdin and stdout is a member like the others."""

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
from tests.support.agents import GatewayClient, make_token, messages_of, on_the_roster
from tests.support.hall import Hall, call, lives, member, queue, wait_for_status

SERVER = ROOT / "tests" / "support" / "servers" / "stdio_server.py"
WAIT = {"name": "wait", "arguments": {"name": "bob"}}


def add(hall: Hall, name: str, *modes: str, **manifest: Any) -> Path:
    values = {"transport": "stdio", "command": sys.executable, "args": ["stdio_server.py", *modes], **manifest}
    folder = hall.add(name, **values)
    shutil.copy(SERVER, folder)
    return folder


@pytest.fixture
def running(hall: Hall) -> Hall:
    add(hall, "one")
    hall.start()
    wait_for_status(hall, "one", "connected")
    return hall


def server() -> psutil.Process:
    """The one child of the member's bridge."""
    (child,) = psutil.Process(member("one").pid).children()
    return child


def text_of(call: Any) -> str:
    assert call.status == "succeeded", call.error_message
    text: str = call.result["content"][0]["text"]
    return text


def test_a_stdio_server_is_connected_and_its_tools_can_be_called(running: Hall) -> None:
    row = member("one")
    assert (row.server_info["name"], row.warnings) == ("stdio test", [])
    assert "echo" in row.tools.values_list("name", flat=True)
    assert text_of(call("one", "echo", {"text": "hi"})) == "hi"
    assert text_of(call("one", "progress")) == "progress"
    assert json.loads(text_of(call("one", "sample")))["error"]["code"] == -32601
    environment = json.loads(text_of(call("one", "environment")))
    assert "GUILD_HALL_DATA_DIR" not in environment
    assert "DATABASE_URL" not in environment


def test_calls_run_side_by_side(running: Hall) -> None:
    slow = queue("one", "sleep", {"seconds": 600})
    eventually(lambda: type(slow).objects.get(pk=slow.pk).status == "running")
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(_echo, range(16)))
    assert answers == [f"text {number}" for number in range(16)]
    cancel_call(slow)
    eventually(lambda: type(slow).objects.get(pk=slow.pk).status == "cancelled")


def _echo(number: int) -> str:
    try:
        return text_of(call("one", "echo", {"text": f"text {number}"}))
    finally:
        connections.close_all()


def test_an_agent_shares_the_server_with_the_hall(running: Hall) -> None:
    url = member("one").port_allocation.endpoint
    params = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "agent", "version": "1"}}
    messages = [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "echo", "arguments": {"text": "hi"}}},
    ]
    answers = [requests.post(url, json=message, timeout=10) for message in messages]
    assert [answer.status_code for answer in answers] == [200, 202, 200]
    assert answers[2].json()["result"]["content"][0]["text"] == "hi"
    foreign = requests.post(url, json=messages[0], headers={"Origin": "http://evil.example"}, timeout=10)
    assert foreign.status_code == 403


def test_what_a_stdio_server_says_of_one_tokens_call_reaches_no_other_token(hall: Hall) -> None:
    folder = add(hall, "one", "keeps")
    hall.start()
    on_the_roster(hall, "one")
    users = [User.objects.create_superuser(name) for name in ("ann", "bob")]
    ann, bob = (GatewayClient(hall, make_token(user), "/mcp/one").begin() for user in users)
    with ann.listen() as anns, bob.listen() as bobs:
        assert ann.ask("resources/subscribe", uri="x:1")["result"] == {}
        assert ann.ask("logging/setLevel", level="debug")["result"] == {}

        def logged(agent: GatewayClient, **arguments: str) -> list[Any]:
            return messages_of(agent.send("tools/call", name="log", arguments=arguments))[:-1]

        (mine,) = logged(ann, text="ann's secret", level="debug")
        assert mine["params"]["data"]["text"] == "ann's secret"
        assert logged(bob, text="bob's secret", level="debug") == []
        waiting = bob.send_only({"jsonrpc": "2.0", "id": 9, "method": "tools/call", "params": WAIT})
        eventually((folder / "waiting-bob").exists)
        assert logged(ann, text="whose is it?") == []
        ann.call("updated", uri="x:1")
        assert anns.until("notifications/resources/updated")["params"] == {"uri": "x:1"}
        ann.call("list_changed")  # everybody hears it, and nothing before it
        bobs.until("notifications/tools/list_changed")
        assert bobs.all_messages == [{"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}]
        assert "notifications/message" not in [message.get("method") for message in anns.all_messages]
        waiting.close()
    eventually(lambda: "whose is it?" in hall.manage("logs", "one").stdout)


def test_a_killed_server_is_an_error_with_its_code_and_comes_back(running: Hall) -> None:
    pid = member("one").pid
    server().send_signal(signal.SIGKILL)
    eventually(lambda: member("one").status == "error", within=2)
    assert (member("one").exit_code, "signal 9" in member("one").last_error) == (128 + 9, True)
    row = wait_for_status(running, "one", "connected")
    assert row.pid != pid
    assert text_of(call("one", "echo", {"text": "back"})) == "back"


def test_a_killed_bridge_takes_its_server_with_it(running: Hall) -> None:
    before = server()
    os.kill(member("one").pid, signal.SIGKILL)
    eventually(lambda: member("one").status == "error", within=2)
    eventually(lambda: not lives(before))


def test_an_exit_in_a_call_fails_it_and_tells_the_last_words(running: Hall) -> None:
    done = call("one", "exit", {"code": 3})
    assert (done.status, done.error_kind) == ("failed", "transport")
    row = eventually(lambda: member("one").status_changes.filter(new="error").first())
    assert row.exit_code == 3  # type: ignore[attr-defined]
    assert "going down now" in row.log_tail  # type: ignore[attr-defined]


@pytest.mark.parametrize("modes", [(), ("ignore-sigterm",)])
def test_a_stop_leaves_no_process(hall: Hall, modes: tuple[str, ...]) -> None:
    add(hall, "one", *modes)
    hall.start()
    wait_for_status(hall, "one", "connected")
    before = server()
    stop_member(member("one"))
    wait_for_status(hall, "one", "disconnected")
    assert not lives(before)
    assert hall.tagged_processes() == []
    assert hall.busy_ports() == []


def test_a_long_start_shows_its_progress_in_the_roster_and_is_waited_for(hall: Hall) -> None:
    folder = add(hall, "one", "wait-for=go", start_timeout=60)
    hall.start()
    wait_for_status(hall, "one", "starting")
    eventually(lambda: "Downloading parts" in member("one").start_progress)
    shown = hall.manage("roster").stdout
    assert "starting for " in shown
    assert "Downloading parts (" in shown
    (folder / "go").touch()
    row = wait_for_status(hall, "one", "connected")
    assert (row.progress, row.start_progress) == ("", "")


@pytest.mark.parametrize(
    ("modes", "manifest", "said"),
    [
        (["exit=2"], {}, "exit code 2 before the handshake was done"),
        (["hang"], {"start_timeout": 1}, "within 1 s"),
        (["refuse-initialize"], {}, "not you"),
        ([], {"command": "no-such-command", "args": []}, "command not found: 'no-such-command'"),
    ],
)
def test_a_start_that_fails_says_why(hall: Hall, modes: list[str], manifest: dict[str, Any], said: str) -> None:
    add(hall, "one", *modes, restart="never", **manifest)
    hall.start()
    row = wait_for_status(hall, "one", "error")
    assert said in row.last_error
    assert row.status_changes.filter(new="starting").count() == 1
    assert hall.tagged_processes() == []


def test_a_killed_worker_leaves_no_bridge_and_no_server(running: Hall) -> None:
    before = running.tagged_processes()
    assert len(before) == 2
    os.kill(running.worker_pid, signal.SIGKILL)
    eventually(lambda: not any(lives(process) for process in before), within=5)


def test_a_call_that_passes_its_deadline_is_cancelled_at_the_server(hall: Hall) -> None:
    folder = add(hall, "one", tool_timeouts={"wait": 0.5})
    hall.start()
    wait_for_status(hall, "one", "connected")
    assert call("one", "wait", {"name": "late"}).error_kind == "timeout"
    eventually((folder / "cancelled-late").exists)
