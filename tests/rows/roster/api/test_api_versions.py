from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from mcp_runtime.members.manifest.parser import parse
from roster.models import Agent, AgentMessage, GuildMember, PackageLock, VersionLookUp
from tests.support.admin import allow
from tests.support.api import client_of

pytestmark = pytest.mark.django_db

ADDRESS = "/api/members/pocket/newest-version/"
MANIFEST: dict[str, Any] = {
    **{"name": "pocket", "version": "1.0.0", "transport": "stdio", "command": "uvx"},
    **{"args": ["pocket-mcp==1.0.0"], "env": {}},
}


@pytest.fixture
def admin() -> Client:
    return client_of(User.objects.create_superuser("root"))


@pytest.fixture(autouse=True)
def pocket() -> GuildMember:
    return GuildMember.objects.create(name="pocket", directory="pocket", manifest=MANIFEST)


def test_the_newest_version_is_asked_for_and_proposed(admin: Client) -> None:
    assert admin.get(ADDRESS).json() == {
        **{"package": "pocket-mcp", "version": "1.0.0", "is_asked": False, "newest": "", "is_newer": False},
        **{"fault": "", "answered_at": None},
    }
    response = admin.post(ADDRESS)
    assert (response.status_code, response.json()["is_asked"]) == (202, True)
    assert admin.post(f"{ADDRESS}edit/").status_code == 409
    VersionLookUp.objects.update(answered_at=timezone.now(), version="1.1.0")
    assert admin.get(ADDRESS).json()["is_newer"]
    response = admin.post(f"{ADDRESS}edit/")
    assert response.status_code == 201
    assert {change["key"]: change["after"] for change in response.json()["changes"]} == {
        **{"args": ["pocket-mcp==1.1.0"], "version": "1.1.0"},
    }


def test_a_member_without_a_package_has_none(admin: Client) -> None:
    GuildMember.objects.update(manifest={**MANIFEST, "command": "python3"})
    for response in (admin.get(ADDRESS), admin.post(ADDRESS), admin.post(f"{ADDRESS}edit/")):
        assert (response.status_code, response.json()["code"]) == (409, "refused")


def test_only_who_may_edit_members_asks() -> None:
    bob = User.objects.create_user("bob")
    allow(bob, "view_guildmember", "control_member")
    client = client_of(bob)
    for response in (client.get(ADDRESS), client.post(ADDRESS), client.post(f"{ADDRESS}edit/")):
        assert response.status_code == 403
    assert VersionLookUp.objects.count() == 0


def test_the_packages_are_locked_again(admin: Client, pocket: GuildMember) -> None:
    refusal = admin.post("/api/members/pocket/relock/")
    assert (refusal.status_code, refusal.json()["code"]) == (409, "refused")
    GuildMember.objects.update(manifest=parse({**MANIFEST, "packages": "locked"})[0].as_json())
    specification = "pypi pocket-mcp==1.0.0"
    key = PackageLock.key_of(specification)
    PackageLock.objects.create(
        member=pocket, specification=specification, key=key, text="{}", digest="ab" * 32, count=1
    )
    assert admin.get("/api/members/pocket/").json()["packages"]["sha256"] == "ab" * 32
    response = admin.post("/api/members/pocket/relock/")
    assert (response.status_code, response.json()["packages"]["sha256"]) == (202, "")
    pocket.refresh_from_db()
    assert (PackageLock.objects.count(), pocket.restart_requested_at is not None) == (0, True)


def test_packages_are_not_locked_again_under_an_agent_without_force(admin: Client, pocket: GuildMember) -> None:
    GuildMember.objects.update(manifest=parse({**MANIFEST, "packages": "locked"})[0].as_json())
    agent = Agent.objects.create(name="helper")
    agent.members.add(pocket)
    AgentMessage.objects.create(agent=agent, prompt="go", timeout=5, source="rest", status="running")
    assert admin.post("/api/members/pocket/relock/").status_code == 409
    assert admin.post("/api/members/pocket/relock/?force=true").status_code == 202


def test_only_who_may_edit_members_locks_packages_again() -> None:
    bob = User.objects.create_user("bob")
    allow(bob, "view_guildmember", "control_member")
    assert client_of(bob).post("/api/members/pocket/relock/").status_code == 403
