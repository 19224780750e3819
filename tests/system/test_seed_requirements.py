"""What the seeds ask for and no other test proves by itself. docs/requirements.md says which test proves what."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.db import IntegrityError, transaction
from django.db.models import Count
from django.test import Client

from mcp_runtime.calls.transitions import Caller
from mcp_runtime.control.calls import queue_call
from mcp_runtime.control.members import MEMBER_VERBS, find_member, refresh_member, stop_member
from mcp_runtime.members.ports import candidates
from mcp_runtime.protocol.errors import RequestRefusedError
from mcp_runtime.rows import lease
from roster.models import Call, GuildMember, PortAllocation, Token, Tool
from tests.conftest import eventually
from tests.support.hall import Hall, call, member, wait_for_status
from tests.support.machine import take_alone

SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}


@pytest.fixture
def echo(db: None) -> Tool:
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
def test_no_row_holds_a_port_outside_the_managed_range(echo: Tool, port: int) -> None:
    with pytest.raises(IntegrityError), transaction.atomic():
        PortAllocation.objects.create(member=echo.member, port=port)


def test_no_two_members_hold_one_port_and_no_member_two(echo: Tool) -> None:
    other = GuildMember.objects.create(name="other", directory="other", version="1")
    PortAllocation.objects.create(member=echo.member, port=20000)
    for row, port in ((other, 20000), (echo.member, 20001)):
        with pytest.raises(IntegrityError), transaction.atomic():
            PortAllocation.objects.create(member=row, port=port)


def test_a_port_is_kept_for_the_life_of_its_process_and_freed_when_that_stops(hall: Hall) -> None:
    hall.add("one", tool_timeouts={"sleep": 0.5})
    hall.start()
    row = wait_for_status(hall, "one", "connected")
    held = PortAllocation.objects.values().get()
    for tool in ("echo", "fail", "refuse", "html", "sleep"):
        call("one", tool, {"text": "hi"} if tool == "echo" else {})
    refresh_member(row)
    eventually(lambda: member("one").refresh_requested_at is None)
    assert PortAllocation.objects.values().get() == held
    assert member("one").pid == row.pid
    assert held["port"] in hall.busy_ports()
    stop_member(row)
    wait_for_status(hall, "one", "disconnected")
    assert not PortAllocation.objects.exists()
    assert held["port"] not in hall.busy_ports()


# Start and stop ---------------------------------------------------------------------------------------------------


def test_looking_at_the_roster_starts_nothing(echo: Tool) -> None:
    """Members start with the runtime. A page, in the admin or over REST, reads."""
    alice = User.objects.create_superuser("alice")
    _, token = Token.make(user=alice)
    browser, program = Client(), Client(headers={"Authorization": f"Bearer {token}"})
    browser.force_login(alice)
    before = GuildMember.objects.values().get()
    for address in ("/admin/", "/admin/roster/guildmember/", f"/admin/roster/guildmember/{echo.member.pk}/change/"):
        assert browser.get(address).status_code == 200
    for address in ("/api/roster/", "/api/members/example/", "/api/members/example/tools/"):
        assert program.get(address).status_code == 200
    assert GuildMember.objects.values().get() == before
    assert not Call.objects.exists()


def test_tools_are_there_in_the_moment_a_member_is_connected(hall: Hall) -> None:
    hall.add("one")
    hall.start()
    seen: set[tuple[str, bool]] = set()

    def is_connected() -> bool:
        for status, tools in GuildMember.objects.annotate(count=Count("tools")).values_list("status", "count"):
            seen.add((status, tools > 0))
        return ("connected", True) in seen

    eventually(is_connected)
    assert ("connected", False) not in seen


def test_a_server_that_refuses_the_handshake_is_ended_and_in_error(hall: Hall) -> None:
    folder = hall.add("one", restart="never")
    edit_server(folder, 'if "hang-initialize" in MODES:', 'self.error(message, -32603, "not today")\n            if 0:')
    hall.start()
    row = wait_for_status(hall, "one", "error")
    assert "member 'one' could not be started: not today" in row.last_error
    eventually(lambda: not hall.tagged_processes() and not hall.busy_ports())
    assert not PortAllocation.objects.exists()


@pytest.mark.alone
def test_a_handshake_has_five_seconds_when_the_manifest_says_nothing(hall: Hall) -> None:
    hall.add("one", "hang-initialize", restart="never")
    take_alone()
    hall.start()
    row = wait_for_status(hall, "one", "error")
    assert "within 5 s" in row.last_error
    begun, ended = row.status_changes.get(new="starting"), row.status_changes.get(new="error")
    assert 5 <= (ended.created_at - begun.created_at).total_seconds() < 6.5
    eventually(lambda: not hall.tagged_processes())


def test_members_are_asked_to_end_when_the_runtime_stops(hall: Hall) -> None:
    hall.add("one")  # ends with code 0 when it is asked
    guard = hall.start()
    wait_for_status(hall, "one", "connected")
    guard.send_signal(signal.SIGTERM)
    assert guard.wait(10) == 0
    change = member("one").status_changes.first()
    assert (change.old, change.new, change.exit_code) == ("stopping", "disconnected", 0)


# Watching ---------------------------------------------------------------------------------------------------------


def test_what_a_member_writes_to_stderr_is_on_the_console_with_its_name(hall: Hall) -> None:
    hall.add("one")
    hall.start()
    wait_for_status(hall, "one", "connected")
    assert re.search(r"^\d\d:\d\d:\d\d one +\| hello from the member$", hall.output(), re.MULTILINE)


@pytest.mark.timeout(120)
def test_a_connected_member_is_asked_nothing_while_nobody_calls_it(hall: Hall) -> None:
    """Neither before the first call nor after one, answered or not: one that timed out is followed by one ping."""
    folder = hall.add("one", "record", tool_timeouts={"sleep": 0.5}, unresponsive="restart")

    def asked_after_four_heartbeats() -> list[str]:
        beats: set[object] = set()  # the supervisor and the dispatcher have had their turns
        eventually(lambda: beats.add(lease.hall().heartbeat_at) or len(beats) > 4)
        return [json.loads(line)["body"]["method"] for line in (folder / "requests.jsonl").read_text().splitlines()]

    hall.start()
    wait_for_status(hall, "one", "connected")
    expected = ["initialize", "notifications/initialized", "tools/list"]
    assert asked_after_four_heartbeats() == expected
    call("one", "echo", {"text": "hi"})
    assert asked_after_four_heartbeats() == [*expected, "tools/call"]
    call("one", "sleep")
    told = ["tools/call", "notifications/cancelled", "ping"]
    assert sorted(asked_after_four_heartbeats()) == sorted([*expected, "tools/call", *told])


def test_a_member_that_refuses_connections_while_it_lives_is_in_error_and_ended(hall: Hall) -> None:
    folder = hall.add("one", restart="never")
    deaf = "self.close_connection = True; self.result(message, text('bye')); self.server.shutdown()"
    edit_server(folder, 'self.answer(200, b"<h1>Hello</h1>", "text/html")', deaf)
    edit_server(folder, "server.serve_forever()", "server.serve_forever(); server.server_close(); time.sleep(600)")
    hall.start()
    wait_for_status(hall, "one", "connected")
    assert call("one", "html").status == "succeeded"
    eventually(lambda: not hall.busy_ports(), what="it does not listen any more")
    failed = call("one", "echo", {"text": "anybody?"})
    assert (failed.status, failed.error_kind) == ("failed", "unavailable")
    assert "member 'one': connection refused; the call was not sent" in failed.error_message
    row = wait_for_status(hall, "one", "error")
    assert "member 'one' does not answer on port" in row.last_error
    assert "connection refused" in row.last_error
    eventually(lambda: not hall.tagged_processes())


# Errors -----------------------------------------------------------------------------------------------------------


def test_a_protocol_error_is_logged_with_the_members_name(hall: Hall) -> None:
    hall.add("one")
    hall.start()
    wait_for_status(hall, "one", "connected")
    for tool, said in (("html", "text/html instead of JSON"), ("refuse", "not with me")):
        call("one", tool)
        assert re.search(rf"runtime +\| warning: tool '{tool}' of member 'one': .*{said}", hall.output())


def _disable_member(tool: Tool) -> None:
    GuildMember.objects.update(enabled=False)


def _disable_tool(tool: Tool) -> None:
    Tool.objects.update(enabled=False)


def _nothing(tool: Tool) -> None:
    pass


@pytest.mark.parametrize(
    ("prepare", "tool", "arguments"),
    [
        (_nothing, "no such tool", {}),
        (_nothing, "echo", {"text": 1}),
        (_nothing, "echo", ["no", "object"]),
        (_disable_tool, "echo", {"text": "hi"}),
        (_disable_member, "echo", {"text": "hi"}),
    ],
)
def test_every_refusal_of_a_call_names_the_member(
    echo: Tool, prepare: Callable[[Tool], None], tool: str, arguments: object
) -> None:
    prepare(echo)
    with pytest.raises(RequestRefusedError, match="'example'"):
        queue_call("example", tool, arguments, caller=Caller(Call.Source.COMMAND))


@pytest.mark.parametrize("verb", ["start", "restart", "refresh"])
def test_every_refusal_of_a_request_names_the_member(echo: Tool, verb: str) -> None:
    _disable_member(echo)
    with pytest.raises(RequestRefusedError, match="'example'"):
        MEMBER_VERBS[verb](find_member("example"))


# Calls ------------------------------------------------------------------------------------------------------------


def test_calls_one_after_the_other_share_a_connection(hall: Hall) -> None:
    folder = hall.add("one")
    edit_server(folder, "def log_message", "def setup(self):\n        print('accepted', file=sys.stderr, flush=True)\n"
                "        super().setup()\n\n    def log_message")  # fmt: skip
    hall.start()
    wait_for_status(hall, "one", "connected")
    call("one", "echo", {"text": "first"})
    before = hall.output().count("accepted")
    began = time.monotonic()
    for number in range(20):
        assert call("one", "echo", {"text": str(number)}).status == "succeeded"
    # One that idled a second is not trusted with a call: on a slow machine there may be another now and then.
    assert hall.output().count("accepted") - before <= time.monotonic() - began
