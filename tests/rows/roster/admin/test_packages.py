"""The button on a member's page that locks its packages again."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from mcp_runtime.members.manifest.parser import parse
from roster.models import Agent, AgentMessage, AuditEntry, GuildMember, PackageLock
from tests.support.admin import allow, html, make_member, messages_of, page_of

pytestmark = pytest.mark.django_db

NPX: dict[str, Any] = {"command": "npx", "args": ["-y", "pocket-mcp"], "transport": "stdio", "packages": "locked"}


@pytest.fixture
def pocket() -> GuildMember:
    """A member whose packages are locked."""
    manifest = parse({"name": "pocket", "version": "1", **NPX})[0].as_json()
    member = make_member("pocket", manifest=manifest)
    specification = "npm pocket-mcp"
    key = PackageLock.key_of(specification)
    PackageLock.objects.create(
        member=member, specification=specification, key=key, text="{}", digest="ab" * 32, version="1.2.3", count=7
    )
    return member


def address(member: GuildMember) -> str:
    return reverse("admin:roster_guildmember_relock", args=[member.pk])


def busy_agent(member: GuildMember, user: User) -> None:
    """An agent that works with the member."""
    agent = Agent.objects.create(name="helper", created_by=user)
    agent.members.add(member)
    AgentMessage.objects.create(agent=agent, prompt="go", timeout=5, source="admin", requested_by=user, status="queued")


def test_lock_again_deletes_the_lock_and_restarts_the_member(page: Client, pocket: GuildMember) -> None:
    assert "Lock again" in html(page.get(page_of(pocket)))
    response = page.post(address(pocket), follow=True)
    assert messages_of(response) == ["The lock of pocket is deleted. Its next start makes another one."]
    assert "Lock again" not in html(response)  # without a lock there is nothing to lock again
    pocket.refresh_from_db()
    assert (PackageLock.objects.count(), pocket.restart_requested_at is not None) == (0, True)
    assert AuditEntry.objects.filter(kind="packages_unlocked", actor="alice").count() == 1


def test_lock_again_does_not_start_a_member_that_somebody_stopped(page: Client, pocket: GuildMember) -> None:
    GuildMember.objects.update(desired_state="stopped")
    assert "The member restarts at once." not in html(page.get(page_of(pocket)))
    page.post(address(pocket))
    pocket.refresh_from_db()
    assert (PackageLock.objects.count(), pocket.restart_requested_at) == (0, None)


def test_while_an_agent_uses_the_member_the_button_says_so(page: Client, pocket: GuildMember, alice: User) -> None:
    busy_agent(pocket, alice)
    assert "Lock again, although an agent uses the member" in html(page.get(page_of(pocket)))
    (message,) = messages_of(page.post(address(pocket), follow=True))
    assert message.startswith("Not locked again (1): ")
    assert PackageLock.objects.count() == 1
    page.post(f"{address(pocket)}?force=1")
    assert PackageLock.objects.count() == 0


def test_a_member_without_locked_packages_has_no_button(page: Client, example: GuildMember) -> None:
    assert "Lock again" not in html(page.get(page_of(example)))
    (message,) = messages_of(page.post(address(example), follow=True))
    assert "member 'example' has no lock" in message


def test_only_users_who_may_edit_the_member_lock_again(client: Client, bob: User, pocket: GuildMember) -> None:
    allow(bob, "view_guildmember", "control_member")
    client.force_login(bob)
    assert "Lock again" not in html(client.get(page_of(pocket)))
    assert client.post(address(pocket)).status_code == 403
    assert PackageLock.objects.count() == 1


def test_a_link_locks_nothing_again(page: Client, pocket: GuildMember) -> None:
    assert page.get(address(pocket)).status_code == 405
    assert PackageLock.objects.count() == 1
