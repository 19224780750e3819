"""From a message to an agent, and the reasons not to start one. No agent runs here. Real agents run in tests/system."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User

from mcp_runtime.agents import setup, transitions
from mcp_runtime.agents.process import AgentProcess
from mcp_runtime.agents.runner import AgentRunner
from mcp_runtime.agents.transcript import Transcript
from mcp_runtime.calls.transitions import Requester
from mcp_runtime.control.agents import create_agent, queue_message
from mcp_runtime.protocol import mcp
from mcp_runtime.rows import lease
from roster.models import AgentEvent, AgentMessage, Call, GuildMember, Tool
from tests.conftest import eventually

pytestmark = pytest.mark.django_db(transaction=True)


SCHEMA_WITH_SECRET = {"type": "object", "properties": {"pass phrase": {"type": "string", "format": "password"}}}


@pytest.mark.parametrize("direct", [True, False])
def test_secret_arguments_are_not_in_the_transcript(direct: bool) -> None:
    anna = GuildMember.objects.create(name="anna", directory="anna", status="connected")
    for name, schema in (("log in", SCHEMA_WITH_SECRET), ("echo", {"type": "object"})):
        Tool.objects.create(member=anna, name=name, definition={"name": name, "inputSchema": schema})
    server, tool = ("anna", "log_in") if direct else ("guild-hall", mcp.qualified_name("anna", "log in"))
    requester = Requester(Call.Source.COMMAND)
    agent = create_agent(["anna"], requester=requester, direct=direct)
    transcript = Transcript(transitions.queue(agent, "hello", timeout=30, requester=requester))

    def recorded_arguments(tool: str, arguments: Any) -> Any:
        transcript.add("tool_call", {"id": "1", "server": server, "tool": tool, "arguments": arguments})
        transcript.write_due(is_last=True)
        return AgentEvent.objects.latest("id").data["arguments"]

    assert recorded_arguments(tool, {"pass phrase": "sesame", "user": "ali"}) == {
        "pass phrase": "********",
        "user": "ali",
    }
    assert recorded_arguments(tool, [{"type": "text", "text": '{"pass phrase": "ses…'}]) == "********"
    echo = "echo" if direct else "anna__echo"
    assert recorded_arguments(echo, {"pass phrase": "sesame"}) == {"pass phrase": "sesame"}
    # A tool that is listed while the agent works, and whose mark is removed before the call is recorded.
    Tool.objects.create(member=anna, name="late", definition={"name": "late", "inputSchema": SCHEMA_WITH_SECRET})
    late = "late" if direct else "anna__late"
    assert recorded_arguments(late, {"pass phrase": "sesame"}) == {"pass phrase": "********"}
    Tool.objects.filter(name="late").update(definition={"name": "late", "inputSchema": {"type": "object"}})
    assert recorded_arguments(late, {"pass phrase": "sesame"}) == {"pass phrase": "********"}
    transcript.add("text", {"text": "sesame"})
    transcript.write_due(is_last=True)
    assert AgentEvent.objects.latest("id").data == {"text": "sesame"}


@pytest.mark.parametrize("direct", [False, True])
def test_no_agent_is_started_for_a_user_who_lost_the_permission(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, direct: bool
) -> None:
    monkeypatch.setattr(setup, "problem", lambda environment: "")
    spawns: list[object] = []
    monkeypatch.setattr(AgentProcess, "spawn", lambda *args, **options: spawns.append(args))
    GuildMember.objects.create(name="anna", directory="anna", status="connected")
    bob = User.objects.create_user("bob")
    bob.user_permissions.add(Permission.objects.get(codename="invoke_tool"))
    requester, lease_id = Requester(Call.Source.REST, bob), lease.take()
    GuildMember.objects.update(lease_id=lease_id)
    agent = create_agent(["anna"], requester=requester, direct=direct)
    message = queue_message(agent, "hello", requester=requester)
    bob.user_permissions.clear()
    runner = AgentRunner(
        lease_id=lease_id,
        tag_prefix="m",
        directory=tmp_path,
        concurrency=1,
        gateway_address="127.0.0.1:1",
        has_broker=False,
    )
    runner.turn()
    eventually(lambda: AgentMessage.objects.get().is_finished)
    message.refresh_from_db()
    assert (message.status, message.error_kind, spawns) == ("failed", "unavailable", [])
    assert "permission roster.invoke_tool" in message.error_message


def test_agents_of_one_token_leave_a_slot_to_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    GuildMember.objects.create(name="anna", directory="anna", status="connected")
    bob, eve = (User.objects.create_superuser(name) for name in ("bob", "eve"))
    may_end = threading.Event()

    def problem(environment: object) -> str:
        """The first function of every run."""
        if threading.current_thread() is not threading.main_thread():
            may_end.wait(30)
        return "no agent is here"

    def requesters_by_status(status: str) -> list[str]:
        return sorted(AgentMessage.objects.filter(status=status).values_list("requester", flat=True))

    monkeypatch.setattr(setup, "problem", problem)
    for user in (*[bob] * 6, eve):
        requester = Requester(Call.Source.REST, user)
        transitions.queue(create_agent(["anna"], requester=requester), "hello", timeout=30, requester=requester)
    runner = AgentRunner(
        lease_id=lease.take(),
        tag_prefix="m",
        directory=tmp_path,
        concurrency=4,
        gateway_address="127.0.0.1:1",
        has_broker=False,
    )
    runner.turn()
    assert requesters_by_status("running") == ["bob", "bob", "bob", "eve"]
    may_end.set()
    eventually(lambda: (runner.turn(), len(requesters_by_status("failed")) == 7)[1])
