from __future__ import annotations

import pytest
from django.contrib.auth.models import User

from roster.models import GuildMember, Hall, Tool, ToolSet
from tests.support.sign_in import SigningIn


@pytest.fixture
def boss() -> User:
    """A superuser. The hall has the members `notes` and `other` with the tool `echo` each, and a tool set."""
    Hall.objects.create()
    for name in ("notes", "other"):
        member = GuildMember.objects.create(name=name, directory=name, status="connected")
        Tool.objects.create(member=member, name="echo", position=0, definition={"name": "echo"})
    ToolSet.objects.create(name="writing").entries.create(member=GuildMember.objects.get(name="notes"))
    return User.objects.create_superuser("boss", password="x")


@pytest.fixture
def client_of_boss(boss: User) -> SigningIn:
    """A registered client, and the browser of `boss`."""
    client = SigningIn(boss)
    assert client.register().status_code == 201
    return client
