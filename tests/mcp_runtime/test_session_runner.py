"""From a message to an agent: what keeps one from being started. No agent runs here; tests/end_to_end has real ones."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User

from mcp_runtime import agent_setup, control, lease, protocol, session_runner, sessions
from mcp_runtime.agent import AgentProcess
from mcp_runtime.invocations import Caller
from mcp_runtime.session_runner import Run, SessionRunner
from mcp_runtime.sessions import Outcome
from roster.models import AgentMessage, GuildMember, Invocation, Tool
from tests.conftest import eventually

pytestmark = pytest.mark.django_db(transaction=True)


SECRETIVE = {"type": "object", "properties": {"pass phrase": {"type": "string", "format": "password"}}}


@pytest.mark.parametrize("direct", [True, False])
def test_what_a_schema_marks_as_a_secret_is_not_in_the_transcript(direct: bool) -> None:
    anna = GuildMember.objects.create(name="anna", directory="anna", status="connected")
    for name, schema in (("log in", SECRETIVE), ("echo", {"type": "object"})):
        Tool.objects.create(member=anna, name=name, definition={"name": name, "inputSchema": schema})
    server, tool = ("anna", "log_in") if direct else ("guild-hall", protocol.qualified_name("anna", "log in"))
    caller = Caller(Invocation.Door.COMMAND)
    session = control.create_session(["anna"], caller=caller, direct=direct)
    run = Run(sessions.queue(session, "hello", timeout=30, caller=caller), 0.0)

    def kept(tool: str, arguments: Any) -> Any:
        data = {"id": "1", "server": server, "tool": tool, "arguments": arguments}
        return session_runner._without_secrets(run, {"kind": "tool_call", "data": data})["arguments"]

    assert kept(tool, {"pass phrase": "sesame", "user": "ali"}) == {"pass phrase": "********", "user": "ali"}
    assert kept(tool, [{"type": "text", "text": '{"pass phrase": "ses…'}]) == "********"
    echo = "echo" if direct else "anna__echo"
    assert kept(echo, {"pass phrase": "sesame"}) == {"pass phrase": "sesame"}
    said = {"text": "sesame"}
    assert session_runner._without_secrets(run, {"kind": "text", "data": said}) is said


@pytest.mark.parametrize("direct", [False, True])
def test_no_agent_is_started_for_who_may_not_use_the_members_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, direct: bool
) -> None:
    monkeypatch.setattr(agent_setup, "problem", lambda environment: "")
    monkeypatch.setattr(AgentProcess, "spawn", lambda *args, **options: pytest.fail("an agent was started"))
    GuildMember.objects.create(name="anna", directory="anna", status="connected")
    bob = User.objects.create_user("bob")
    bob.user_permissions.add(Permission.objects.get(codename="invoke_tool"))
    caller, lease_id = Caller(Invocation.Door.REST, bob), lease.take()
    session = control.create_session(["anna"], caller=caller, direct=direct)
    message = control.queue_message(session, "hello", caller=caller)
    bob.user_permissions.clear()
    runner = SessionRunner(
        lease_id=lease_id, mark="m", directory=tmp_path, concurrency=1, gateway_port=1, has_broker=False
    )
    outcome = runner._outcome(Run(type(message).objects.get(pk=message.pk), time.monotonic() + 30))
    assert (outcome.status, outcome.error_kind) == ("failed", "unavailable")
    assert "permission roster.invoke_tool" in outcome.error_message


def test_agents_of_one_token_leave_a_slot_to_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    GuildMember.objects.create(name="anna", directory="anna", status="connected")
    bob, eve = (User.objects.create_superuser(name) for name in ("bob", "eve"))
    may_end = threading.Event()

    def work(runner: SessionRunner, run: Run) -> Outcome:
        may_end.wait(30)
        return Outcome(AgentMessage.Status.CANCELLED)

    def who_is(status: str) -> list[str]:
        return sorted(AgentMessage.objects.filter(status=status).values_list("requester", flat=True))

    monkeypatch.setattr(SessionRunner, "_outcome", work)
    for user in (*[bob] * 6, eve):
        caller = Caller(Invocation.Door.REST, user)
        sessions.queue(control.create_session(["anna"], caller=caller), "hello", timeout=30, caller=caller)
    runner = SessionRunner(
        lease_id=lease.take(), mark="m", directory=tmp_path, concurrency=4, gateway_port=1, has_broker=False
    )
    runner.turn()
    assert who_is("running") == ["bob", "bob", "bob", "eve"]
    may_end.set()
    eventually(lambda: not runner._under_way())
    runner.turn()
    eventually(lambda: len(who_is("cancelled")) == 7)
    assert not who_is("queued")
