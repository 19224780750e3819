"""`guildhall agent`: its refusals before anything is queued. Real agents are in tests/system/test_agents.py."""

from __future__ import annotations

import io

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import connection

from mcp_runtime.calls.transitions import Requester
from mcp_runtime.control.agents import create_agent
from mcp_runtime.rows import lease
from roster.management.commands import agent as agent_command
from roster.models import Agent, AgentMessage, Call, GuildMember, Node
from tests.support.leases import add_node

pytestmark = pytest.mark.django_db


@pytest.fixture
def members() -> None:
    for name in ("anna", "bert"):
        GuildMember.objects.create(name=name, directory=name)


def refusal_text(*argv: str) -> str:
    with pytest.raises(CommandError) as error:
        call_command("agent", *argv)
    assert not AgentMessage.objects.exists()
    assert not Agent.objects.filter(name__startswith="anna-").exists()
    return str(error.value)


def test_without_a_runtime_the_command_fails_at_once(members: None) -> None:
    assert "No runtime is alive" in refusal_text("hello", "--members", "anna")


def test_invalid_arguments_are_refused_with_the_reason(members: None) -> None:
    lease.take()
    assert "--members NAME,NAME" in refusal_text("hello")
    assert "no member 'carl'" in refusal_text("hello", "--members", "anna,carl")
    assert "needs a prompt" in refusal_text(" ", "--members", "anna")
    assert "no name for an agent" in refusal_text("hello", "--members", "anna", "--name", "a/b")
    assert "--members NAME,NAME" in refusal_text("hello", "--name", "unknown")


def test_an_agent_cannot_get_other_members(members: None) -> None:
    lease.take()
    create_agent(["anna"], requester=Requester(Call.Source.COMMAND), name="talk")
    assert "agent 'talk' has other members" in refusal_text("hello", "--name", "talk", "--members", "anna,bert")


def test_a_message_that_cannot_run_leaves_no_row(members: None) -> None:
    lease.take()
    Node.objects.update(agent_problem="there is no key")
    assert "no agent can run: there is no key" in refusal_text("hello", "--members", "anna")
    assert not Agent.objects.exists()


@pytest.mark.skipif(connection.vendor == "sqlite", reason="a hall on SQLite has one node")
def test_the_command_says_that_the_message_waits_for_the_node_of_the_conversation(
    members: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease.take()
    create_agent(["anna"], requester=Requester(Call.Source.COMMAND), name="talk")
    Agent.objects.update(node=add_node("b", is_alive=False))
    monkeypatch.setattr(agent_command, "is_under_way", lambda *_, **__: False)  # it would wait for the node
    errors = io.StringIO()
    call_command("agent", "go on", "--name", "talk", stderr=errors)
    assert errors.getvalue().startswith("The message waits for node 'b', which has the files of the conversation.")
