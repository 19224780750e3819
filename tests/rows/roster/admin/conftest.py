"""Users of the admin, and a hall with one member."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.conf import settings
from django.contrib.auth.models import Group, User
from django.test import Client
from django.utils import timezone

from mcp_runtime.control.members import reserve_member
from mcp_runtime.rows import lease
from roster.models import GuildMember, PortAllocation, Tool
from tests.support.admin import make_member, make_tool


@pytest.fixture(autouse=True)
def _static_root() -> None:
    # WhiteNoise warns about a missing folder, and here a warning is an error.
    settings.STATIC_ROOT.mkdir(exist_ok=True)


@pytest.fixture
def alice() -> User:
    """A user with all permissions."""
    return User.objects.create_superuser("alice")


@pytest.fixture
def bob() -> User:
    """A user who may only log in to the admin."""
    return User.objects.create_user("bob", is_staff=True)


@pytest.fixture
def page(client: Client, alice: User) -> Client:
    """A browser where alice is logged in."""
    client.force_login(alice)
    return client


@pytest.fixture
def runtime() -> Iterator[None]:
    """As if a runtime were live."""
    lease_id = lease.take()
    yield
    lease.release(lease_id)


@pytest.fixture
def example() -> GuildMember:
    member = make_member("example", display_name="The Example", status="connected", pid=4242, started_at=timezone.now())
    PortAllocation.objects.create(port=20000, member=member)
    return member


@pytest.fixture
def echo(example: GuildMember) -> Tool:
    return make_tool(example)


@pytest.fixture
def writers(example: GuildMember) -> Group:
    group = Group.objects.create(name="writers")
    reserve_member(example, [group])
    return group
