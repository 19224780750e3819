"""The admin's screen of agents' sessions."""

from __future__ import annotations

import html
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.urls import reverse

from mcp_runtime import control, lease, sessions
from mcp_runtime.invocations import Caller
from mcp_runtime.sessions import Outcome
from roster.models import AgentMessage, AgentSession, GuildMember, Invocation

pytestmark = pytest.mark.django_db

EVIL = "<script>alert('x')</script>"


@pytest.fixture(autouse=True)
def _static_root() -> None:
    settings.STATIC_ROOT.mkdir(exist_ok=True)


@pytest.fixture
def bob() -> User:
    """May call tools, and see sessions of others."""
    user = User.objects.create_user("bob", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=["invoke_tool", "view_agentsession"]))
    return user


@pytest.fixture
def page(bob: User) -> Client:
    client = Client()
    client.force_login(bob)
    return client


@pytest.fixture
def talk(bob: User) -> AgentSession:
    lease.take()
    GuildMember.objects.create(name="anna", directory="anna")
    return control.create_session(["anna"], caller=Caller(Invocation.Door.ADMIN, bob), name="talk")


def url_of(talk: AgentSession, verb: str = "change") -> str:
    return reverse(f"admin:roster_agentsession_{verb}", args=[talk.pk])


def shown(response: Any) -> str:
    assert response.status_code == 200
    return html.unescape(response.content.decode())


def test_a_prompt_is_sent_and_the_page_shows_what_came_of_it(page: Client, talk: AgentSession) -> None:
    response = page.post(url_of(talk, "send"), {"prompt": f"look {EVIL}"})
    assert response.status_code == 302
    message = AgentMessage.objects.get()
    assert (message.prompt, message.door, message.requester) == (f"look {EVIL}", "admin", "bob")
    assert "Stop the agent" in shown(page.get(url_of(talk)))
    lease_id = lease.hall().lease_id
    assert lease_id
    sessions.claim(message, lease_id)
    result = {"id": "t", "content": [{"type": "text", "text": EVIL}], "is_error": True}
    call = {"id": "t", "server": "anna", "tool": "echo", "arguments": {"a": 1}}
    missing = {"servers": [{"name": "anna", "status": "failed", "error": "refused"}]}
    sessions.write_events(
        message, [("servers", missing), ("text", {"text": "hm"}), ("tool_call", call), ("tool_result", result)]
    )
    sessions.finish(message, Outcome.failed(sessions.ErrorKind.AGENT, "it broke"), lease_id)
    content = page.get(url_of(talk)).content.decode()
    assert EVIL not in content
    text = html.unescape(content)
    for line in ("! anna is failed: refused", "hm", "→ anna echo {'a': 1}", f"✗ {EVIL}", "(failed: it broke)"):
        assert line in text
    assert "Say to the agent" in text
    listed = shown(page.get(reverse("admin:roster_agentsession_changelist")))
    assert "talk" in listed
    assert "anna" in listed


def test_stop_stops(page: Client, talk: AgentSession) -> None:
    page.post(url_of(talk, "send"), {"prompt": "look"})
    page.post(url_of(talk, "stop"))
    assert AgentMessage.objects.get().status == "cancelled"


def test_a_refused_prompt_says_why(page: Client, talk: AgentSession) -> None:
    text = shown(page.post(url_of(talk, "send"), {"prompt": " "}, follow=True))
    assert "Not sent: a message needs a prompt" in text


def test_nobody_speaks_in_a_session_of_others(page: Client, talk: AgentSession) -> None:
    AgentSession.objects.update(created_by=User.objects.create_user("carol"))
    assert "Say to the agent" not in shown(page.get(url_of(talk)))
    assert page.post(url_of(talk, "send"), {"prompt": "look"}).status_code == 403
    assert page.post(url_of(talk, "stop")).status_code == 403
    assert not AgentMessage.objects.exists()
