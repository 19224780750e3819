"""A user who may view calls, and a member with a tool."""

from __future__ import annotations

import pytest
from django.conf import settings
from django.contrib.auth.models import Permission, User
from django.test import Client

from mcp_runtime.rows import lease
from roster.models import GuildMember, Tool


@pytest.fixture(autouse=True)
def _static_root() -> None:
    # WhiteNoise warns about a missing folder, and here a warning is an error.
    settings.STATIC_ROOT.mkdir(exist_ok=True)
    lease.hall()


@pytest.fixture
def bob(client: Client) -> User:
    """A user who may only view calls."""
    user = User.objects.create_user("bob", is_staff=True)
    user.user_permissions.add(Permission.objects.get(codename="view_call"))
    client.force_login(user)
    return user


@pytest.fixture
def anna() -> GuildMember:
    return GuildMember.objects.create(name="anna", directory="anna", manifest={})


@pytest.fixture
def echo(anna: GuildMember) -> Tool:
    schema = {"type": "object", "properties": {"text": {"type": "string"}}}
    return Tool.objects.create(member=anna, name="echo", definition={"name": "echo", "inputSchema": schema})
