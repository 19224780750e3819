"""What is left of clients and grants is deleted, and nothing that is still in use."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.utils import timezone
from oauth2_provider.models import AccessToken as LibraryToken
from oauth2_provider.models import Application, RefreshToken
from oauth2_provider.models import Grant as LibraryCode

from mcp_runtime.control import grants
from roster.models import AccessToken, ClientRegistration, Hall, Token
from tests.support.sign_in import SigningIn

pytestmark = pytest.mark.django_db

OLD = timezone.now() - timedelta(days=2)


@pytest.fixture
def boss() -> User:
    Hall.objects.create()
    return User.objects.create_superuser("boss", password="x")


def test_a_client_that_nobody_allowed_goes_after_a_day(boss: User) -> None:
    used, fresh, unused = SigningIn(boss), SigningIn(), SigningIn()
    used.sign_in()
    fresh.register()
    unused.register()
    Application.objects.exclude(client_id=fresh.client_id).update(created=OLD)
    grants.prune()
    assert set(Application.objects.values_list("client_id", flat=True)) == {used.client_id, fresh.client_id}


def test_a_client_in_use_keeps_all_that_it_needs(boss: User) -> None:
    client = SigningIn(boss)
    tokens = client.sign_in()
    for _ in range(3):
        tokens = client.refresh(tokens["refresh_token"]).json()
    Application.objects.update(created=OLD)
    RefreshToken.objects.exclude(revoked=None).update(revoked=timezone.now() - grants.KEEP_USED)
    AccessToken.objects.order_by("expires_at").filter(pk=AccessToken.objects.earliest("expires_at").pk).update(
        expires_at=OLD
    )
    grants.prune()
    assert RefreshToken.objects.count() == 1
    assert client.refresh(tokens["refresh_token"]).status_code == 200


def test_a_client_that_comes_back_after_days_ends_the_grant_of_a_thief_who_was_faster(boss: User) -> None:
    client = SigningIn(boss)
    token = client.sign_in()["refresh_token"]
    stolen = client.refresh(token).json()["refresh_token"]
    RefreshToken.objects.exclude(revoked=None).update(revoked=timezone.now() - timedelta(days=29))
    grants.prune()
    assert client.refresh(token).status_code == 400
    assert Token.objects.get().state == "revoked"
    assert client.refresh(stolen).status_code == 400


@pytest.mark.parametrize("is_deleted", [False, True])
def test_the_rows_of_a_grant_that_ended_go(boss: User, is_deleted: bool) -> None:
    client = SigningIn(boss)
    client.refresh(client.sign_in()["refresh_token"])
    code = client.code()
    LibraryCode.objects.update(expires=OLD)
    LibraryToken.objects.update(expires=OLD)
    AccessToken.objects.update(expires_at=OLD)
    if is_deleted:
        Token.objects.all().delete()
    else:
        Token.objects.update(revoked_at=OLD)
    ClientRegistration.objects.update(at=OLD)
    grants.prune()
    for model in (RefreshToken, LibraryToken, LibraryCode, AccessToken, ClientRegistration):
        assert model.objects.count() == 0, model
    assert client.exchange(code).status_code == 400


def test_at_most_two_access_tokens_of_a_grant_are_valid(boss: User) -> None:
    client = SigningIn(boss)
    tokens = client.sign_in()
    for _ in range(4):
        tokens = client.refresh(tokens["refresh_token"]).json()
    assert AccessToken.objects.count() == 2
    assert AccessToken.objects.filter(digest=AccessToken.digest_of(tokens["access_token"])).exists()
