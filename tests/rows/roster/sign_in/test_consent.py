"""What a person chooses at the consent is what the client may do, and where it is listed."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client
from django.utils import timezone
from oauth2_provider.models import AccessToken as LibraryToken

from mcp_runtime.security.principals import principal_of_token
from roster.models import AuditEntry, Grant, Token
from tests.support.sign_in import RESOURCE, SigningIn

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize(
    ("fields", "reach"),
    [
        ({"scope": "all"}, {"notes", "other"}),
        ({"scope": "members", "members": ["notes"]}, {"notes"}),
        ({"scope": "tools", "tools": ["other/echo"]}, {"other"}),
        ({"scope": "tool_set", "tool_set": "writing"}, {"notes"}),
    ],
)
def test_the_person_narrows_the_client(client_of_boss: SigningIn, fields: dict[str, Any], reach: set[str]) -> None:
    principal = principal_of_token(client_of_boss.sign_in(**fields)["access_token"])
    assert {name for name in ("notes", "other") if principal.may_invoke(name, "echo")} == reach
    assert principal.is_narrowed == (fields["scope"] != "all")


@pytest.mark.parametrize(
    ("resource", "scope", "path"),
    [
        (f"{RESOURCE}/notes", "members", "/mcp/notes"),
        ("http://localhost:8100/sets/writing/mcp", "tool_set", "/sets/writing/mcp"),
    ],
)
def test_an_address_of_a_member_or_a_tool_set_narrows_too(
    client_of_boss: SigningIn, resource: str, scope: str, path: str
) -> None:
    client_of_boss.resource = resource
    principal = principal_of_token(client_of_boss.sign_in(scope=scope)["access_token"])
    assert principal.resource == path
    assert (principal.may_invoke("notes", "echo"), principal.may_invoke("other", "echo")) == (True, False)


def test_a_client_that_names_no_address_gets_the_gateway_and_no_other_resource(client_of_boss: SigningIn) -> None:
    client = client_of_boss
    code = client.answer(client.decide(client.ask(resource=None)))["code"]
    tokens = client.exchange(code, resource=None).json()
    assert principal_of_token(tokens["access_token"]).resource == "/mcp"
    assert LibraryToken.objects.get().resource == [RESOURCE]


def test_no_is_told_to_the_client_and_nothing_is_stored(client_of_boss: SigningIn) -> None:
    answer = client_of_boss.answer(client_of_boss.decide(client_of_boss.ask(), decision="deny"))
    assert (answer["error"], answer["state"]) == ("access_denied", "s1")
    assert not Grant.objects.exists()


def test_a_consent_whose_client_never_comes_back_ends_by_itself(client_of_boss: SigningIn) -> None:
    client_of_boss.code()
    token = Token.objects.get()
    assert token.expires_at is not None
    assert token.expires_at < timezone.now() + timedelta(minutes=3)
    client_of_boss.sign_in(days="7")
    token = Token.objects.get(grant__redeemed_at__isnull=False)
    assert token.expires_at is not None
    assert abs(token.expires_at - timezone.now() - timedelta(days=7)) < timedelta(minutes=2)


def test_a_viewer_may_not_sign_a_client_in(boss: User) -> None:
    viewer = User.objects.create_user("viewer")
    viewer.groups.add(Group.objects.get(name="viewer"))
    client = SigningIn(viewer)
    client.register()
    assert client.ask().status_code == 403


def test_somebody_without_a_session_logs_in_first_and_comes_back(boss: User) -> None:
    client = SigningIn()
    client.register()
    response = client.ask()
    assert response.status_code == 302
    assert response["location"].startswith("/admin/login/?next=/oauth/authorize%3F")
    client.browser.force_login(boss)
    assert client.ask().status_code == 200


def test_the_page_shows_who_asks_without_believing_it(client_of_boss: SigningIn) -> None:
    client_of_boss.register(client_name="<script>x</script>\u202eevil")
    text = client_of_boss.ask().content.decode()
    assert "&lt;script&gt;x&lt;/script&gt; evil" in text
    assert "Nobody has checked this name" in text
    assert "a program on this computer (127.0.0.1:49152)" in text


def test_a_consent_is_in_the_audit_log_and_listed_beside_tokens(client_of_boss: SigningIn, boss: User) -> None:
    client_of_boss.sign_in(scope="members", members=["notes"])
    token = Token.objects.get()
    entry = AuditEntry.objects.get(kind=AuditEntry.Kind.CLIENT_ALLOWED)
    assert (entry.actor, entry.after["address"], entry.after["client"]) == ("boss", "/mcp", "Inspector")
    browser = Client()
    browser.force_login(boss)
    assert "sign-in" in browser.get("/admin/roster/token/").content.decode()
    assert "Inspector" in browser.get("/admin/roster/token/?kind=sign-in").content.decode()
    assert "Inspector" not in browser.get("/admin/roster/token/?kind=token").content.decode()
    page = browser.get(f"/admin/roster/token/{token.pk}/change/").content.decode()
    for words in (RESOURCE, "a program on this computer", client_of_boss.client_id, "Revoke"):
        assert words in page
    assert "gh_PUT_A_TOKEN_HERE" not in page
    row = browser.get(f"/api/tokens/{token.pk}/").json()
    assert (row["members"], row["client"]["address"]) == (["notes"], RESOURCE)
    assert row["client"]["client_id"] == client_of_boss.client_id
    assert browser.post(f"/api/tokens/{token.pk}/revoke/").json()["state"] == "revoked"
    assert Token.objects.get().state == "revoked"
