"""The commands: their output and their exit codes. Threads replace the runtime and write its rows."""

from __future__ import annotations

import io
import json
import re
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import Group, Permission, User
from django.core.management import call_command
from django.core.management.base import CommandError, OutputWrapper
from django.db import connection, connections
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from mcp_runtime.control.members import members_of_roster
from mcp_runtime.members import logs
from mcp_runtime.rows import lease
from mcp_runtime.security import principals
from roster import roles
from roster.management.commands import logs as logs_command
from roster.management.commands.member import is_fulfilled
from roster.models import Call, GuildMember, Invitation, MemberExtras, Node, PortAllocation, Role, Token, Tool
from tests.conftest import eventually
from tests.support.leases import add_node, own_node

pytestmark = pytest.mark.django_db

NO_RUNTIME = "No runtime is alive; start one with: guildhall up (or runtime)."
RED = "\x1b[31m"


@dataclass
class Result:
    """The output of a command and its failure."""

    out: str
    err: str
    failure: CommandError | None = None

    @property
    def exit_code(self) -> int:
        return self.failure.returncode if self.failure else 0


def run(*words: str) -> Result:
    """Run a command as the command line does. A CommandError is part of the result."""
    out, err = io.StringIO(), io.StringIO()
    try:
        call_command(*words, stdout=out, stderr=err, no_color=True)
    except CommandError as failure:
        return Result(out.getvalue(), err.getvalue(), failure)
    return Result(out.getvalue(), err.getvalue())


@pytest.fixture
def runtime() -> Iterator[None]:
    """As if a runtime were live."""
    lease_id = lease.take()
    yield
    lease.release(lease_id)


@pytest.fixture
def example() -> GuildMember:
    columns = {"display_name": "Example", "status": "connected", "node": own_node()}
    member = GuildMember.objects.create(name="example", directory="example", **columns)
    PortAllocation.objects.create(port=20000, member=member)
    return member


@pytest.fixture
def echo(example: GuildMember) -> Tool:
    schema = {
        "type": "object",
        "properties": {"text": {"type": "string"}, "password": {"type": "string", "format": "password"}},
        "required": ["text"],
    }
    return Tool.objects.create(member=example, name="echo", definition={"name": "echo", "inputSchema": schema})


def in_background(work: Callable[[], object]) -> threading.Thread:
    """Run `work` in a thread with its own database connection. Join the thread before the test ends."""

    def target() -> None:
        try:
            work()
        finally:
            connections.close_all()

    thread = threading.Thread(target=target)
    thread.start()
    return thread


# roster -----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("runtime")
def test_roster_is_a_table_of_members_with_the_number_of_connected_ones(echo: Tool) -> None:
    columns = {"status": "error", "last_error": f"exit code 1\n{RED}boom", "node": own_node()}
    GuildMember.objects.create(name="bad", directory="bad", **columns)
    GuildMember.objects.create(name="off", directory="off", enabled=False)
    GuildMember.objects.create(name="gone", directory="gone", removed_at=timezone.now())
    Tool.objects.create(member=echo.member, name="switched-off", enabled=False)

    result = run("roster")

    assert [line.split(maxsplit=4) for line in result.out.splitlines()] == [
        ["NAME", "STATUS", "ENDPOINT", "TOOLS", "ERROR OR PROGRESS"],
        ["bad", "error", "-", "0", "exit code 1 \N{REPLACEMENT CHARACTER}[31mboom"],
        ["example", "connected", "http://localhost:20000/mcp", "1"],
        ["off", "disconnected", "-", "0", "(disabled)"],
        ["bad:", "What", "to", "do:", "Restart it. The hall does not try again automatically."],
        ["1", "of", "3", "connected."],
    ]
    assert result.err == ""


@pytest.mark.usefixtures("runtime")
def test_roster_shows_the_progress_of_a_long_start() -> None:
    since = timezone.now() - timedelta(seconds=12.2)
    columns = {"status": "starting", "status_changed_at": since, "progress": f"Downloading{RED} foo (3/7)"}
    GuildMember.objects.create(name="slow", directory="slow", node=own_node(), **columns)

    assert re.search(
        "starting for 1[2-9] s: Downloading\N{REPLACEMENT CHARACTER}\\[31m foo \\(3/7\\)", run("roster").out
    )


@pytest.mark.usefixtures("runtime")
def test_roster_shows_the_url_of_a_remote_server() -> None:
    url = "https://mcp.example.com/mcp"
    GuildMember.objects.create(name="far", directory="far", server_url=url, status="connected", node=own_node())
    assert run("roster").out.splitlines()[1].split() == ["far", "connected", url, "0"]


@pytest.mark.usefixtures("runtime")
def test_roster_as_json_has_statuses_in_lower_case_and_tool_names(echo: Tool) -> None:
    (member,) = json.loads(run("roster", "--json").out)

    assert (member["name"], member["status"], member["tools"]) == ("example", "connected", ["echo"])
    assert member["endpoint"] == "http://localhost:20000/mcp"


def test_roster_without_a_runtime_shows_all_members_disconnected_and_warns_on_stderr(example: GuildMember) -> None:
    result = run("roster", "--json")

    assert json.loads(result.out)[0]["status"] == "disconnected"
    assert json.loads(result.out)[0]["endpoint"] is None
    assert result.err == f"{NO_RUNTIME}\n"


def test_roster_of_an_empty_hall_tells_how_to_begin() -> None:
    assert "make one with: guildhall new_member NAME" in run("roster").out


def test_roster_costs_the_same_queries_for_two_members_and_for_twenty() -> None:
    def add_members(begin: int, end: int) -> None:
        for number in range(begin, end):
            member = GuildMember.objects.create(name=f"member-{number}", directory="x")
            Tool.objects.create(member=member, name="echo")

    add_members(0, 2)
    with CaptureQueriesContext(connection) as first:
        run("roster")
    add_members(2, 20)
    with CaptureQueriesContext(connection) as second:
        run("roster")
    assert len(second) == len(first)


# invoke -----------------------------------------------------------------------------------------------------------


def end_call(**outcome: Any) -> threading.Thread:
    """The part of the runtime: ends the only queued call."""

    def work() -> None:
        call = eventually(Call.objects.filter(status="queued").first)
        assert isinstance(call, Call)
        columns = {"status": "succeeded", "started_at": timezone.now(), "finished_at": timezone.now(), **outcome}
        Call.objects.filter(pk=call.pk).update(**columns)

    return in_background(work)


def invoke_and_end(*words: str, **outcome: Any) -> Result:
    thread = end_call(**outcome)
    try:
        return run("invoke", *words)
    finally:
        thread.join()


def text_result(*texts: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text} for text in texts]}


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("runtime")
def test_invoke_waits_and_prints_the_text_of_the_result(echo: Tool) -> None:
    result = invoke_and_end("example", "echo", '{"text": "hi"}', result=text_result("hello", f"{RED}world"))

    assert result == Result(f"hello\n{RED}world\n", "")
    call = Call.objects.get()
    assert (call.arguments, call.source, call.requested_by) == ({"text": "hi"}, "command", None)


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("runtime")
def test_invoke_replaces_control_characters_on_a_terminal_only(echo: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    text = f"{RED}one\r\ntwo\x9b2J\u202ethree\u2066\u2028four\t\N{SNOWMAN}"
    assert invoke_and_end("example", "echo", '{"text": "hi"}', result=text_result(text)).out == f"{text}\n"

    monkeypatch.setattr(OutputWrapper, "isatty", lambda self: True)
    output = invoke_and_end("example", "echo", '{"text": "hi"}', result=text_result(text)).out
    replacement = "\N{REPLACEMENT CHARACTER}"
    assert (
        output
        == f"{replacement}[31mone\ntwo{replacement}2J{replacement}three{replacement}{replacement}four\t\N{SNOWMAN}\n"
    )


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("runtime")
def test_invoke_prints_a_result_with_more_than_text_as_json(echo: Tool) -> None:
    result = {"content": [{"type": "text", "text": "see"}, {"type": "image", "data": "AAAA", "mimeType": "image/png"}]}

    assert json.loads(invoke_and_end("example", "echo", '{"text": "hi"}', result=result).out) == result


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("runtime")
def test_invoke_of_a_failed_call_prints_the_reason_and_fails(echo: Tool) -> None:
    result = invoke_and_end(
        "example",
        "echo",
        '{"text": "hi"}',
        status="failed",
        error_kind="timeout",
        error_message="no answer within 30 s",
    )

    assert result.exit_code == 7
    assert "failed (timeout): no answer within 30 s" in str(result.failure)
    assert result.out == ""


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("runtime")
def test_invoke_of_a_cancelled_call_fails(echo: Tool) -> None:
    result = invoke_and_end("example", "echo", '{"text": "hi"}', status="cancelled")

    assert result.exit_code == 9
    assert "was cancelled" in str(result.failure)


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("runtime")
def test_invoke_as_json_prints_the_whole_call_with_its_secrets_masked(echo: Tool) -> None:
    result = invoke_and_end(
        "example",
        "echo",
        '{"text": "hi", "password": "hunter2"}',
        "--json",
        status="failed",
        error_kind="tool",
        error_message="no",
        result=text_result("no") | {"isError": True},
    )

    call = json.loads(result.out)
    assert call["arguments"] == {"text": "hi", "password": "********"}
    assert (call["member"], call["tool"], call["status"], call["error"]["kind"]) == (
        "example",
        "echo",
        "failed",
        "tool",
    )
    assert call["result"]["isError"] is True
    assert result.exit_code == 6


@pytest.mark.django_db(transaction=True)
def test_invoke_without_a_runtime_tells_at_once_that_the_call_waits(echo: Tool) -> None:
    result = run("invoke", "example", "echo", '{"text": "hi"}', "--timeout", "0.05")

    call = Call.objects.get()
    assert result.err == f"{NO_RUNTIME} Call {call.pk} waits in the queue.\n"
    assert result.exit_code == 7
    assert "is still queued after 0.05 s. It goes on" in str(result.failure)
    assert call.status == "queued"


@pytest.mark.usefixtures("runtime")
def test_invoke_without_waiting_prints_only_the_id(echo: Tool) -> None:
    result = run("invoke", "example", "echo", '{"text": "hi"}', "--no-wait")

    assert result == Result(f"{Call.objects.get().pk}\n", "")


@pytest.mark.usefixtures("runtime")
def test_invoke_reads_arguments_from_stdin(echo: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO('{"text": "from a pipe"}'))

    run("invoke", "example", "echo", "-", "--no-wait")

    assert Call.objects.get().arguments == {"text": "from a pipe"}


@pytest.mark.parametrize(
    ("words", "reason", "code"),
    [
        (["nobody", "echo"], "no member 'nobody' is in the roster", 4),
        (["example", "dance"], "lists no tool 'dance'", 4),
        (["example", "echo"], "'text' is a required property", 5),
        (["example", "echo", "{nonsense"], "the arguments are not JSON", 2),
        (["example", "echo", '{"text": NaN}'], "the arguments are not JSON", 2),
        (["example", "echo", "[]"], "must be a JSON object", 5),
    ],
)
def test_invoke_refuses_an_invalid_call_with_the_reason(echo: Tool, words: list[str], reason: str, code: int) -> None:
    result = run("invoke", *words)

    assert result.exit_code == code
    assert reason in str(result.failure)
    assert not Call.objects.exists()


@pytest.mark.usefixtures("runtime")
@pytest.mark.parametrize(
    ("status", "text", "final_status"),
    [
        ("queued", "was cancelled", "cancelled"),
        ("running", "is running; it was asked to cancel", "running"),
        ("succeeded", "too late to cancel", "succeeded"),
    ],
)
def test_ctrl_c_cancels_the_call_and_reports_it(
    echo: Tool, monkeypatch: pytest.MonkeyPatch, status: str, text: str, final_status: str
) -> None:
    def interrupt(call_id: int, timeout: float) -> bool:
        Call.objects.filter(pk=call_id).update(status=status)
        raise KeyboardInterrupt

    monkeypatch.setattr("roster.management.commands.invoke.wait_for_call", interrupt)

    result = run("invoke", "example", "echo", '{"text": "hi"}')

    assert result.exit_code == 130
    assert text in str(result.failure)
    call = Call.objects.get()
    assert call.status == final_status
    assert (call.cancel_requested_at is not None) is (status == "running")


@pytest.mark.usefixtures("runtime")
def test_progress_is_shown_on_a_terminal_and_then_erased(echo: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    results = iter([False, True])
    monkeypatch.setattr("roster.management.commands.invoke.wait_for_call", lambda *_: next(results))
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)

    with pytest.raises(CommandError):
        call_command("invoke", "example", "echo", '{"text": "hi"}', timeout=0.0, stdout=io.StringIO(), stderr=terminal)

    assert f"call {Call.objects.get().pk} is queued, 0 s" in terminal.getvalue()
    assert terminal.getvalue().endswith("\r\x1b[K")


# member -----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("runtime")
def test_member_and_roster_name_the_node_that_does_not_answer() -> None:
    dead = add_node("b", is_alive=False)
    GuildMember.objects.create(name="far", directory="far", status="connected", node=dead)
    assert "the node 'b' that owns it does not answer" in run("roster").out
    result = run("member", "stop", "far")
    assert result.err == "far: the node 'b' that owns it does not answer\n"
    assert result.out == "Noted for the next runtime: stop far.\n"
    assert result.failure is None


def test_member_without_a_runtime_stores_the_request(example: GuildMember) -> None:
    result = run("member", "stop", "example")

    assert result.out == "Noted for the next runtime: stop example.\n"
    assert result.err == f"{NO_RUNTIME}\n"
    example.refresh_from_db()
    assert example.desired_state == "stopped"


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("runtime")
def test_member_waits_until_the_request_is_fulfilled(example: GuildMember) -> None:
    other = GuildMember.objects.create(name="other", directory="other", status="connected", node=own_node())

    def stop_members() -> None:
        eventually(lambda: GuildMember.objects.filter(desired_state="stopped").count() == 2)
        GuildMember.objects.update(status="disconnected", status_changed_at=timezone.now())

    thread = in_background(stop_members)
    result = run("member", "stop", "example", other.name)
    thread.join()

    assert result.out == "example is disconnected\nother is disconnected\nDone: stop example, other.\n"
    assert result.exit_code == 0


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("runtime")
def test_member_fails_with_the_reason_if_the_member_is_in_error(example: GuildMember) -> None:
    GuildMember.objects.update(status="disconnected", desired_state="stopped")

    def fail() -> None:
        eventually(lambda: GuildMember.objects.get().desired_state == "running")
        GuildMember.objects.update(status="error", last_error="exit code 1", status_changed_at=timezone.now())

    thread = in_background(fail)
    result = run("member", "start", "example")
    thread.join()

    advice = "What to do: Restart it. The hall does not try again automatically."
    assert result.out == f"example is error: exit code 1\n{advice}\n"
    assert result.exit_code == 6
    assert str(result.failure) == "start did not succeed for example"


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("runtime")
def test_member_does_not_wait_after_a_start_that_was_in_progress_failed_as_before(example: GuildMember) -> None:
    failed_at = timezone.now()
    GuildMember.objects.update(status="starting", desired_state="stopped")

    def fail() -> None:
        eventually(lambda: GuildMember.objects.get().desired_state == "running")
        GuildMember.objects.update(status="error", last_error="exit code 1", status_changed_at=failed_at)

    thread = in_background(fail)
    result = run("member", "start", "example", "--wait", "5")
    thread.join()

    assert result.out.startswith("example is error: exit code 1\n")
    assert result.exit_code == 6


@pytest.mark.usefixtures("runtime")
def test_member_reports_the_status_when_the_wait_was_too_short(example: GuildMember) -> None:
    result = run("member", "stop", "example", "--wait", "0")

    assert result.out == "example is still connected\n"
    assert result.exit_code == 6


@pytest.mark.usefixtures("runtime")
def test_member_changes_nothing_when_one_of_the_names_is_unknown(example: GuildMember) -> None:
    result = run("member", "stop", "example", "nobody")

    assert "no member 'nobody' is in the roster" in str(result.failure)
    example.refresh_from_db()
    assert example.desired_state == "running"


def test_member_changes_what_it_can_and_fails_for_the_rest(example: GuildMember) -> None:
    GuildMember.objects.create(name="off", directory="off", enabled=False)

    result = run("member", "restart", "off", "example")

    assert "member 'off' is disabled; enable it first" in result.err
    assert result.out == "Noted for the next runtime: restart example.\n"
    assert str(result.failure) == "restart did not succeed for off"


def test_a_disabled_member_is_not_started_but_enabled(example: GuildMember) -> None:
    run("member", "disable", "example")
    assert "is disabled; enable it first" in run("member", "start", "example").err

    run("member", "enable", "example")
    example.refresh_from_db()
    assert example.enabled


BEFORE, AFTER = timedelta(seconds=-1), timedelta(seconds=1)


@pytest.mark.parametrize(
    ("verb", "status", "change_offset", "columns", "expected"),
    [
        ("start", "connected", BEFORE, {}, True),
        ("start", "error", BEFORE, {}, None),  # the error from before the request
        ("start", "error", AFTER, {}, False),
        ("start", "starting", AFTER, {}, None),
        ("enable", "error", BEFORE, {"manifest_error": "no transport"}, False),
        ("restart", "connected", BEFORE, {}, None),  # still the old process
        ("restart", "stopping", AFTER, {}, None),
        ("restart", "connected", AFTER, {}, True),
        ("stop", "stopping", AFTER, {}, None),
        ("stop", "error", BEFORE, {}, True),  # no process left either way
        ("disable", "disconnected", AFTER, {}, True),
        ("refresh", "connected", BEFORE, {"refresh_requested_at": timezone.now()}, None),
        ("refresh", "connected", BEFORE, {}, True),
        ("refresh", "error", AFTER, {}, False),
    ],
)
def test_a_request_is_fulfilled_when_the_row_shows_its_effect(
    verb: str, status: str, change_offset: timedelta, columns: dict[str, Any], expected: bool | None
) -> None:
    requested_at = timezone.now()
    member = GuildMember(name="example", status=status, status_changed_at=requested_at + change_offset, **columns)

    assert is_fulfilled(verb, member, requested_at, was_starting=False) is expected


# tool -------------------------------------------------------------------------------------------------------------


def test_tool_disables_and_enables(echo: Tool) -> None:
    assert run("tool", "disable", "example", "echo").out == "Tool echo of example is disabled.\n"
    assert "is disabled" in str(run("invoke", "example", "echo").failure)
    run("tool", "enable", "example", "echo")
    echo.refresh_from_db()
    assert echo.enabled


def test_an_unknown_tool_is_a_failure(echo: Tool) -> None:
    assert "lists no tool 'dance'" in str(run("tool", "disable", "example", "dance").failure)


# logs -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def log(example: GuildMember) -> Iterator[Path]:
    path = logs.path_of(settings.GUILD_HALL_DATA_DIR, example.name)
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"one\ntwo\n{RED}three\n")
    yield path
    path.unlink()


@pytest.mark.usefixtures("log")
def test_logs_prints_the_last_lines_without_control_characters() -> None:
    assert run("logs", "example", "-n", "2").out == "two\n\N{REPLACEMENT CHARACTER}[31mthree\n"


def test_logs_of_a_member_without_output_reports_it_on_stderr(example: GuildMember) -> None:
    assert run("logs", "example") == Result("", "example has written nothing yet.\n")


@pytest.mark.skipif(connection.vendor == "sqlite", reason="a hall on SQLite has one node")
def test_logs_of_a_member_of_another_node_names_the_node(example: GuildMember, log: Path) -> None:
    own_node()
    GuildMember.objects.update(node=add_node("b"))
    failure = str(run("logs", "example", "-n", "1").failure)
    assert (
        failure == "The log of 'example' is on node 'b', which does not send it: GUILD_HALL_NODE_URL is not set there."
    )
    Node.objects.filter(name="b").update(lease_id=None)
    assert "its runtime is stopped" in str(run("logs", "example", "-f").failure)
    Node.objects.filter(name="b").update(lease_id=uuid.uuid4(), url="http://far.example.com:8200")
    assert "GUILD_HALL_PLAIN_HTTP_HOSTS" in str(run("logs", "example").failure)
    Node.objects.filter(name="b").update(url="http://127.0.0.1:9")
    assert "connection refused" in str(run("logs", "example").failure)


def test_logs_of_an_unknown_member_is_a_failure() -> None:
    assert "no member 'nobody'" in str(run("logs", "nobody").failure)


def test_logs_follows_until_ctrl_c(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses = iter(range(2))

    def pause() -> None:
        if next(pauses) > 0:
            raise KeyboardInterrupt
        with log.open("a") as file:
            file.write("four\n")

    monkeypatch.setattr(
        logs_command.logs, "follow", lambda path, lines, real=logs.follow: real(path, lines=lines, pause=pause)
    )

    assert run("logs", "example", "-f", "-n", "1") == Result("\N{REPLACEMENT CHARACTER}[31mthree\nfour\n", "")


# Maintenance -------------------------------------------------------------------------------------------------------


def test_sync_roster_reports_changes_and_invalid_folders(tmp_path: Path, settings: Any) -> None:
    settings.GUILD_HALL_MEMBERS_DIR = tmp_path
    manifest = {"name": "good", "version": "1.0.0", "transport": "http", "command": "true", "args": ["${PORT}"]}
    for name, text in [("good", json.dumps(manifest)), ("bad", "{")]:
        (tmp_path / name).mkdir()
        (tmp_path / name / "guild-member.json").write_text(text)

    result = run("sync_roster")

    assert result.out.startswith("Roster synced with the members folder: 2 added: good, bad")
    assert result.err.startswith("bad cannot be used: ")
    assert set(members_of_roster().values_list("name", flat=True)) == {"good", "bad"}


def test_create_token_prints_only_the_token_on_the_last_line() -> None:
    alice = User.objects.create_user("alice")

    token = run("create_token", "alice", "--name", "laptop").out.splitlines()[-1]

    assert Token.objects.get(digest=Token.digest_of(token), user=alice).name == "laptop"


def test_create_token_refuses_unknown_users_inactive_users_and_long_names() -> None:
    User.objects.create_user("alice")
    User.objects.create_user("gone", is_active=False)

    assert "no user 'nobody'" in str(run("create_token", "nobody").failure)
    assert "is not active" in str(run("create_token", "gone").failure)
    assert "100 characters at most" in str(run("create_token", "alice", "--name", "x" * 101).failure)
    assert not Token.objects.exists()


def test_create_token_takes_scope_end_and_limits(echo: Tool) -> None:
    User.objects.create_user("alice")
    limits = ["--expires", "30d", "--calls-per-minute", "10", "--max-in-flight", "2"]
    assert "good until" in run("create_token", "alice", "--members", "example", *limits).out
    row = Token.objects.get()
    assert (row.scope, row.calls_per_minute, row.max_in_flight) == ("members", 10, 2)
    assert [member.name for member in row.members.all()] == ["example"]
    assert row.expires_at is not None
    assert timedelta(days=29) < row.expires_at - timezone.now() <= timedelta(days=30)
    run("create_token", "alice", "--tools", "example/echo")
    assert [tool.name for tool in Token.objects.latest("id").tools.all()] == ["echo"]


def test_create_token_takes_the_search_mode_and_pinned_tools(echo: Tool) -> None:
    User.objects.create_user("alice")
    run("create_token", "alice", "--search-mode", "--pin", "example/echo")
    row = Token.objects.get()
    assert (row.search_mode, row.pinned_tools) == (True, ["example/echo"])
    assert "only in search mode" in str(run("create_token", "alice", "--pin", "example/echo").failure)


def test_create_token_for_an_unknown_member_is_a_failure() -> None:
    User.objects.create_user("alice")
    assert "no member 'nobody'" in str(run("create_token", "alice", "--members", "nobody").failure)
    assert not Token.objects.exists()


# Access control ----------------------------------------------------------------------------------------------------


@pytest.fixture
def bob() -> User:
    user = User.objects.create_user("bob")
    user.user_permissions.add(Permission.objects.get(codename="invoke_tool"))
    return user


def explain(*words: str) -> tuple[int, str]:
    """The exit code and the text."""
    out = io.StringIO()
    try:
        call_command("explain_access", *words, stdout=out)
    except SystemExit as exit_:
        return int(str(exit_.code)), out.getvalue()
    return 0, out.getvalue()


@pytest.mark.parametrize("name", ["example/echo", "example__echo"])
def test_explain_access_prints_allowed_with_the_reasons(echo: Tool, bob: User, name: str) -> None:
    code, text = explain("bob", name)
    assert code == 0
    assert text.startswith("allowed: example/echo\n- user 'bob' has the permission roster.invoke_tool\n")


def test_explain_access_prints_not_allowed_with_every_reason(echo: Tool, bob: User) -> None:
    run("reserve", "example", "--groups", Group.objects.create(name="writers").name)
    run("tool", "disable", "example", "echo")
    code, text = explain("bob", "example/echo")
    assert code == 1
    assert text.splitlines() == [
        "not allowed: example/echo",
        "- member 'example' is reserved for groups, and user 'bob' is in none of them",
        "- tool 'echo' of member 'example' is disabled",
    ]


def test_explain_access_checks_the_scope_and_the_end_of_a_token(echo: Tool, bob: User) -> None:
    row, token = Token.make(user=bob, name="laptop", scope=Token.Scope.TOOLS, tools=[])
    for hint in (row.hint, "laptop", token):
        code, text = explain("bob", "example/echo", "--token", hint)
        assert code == 1
        assert "is for these tools alone: none that is left" in text
    row.revoke()
    assert "was revoked" in explain("bob", "example/echo", "--token", "laptop")[1]
    assert "no token of theirs" in str(run("explain_access", "bob", "example/echo", "--token", "gh_other").failure)


def test_explain_access_prints_json_for_programs(echo: Tool, bob: User) -> None:
    code, text = explain("bob", "example/echo", "--json")
    assert code == 0
    decision = json.loads(text)
    assert (decision["member"], decision["tool"], decision["allowed"]) == ("example", "echo", True)


def test_explain_access_for_an_unknown_user_or_tool_is_a_failure(echo: Tool, bob: User) -> None:
    assert "no user 'nobody'" in str(run("explain_access", "nobody", "example/echo").failure)
    assert "no tool is named 'fly'" in str(run("explain_access", "bob", "fly").failure)


@pytest.fixture
def diary(echo: Tool) -> GuildMember:
    """A member with a prompt, a resource and a resource template."""
    MemberExtras.objects.create(
        member=echo.member,
        prompts=[{"name": "summary"}],
        resources=[{"uri": "file:///today", "name": "today"}],
        resource_templates=[{"uriTemplate": "diary://{day}", "name": "day"}],
        digest="x",
    )
    return echo.member


EXTRAS = [
    ("prompt", "summary", "prompt 'summary'"),
    ("resource", "file:///today", "resource 'file:///today'"),
    ("template", "diary://{day}", "resource template 'diary://{day}'"),
]


@pytest.mark.parametrize(("kind", "name", "words"), EXTRAS)
def test_explain_access_knows_prompts_resources_and_templates(
    diary: GuildMember, bob: User, kind: str, name: str, words: str
) -> None:
    code, text = explain("bob", f"example/{name}", "--kind", kind)
    assert code == 0
    assert text.splitlines() == [
        f"allowed: example/{name}",
        "- user 'bob' has the permission roster.invoke_tool",
        "- member 'example' is reserved for no group",
        f"- {words} of member 'example' is enabled",
    ]
    bob.user_permissions.clear()
    diary.disabled_extras.create(kind="resourceTemplate" if kind == "template" else kind, name=name, key=name)
    code, text = explain("bob", f"example/{name}", "--kind", kind)
    assert code == 1
    assert text.splitlines() == [
        f"not allowed: example/{name}",
        "- this needs the permission roster.invoke_tool, which user 'bob' does not have",
        f"- {words} of member 'example' is disabled",
    ]


def test_explain_access_says_what_is_held_unknown_or_out_of_the_scope_of_a_token(diary: GuildMember, bob: User) -> None:
    diary.contracts.create(kind="prompt", name="summary", version="1", is_held=True, reason="its text changed")
    held = explain("bob", "example/summary", "--kind", "prompt")
    assert held[0] == 1
    assert "is held until somebody approves it: its text changed" in held[1]
    assert "lists no prompt 'other'" in explain("bob", "example/other", "--kind", "prompt")[1]
    assert "no member 'nobody' is in the roster" in explain("bob", "nobody/summary", "--kind", "prompt")[1]
    code, text = explain("bob", "example/file:///unlisted", "--kind", "resource")
    assert code == 0
    assert "it is in no list of the member" in text
    assert explain("bob", "example/diary://monday", "--kind", "resource")[1].count("is enabled") == 1
    diary.disabled_extras.create(kind="resourceTemplate", name="diary://{day}", key="diary://{day}")
    text = explain("bob", "example/diary://monday", "--kind", "resource")[1]
    assert "resource template 'diary://{day}' of member 'example' is disabled" in text
    # A token for some tools gives access to no prompts and resources.
    Token.make(user=bob, name="laptop", scope=Token.Scope.TOOLS, tools=[Tool.objects.get()])
    code, text = explain("bob", "example/file:///today", "--kind", "resource", "--token", "laptop")
    assert code == 1
    assert "is for these tools alone" in text
    assert "is not MEMBER/NAME" in str(run("explain_access", "bob", "summary", "--kind", "prompt").failure)


def test_explain_access_prints_json_of_a_prompt(diary: GuildMember, bob: User) -> None:
    decision = json.loads(explain("bob", "example/summary", "--kind", "prompt", "--json")[1])
    assert decision.pop("reasons")
    assert decision == {"member": "example", "kind": "prompt", "name": "summary", "allowed": True}


def test_invoke_as_a_user_needs_the_permissions_of_this_user(echo: Tool, bob: User) -> None:
    assert run("invoke", "example", "echo", '{"text": "hi"}', "--no-wait", "--user", "bob").exit_code == 0
    assert Call.objects.get().requested_by == bob
    bob.user_permissions.clear()
    result = run("invoke", "example", "echo", '{"text": "hi"}', "--no-wait", "--user", "bob")
    assert "roster.invoke_tool" in str(result.failure)
    assert "no user 'nobody'" in str(run("invoke", "example", "echo", "--user", "nobody").failure)
    assert Call.objects.count() == 1


def test_reserve_sets_the_groups_and_removes_them(example: GuildMember) -> None:
    Group.objects.create(name="writers")
    assert run("reserve", "example", "--groups", "writers").out == "example is reserved for writers.\n"
    assert [group.name for group in example.groups.all()] == ["writers"]
    assert "no group readers" in str(run("reserve", "example", "--groups", "writers,readers").failure)
    assert "open to everybody" in run("reserve", "example", "--everybody").out
    assert not example.groups.exists()
    assert "no member 'nobody'" in str(run("reserve", "nobody", "--everybody").failure)


def test_reserve_refuses_roles(example: GuildMember) -> None:
    failure = str(run("reserve", "example", "--groups", Role.objects.get(name="caller").group.name).failure)
    assert failure == "members are reserved for groups that are not roles, and 'caller' is a role"
    assert not example.groups.exists()


# Users and roles --------------------------------------------------------------------------------------------------


def test_create_user_prints_a_password_with_which_the_user_can_log_in(client: Client) -> None:
    first_line, password = run("create_user", "bob").out.splitlines()
    assert first_line.startswith("User bob has the role caller.")
    assert password not in first_line
    assert client.login(username="bob", password=password)
    assert str(roles.role_of(User.objects.get(username="bob"))) == "caller"
    assert run("create_user", "olga", "--role", "operator").out.startswith("User olga has the role operator.")
    assert str(roles.role_of(User.objects.get(username="olga"))) == "operator"


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["Bob"], "there is a user 'Bob' already"),
        (["not a name"], "Enter a valid username."),
        (["eve", "--role", "king"], "invalid choice: 'king'"),
    ],
)
def test_create_user_makes_nobody_when_it_refuses(words: list[str], reason: str) -> None:
    run("create_user", "bob")
    assert reason in str(run("create_user", *words).failure)
    assert [user.username for user in User.objects.all()] == ["bob"]


def test_set_role_replaces_the_role_and_keeps_other_groups() -> None:
    bob, writers = User.objects.create_user("bob"), Group.objects.create(name="writers")
    bob.groups.add(writers)
    assert run("set_role", "bob", "operator").out == "User bob has the role operator.\n"
    assert run("set_role", "bob", "viewer").out == "User bob has the role viewer.\n"
    assert {group.name for group in bob.groups.all()} == {"writers", "viewer"}
    assert run("set_role", "bob", "none").out == "User bob has no role.\n"
    assert list(bob.groups.all()) == [writers]
    assert "no user 'nobody'" in str(run("set_role", "nobody", "viewer").failure)


def test_invite_prints_a_link_with_which_a_person_makes_an_account(client: Client) -> None:
    first_line, link = run("invite", "operator", "--note", "Carl").out.splitlines()
    assert first_line.startswith("An invitation with the role operator, good once and until ")
    assert link not in first_line
    invitation = Invitation.objects.get()
    assert (invitation.created_by, invitation.note) == (None, "Carl")
    answers = {"username": "carl", "password1": "a long secret", "password2": "a long secret"}
    assert client.post(link.removeprefix("http://localhost:8000"), answers).status_code == 302
    assert str(roles.role_of(User.objects.get(username="carl"))) == "operator"


def test_invite_makes_no_link_when_it_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "invalid choice: 'king'" in str(run("invite", "king").failure)
    assert "more than 150 characters" in str(run("invite", "viewer", "--note", "x" * 151).failure)
    monkeypatch.setattr(Invitation, "MAX_OPEN", 0)
    assert "open invitations, which is the limit" in str(run("invite", "viewer").failure)
    assert not Invitation.objects.exists()


# Configuration of clients ------------------------------------------------------------------------------------------


def test_agent_config_prints_only_the_configuration_on_stdout(echo: Tool) -> None:
    alice = User.objects.create_superuser("alice")
    result = run("agent_config", "--for", "claude-code", "--members", "example", "--expires", "1d")
    header = json.loads(result.out)["mcpServers"]["guild-hall"]["headers"]["Authorization"]
    row = Token.objects.get(digest=Token.digest_of(header.removeprefix("Bearer ")))
    assert (row.user, row.name, row.scope) == (alice, "claude-code", "members")
    assert row.expires_at is not None
    for text in (".mcp.json", "example  1", "in all   1", "an estimate"):
        assert text in result.err


def test_agent_config_makes_a_token_in_search_mode(echo: Tool) -> None:
    User.objects.create_superuser("root")
    result = run("agent_config", "--for", "claude-code", "--search-mode")
    assert Token.objects.get().search_mode
    assert "the tools that search  3" in " ".join(result.err.split("\n"))
    assert "only the gateway has the search mode" in str(
        run("agent_config", "--for", "claude-code", "--search-mode", "--direct").failure
    )


def test_agent_config_direct_creates_no_token(echo: Tool, runtime: None) -> None:
    User.objects.create_superuser("alice")
    result = run("agent_config", "--for", "codex", "--direct")
    assert result.out == '[mcp_servers.example]\nurl = "http://localhost:20000/mcp"\n'
    assert not Token.objects.exists()


def test_agent_config_for_an_unknown_user_or_member_is_a_failure(echo: Tool, bob: User) -> None:
    assert "no superuser" in str(run("agent_config", "--for", "cursor").failure)
    assert "no user 'nobody'" in str(run("agent_config", "--for", "cursor", "--user", "nobody").failure)
    assert "'nothing'" in str(run("agent_config", "--for", "cursor", "--user", "bob", "--members", "nothing").failure)
    assert "does not run" in str(
        run("agent_config", "--for", "cursor", "--user", "bob", "--members", "example", "--direct").failure
    )
    assert not Token.objects.exists()


# The token of the first start -------------------------------------------------------------------------------------


@pytest.fixture
def local_token(tmp_path: Path, settings: Any) -> Path:
    settings.GUILD_HALL_DATA_DIR, settings.STATIC_ROOT = tmp_path, tmp_path / "static"
    User.objects.create_superuser("admin")
    return tmp_path / "local-token"


def prepare() -> str:
    return run("prepare").out


def test_the_first_start_writes_a_private_token_file_and_prints_its_path(local_token: Path) -> None:
    output = prepare()
    token = local_token.read_text().strip()
    assert principals.principal_of_token(token).name == "admin"
    assert local_token.stat().st_mode & 0o777 == 0o600
    assert str(local_token) in output
    assert token not in output
    assert [path.name for path in local_token.parent.glob("local-token*")] == ["local-token"]


def test_a_later_start_does_not_change_a_valid_token(local_token: Path) -> None:
    prepare()
    token = local_token.read_text()
    assert str(local_token) not in prepare()
    assert local_token.read_text() == token
    assert Token.objects.count() == 1


CHANGES_OF_TOKEN: dict[str, Callable[[Path], Any]] = {
    "gone": lambda path: path.unlink(),
    "revoked": lambda path: Token.objects.get().revoke(),
    "unknown": lambda path: Token.objects.all().delete(),
    "no text": lambda path: path.write_bytes(b"\xff\xfe"),
}


@pytest.mark.parametrize("change", CHANGES_OF_TOKEN.values(), ids=CHANGES_OF_TOKEN.keys())
def test_an_invalid_token_is_replaced(local_token: Path, change: Callable[[Path], Any]) -> None:
    prepare()
    before = local_token.read_bytes()
    change(local_token)
    assert str(local_token) in prepare()
    assert local_token.read_bytes() != before
    assert principals.principal_of_token(local_token.read_text().strip()).name == "admin"


def test_prune_calls_keeps_new_and_unfinished_calls(example: GuildMember) -> None:
    def add_call(status: str, *, days_old: int = 0) -> Call:
        finished_at = timezone.now() - timedelta(days=days_old)
        return Call.objects.create(
            member=example, tool_name="echo", timeout=30, source="rest", status=status, finished_at=finished_at
        )

    add_call("succeeded", days_old=40)
    add_call("succeeded")
    remaining_calls = [add_call("queued", days_old=40), add_call("failed"), add_call("succeeded")]

    assert run("prune_calls", "--keep", "2").out == "Pruned 2 finished calls.\n"
    assert sorted(Call.objects.values_list("pk", flat=True)) == [row.pk for row in remaining_calls]


@pytest.mark.parametrize(
    "words",
    [
        ["prune_calls", "--days", "-1"],
        ["prune_calls", "--keep", "many"],
        ["invoke", "example", "echo", "--timeout", "soon"],
        ["member", "explode", "example"],
        ["member", "stop"],
        ["logs", "example", "-n", "-5"],
    ],
)
def test_invalid_options_are_refused_before_the_command_does_anything(words: list[str]) -> None:
    assert run(*words).exit_code == 1


# Nodes ------------------------------------------------------------------------------------------------------------


def test_the_command_nodes_shows_which_nodes_are_alive_and_their_load() -> None:
    assert run("nodes").out == "This hall has never had a runtime. Start one with: guildhall up\n"
    lease_id = lease.take()
    Node.objects.filter(lease_id=lease_id).update(cpu_percent=12.34, memory_bytes=75_000_000)
    Node.objects.create(name="old", host="box", heartbeat_at=timezone.now() - timedelta(days=1))
    heading, main, old = run("nodes").out.splitlines()
    assert heading.split()[:3] == ["NODE", "RUNTIME", "HOST"]
    assert re.match(r"main +alive since 20\d\d-\d\d-\d\d \d\d:\d\d:\d\d UTC ", main)
    assert "12.3 %" in main
    assert "75 MB" in main
    assert re.match(r"old +not alive since 20\d\d-\d\d-\d\d \d\d:\d\d:\d\d UTC +box +- +- +-", old)
    facts = {fact["name"]: fact for fact in json.loads(run("nodes", "--json").out)}
    assert (facts["main"]["is_alive"], facts["main"]["memory_bytes"]) == (True, 75_000_000)
    assert (facts["old"]["is_alive"], facts["old"]["members"]) == (False, None)


def test_the_command_nodes_shows_labels_and_which_nodes_are_draining() -> None:
    add_node("b", labels=["gpu", "eu"], is_draining=True)
    assert re.match(r"b +alive since \S+ \S+ UTC, draining  .* gpu, eu +-$", run("nodes").out.splitlines()[1])
    (facts,) = json.loads(run("nodes", "--json").out)
    assert (facts["labels"], facts["is_draining"]) == (["gpu", "eu"], True)


def add_own_member(name: str, **columns: object) -> GuildMember:
    return GuildMember.objects.create(name=name, directory=name, node=own_node(), **columns)


@pytest.mark.usefixtures("several_nodes")
def test_a_node_is_drained_and_undrained() -> None:
    lease.take()
    add_own_member("anna")
    assert run("drain_node", "main").out == "Node main is draining. Members to give away: 1.\n"
    assert own_node().is_draining
    assert run("undrain_node", "main").out == "Node main can get members again.\n"
    assert not own_node().is_draining


def test_a_node_with_local_state_is_removed_only_by_force() -> None:
    node = add_node("b", is_alive=False)
    GuildMember.objects.create(name="anna", directory="anna", node=node)
    assert "members with local state belong to it (1)" in str(run("remove_node", "b").failure)
    assert run("remove_node", "b", "--force").out == "Node b is removed. Members without a node now: 1.\n"
    assert not Node.objects.exists()


@pytest.mark.skipif(connection.vendor == "sqlite", reason="a hall on SQLite has one node")
def test_the_command_nodes_shows_which_dead_node_holds_its_lease_and_what_to_do() -> None:
    lease.take()
    add_node("b")
    Node.objects.filter(name="b").update(heartbeat_at=timezone.now() - timedelta(days=1))
    row, *_, hint = run("nodes").out.splitlines()[1:]
    assert re.match(r"b +not alive since \S+ \S+ UTC, still holds its lease ", row)
    assert hint.startswith("The fence of node b was off when it died")
    assert hint.endswith("guildhall remove_node b")


@pytest.mark.parametrize(
    "words", [["drain_node", "b"], ["undrain_node", "b"], ["remove_node", "b"], ["move_member", "anna", "b"]]
)
def test_an_unknown_node_is_an_error(words: list[str]) -> None:
    add_own_member("anna")
    assert str(run(*words).failure) == "no node 'b' has ever run this hall"


def test_the_only_node_of_a_hall_is_not_drained() -> None:
    add_own_member("anna")
    refusal = "node 'main' cannot be drained: the hall has no other node"
    assert str(run("drain_node", "main").failure) == refusal
    assert not own_node().is_draining


def test_a_member_with_local_state_is_moved_only_by_force() -> None:
    node = add_node("b", folders={"anna": "digest"})
    member = add_own_member("anna")
    assert "it keeps local state in its folder" in str(run("move_member", "anna", "b").failure)
    assert run("move_member", "anna", "b", "--force").out == "Requested: anna moves to node b.\n"
    assert GuildMember.objects.get(pk=member.pk).requested_node == node


def test_rebalance_names_its_moves_and_says_whether_more_may_follow() -> None:
    lease.take()
    assert run("rebalance").out == "No member moves.\n"
    add_node("b", folders={"anna": "digest", "bert": "digest"})
    for name in ("anna", "bert"):
        add_own_member(name, manifest={"node": {"state": "none"}}, digest="digest")
    first, hint = run("rebalance", "--limit", "1").out.splitlines()
    assert first == "Requested: anna moves from node main to node b."
    assert hint == "More members may have to move. Run this again when these have moved."
    assert run("rebalance").out == "Requested: bert moves from node main to node b.\n"
    assert Node.objects.get(name="b").requested_members.count() == 2
