from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Group, User
from django.test import Client
from django.urls import reverse

from mcp_runtime.control import secrets
from mcp_runtime.control.members import reserve_member
from mcp_runtime.secrets import values
from roster.models import GuildMember, Secret, SecretUse
from tests.support.admin import allow, html, list_of, make_member, messages_of, page_of

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("runtime")]

CANARY = "canary-4711"
ADD = "/admin/roster/secret/add/"


@pytest.fixture(autouse=True)
def key_path(settings: Any, tmp_path: Path) -> Path:
    settings.GUILD_HALL_SECRETS_KEY_FILE = tmp_path / "secrets-key"
    return tmp_path / "secrets-key"


def with_secret(name: str = "notes", **columns: Any) -> GuildMember:
    manifest = {"name": name, "command": "python", "args": ["server.py"], "env": {"KEY": "${secret:api-key}"}}
    return make_member(name, manifest=manifest, **columns)


def secrets_page(member: GuildMember) -> str:
    return reverse("admin:roster_guildmember_secrets", args=[member.pk])


def test_a_secret_is_made_for_some_members_and_its_value_is_never_shown(page: Client, alice: User) -> None:
    notes, other = with_secret(), with_secret("other")
    response = page.post(ADD, {"name": "api-key", "value": CANARY, "members": [notes.pk]}, follow=True)
    assert CANARY not in html(response)
    secret = Secret.objects.get(name="api-key")
    assert (values.decrypt(secret), secret.changed_by) == (CANARY, alice)
    assert [use.member for use in secret.uses.all()] == [notes]
    for address in (list_of("secret"), page_of(secret), page_of(notes), page_of(other), secrets_page(notes)):
        assert CANARY not in html(page.get(address))
        assert secret.encrypted not in html(page.get(address))
    assert "notes" in html(page.get(list_of("secret")))
    assert not any(CANARY in entry.change_message for entry in LogEntry.objects.all())


def test_the_page_shows_where_the_secrets_of_a_member_behind_oauth_go_before_they_are_allowed(page: Client) -> None:
    oauth = {"grant": "client_credentials", "issuer": "https://a.example", "client_secret": "${secret:api-key}"}
    member = make_member("far", manifest={"name": "far", "url": "https://x.example/", "oauth": oauth | {"scopes": []}})
    text = html(page.get(secrets_page(member)))
    assert all(each in text for each in ("client_credentials", "https://a.example", "${secret:api-key}"))
    assert "scopes" not in text


def test_a_form_with_faults_shows_no_value(page: Client) -> None:
    text = html(page.post(ADD, {"name": "a b", "value": CANARY}))
    assert "Use letters, digits" in text
    assert CANARY not in text
    assert "This field is required" in html(page.post(ADD, {"name": "a", "value": ""}))
    assert not Secret.objects.exists()


def test_a_value_that_cannot_be_encrypted_is_explained_in_the_form(page: Client, key_path: Path) -> None:
    key_path.write_text("no key")
    text = html(page.post(ADD, {"name": "a", "value": CANARY}))
    assert "does not hold keys" in text
    assert CANARY not in text


def test_an_empty_value_keeps_the_value_and_a_new_one_replaces_it(page: Client) -> None:
    notes = with_secret()
    secret = secrets.set_secret("api-key", CANARY, by=None)
    page.post(page_of(secret), {"value": "", "members": [notes.pk]})
    secret.refresh_from_db()
    assert (values.decrypt(secret), secret.changed_by) == (CANARY, None)
    assert secrets.needs_of(notes)[0].fault == ""
    page.post(page_of(secret), {"value": "new\r\nvalue \r\n", "members": [notes.pk], "name": "other"})
    secret.refresh_from_db()
    assert (secret.name, values.decrypt(secret)) == ("api-key", "new\nvalue ")


def test_saving_the_page_of_a_secret_does_not_allow_a_changed_member_again(page: Client) -> None:
    notes = with_secret()
    secret = secrets.set_secret("api-key", CANARY, by=None)
    secrets.allow_secret(secret, notes, by=None)
    notes.manifest = {**notes.manifest, "command": "bash"}
    notes.save()
    assert "changed since then" in html(page.get(list_of("secret")))
    page.post(page_of(secret), {"value": "", "members": [notes.pk]})
    assert not secrets.is_current(SecretUse.objects.get())


def test_the_page_of_a_members_secrets_shows_what_changed_and_masks_what_may_be_a_secret(page: Client) -> None:
    notes = with_secret()
    secrets.allow_secret(secrets.set_secret("api-key", CANARY, by=None), notes, by=None)
    env = {
        "KEY": "${secret:api-key}",
        "API_BASE_URL": "https://elsewhere.example",
        "OTHER_TOKEN": "clear-4711",
        "DATABASE": "postgres://notes:clear-4712@db.example/notes",
    }
    notes.manifest = {**notes.manifest, "env": env}
    notes.save()
    text = html(page.get(secrets_page(notes)))
    assert "env.API_BASE_URL" in text
    assert "https://elsewhere.example" in text
    assert "clear-4711" not in text
    assert "clear-4712" not in text
    assert "DATABASE, OTHER_TOKEN: a value that could be a secret is not shown" in text


def test_the_page_of_a_members_secrets_shows_what_it_runs_and_allows_them(page: Client, alice: User) -> None:
    notes = with_secret()
    assert "Secrets (1 not available)" in html(page.get(page_of(notes)))
    text = html(page.get(secrets_page(notes)))
    assert "server.py" in text
    assert "Set its value" in text
    secrets.set_secret("api-key", CANARY, by=None)
    text = html(page.get(secrets_page(notes)))
    assert "may not use the secret" in text
    body = {"secret": "api-key", "identity": secrets.identity_of(notes)}
    response = page.post(secrets_page(notes), body, follow=True)
    assert messages_of(response) == ["notes may use the secret api-key."]
    assert SecretUse.objects.get().allowed_by == alice
    assert "not available" not in html(page.get(page_of(notes)))
    assert LogEntry.objects.get().change_message == "Allowed to use the secret api-key."


def test_a_manifest_that_changed_after_the_page_was_shown_is_not_allowed(page: Client) -> None:
    notes = with_secret()
    secrets.set_secret("api-key", CANARY, by=None)
    body = {"secret": "api-key", "identity": secrets.identity_of(notes)}
    notes.manifest = {**notes.manifest, "args": ["other.py"]}
    notes.save()
    (refusal,) = messages_of(page.post(secrets_page(notes), body, follow=True))
    assert "has just changed" in refusal
    for wrong in ({**body, "secret": "nothing"}, {"secret": "api-key"}):
        assert messages_of(page.post(secrets_page(notes), wrong, follow=True))[0].startswith("Not allowed")
    assert not SecretUse.objects.exists()


def test_a_member_without_references_has_no_link_to_secrets_and_its_page_says_how(page: Client) -> None:
    plain = make_member("plain")
    assert secrets_page(plain) not in html(page.get(page_of(plain)))
    assert "refers to no secret" in html(page.get(secrets_page(plain)))


def test_references_in_env_are_shown_and_other_values_are_masked(page: Client) -> None:
    env = {"KEY": "${secret:api-key}", "MIXED": "x${secret:api-key}", "PLAIN": CANARY}
    text = html(page.get(page_of(make_member("notes", manifest={"name": "notes", "env": env}))))
    assert "${secret:api-key}" in text
    assert "x${secret" not in text
    assert CANARY not in text


def test_members_that_are_hidden_from_a_user_are_neither_shown_nor_changed(client: Client, bob: User) -> None:
    hidden, notes = with_secret("hidden"), with_secret()
    reserve_member(hidden, [Group.objects.create(name="circle")])
    secret = secrets.set_secret("api-key", CANARY, by=None)
    secrets.allow_secret(secret, hidden, by=None)
    allow(bob, "change_secret", "view_secret", "delete_secret", "view_guildmember")
    client.force_login(bob)
    for address in (list_of("secret"), page_of(secret), f"/admin/roster/secret/{secret.pk}/delete/"):
        assert "hidden</" not in html(client.get(address)).replace('type="hidden"', "")
    assert "1 reserved for others" in html(client.get(list_of("secret")))
    client.post(page_of(secret), {"value": "", "members": [hidden.pk]})
    client.post(page_of(secret), {"value": "", "members": [notes.pk]})
    assert {use.member.name for use in secret.uses.all()} == {"hidden", "notes"}
    assert client.get(secrets_page(hidden)).status_code == 404


def test_a_user_who_may_only_view_secrets_changes_nothing(client: Client, bob: User) -> None:
    notes = with_secret()
    secret = secrets.set_secret("api-key", CANARY, by=None)
    secrets.allow_secret(secret, notes, by=None)
    allow(bob, "view_secret")
    client.force_login(bob)
    text = html(client.get(page_of(secret)))
    assert "notes" in text
    assert 'name="value"' not in text
    assert client.post(page_of(secret), {"value": "new"}).status_code == 403
    assert client.get(secrets_page(notes)).status_code == 403
    assert values.decrypt(Secret.objects.get()) == CANARY


def test_a_deleted_secret_is_gone(page: Client) -> None:
    notes = with_secret()
    secret = secrets.set_secret("api-key", CANARY, by=None)
    secrets.allow_secret(secret, notes, by=None)
    page.post(f"/admin/roster/secret/{secret.pk}/delete/", {"post": "yes"})
    assert not Secret.objects.exists()
    secrets.set_secret("api-key", CANARY, by=None)
    other = secrets.set_secret("other", CANARY, by=None)
    body = {"action": "delete_selected", "_selected_action": [other.pk], "post": "yes"}
    page.post(list_of("secret"), body)
    assert [secret.name for secret in Secret.objects.all()] == ["api-key"]
