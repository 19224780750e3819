"""A person allows the same client again: on another device, or because the client has lost its tokens."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.utils import timezone
from oauth2_provider.models import RefreshToken

from mcp_runtime.control import grants
from mcp_runtime.control.tokens import revoke_token
from mcp_runtime.protocol.errors import TokenError
from mcp_runtime.rows.database import unit_of_work
from mcp_runtime.security.principals import principal_of_token
from roster.models import AccessToken, Grant, Token
from tests.support.sign_in import SigningIn

pytestmark = pytest.mark.django_db


@pytest.fixture
def laptop(client_of_boss: SigningIn) -> SigningIn:
    return client_of_boss


@pytest.fixture
def phone(laptop: SigningIn, boss: User) -> SigningIn:
    """The same client on another device, such as one with a published description."""
    phone = SigningIn(boss)
    phone.client_id = laptop.client_id
    return phone


def works(tokens: dict[str, Any]) -> bool:
    try:
        return bool(principal_of_token(tokens["access_token"]))
    except TokenError:
        return False


def test_the_same_consent_again_is_no_second_grant_and_both_devices_go_on(laptop: SigningIn, phone: SigningIn) -> None:
    first = laptop.sign_in(days="7")
    Grant.objects.update(ends_at=timezone.now() + timedelta(days=1))  # six days later
    second = phone.sign_in(days="7")
    grant = Grant.objects.get()
    assert Token.objects.get().pk == grant.pk
    assert Token.objects.get().expires_at == grant.ends_at > timezone.now() + timedelta(days=6)
    for _ in range(4):
        first = laptop.refresh(first["refresh_token"]).json()
        second = phone.refresh(second["refresh_token"]).json()
        assert (works(first), works(second)) == (True, True)
    assert AccessToken.objects.count() == 4


@pytest.mark.parametrize(
    "other",
    [
        {"scope": "members", "members": ["notes"]},
        {"scope": "tools", "tools": ["notes/echo"]},
        {"scope": "tool_set", "tool_set": "writing"},
    ],
)
def test_another_choice_is_another_grant(laptop: SigningIn, phone: SigningIn, other: dict[str, Any]) -> None:
    laptop.sign_in()
    narrow = phone.sign_in(**other)
    assert Grant.objects.count() == 2
    assert principal_of_token(narrow["access_token"]).is_narrowed
    phone.sign_in(**other)
    assert Grant.objects.count() == 2


def test_a_day_on_a_borrowed_computer_stays_a_day(laptop: SigningIn, phone: SigningIn) -> None:
    borrowed, own = laptop.sign_in(days="1"), phone.sign_in(days="365")
    assert [(works(borrowed), works(own)), Grant.objects.count()] == [(True, True), 2]
    assert Grant.objects.get(days=1).ends_at < timezone.now() + timedelta(days=2)
    phone.sign_in(days="1")
    assert sorted(Grant.objects.values_list("days", flat=True)) == [1, 365]


def test_other_members_another_address_client_or_user_are_another_grant(
    laptop: SigningIn, phone: SigningIn, boss: User
) -> None:
    laptop.sign_in(scope="members", members=["notes"])
    phone.sign_in(scope="members", members=["other"])
    phone.resource = f"{phone.resource}/notes"
    phone.sign_in(scope="members")
    SigningIn(boss).sign_in()
    stranger = SigningIn(User.objects.create_superuser("stranger"))
    stranger.client_id = laptop.client_id
    stranger.sign_in()
    assert Grant.objects.count() == 5


def test_a_grant_that_was_revoked_or_has_ended_is_not_joined(laptop: SigningIn, phone: SigningIn) -> None:
    first = laptop.sign_in()
    revoke_token(Token.objects.get())
    second = phone.sign_in()
    assert (works(first), works(second), Grant.objects.count()) == (False, True, 2)
    Token.objects.filter(revoked_at=None).update(expires_at=timezone.now())
    assert works(phone.sign_in())
    assert Grant.objects.count() == 3


def test_a_consent_whose_client_never_comes_changes_nothing(laptop: SigningIn, phone: SigningIn) -> None:
    first = laptop.sign_in()
    before = Grant.objects.values().get()
    phone.code(days="1")
    assert Grant.objects.filter(redeemed_at__isnull=False).values().get() == before
    response = laptop.refresh(first["refresh_token"])
    assert response.status_code == 200, response.content


def give_back(client: SigningIn, token: str) -> None:
    body = f"token={token}&client_id={client.client_id}"
    client.program.post("/oauth/revoke", body, content_type="application/x-www-form-urlencoded")


@pytest.mark.parametrize("is_access", [True, False])
def test_a_device_that_gives_its_token_back_ends_no_other(laptop: SigningIn, phone: SigningIn, is_access: bool) -> None:
    first, second = laptop.sign_in(), phone.sign_in()
    give_back(phone, second["access_token"] if is_access else second["refresh_token"])
    assert (works(first), works(second)) == (True, False)
    assert phone.refresh(second["refresh_token"]).status_code == 400
    first = laptop.refresh(first["refresh_token"]).json()
    assert works(first)
    give_back(laptop, first["refresh_token"])
    assert (works(first), Token.objects.get().state) == (False, "revoked")


def test_a_code_that_is_used_twice_ends_the_whole_grant(laptop: SigningIn, phone: SigningIn) -> None:
    first, code = laptop.sign_in(), phone.code()
    second = phone.exchange(code).json()
    assert phone.exchange(code).status_code == 400
    assert (works(first), works(second), Token.objects.get().state) == (False, False, "revoked")


def test_many_devices_have_a_bounded_number_of_access_tokens(
    laptop: SigningIn, phone: SigningIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grants, "MAX_SIGN_INS", 2)
    for client in (laptop, phone, laptop, phone):
        tokens = client.sign_in()
        client.refresh(tokens["refresh_token"])
    assert AccessToken.objects.count() == 4
    assert RefreshToken.objects.filter(revoked=None).count() == 4


@pytest.mark.django_db(transaction=True)
def test_devices_that_sign_in_at_the_same_moment_have_one_grant(laptop: SigningIn, boss: User) -> None:
    clients = [SigningIn(boss) for _ in range(4)]
    for client in clients:
        client.client_id = laptop.client_id
    codes, barrier = [client.code() for client in clients], threading.Barrier(len(clients))

    def exchange(client: SigningIn, code: str) -> dict[str, Any]:
        barrier.wait(20)
        answer: dict[str, Any] = unit_of_work(lambda: client.exchange(code).json())
        return answer

    with ThreadPoolExecutor(len(clients)) as pool:
        tokens = list(pool.map(exchange, clients, codes))
    assert [works(each) for each in tokens] == [True] * len(clients)
    assert Grant.objects.get().token == Token.objects.get()


def test_a_device_that_refreshes_often_ends_no_access_token_of_another(laptop: SigningIn, phone: SigningIn) -> None:
    first, second = laptop.sign_in(), phone.sign_in()
    for _ in range(6):
        before, first = first, laptop.refresh(first["refresh_token"]).json()
        assert (works(first), works(before), works(second)) == (True, True, True)
    assert AccessToken.objects.count() <= 4
