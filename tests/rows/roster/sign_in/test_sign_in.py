"""Sign-in of clients from end to end: what a person allows is what the client may do, until somebody revokes it."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from oauth2_provider.models import AccessToken as LibraryToken
from oauth2_provider.models import Grant as LibraryCode
from oauth2_provider.models import RefreshToken

from mcp_runtime.control.tokens import revoke_token
from mcp_runtime.protocol.errors import TokenError
from mcp_runtime.security.principals import principal_of_token
from roster.models import AccessToken, AuditEntry, Grant, Token
from tests.support.sign_in import SigningIn

pytestmark = pytest.mark.django_db


def test_a_client_gets_what_the_person_allowed_and_no_plain_token_is_stored(boss: User) -> None:
    client = SigningIn(boss)
    assert client.register().status_code == 201
    page = client.ask()
    assert page.status_code == 200, page.content
    assert "Inspector" in page.content.decode()
    answer = client.answer(client.decide(page))
    assert (answer["state"], answer["iss"]) == ("s1", "http://localhost:8000")
    response = client.exchange(answer["code"])
    assert response.status_code == 200, response.content
    tokens = response.json()
    assert (tokens["token_type"], tokens["expires_in"], tokens["scope"]) == ("Bearer", 3600, "mcp")
    principal = principal_of_token(tokens["access_token"])
    grant = Grant.objects.get()
    assert (principal.token_id, principal.resource, principal.is_narrowed) == (grant.pk, "/mcp", False)
    rows = [*LibraryToken.objects.values(), *LibraryCode.objects.values(), *RefreshToken.objects.values()]
    rows += [*Grant.objects.values(), *AccessToken.objects.values(), *Token.objects.values()]
    rows += [*AuditEntry.objects.values()]
    for secret in (answer["code"], tokens["access_token"], tokens["refresh_token"]):
        assert secret not in str(rows)


def test_parameters_with_the_names_of_the_library_change_nothing(boss: User) -> None:
    client = SigningIn(boss)
    client.register()
    names = {"user": "2", "user_id": "2", "grant_id": "7", "client": "x", "nonce": "n" * 300, "claims": "{}"}
    code = client.answer(client.decide(client.ask(**names, scopes="all")))["code"]
    response = client.exchange(code, user="2", client="x", refresh_token_instance="x", expires_in="999999")
    assert response.json()["expires_in"] == 3600
    assert principal_of_token(response.json()["access_token"]).user_id == boss.pk
    assert LibraryCode.objects.count() == 0


def test_a_refreshed_client_keeps_its_grant_and_a_revoked_one_gets_nothing(boss: User) -> None:
    client = SigningIn(boss)
    tokens = client.sign_in()
    fresh = client.refresh(tokens["refresh_token"]).json()
    assert principal_of_token(fresh["access_token"]) == principal_of_token(tokens["access_token"])
    assert Token.objects.count() == 1
    revoke_token(Token.objects.get())
    for text in (fresh["access_token"], tokens["access_token"]):
        with pytest.raises(TokenError, match="revoked"):
            principal_of_token(text)
    assert client.refresh(fresh["refresh_token"]).status_code == 400
