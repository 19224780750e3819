"""Requirements of the seeds that no other test covers alone. docs/requirements.md names the tests of each one."""

from __future__ import annotations

import json
import re
import signal
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.db import IntegrityError, transaction
from django.db.models import Count
from django.test import Client

from mcp_runtime.calls.transitions import Requester
from mcp_runtime.control.calls import queue_call
from mcp_runtime.control.members import MEMBER_VERBS, find_member, refresh_member, stop_member
from mcp_runtime.members.ports import candidates
from mcp_runtime.protocol.errors import RequestRefusedError
from roster.models import Call, GuildMember, Node, PortAllocation, Token, Tool
from tests.conftest import eventually
from tests.support.hall import Hall, call, member, wait_for_status
from tests.support.machine import take_alone

SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}


@pytest.fixture
def echo_tool(db: None) -> Tool:
    """A tool of a member that is stopped."""
    row = GuildMember.objects.create(name="example", directory="example", version="1", desired_state="stopped")
    return Tool.objects.create(member=row, name="echo", definition={"name": "echo", "inputSchema": SCHEMA})


def edit_server(folder: Path, old: str, new: str) -> None:
    server = folder / "server.py"
    text = server.read_text()
    assert old in text
    server.write_text(text.replace(old, new))


# Ports ------------------------------------------------------------------------------------------------------------


def test_ports_are_tried_from_20000_to_30000_in_sequence() -> None:
    ports = list(candidates(20000, 30000))
    assert ports[:3] == [20000, 20001, 20002]
    assert ports[-1] == 30000
    assert len(ports) == 10_001


@pytest.mark.parametrize("port", [19_999, 30_001, 0, 50_000])
def test_no_row_holds_a_port_outside_the_managed_range(echo_tool: Tool, port: int) -> None:
    with pytest.raises(IntegrityError), transaction.atomic():
        PortAllocation.objects.create(member=echo_tool.member, port=port)


def test_a_port_has_one_member_and_a_member_has_one_port(echo_tool: Tool) -> None:
    other_member = GuildMember.objects.create(name="other", directory="other", version="1")
    lease_id = uuid.uuid4()
    PortAllocation.objects.create(member=echo_tool.member, port=20000, lease_id=lease_id)
    for row, port in ((other_member, 20000), (echo_tool.member, 20001)):
        with pytest.raises(IntegrityError), transaction.atomic():
            PortAllocation.objects.create(member=row, port=port, lease_id=lease_id)


def test_a_port_is_kept_while_the_process_runs_and_released_when_it_stops(hall: Hall) -> None:
    hall.add("one", tool_timeouts={"sleep": 0.5})
    hall.start()
    row = wait_for_status(hall, "one", "connected")
    allocation = PortAllocation.objects.values().get()
    for tool in ("echo", "fail", "refuse", "html", "sleep"):
        call("one", tool, {"text": "hi"} if tool == "echo" else {})
    refresh_member(row)
    eventually(lambda: member("one").refresh_requested_at is None)
    assert PortAllocation.objects.values().get() == allocation
    assert member("one").pid == row.pid
    assert allocation["port"] in hall.busy_ports()
    stop_member(row)
    wait_for_status(hall, "one", "disconnected")
    assert not PortAllocation.objects.exists()
    assert allocation["port"] not in hall.busy_ports()


# Start and stop ---------------------------------------------------------------------------------------------------


def test_reading_the_roster_starts_no_member(echo_tool: Tool) -> None:
    """Members start with the runtime. Pages of the admin and of REST only read."""
    alice = User.objects.create_superuser("alice")
    _, token = Token.make(user=alice)
    admin_client, api_client = Client(), Client(headers={"Authorization": f"Bearer {token}"})
    admin_client.force_login(alice)
    row_values = GuildMember.objects.values().get()
    for address in (
        "/admin/",
        "/admin/roster/guildmember/",
        f"/admin/roster/guildmember/{echo_tool.member.pk}/change/",
    ):
        assert admin_client.get(address).status_code == 200
    for address in ("/api/roster/", "/api/members/example/", "/api/members/example/tools/"):
        assert api_client.get(address).status_code == 200
    assert GuildMember.objects.values().get() == row_values
    assert not Call.objects.exists()


def test_a_connected_member_has_its_tools_from_the_first_moment(hall: Hall) -> None:
    hall.add("one")
    hall.start()
    states: set[tuple[str, bool]] = set()

    def is_connected() -> bool:
        for status, tool_count in GuildMember.objects.annotate(count=Count("tools")).values_list("status", "count"):
            states.add((status, tool_count > 0))
        return ("connected", True) in states

    eventually(is_connected)
    assert ("connected", False) not in states


def test_a_server_that_refuses_the_handshake_is_ended_and_in_error(hall: Hall) -> None:
    folder = hall.add("one", restart="never")
    edit_server(folder, 'if "hang-initialize" in MODES:', 'self.error(message, -32603, "not today")\n            if 0:')
    hall.start()
    row = wait_for_status(hall, "one", "error")
    assert "member 'one' could not be started: not today" in row.last_error
    eventually(lambda: not hall.tagged_processes() and not hall.busy_ports())
    assert not PortAllocation.objects.exists()


@pytest.mark.alone
def test_a_handshake_has_five_seconds_by_default(hall: Hall) -> None:
    hall.add("one", "hang-initialize", restart="never")
    take_alone()
    hall.start()
    row = wait_for_status(hall, "one", "error")
    assert "within 5 s" in row.last_error
    start, end = row.status_changes.get(new="starting"), row.status_changes.get(new="error")
    assert 5 <= (end.created_at - start.created_at).total_seconds() < 6.5
    eventually(lambda: not hall.tagged_processes())


def test_members_get_sigterm_when_the_runtime_stops(hall: Hall) -> None:
    hall.add("one")  # on SIGTERM it ends with code 0
    guard = hall.start()
    wait_for_status(hall, "one", "connected")
    guard.send_signal(signal.SIGTERM)
    assert guard.wait(10) == 0
    change = member("one").status_changes.first()
    assert (change.old, change.new, change.exit_code) == ("stopping", "disconnected", 0)


# Watching ---------------------------------------------------------------------------------------------------------


def test_stderr_of_a_member_is_on_the_console_with_its_name(hall: Hall) -> None:
    hall.add("one")
    hall.start()
    wait_for_status(hall, "one", "connected")
    line = re.compile(r"^\d\d:\d\d:\d\d one +\| hello from the member$", re.MULTILINE)
    eventually(lambda: line.search(hall.output()), what="the line is on the console")


@pytest.mark.timeout(120)
def test_a_connected_member_gets_no_requests_between_calls(hall: Hall) -> None:
    """There are none before the first call and between calls. Only after a call that timed out there is a ping."""
    folder = hall.add("one", "record", tool_timeouts={"sleep": 0.5}, unresponsive="restart")

    def methods_after_four_heartbeats() -> list[str]:
        heartbeats: set[object] = set()  # the supervisor and the dispatcher have run in between
        eventually(lambda: heartbeats.add(Node.objects.get().heartbeat_at) or len(heartbeats) > 4)
        return [json.loads(line)["body"]["method"] for line in (folder / "requests.jsonl").read_text().splitlines()]

    hall.start()
    wait_for_status(hall, "one", "connected")
    expected = ["initialize", "notifications/initialized", "tools/list"]
    assert methods_after_four_heartbeats() == expected
    call("one", "echo", {"text": "hi"})
    assert methods_after_four_heartbeats() == [*expected, "tools/call"]
    call("one", "sleep")
    more_methods = ["tools/call", "notifications/cancelled", "ping"]
    assert sorted(methods_after_four_heartbeats()) == sorted([*expected, "tools/call", *more_methods])


def test_a_live_member_that_refuses_connections_is_stopped_and_in_error(hall: Hall) -> None:
    folder = hall.add("one", restart="never")
    stop_listening = "self.close_connection = True; self.result(message, text('bye')); self.server.shutdown()"
    edit_server(folder, 'self.answer(200, b"<h1>Hello</h1>", "text/html")', stop_listening)
    edit_server(folder, "server.serve_forever()", "server.serve_forever(); server.server_close(); time.sleep(600)")
    hall.start()
    wait_for_status(hall, "one", "connected")
    assert call("one", "html").status == "succeeded"
    eventually(lambda: not hall.busy_ports(), what="the member does not listen any more")
    call_row = call("one", "echo", {"text": "anybody?"})
    assert (call_row.status, call_row.error_kind) == ("failed", "unavailable")
    assert "member 'one': connection refused; the call was not sent" in call_row.error_message
    row = wait_for_status(hall, "one", "error")
    assert "member 'one' does not answer on port" in row.last_error
    assert "connection refused" in row.last_error
    eventually(lambda: not hall.tagged_processes())


# Errors -----------------------------------------------------------------------------------------------------------


def test_a_protocol_error_is_logged_with_the_members_name(hall: Hall) -> None:
    hall.add("one")
    hall.start()
    wait_for_status(hall, "one", "connected")
    for tool, text in (("html", "text/html instead of JSON"), ("refuse", "not with me")):
        call("one", tool)
        line = rf"runtime +\| warning: tool '{tool}' of member 'one': .*{text}"
        eventually(lambda line=line: re.search(line, hall.output()), what=f"the log has {line}")  # written by a thread


def _disable_member(tool: Tool) -> None:
    GuildMember.objects.update(enabled=False)


def _disable_tool(tool: Tool) -> None:
    Tool.objects.update(enabled=False)


def _change_nothing(tool: Tool) -> None:
    pass


@pytest.mark.parametrize(
    ("prepare", "tool", "arguments"),
    [
        (_change_nothing, "no such tool", {}),
        (_change_nothing, "echo", {"text": 1}),
        (_change_nothing, "echo", ["no", "object"]),
        (_disable_tool, "echo", {"text": "hi"}),
        (_disable_member, "echo", {"text": "hi"}),
    ],
)
def test_every_refusal_of_a_call_names_the_member(
    echo_tool: Tool, prepare: Callable[[Tool], None], tool: str, arguments: object
) -> None:
    prepare(echo_tool)
    with pytest.raises(RequestRefusedError, match="'example'"):
        queue_call("example", tool, arguments, requester=Requester(Call.Source.COMMAND))


@pytest.mark.parametrize("verb", ["start", "restart", "refresh"])
def test_every_refusal_of_a_request_names_the_member(echo_tool: Tool, verb: str) -> None:
    _disable_member(echo_tool)
    with pytest.raises(RequestRefusedError, match="'example'"):
        MEMBER_VERBS[verb](find_member("example"))


# Calls ------------------------------------------------------------------------------------------------------------


def test_consecutive_calls_share_a_connection(hall: Hall) -> None:
    folder = hall.add("one")
    edit_server(folder, "def log_message", "def setup(self):\n        print('accepted', file=sys.stderr, flush=True)\n"
                "        super().setup()\n\n    def log_message")  # fmt: skip
    hall.start()
    wait_for_status(hall, "one", "connected")
    call("one", "echo", {"text": "first"})
    count = hall.output().count("accepted")
    start = time.monotonic()
    for number in range(20):
        assert call("one", "echo", {"text": str(number)}).status == "succeeded"
    # A connection that was idle for a second is not used again, so a slow machine may need more connections.
    assert hall.output().count("accepted") - count <= time.monotonic() - start
