"""Tokens of users of single sign-on end some days after the last login, and work again after the next one."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from django.conf import settings as django_settings
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries

from mcp_runtime.control.tokens import NewToken, make_token
from mcp_runtime.gateway.auth import Principals
from mcp_runtime.protocol.errors import TokenError
from mcp_runtime.rows import lease
from mcp_runtime.security import passes, principals
from roster.models import Identity, Token
from tests.support.admin import html, list_of, page_of

pytestmark = pytest.mark.django_db
AGO = timedelta(days=30, seconds=1)


@pytest.fixture(autouse=True)
def _hall() -> None:
    lease.hall()
    django_settings.STATIC_ROOT.mkdir(exist_ok=True)  # WhiteNoise warns about a missing folder


@pytest.fixture
def jane() -> User:
    """A superuser of single sign-on, who has just logged in."""
    user = User.objects.create_superuser("jane")
    now = timezone.now()
    Identity.objects.create(user=user, issuer="https://a.example", subject="1", created_at=now, last_login_at=now)
    return user


def logged_in(user: User, ago: timedelta) -> None:
    """As a login so long ago does. What is in memory would have noticed the time in between."""
    identity = Identity.objects.get(user=user)
    identity.last_login_at = timezone.now() - ago
    identity.save()
    principals._cache.clear()


def test_a_token_is_refused_after_the_days_and_accepted_after_the_next_login(jane: User) -> None:
    row, token = Token.make(user=jane)
    assert principals.principal_of_token(token).name == "jane"
    logged_in(jane, AGO)
    with pytest.raises(TokenError, match=r"has not used single sign-on since .* works again when the user logs in"):
        principals.principal_of_token(token)
    assert Token.objects.get(pk=row.pk).state == "dormant"
    logged_in(jane, timedelta())
    assert principals.principal_of_token(token).name == "jane"
    assert Token.objects.get(pk=row.pk).state == "good"


def test_tokens_of_local_users_never_become_dormant(jane: User) -> None:
    local = User.objects.create_superuser("root")
    row, token = Token.make(user=local)
    logged_in(jane, timedelta(days=3000))
    User.objects.update(last_login=timezone.now() - timedelta(days=3000))
    assert principals.principal_of_token(token).expires_at is None
    assert (row.state, row.dormant_at, row.ends_at) == ("good", None, None)


def test_the_days_are_a_setting_and_have_an_effect_at_once(jane: User, settings: Any) -> None:
    row, _ = Token.make(user=jane)
    logged_in(jane, timedelta(days=2))
    assert Token.objects.get(pk=row.pk).state == "good"
    settings.GUILD_HALL_OIDC_TOKEN_DAYS = 1
    assert Token.objects.get(pk=row.pk).state == "dormant"


def test_the_earlier_end_counts_and_a_revoked_token_stays_revoked(jane: User) -> None:
    soon, late = timezone.now() + timedelta(hours=1), timezone.now() + timedelta(days=90)
    for expires_at, expected in (
        (soon, soon),
        (late, jane.identity.tokens_end_at),
        (None, jane.identity.tokens_end_at),
    ):
        token = Token.make(user=jane, expires_at=expires_at)[1]
        assert principals.principal_of_token(token).expires_at == expected
    row, token = Token.make(user=jane)
    row.revoke()
    logged_in(jane, AGO)
    assert Token.objects.get(pk=row.pk).state == "revoked"
    logged_in(jane, timedelta())
    with pytest.raises(TokenError, match="was revoked"):
        principals.principal_of_token(token)


def test_a_user_who_is_switched_off_does_not_come_back_by_a_login(jane: User) -> None:
    token = Token.make(user=jane)[1]
    User.objects.update(is_active=False)
    logged_in(jane, timedelta())
    with pytest.raises(TokenError, match="is not active"):
        principals.principal_of_token(token)


# In memory --------------------------------------------------------------------------------------------------------


def test_the_gateway_refuses_a_principal_in_memory_when_its_time_is_over(
    jane: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a look at the rows: the principal has its end."""
    token = Token.make(user=jane)[1]
    principal = principals.principal_of_token(token)
    cache, looked_up = Principals(), []

    def look_up(text: str) -> Any:
        looked_up.append(text)
        if len(looked_up) > 1:
            raise TokenError("dormant")
        return principal

    monkeypatch.setattr(principals, "principal_of_token", look_up)
    header = f"Bearer {token}".encode()

    async def authenticate() -> str:
        try:
            return (await cache.principal(header)).name
        except TokenError as error:
            return str(error)

    assert [asyncio.run(authenticate()) for _ in range(3)] == ["jane", "jane", "jane"]
    assert len(looked_up) == 1
    end = principal.expires_at
    assert end is not None
    monkeypatch.setattr("mcp_runtime.security.access.timezone.now", lambda: end)
    assert asyncio.run(authenticate()) == "dormant"


def test_the_web_does_not_use_a_snapshot_whose_time_is_over(jane: User, monkeypatch: pytest.MonkeyPatch) -> None:
    token = Token.make(user=jane)[1]
    principals.principal_of_token(token)
    later = jane.identity.tokens_end_at
    monkeypatch.setattr(timezone, "now", lambda: later)
    with pytest.raises(TokenError, match="has not used single sign-on"):
        principals.principal_of_token(token)


def test_a_good_token_still_takes_one_query(jane: User, django_assert_num_queries: DjangoAssertNumQueries) -> None:
    token = Token.make(user=jane)[1]
    principals.principal_of_token(token)
    with django_assert_num_queries(1):
        principals.principal_of_token(token)


def test_a_login_makes_nobody_read_all_principals_again(
    jane: User, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    """Only those of its user have changed, and the comparison of snapshots finds them."""
    other = [principals.principal_of_token(Token.make(user=User.objects.create_superuser("root"))[1])]
    snapshots = [principals.principal_of_token(Token.make(user=jane)[1]) for _ in range(3)]
    before = principals.version()
    logged_in(jane, timedelta(days=3))
    assert principals.version() == before
    assert principals.are_outdated(snapshots)
    assert not principals.are_outdated(other)
    current = [principals.principal_of_row(token) for token in Token.objects.filter(user=jane)]
    with django_assert_num_queries(1):  # of a superuser, also for several tokens
        assert not principals.are_outdated(current)


def test_a_pass_for_a_dormant_token_is_refused(jane: User) -> None:
    principal = principals.principal_of_token(Token.make(user=jane)[1])
    text = passes.authorization(principal, 60.0).partition(" ")[2]
    logged_in(jane, AGO)
    with pytest.raises(TokenError):
        passes.principal_of(text)


# Screens and REST -------------------------------------------------------------------------------------------------


def test_rest_refuses_a_dormant_token_and_its_user_sees_why(jane: User) -> None:
    row, token = Token.make(user=jane, name="laptop")
    client = Client(headers={"Authorization": f"Bearer {token}"})
    assert client.get("/api/roster/").status_code == 200
    logged_in(jane, AGO)
    response = client.get("/api/roster/")
    assert response.status_code == 401
    assert "has not used single sign-on since" in response.content.decode()
    browser = Client()
    browser.force_login(User.objects.get())
    assert '<span class="status status-dormant">dormant</span>' in html(browser.get(list_of("token")))
    assert '<span class="status status-dormant">dormant</span>' in html(browser.get(page_of(row)))
    assert browser.get(reverse("tokens")).json()["results"][0]["state"] == "dormant"


def test_lists_of_tokens_take_the_same_queries_for_many(jane: User) -> None:
    browser = Client()
    browser.force_login(User.objects.get())

    def queries(path: str) -> int:
        from django.db import connection
        from django.test.utils import CaptureQueriesContext

        with CaptureQueriesContext(
            connection,
        ) as context:
            assert browser.get(path).status_code == 200
        return len(context)

    paths = [list_of("token"), reverse("tokens")]
    Token.make(user=jane)
    before = [queries(path) for path in paths]
    for _ in range(5):
        Token.make(user=jane)
    assert [queries(path) for path in paths] == before


def test_a_token_that_a_token_made_does_not_get_the_end_of_the_login(jane: User) -> None:
    """Otherwise it would be over for good, and the token that made it would work again after a login."""
    maker = principals.principal_of_token(Token.make(user=jane)[1])
    far = timezone.now() + timedelta(days=90)
    assert make_token(jane, NewToken(expires_at=far), maker=maker)[0].expires_at == far
    assert make_token(jane, NewToken(), maker=maker)[0].expires_at is None
    end = timezone.now() + timedelta(days=1)
    limited = principals.principal_of_token(Token.make(user=jane, expires_at=end)[1])
    assert make_token(jane, NewToken(), maker=limited)[0].expires_at == end
