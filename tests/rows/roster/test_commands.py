"""The commands: what they print, where, and with which exit code. Threads play the runtime by writing its rows."""

from __future__ import annotations

import io
import json
import re
import threading
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
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from mcp_runtime.control.members import members_of_roster
from mcp_runtime.members import logs
from mcp_runtime.rows import lease
from mcp_runtime.security import principals
from roster.management.commands import logs as logs_command
from roster.management.commands.member import is_fulfilled
from roster.models import Call, GuildMember, PortAllocation, Token, Tool
from tests.conftest import eventually

pytestmark = pytest.mark.django_db

NO_RUNTIME = "No runtime is alive; start one with: manage.py up (or runtime)."
RED = "\x1b[31m"


@dataclass
class Ran:
    """What a command left behind."""

    out: str
    err: str
    failure: CommandError | None = None

    @property
    def exit_code(self) -> int:
        return self.failure.returncode if self.failure else 0


def run(*words: str) -> Ran:
    """Run a command as the command line would; a CommandError is an outcome, not an accident."""
    out, err = io.StringIO(), io.StringIO()
    try:
        call_command(*words, stdout=out, stderr=err, no_color=True)
    except CommandError as failure:
        return Ran(out.getvalue(), err.getvalue(), failure)
    return Ran(out.getvalue(), err.getvalue())


@pytest.fixture
def runtime() -> Iterator[None]:
    """As if a runtime were alive."""
    lease_id = lease.take()
    yield
    lease.release(lease_id)


@pytest.fixture
def example() -> GuildMember:
    member = GuildMember.objects.create(name="example", directory="example", display_name="Example", status="connected")
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
    """Run `work` in a thread with a database connection of its own; join it before the test ends."""

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
def test_roster_is_a_table_of_members_and_counts_the_connected(echo: Tool) -> None:
    GuildMember.objects.create(name="bad", directory="bad", status="error", last_error=f"exit code 1\n{RED}boom")
    GuildMember.objects.create(name="off", directory="off", enabled=False)
    GuildMember.objects.create(name="gone", directory="gone", removed_at=timezone.now())
    Tool.objects.create(member=echo.member, name="switched-off", enabled=False)

    ran = run("roster")

    assert [line.split(maxsplit=4) for line in ran.out.splitlines()] == [
        ["NAME", "STATUS", "ENDPOINT", "TOOLS", "ERROR OR PROGRESS"],
        ["bad", "error", "-", "0", "exit code 1 \N{REPLACEMENT CHARACTER}[31mboom"],
        ["example", "connected", "http://localhost:20000/mcp", "1"],
        ["off", "disconnected", "-", "0", "(disabled)"],
        ["1", "of", "3", "connected."],
    ]
    assert ran.err == ""


@pytest.mark.usefixtures("runtime")
def test_roster_says_how_a_long_start_gets_on() -> None:
    since = timezone.now() - timedelta(seconds=12.2)
    facts = {"status": "starting", "status_changed_at": since, "progress": f"Downloading{RED} foo (3/7)"}
    GuildMember.objects.create(name="slow", directory="slow", **facts)

    assert re.search(
        "starting for 1[2-9] s: Downloading\N{REPLACEMENT CHARACTER}\\[31m foo \\(3/7\\)", run("roster").out
    )


@pytest.mark.usefixtures("runtime")
def test_roster_shows_the_url_of_a_remote_server() -> None:
    url = "https://mcp.example.com/mcp"
    GuildMember.objects.create(name="far", directory="far", server_url=url, status="connected")
    assert run("roster").out.splitlines()[1].split() == ["far", "connected", url, "0"]


@pytest.mark.usefixtures("runtime")
def test_roster_as_json_has_the_status_words_in_lower_case_and_the_names_of_the_tools(echo: Tool) -> None:
    (fact,) = json.loads(run("roster", "--json").out)

    assert (fact["name"], fact["status"], fact["tools"]) == ("example", "connected", ["echo"])
    assert fact["endpoint"] == "http://localhost:20000/mcp"


def test_roster_without_a_runtime_shows_nobody_connected_and_says_so_on_stderr(example: GuildMember) -> None:
    ran = run("roster", "--json")

    assert json.loads(ran.out)[0]["status"] == "disconnected"
    assert json.loads(ran.out)[0]["endpoint"] is None
    assert ran.err == f"{NO_RUNTIME}\n"


def test_roster_of_an_empty_hall_says_how_to_begin() -> None:
    assert "make one with: manage.py new_member NAME" in run("roster").out


def test_roster_costs_the_same_queries_for_two_members_and_for_twenty() -> None:
    def grow(begin: int, end: int) -> None:
        for number in range(begin, end):
            member = GuildMember.objects.create(name=f"member-{number}", directory="x")
            Tool.objects.create(member=member, name="echo")

    grow(0, 2)
    with CaptureQueriesContext(connection) as few:
        run("roster")
    grow(2, 20)
    with CaptureQueriesContext(connection) as many:
        run("roster")
    assert len(many) == len(few)


# invoke -----------------------------------------------------------------------------------------------------------


def end_call(**outcome: Any) -> threading.Thread:
    """The runtime's part: take the one queued call and end it."""

    def work() -> None:
        call = eventually(Call.objects.filter(status="queued").first)
        assert isinstance(call, Call)
        ended = {"status": "succeeded", "started_at": timezone.now(), "finished_at": timezone.now(), **outcome}
        Call.objects.filter(pk=call.pk).update(**ended)

    return in_background(work)


def invoke_and_end(*words: str, **outcome: Any) -> Ran:
    thread = end_call(**outcome)
    try:
        return run("invoke", *words)
    finally:
        thread.join()


def text_result(*texts: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text} for text in texts]}


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("runtime")
def test_invoke_waits_and_prints_the_text_of_the_answer(echo: Tool) -> None:
    ran = invoke_and_end("example", "echo", '{"text": "hi"}', result=text_result("hello", f"{RED}world"))

    assert ran == Ran(f"hello\n{RED}world\n", "")
    call = Call.objects.get()
    assert (call.arguments, call.source, call.requested_by) == ({"text": "hi"}, "command", None)


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("runtime")
def test_what_invoke_prints_moves_no_cursor_of_a_terminal_and_is_exact_for_a_program(
    echo: Tool, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = f"{RED}one\r\ntwo\x9b2J\u202ethree\u2066\u2028four\t\N{SNOWMAN}"
    assert invoke_and_end("example", "echo", '{"text": "hi"}', result=text_result(said)).out == f"{said}\n"

    monkeypatch.setattr(OutputWrapper, "isatty", lambda self: True)
    shown = invoke_and_end("example", "echo", '{"text": "hi"}', result=text_result(said)).out
    gone = "\N{REPLACEMENT CHARACTER}"
    assert shown == f"{gone}[31mone\ntwo{gone}2J{gone}three{gone}{gone}four\t\N{SNOWMAN}\n"


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("runtime")
def test_invoke_prints_what_is_not_only_text_as_json(echo: Tool) -> None:
    result = {"content": [{"type": "text", "text": "see"}, {"type": "image", "data": "AAAA", "mimeType": "image/png"}]}

    assert json.loads(invoke_and_end("example", "echo", '{"text": "hi"}', result=result).out) == result


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("runtime")
def test_invoke_of_a_call_that_fails_says_why_and_fails(echo: Tool) -> None:
    ran = invoke_and_end(
        "example",
        "echo",
        '{"text": "hi"}',
        status="failed",
        error_kind="timeout",
        error_message="no answer within 30 s",
    )

    assert ran.exit_code == 1
    assert "failed (timeout): no answer within 30 s" in str(ran.failure)
    assert ran.out == ""


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("runtime")
def test_invoke_of_a_call_that_somebody_cancels_fails(echo: Tool) -> None:
    ran = invoke_and_end("example", "echo", '{"text": "hi"}', status="cancelled")

    assert ran.exit_code == 1
    assert "was cancelled" in str(ran.failure)


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("runtime")
def test_invoke_as_json_prints_the_whole_call_with_its_secrets_masked(echo: Tool) -> None:
    ran = invoke_and_end(
        "example",
        "echo",
        '{"text": "hi", "password": "hunter2"}',
        "--json",
        status="failed",
        error_kind="tool",
        error_message="no",
        result=text_result("no") | {"isError": True},
    )

    fact = json.loads(ran.out)
    assert fact["arguments"] == {"text": "hi", "password": "********"}
    assert (fact["member"], fact["tool"], fact["status"], fact["error"]["kind"]) == (
        "example",
        "echo",
        "failed",
        "tool",
    )
    assert fact["result"]["isError"] is True
    assert ran.exit_code == 1


@pytest.mark.django_db(transaction=True)
def test_invoke_without_a_runtime_says_at_once_that_the_call_waits_its_turn(echo: Tool) -> None:
    ran = run("invoke", "example", "echo", '{"text": "hi"}', "--timeout", "0.05")

    call = Call.objects.get()
    assert ran.err == f"{NO_RUNTIME} Call {call.pk} waits in the queue.\n"
    assert ran.exit_code == 1
    assert "is still queued after 0.05 s. It goes on" in str(ran.failure)
    assert call.status == "queued"


@pytest.mark.usefixtures("runtime")
def test_invoke_without_waiting_prints_the_id_alone(echo: Tool) -> None:
    ran = run("invoke", "example", "echo", '{"text": "hi"}', "--no-wait")

    assert ran == Ran(f"{Call.objects.get().pk}\n", "")


@pytest.mark.usefixtures("runtime")
def test_invoke_reads_arguments_from_stdin(echo: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO('{"text": "from a pipe"}'))

    run("invoke", "example", "echo", "-", "--no-wait")

    assert Call.objects.get().arguments == {"text": "from a pipe"}


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["nobody", "echo"], "no member 'nobody' is in the roster"),
        (["example", "dance"], "lists no tool 'dance'"),
        (["example", "echo"], "'text' is a required property"),
        (["example", "echo", "{nonsense"], "the arguments are not JSON"),
        (["example", "echo", '{"text": NaN}'], "the arguments are not JSON"),
        (["example", "echo", "[]"], "must be a JSON object"),
    ],
)
def test_invoke_refuses_what_cannot_be_called(echo: Tool, words: list[str], complaint: str) -> None:
    ran = run("invoke", *words)

    assert ran.exit_code == 1
    assert complaint in str(ran.failure)
    assert not Call.objects.exists()


@pytest.mark.usefixtures("runtime")
@pytest.mark.parametrize(
    ("status", "said", "afterwards"),
    [
        ("queued", "was cancelled", "cancelled"),
        ("running", "is running; it was asked to cancel", "running"),
        ("succeeded", "too late to cancel", "succeeded"),
    ],
)
def test_ctrl_c_cancels_the_call_and_says_so(
    echo: Tool, monkeypatch: pytest.MonkeyPatch, status: str, said: str, afterwards: str
) -> None:
    def interrupted(call_id: int, timeout: float) -> bool:
        Call.objects.filter(pk=call_id).update(status=status)
        raise KeyboardInterrupt

    monkeypatch.setattr("roster.management.commands.invoke.wait_for_call", interrupted)

    ran = run("invoke", "example", "echo", '{"text": "hi"}')

    assert ran.exit_code == 130
    assert said in str(ran.failure)
    call = Call.objects.get()
    assert call.status == afterwards
    assert (call.cancel_requested_at is not None) is (status == "running")


@pytest.mark.usefixtures("runtime")
def test_progress_goes_to_a_terminal_and_leaves_no_trace_there(echo: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([False, True])
    monkeypatch.setattr("roster.management.commands.invoke.wait_for_call", lambda *_: next(answers))
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)

    with pytest.raises(CommandError):
        call_command("invoke", "example", "echo", '{"text": "hi"}', timeout=0.0, stdout=io.StringIO(), stderr=terminal)

    assert f"call {Call.objects.get().pk} is queued, 0 s" in terminal.getvalue()
    assert terminal.getvalue().endswith("\r\x1b[K")


# member -----------------------------------------------------------------------------------------------------------


def test_member_without_a_runtime_notes_the_request(example: GuildMember) -> None:
    ran = run("member", "stop", "example")

    assert ran.out == "Noted for the next runtime: stop example.\n"
    assert ran.err == f"{NO_RUNTIME}\n"
    example.refresh_from_db()
    assert example.desired_state == "stopped"


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("runtime")
def test_member_waits_until_the_request_is_fulfilled_and_reports(example: GuildMember) -> None:
    other = GuildMember.objects.create(name="other", directory="other", status="connected")

    def obey() -> None:
        eventually(lambda: GuildMember.objects.filter(desired_state="stopped").count() == 2)
        GuildMember.objects.update(status="disconnected", status_changed_at=timezone.now())

    thread = in_background(obey)
    ran = run("member", "stop", "example", other.name)
    thread.join()

    assert ran.out == "example is disconnected\nother is disconnected\nDone: stop example, other.\n"
    assert ran.exit_code == 0


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("runtime")
def test_member_that_comes_to_an_error_is_a_failure_with_its_reason(example: GuildMember) -> None:
    GuildMember.objects.update(status="disconnected", desired_state="stopped")

    def fail() -> None:
        eventually(lambda: GuildMember.objects.get().desired_state == "running")
        GuildMember.objects.update(status="error", last_error="exit code 1", status_changed_at=timezone.now())

    thread = in_background(fail)
    ran = run("member", "start", "example")
    thread.join()

    assert ran.out == "example is error: exit code 1\n"
    assert ran.exit_code == 1
    assert str(ran.failure) == "start did not succeed for example"


@pytest.mark.usefixtures("runtime")
def test_member_says_where_it_is_when_waiting_was_not_enough(example: GuildMember) -> None:
    ran = run("member", "stop", "example", "--wait", "0")

    assert ran.out == "example is still connected\n"
    assert ran.exit_code == 1


@pytest.mark.usefixtures("runtime")
def test_member_changes_nothing_when_one_of_the_names_is_unknown(example: GuildMember) -> None:
    ran = run("member", "stop", "example", "nobody")

    assert "no member 'nobody' is in the roster" in str(ran.failure)
    example.refresh_from_db()
    assert example.desired_state == "running"


def test_member_does_what_it_can_and_fails_for_the_rest(example: GuildMember) -> None:
    GuildMember.objects.create(name="off", directory="off", enabled=False)

    ran = run("member", "restart", "off", "example")

    assert "member 'off' is disabled; enable it first" in ran.err
    assert ran.out == "Noted for the next runtime: restart example.\n"
    assert str(ran.failure) == "restart did not succeed for off"


def test_a_disabled_member_is_not_started_but_enabled(example: GuildMember) -> None:
    run("member", "disable", "example")
    assert "is disabled; enable it first" in run("member", "start", "example").err

    run("member", "enable", "example")
    example.refresh_from_db()
    assert example.enabled


BEFORE, AFTER = timedelta(seconds=-1), timedelta(seconds=1)


@pytest.mark.parametrize(
    ("verb", "status", "changed", "columns", "expected"),
    [
        ("start", "connected", BEFORE, {}, True),
        ("start", "error", BEFORE, {}, None),  # the error it is to be brought out of
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
def test_a_request_is_fulfilled_when_the_row_shows_it(
    verb: str, status: str, changed: timedelta, columns: dict[str, Any], expected: bool | None
) -> None:
    asked_at = timezone.now()
    member = GuildMember(name="example", status=status, status_changed_at=asked_at + changed, **columns)

    assert is_fulfilled(verb, member, asked_at) is expected


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
def test_logs_prints_the_last_lines_without_what_a_terminal_would_obey() -> None:
    assert run("logs", "example", "-n", "2").out == "two\n\N{REPLACEMENT CHARACTER}[31mthree\n"


def test_logs_of_a_silent_member_says_that_on_stderr(example: GuildMember) -> None:
    assert run("logs", "example") == Ran("", "example has written nothing yet.\n")


def test_logs_of_nobody_is_a_failure() -> None:
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

    assert run("logs", "example", "-f", "-n", "1") == Ran("\N{REPLACEMENT CHARACTER}[31mthree\nfour\n", "")


# Upkeep -----------------------------------------------------------------------------------------------------------


def test_sync_roster_reports_what_changed_and_which_folders_are_faulty(tmp_path: Path, settings: Any) -> None:
    settings.GUILD_HALL_MEMBERS_DIR = tmp_path
    good = {"name": "good", "version": "1.0.0", "transport": "http", "command": "true", "args": ["${PORT}"]}
    for name, text in [("good", json.dumps(good)), ("bad", "{")]:
        (tmp_path / name).mkdir()
        (tmp_path / name / "guild-member.json").write_text(text)

    ran = run("sync_roster")

    assert ran.out.startswith("Roster synced with the members folder: 2 added: good, bad")
    assert ran.err.startswith("bad cannot be used: ")
    assert set(members_of_roster().values_list("name", flat=True)) == {"good", "bad"}


def test_create_token_prints_the_token_alone_on_the_last_line() -> None:
    alice = User.objects.create_user("alice")

    token = run("create_token", "alice", "--name", "laptop").out.splitlines()[-1]

    assert Token.objects.get(digest=Token.digest_of(token), user=alice).name == "laptop"


def test_create_token_for_nobody_for_the_inactive_or_with_an_endless_name_is_a_failure() -> None:
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


def test_create_token_for_what_is_not_there_is_a_failure() -> None:
    User.objects.create_user("alice")
    assert "no member 'nobody'" in str(run("create_token", "alice", "--members", "nobody").failure)
    assert not Token.objects.exists()


# Who may do what --------------------------------------------------------------------------------------------------


@pytest.fixture
def bob() -> User:
    user = User.objects.create_user("bob")
    user.user_permissions.add(Permission.objects.get(codename="invoke_tool"))
    return user


def explained(*words: str) -> tuple[int, str]:
    """Exit code and text."""
    out = io.StringIO()
    try:
        call_command("explain_access", *words, stdout=out)
    except SystemExit as end:
        return int(str(end.code)), out.getvalue()
    return 0, out.getvalue()


@pytest.mark.parametrize("name", ["example/echo", "example__echo"])
def test_explain_access_says_yes_with_the_reasons(echo: Tool, bob: User, name: str) -> None:
    code, text = explained("bob", name)
    assert code == 0
    assert text.startswith("allowed: example/echo\n- user 'bob' has the permission roster.invoke_tool\n")


def test_explain_access_says_no_with_every_reason(echo: Tool, bob: User) -> None:
    run("reserve", "example", "--groups", Group.objects.create(name="writers").name)
    run("tool", "disable", "example", "echo")
    code, text = explained("bob", "example/echo")
    assert code == 1
    assert text.splitlines() == [
        "not allowed: example/echo",
        "- member 'example' is reserved for groups, and user 'bob' is in none of them",
        "- tool 'echo' of member 'example' is disabled",
    ]


def test_explain_access_of_a_token_looks_at_its_scope_and_its_end(echo: Tool, bob: User) -> None:
    row, token = Token.make(user=bob, name="laptop", scope=Token.Scope.TOOLS, tools=[])
    for hint in (row.hint, "laptop", token):
        code, text = explained("bob", "example/echo", "--token", hint)
        assert code == 1
        assert "is for these tools alone: none that is left" in text
    row.revoke()
    assert "was revoked" in explained("bob", "example/echo", "--token", "laptop")[1]
    assert "no token of theirs" in str(run("explain_access", "bob", "example/echo", "--token", "gh_other").failure)


def test_explain_access_as_json_is_for_programs(echo: Tool, bob: User) -> None:
    code, text = explained("bob", "example/echo", "--json")
    assert code == 0
    facts = json.loads(text)
    assert (facts["member"], facts["tool"], facts["allowed"]) == ("example", "echo", True)


def test_explain_access_of_nobody_or_nothing_is_a_failure(echo: Tool, bob: User) -> None:
    assert "no user 'nobody'" in str(run("explain_access", "nobody", "example/echo").failure)
    assert "no tool is named 'fly'" in str(run("explain_access", "bob", "fly").failure)


def test_invoke_as_a_user_is_decided_as_for_that_user(echo: Tool, bob: User) -> None:
    assert run("invoke", "example", "echo", '{"text": "hi"}', "--no-wait", "--user", "bob").exit_code == 0
    assert Call.objects.get().requested_by == bob
    bob.user_permissions.clear()
    refused = run("invoke", "example", "echo", '{"text": "hi"}', "--no-wait", "--user", "bob")
    assert "roster.invoke_tool" in str(refused.failure)
    assert "no user 'nobody'" in str(run("invoke", "example", "echo", "--user", "nobody").failure)
    assert Call.objects.count() == 1


def test_reserve_names_the_groups_and_opens_again(example: GuildMember) -> None:
    Group.objects.create(name="writers")
    assert run("reserve", "example", "--groups", "writers").out == "example is reserved for writers.\n"
    assert [group.name for group in example.groups.all()] == ["writers"]
    assert "no group readers" in str(run("reserve", "example", "--groups", "writers,readers").failure)
    assert "open to everybody" in run("reserve", "example", "--everybody").out
    assert not example.groups.exists()
    assert "no member 'nobody'" in str(run("reserve", "nobody", "--everybody").failure)


# What agents' clients want ----------------------------------------------------------------------------------------


def test_agent_config_prints_the_configuration_alone_and_the_rest_on_stderr(echo: Tool) -> None:
    alice = User.objects.create_superuser("alice")
    ran = run("agent_config", "--for", "claude-code", "--members", "example", "--expires", "1d")
    header = json.loads(ran.out)["mcpServers"]["guild-hall"]["headers"]["Authorization"]
    row = Token.objects.get(digest=Token.digest_of(header.removeprefix("Bearer ")))
    assert (row.user, row.name, row.scope) == (alice, "claude-code", "members")
    assert row.expires_at is not None
    for said in (".mcp.json", "example  1", "in all   1", "an estimate"):
        assert said in ran.err


def test_agent_config_direct_makes_no_token(echo: Tool, runtime: None) -> None:
    User.objects.create_superuser("alice")
    ran = run("agent_config", "--for", "codex", "--direct")
    assert ran.out == '[mcp_servers.example]\nurl = "http://localhost:20000/mcp"\n'
    assert not Token.objects.exists()


def test_agent_config_for_nobody_or_nothing_is_a_failure(echo: Tool, bob: User) -> None:
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


def test_the_first_start_writes_a_token_for_its_owner_alone_and_says_where(local_token: Path) -> None:
    said = prepare()
    token = local_token.read_text().strip()
    assert principals.principal_of_token(token).name == "admin"
    assert local_token.stat().st_mode & 0o777 == 0o600
    assert str(local_token) in said
    assert token not in said
    assert [path.name for path in local_token.parent.glob("local-token*")] == ["local-token"]


def test_a_later_start_leaves_a_good_token_as_it_is(local_token: Path) -> None:
    prepare()
    token = local_token.read_text()
    assert str(local_token) not in prepare()
    assert local_token.read_text() == token
    assert Token.objects.count() == 1


SPOILT: dict[str, Callable[[Path], Any]] = {
    "gone": lambda path: path.unlink(),
    "revoked": lambda path: Token.objects.get().revoke(),
    "unknown": lambda path: Token.objects.all().delete(),
    "no text": lambda path: path.write_bytes(b"\xff\xfe"),
}


@pytest.mark.parametrize("spoil", SPOILT.values(), ids=SPOILT.keys())
def test_a_token_that_opens_nothing_is_made_anew(local_token: Path, spoil: Callable[[Path], Any]) -> None:
    prepare()
    before = local_token.read_bytes()
    spoil(local_token)
    assert str(local_token) in prepare()
    assert local_token.read_bytes() != before
    assert principals.principal_of_token(local_token.read_text().strip()).name == "admin"


def test_prune_calls_keeps_the_young_the_newest_and_the_unfinished(example: GuildMember) -> None:
    def call(status: str, *, days_old: int = 0) -> Call:
        ended = timezone.now() - timedelta(days=days_old)
        return Call.objects.create(
            member=example, tool_name="echo", timeout=30, source="rest", status=status, finished_at=ended
        )

    call("succeeded", days_old=40)
    call("succeeded")
    kept = [call("queued", days_old=40), call("failed"), call("succeeded")]

    assert run("prune_calls", "--keep", "2").out == "Pruned 2 finished calls.\n"
    assert sorted(Call.objects.values_list("pk", flat=True)) == [row.pk for row in kept]


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
def test_nonsense_on_the_command_line_is_refused_before_anything_is_done(words: list[str]) -> None:
    assert run(*words).exit_code == 1
