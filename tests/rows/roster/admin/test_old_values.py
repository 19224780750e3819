"""After a new value, the page of a secret lists the members that run with the old one, each with a button."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client
from django.urls import reverse

from mcp_runtime.control import secrets
from mcp_runtime.control.members import reserve_member
from roster.models import GuildMember, PortAllocation, Secret
from tests.support.admin import allow, html, list_of, make_member, messages_of, page_of

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("runtime")]

HEADING = "Members that run with an old value"


@pytest.fixture(autouse=True)
def key_path(settings: Any, tmp_path: Path) -> None:
    settings.GUILD_HALL_SECRETS_KEY_FILE = tmp_path / "secrets-key"


@pytest.fixture
def secret() -> Secret:
    return secrets.set_secret("api-key", "first", by=None)


@pytest.fixture
def notes(secret: Secret) -> GuildMember:
    """A member that runs with the value of the secret."""
    manifest = {"name": "notes", "command": "python", "args": ["server.py"], "env": {"KEY": "${secret:api-key}"}}
    member = make_member("notes", manifest=manifest, status="connected")
    PortAllocation.objects.create(member=member, port=20000)
    return member


def part(secret: Secret) -> str:
    return reverse("admin:roster_secret_old_value", args=[secret.pk])


def restart_of(member: GuildMember) -> str:
    return reverse("admin:roster_guildmember_verb", args=[member.pk, "restart"])


def test_a_new_value_leads_to_the_page_with_the_members_that_run_with_the_old_one(
    page: Client, secret: Secret, notes: GuildMember
) -> None:
    response = page.post(page_of(secret), {"value": "second", "members": [notes.pk]}, follow=True)
    assert response.redirect_chain == [(page_of(secret), 302)]
    (message,) = messages_of(response)
    assert message == "The secret api-key has a new value. Some members run with the old one until they restart."
    text = html(response)
    assert HEADING in text
    assert f'formaction="{restart_of(notes)}"' in text
    page.post(restart_of(notes))
    text = html(page.get(part(secret)))
    assert "Restart requested" in text
    assert restart_of(notes) not in text
    PortAllocation.objects.all().delete()
    PortAllocation.objects.create(member=notes, port=20000)  # it has started again
    assert HEADING not in html(page.get(part(secret)))
    assert HEADING not in html(page.get(page_of(secret)))


def test_without_such_members_saving_leads_to_the_list(page: Client, secret: Secret, notes: GuildMember) -> None:
    response = page.post(page_of(secret), {"value": "", "members": [notes.pk]})
    assert response["Location"] == list_of("secret")
    GuildMember.objects.update(status="disconnected")
    response = page.post(page_of(secret), {"value": "second", "members": [notes.pk]})
    assert response["Location"] == list_of("secret")


def test_a_secret_that_is_made_again_lists_members_with_the_value_before(page: Client, notes: GuildMember) -> None:
    secrets.delete_secret(Secret.objects.get())
    form = {"name": "api-key", "value": "second", "members": [notes.pk]}
    response = page.post("/admin/roster/secret/add/", form, follow=True)
    assert HEADING in html(response)


def test_only_who_may_restart_a_member_has_a_button(
    client: Client, bob: User, secret: Secret, notes: GuildMember
) -> None:
    secrets.set_secret("api-key", "second", by=None)
    allow(bob, "view_secret")
    client.force_login(bob)
    text = html(client.get(page_of(secret)))
    assert HEADING in text
    assert restart_of(notes) not in text


def test_members_reserved_for_others_are_counted_and_not_named(
    client: Client, bob: User, secret: Secret, notes: GuildMember
) -> None:
    secrets.set_secret("api-key", "second", by=None)
    reserve_member(notes, [Group.objects.create(name="circle")])
    allow(bob, "view_secret", "control_member")
    client.force_login(bob)
    for address in (part(secret), page_of(secret)):
        text = html(client.get(address))
        assert "1 member reserved for others runs with an old value too." in text
        assert "notes" not in text


def test_who_may_not_see_secrets_does_not_see_the_members(client: Client, bob: User, secret: Secret) -> None:
    allow(bob, "view_guildmember", "control_member")
    client.force_login(bob)
    for address in (part(secret), part(secret).replace(str(secret.pk), "99")):
        assert client.get(address).status_code == 403
