"""Characters: alice may do everything, bob may look, control and call, charlie nothing. No runtime is there."""

from __future__ import annotations

from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import Permission, User
from django.test import Client

from mcp_runtime import access, lease
from roster.models import ApiToken, GuildMember, Invocation, Tool

MANIFEST = {
    "name": "example",
    "version": "1.2",
    "command": "python",
    "args": ["server.py", "${PORT}"],
    "env": {"API_KEY": "sesame"},
    "display_name": "An example",
    "description": "Shows how.",
    "enabled": True,
    "start_timeout": 5.0,
    "timeout": 12.0,
    "tool_timeouts": {"slow": 99.0},
    "restart": "on-failure",
    "max_concurrency": 16,
}
ECHO_SCHEMA = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "login": {"type": "object", "properties": {"password": {"type": "string", "format": "password"}}},
    },
    "required": ["text"],
}


@pytest.fixture(autouse=True)
def _no_snapshot_grows_old(monkeypatch: pytest.MonkeyPatch) -> None:
    # Tests count queries: on a machine that is busy two seconds may pass between two lines.
    monkeypatch.setattr(access, "KEPT_SECONDS", 60.0)


@pytest.fixture(autouse=True)
def _static_root() -> None:
    # WhiteNoise warns about a folder that is not there, and here a warning is an error.
    settings.STATIC_ROOT.mkdir(exist_ok=True)


@pytest.fixture
def alice(db: None) -> User:
    return User.objects.create_superuser("alice")


@pytest.fixture
def bob(db: None) -> User:
    user = User.objects.create_user("bob")
    user.user_permissions.set(
        Permission.objects.filter(codename__in=["control_member", "invoke_tool", "view_guildmember", "view_invocation"])
    )
    return user


@pytest.fixture
def charlie(db: None) -> User:
    return User.objects.create_user("charlie")


def client_of(user: User, **scope: Any) -> Client:
    """With a token that was used a moment ago: the first use of one costs some queries more."""
    lease.hall()
    token = ApiToken.make(user=user, **scope)[1]
    access.principal_of_token(token)
    return Client(headers={"Authorization": f"Bearer {token}"})


@pytest.fixture
def as_alice(alice: User) -> Client:
    return client_of(alice)


@pytest.fixture
def as_bob(bob: User) -> Client:
    return client_of(bob)


@pytest.fixture
def as_charlie(charlie: User) -> Client:
    return client_of(charlie)


def add_member(name: str = "example", **values: Any) -> GuildMember:
    manifest = {**MANIFEST, "name": name}
    known = {"manifest": manifest, "display_name": "An example", "version": "1.2", "directory": name}
    return GuildMember.objects.create(name=name, **{**known, **values})


def add_tool(member: GuildMember, name: str, schema: dict[str, Any] | None = None, **values: Any) -> Tool:
    definition = {"name": name, "description": f"Does {name}.", "inputSchema": schema or {"type": "object"}}
    return Tool.objects.create(
        member=member, name=name, position=member.tools.count(), **{"definition": definition, **values}
    )


@pytest.fixture
def example(db: None) -> GuildMember:
    member = add_member()
    add_tool(member, "echo", ECHO_SCHEMA)
    return member


@pytest.fixture
def live_runtime(db: None) -> None:
    """This very process holds the lease."""
    lease.take()


def add_call(member: GuildMember, tool: str = "echo", **values: Any) -> Invocation:
    known = {"timeout": 30.0, "door": Invocation.Door.REST, "requester": "alice"}
    return Invocation.objects.create(member=member, tool_name=tool, **{**known, **values})
