"""Users: alice has all permissions, bob may view, control and call, charlie has none. No runtime runs."""

from __future__ import annotations

import pytest
from django.conf import settings
from django.contrib.auth.models import Permission, User
from django.test import Client

from mcp_runtime.rows import lease
from roster.models import GuildMember
from tests.support.api import ECHO_SCHEMA, add_member, add_tool, client_of


@pytest.fixture(autouse=True)
def _static_root() -> None:
    # WhiteNoise warns about a missing folder, and here a warning is an error.
    settings.STATIC_ROOT.mkdir(exist_ok=True)


@pytest.fixture
def alice(db: None) -> User:
    return User.objects.create_superuser("alice")


@pytest.fixture
def bob(db: None) -> User:
    user = User.objects.create_user("bob")
    user.user_permissions.set(
        Permission.objects.filter(codename__in=["control_member", "invoke_tool", "view_guildmember", "view_call"])
    )
    return user


@pytest.fixture
def charlie(db: None) -> User:
    return User.objects.create_user("charlie")


@pytest.fixture
def as_alice(alice: User) -> Client:
    return client_of(alice)


@pytest.fixture
def as_bob(bob: User) -> Client:
    return client_of(bob)


@pytest.fixture
def as_charlie(charlie: User) -> Client:
    return client_of(charlie)


@pytest.fixture
def example(db: None) -> GuildMember:
    member = add_member()
    add_tool(member, "echo", ECHO_SCHEMA)
    return member


@pytest.fixture
def live_runtime(db: None) -> None:
    """This process has the lease."""
    lease.take()
