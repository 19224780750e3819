"""A folder becomes a supervised server: discovery, ports, handshake, watching, restarts."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
from datetime import timedelta

import pytest
import requests

from mcp_runtime.control.members import (
    disable_member,
    enable_member,
    refresh_member,
    restart_member,
    set_tool_enabled,
    stop_member,
)
from roster.models import GuildMember, PortAllocation, StatusChange, Tool
from tests.conftest import eventually
from tests.support import machine
from tests.support.hall import Hall, call, member, wait_for_status
from tests.support.machine import Stopwatch


def test_every_member_of_the_folder_is_connected_and_its_tools_are_listed(hall: Hall) -> None:
    hall.add("one")
    hall.add("collection/two")
    hall.start()
    one = wait_for_status(hall, "one", "connected")
    two = wait_for_status(hall, "two", "connected")
    assert one.protocol_version == "2025-06-18"
    assert one.server_info == {"name": "test", "version": "1"}
    assert two.directory == "collection/two"
    assert "echo" in two.tools.values_list("name", flat=True)
    ports = set(PortAllocation.objects.values_list("port", flat=True))
    assert len(ports) == 2
    assert ports <= set(range(hall.port_range[0], hall.port_range[1] + 1))


def test_messages_have_the_form_the_protocol_demands(hall: Hall) -> None:
    folder = hall.add("one", "record")
    hall.start()
    wait_for_status(hall, "one", "connected")
    call("one", "echo", {"text": "hi"})
    entries = [json.loads(line) for line in (folder / "requests.jsonl").read_text().splitlines()]
    bodies = [entry["body"] for entry in entries]
    assert [body["method"] for body in bodies] == [
        "initialize", "notifications/initialized", "tools/list", "tools/call",
    ]  # fmt: skip
    assert all(body["jsonrpc"] == "2.0" for body in bodies)
    assert bodies[0]["params"]["protocolVersion"] == "2025-06-18"
    assert bodies[0]["params"]["capabilities"] == {}
    assert bodies[0]["params"]["clientInfo"]["name"]
    assert "id" not in bodies[1]
    params = {"name": "echo", "arguments": {"text": "hi"}, "_meta": {"progressToken": bodies[3]["id"]}}
    assert bodies[3]["params"] == params
    ids = [body["id"] for body in bodies if "id" in body]
    assert len(set(ids)) == len(ids)
    for entry in entries:
        assert entry["path"] == "/mcp"
        assert entry["headers"]["MCP-Protocol-Version"] == "2025-06-18"
        assert entry["headers"]["Content-Type"] == "application/json"
        assert entry["headers"]["Accept"] == "application/json, text/event-stream"


def test_a_member_runs_in_its_own_folder_with_its_port_and_an_allow_listed_environment(hall: Hall) -> None:
    folder = hall.add("one", env={"MY_PORT": "${PORT}", "GREETING": "hello"})
    (folder / "test-file.txt").write_text("read relative to the folder")
    hall.start(CANARY_SECRET="do not hand out")
    row = wait_for_status(hall, "one", "connected")
    call_row = call("one", "read")
    assert call_row.result["content"][0]["text"] == "read relative to the folder"
    environment = json.loads(call("one", "environment").result["content"][0]["text"])
    assert environment["MY_PORT"] == str(row.port_allocation.port)
    assert environment["GREETING"] == "hello"
    assert set(environment) <= {
        "MY_PORT", "GREETING", "GUILD_HALL_MEMBER", "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL",
        "LC_CTYPE", "TZ", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS",
    }  # fmt: skip


def test_an_occupied_first_port_leads_to_the_next(hall: Hall) -> None:
    first = hall.port_range[0]
    with socket.socket() as other_socket:
        other_socket.bind(("127.0.0.1", first))
        other_socket.listen()
        hall.add("one")
        hall.start()
        row = wait_for_status(hall, "one", "connected")
    assert row.port_allocation.port == first + 1


def test_a_port_lost_between_choosing_and_binding_leads_to_the_next(hall: Hall) -> None:
    """The member finds its port taken and exits with code 2, although the port was free a moment before."""
    folder = hall.add("one")
    server = folder / "server.py"
    exit_line = f"import sys\nif int(sys.argv[1]) == {hall.port_range[0]}: sys.exit(2)\n"
    server.write_text(exit_line + server.read_text())
    hall.start()
    row = wait_for_status(hall, "one", "connected")
    assert row.port_allocation.port == hall.port_range[0] + 1
    assert not StatusChange.objects.filter(new="error").exists()


def test_an_exhausted_range_is_a_clear_error_and_the_others_run(hall: Hall) -> None:
    first = hall.port_range[0]
    hall.port_range = (first, first + 1)
    for name in ("a", "b", "c"):
        hall.add(name)
    hall.start()
    eventually(lambda: GuildMember.objects.filter(status="error").count() == 1, within=15)
    eventually(lambda: GuildMember.objects.filter(status="connected").count() == 2, within=15)
    row = GuildMember.objects.get(status="error")
    assert row.name in row.last_error
    assert f"no free port from {first} to {first + 1}" in row.last_error


def test_many_members_with_slow_starts_connect_at_once_on_different_ports(hall: Hall) -> None:
    for number in range(20):
        hall.add(f"m{number:02}", "burn=1.5")
    hall.start()
    eventually(lambda: GuildMember.objects.filter(status="connected").count() == 20, within=55, what=hall.output())
    assert PortAllocation.objects.values("port").distinct().count() == 20


def test_a_server_without_a_handshake_is_killed_and_the_other_members_run(hall: Hall) -> None:
    hall.add("hung", "hang-initialize", start_timeout=1, restart="never")
    hall.add("dribbling", "dribble-initialize", start_timeout=1, restart="never")
    hall.add("well")
    hall.start()
    wait_for_status(hall, "well", "connected")
    for name in ("hung", "dribbling"):
        row = wait_for_status(hall, name, "error")
        assert f"member '{name}' could not be started" in row.last_error
        assert "within 1 s" in row.last_error
        assert "hello from the member" in row.last_error
        end = row.status_changes.get(new="error")
        start = row.status_changes.get(new="starting")
        assert 1 <= (end.created_at - start.created_at).total_seconds() < machine.patience(2.5)
        assert not hasattr(row, "port_allocation")
    eventually(lambda: len(hall.tagged_processes()) == 1, what="only the good member's process is left")


def test_the_error_of_a_server_that_exits_at_once_has_its_output(hall: Hall) -> None:
    hall.add("one", "exit=3", restart="never")
    hall.start()
    row = wait_for_status(hall, "one", "error")
    assert "exit code 3" in row.last_error
    assert "cannot go on like this" in row.last_error
    assert row.exit_code == 3


@pytest.mark.parametrize(
    ("command", "text"),
    [("no-such-command-here", "command not found"), ("./server.py", "permission denied")],
)
def test_a_command_that_cannot_be_spawned_is_an_error_with_the_reason(hall: Hall, command: str, text: str) -> None:
    folder = hall.add("one", command=command, restart="never")
    (folder / "server.py").chmod(0o644)
    hall.start()
    row = wait_for_status(hall, "one", "error")
    assert text in row.last_error
    assert "'one'" in row.last_error


def test_a_failing_tools_list_is_an_error(hall: Hall) -> None:
    hall.add("one", "fail-list", restart="never")
    hall.start()
    row = wait_for_status(hall, "one", "error")
    assert "tools/list failed" in row.last_error
    assert "no list today" in row.last_error
    eventually(lambda: not hall.tagged_processes())


def test_a_killed_member_is_in_error_at_once_and_restarts_on_the_same_port(hall: Hall) -> None:
    hall.add("one")
    hall.start()
    row = wait_for_status(hall, "one", "connected")
    port, pid = row.port_allocation.port, row.pid
    os.kill(pid, signal.SIGKILL)
    watch = Stopwatch()
    eventually(lambda: member("one").status == "error")
    assert watch.seconds < 0.5
    row = member("one")
    assert not PortAllocation.objects.filter(member=row).exists()
    assert row.exit_code == -9
    assert "SIGKILL" in row.last_error
    assert row.next_restart_at is not None
    change = row.status_changes.first()
    assert (change.old, change.new, change.cause, change.exit_code) == ("connected", "error", "exit", -9)
    assert "hello from the member" in change.log_tail
    row = wait_for_status(hall, "one", "connected")
    assert row.port_allocation.port == port
    assert row.restarts_total == 1


def test_an_exit_with_code_zero_is_a_crash_too(hall: Hall) -> None:
    hall.add("one", restart="never")
    hall.start()
    wait_for_status(hall, "one", "connected")
    call_row = call("one", "exit", {"code": 0})
    assert call_row.error_kind == "transport"
    row = wait_for_status(hall, "one", "error")
    assert "exit code 0" in row.last_error
    assert row.next_restart_at is None


def test_restarts_back_off(hall: Hall) -> None:
    hall.add("one", "exit=1")
    hall.start()
    eventually(lambda: GuildMember.objects.filter(name="one", restarts=3).exists(), within=20)
    change = StatusChange.objects.get(member__name="one", new="error")
    assert change.repeated_at is not None
    assert change.repeated_at - change.created_at >= timedelta(seconds=1 + 2)


def test_stop_ends_grandchildren_that_left_the_group_and_ignore_sigterm(hall: Hall) -> None:
    hall.add("one", "fork", "ignore-term")
    hall.start()
    wait_for_status(hall, "one", "connected")
    eventually(lambda: len(hall.tagged_processes()) >= 3)
    stop_member(member("one"))
    wait_for_status(hall, "one", "disconnected")
    assert hall.tagged_processes() == []
    assert not PortAllocation.objects.exists()


def test_a_stop_works_while_the_member_starts(hall: Hall) -> None:
    hall.add("one", "hang-initialize", start_timeout=60)
    hall.start()
    wait_for_status(hall, "one", "starting")
    eventually(hall.tagged_processes)
    stop_member(member("one"))
    wait_for_status(hall, "one", "disconnected", within=6)
    eventually(lambda: not hall.tagged_processes())
    assert not PortAllocation.objects.exists()


def test_restart_disable_and_enable_work(hall: Hall) -> None:
    hall.add("one")
    hall.start()
    pid = wait_for_status(hall, "one", "connected").pid
    restart_member(member("one"))
    eventually(lambda: member("one").pid not in (None, pid) and member("one").status == "connected")
    disable_member(member("one"))
    wait_for_status(hall, "one", "disconnected")
    eventually(lambda: not hall.tagged_processes())
    enable_member(member("one"))
    wait_for_status(hall, "one", "connected")


def test_refresh_lists_the_tools_again_and_keeps_disabled_tools(hall: Hall) -> None:
    folder = hall.add("one", "tools=a,b")
    server = folder / "server.py"
    server.write_text(server.read_text().replace('MODES["tools"]', 'Path("tools.txt").read_text()'))
    (folder / "tools.txt").write_text("a,b")
    hall.start()
    row = wait_for_status(hall, "one", "connected")
    set_tool_enabled(Tool.objects.get(name="b"), False)
    for names in ("a,c", "c,b"):
        (folder / "tools.txt").write_text(names)
        refresh_member(row)
        eventually(lambda: ",".join(row.tools.filter(listed=True).values_list("name", flat=True)) == names)  # noqa: B023
    assert not Tool.objects.get(name="b").enabled


def test_only_members_whose_folders_appear_change_or_disappear_are_touched(hall: Hall) -> None:
    hall.add("one")
    hall.start()
    pid = wait_for_status(hall, "one", "connected").pid
    hall.add("two")
    old_pid = wait_for_status(hall, "two", "connected").pid
    hall.add("two", "tools=only")
    eventually(lambda: list(member("two").tools.filter(listed=True).values_list("name", flat=True)) == ["only"])
    assert member("two").pid != old_pid
    shutil.rmtree(hall.members_dir / "two")
    eventually(lambda: member("two").removed_at is not None and member("two").status == "disconnected")
    assert member("one").pid == pid
    assert len(hall.tagged_processes()) == 1


def test_a_broken_manifest_is_shown_and_the_running_server_keeps_running(hall: Hall) -> None:
    folder = hall.add("one")
    hall.start()
    pid = wait_for_status(hall, "one", "connected").pid
    (folder / "guild-member.json").write_text("{")
    eventually(lambda: "not JSON" in member("one").manifest_error)
    assert (member("one").status, member("one").pid) == ("connected", pid)
    assert call("one", "echo", {"text": "still here"}).status == "succeeded"


def test_a_member_open_to_the_network_has_a_warning(hall: Hall) -> None:
    hall.add("open", "everywhere")
    hall.add("closed")
    hall.start()
    row = wait_for_status(hall, "open", "connected")
    assert "bind 127.0.0.1" in row.warnings[0]
    assert wait_for_status(hall, "closed", "connected").warnings == []


def test_a_flood_of_output_harms_nobody_and_the_log_stays_bounded(hall: Hall) -> None:
    hall.add("noisy", "flood")
    hall.add("well")
    hall.start()
    wait_for_status(hall, "noisy", "connected")
    wait_for_status(hall, "well", "connected")
    statuses = [call("well", "echo", {"text": "hi"}).status for _ in range(20)]
    assert statuses == ["succeeded"] * 20
    assert call("noisy", "echo", {"text": "hi"}).status == "succeeded"
    logs = list((hall.data_dir / "logs").glob("noisy.log*"))
    assert sum(log.stat().st_size for log in logs) < 5_000_000
    assert "\x1b" not in hall.output()


def test_other_members_start_while_a_start_hangs(hall: Hall) -> None:
    for number in range(6):
        hall.add(f"hung{number}", "hang-initialize", start_timeout=40)
    hall.add("zz-last")
    hall.start(GUILD_HALL_START_CONCURRENCY="2")
    wait_for_status(hall, "zz-last", "connected", within=25)


def test_the_endpoint_works_from_localhost(hall: Hall) -> None:
    hall.add("one")
    hall.start()
    row = wait_for_status(hall, "one", "connected")
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    response = requests.post(row.port_allocation.endpoint, json=message, timeout=5)
    assert response.json()["result"]["tools"][0]["name"] == "echo"


def test_tools_are_listed_again_after_a_notification_of_the_member(hall: Hall) -> None:
    hall.add("one", "announce")
    hall.start()
    wait_for_status(hall, "one", "connected")
    pid = member("one").pid
    assert call("one", "change_tools").status == "succeeded"
    eventually(lambda: member("one").tools.filter(name="brand_new", listed=True).exists(), within=15)
    assert (member("one").pid, member("one").status_changes.filter(new="error").count()) == (pid, 0)
    stop_member(member("one"))
    wait_for_status(hall, "one", "disconnected", within=3)
