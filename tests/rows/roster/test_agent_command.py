"""`manage.py agent`: what it refuses before anything is queued. Real agents: tests/system/test_agents.py."""

from __future__ import annotations

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError

from mcp_runtime.calls.transitions import Caller
from mcp_runtime.control.agents import create_agent
from mcp_runtime.rows import lease
from roster.models import Agent, AgentMessage, Call, GuildMember, Hall

pytestmark = pytest.mark.django_db


@pytest.fixture
def members() -> None:
    for name in ("anna", "bert"):
        GuildMember.objects.create(name=name, directory=name)


def refusal(*argv: str) -> str:
    with pytest.raises(CommandError) as refused:
        call_command("agent", *argv)
    assert not AgentMessage.objects.exists()
    assert not Agent.objects.filter(name__startswith="anna-").exists()
    return str(refused.value)


def test_without_a_runtime_it_waits_for_nobody(members: None) -> None:
    assert "No runtime is alive" in refusal("hello", "--members", "anna")


def test_what_cannot_be_asked_is_said(members: None) -> None:
    lease.take()
    assert "--members NAME,NAME" in refusal("hello")
    assert "no member 'carl'" in refusal("hello", "--members", "anna,carl")
    assert "needs a prompt" in refusal(" ", "--members", "anna")
    assert "no name for an agent" in refusal("hello", "--members", "anna", "--name", "a/b")
    assert "--members NAME,NAME" in refusal("hello", "--name", "unknown")


def test_an_agent_keeps_its_members(members: None) -> None:
    lease.take()
    create_agent(["anna"], caller=Caller(Call.Source.COMMAND), name="talk")
    assert "agent 'talk' has other members" in refusal("hello", "--name", "talk", "--members", "anna,bert")


def test_where_no_agent_can_run_no_row_is_left_behind(members: None) -> None:
    lease.take()
    Hall.objects.update(agent_problem="there is no key")
    assert "no agent can run: there is no key" in refusal("hello", "--members", "anna")
    assert not Agent.objects.exists()
