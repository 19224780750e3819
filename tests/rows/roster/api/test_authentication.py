from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from django.test import Client
from pytest_django import DjangoAssertNumQueries

from roster.models import GuildMember, Token
from tests.support.api import METHODS, api_addresses


def test_the_list_of_addresses_contains_every_address_of_the_api() -> None:
    addresses = set(api_addresses())
    assert {
        "/api/",
        "/api/roster/",
        "/api/schema/",
        "/api/docs/",
        "/api/members/example/tools/echo/invoke/",
    } <= addresses


@pytest.mark.django_db
@pytest.mark.parametrize("method", METHODS)
def test_an_anonymous_request_is_refused_at_every_address(example: GuildMember, method: str) -> None:
    for address in api_addresses():
        response = getattr(Client(), method)(address)
        if address == "/api/docs/":
            assert response.status_code == 302
            assert response["Location"].startswith("/admin/login/?next=/api/docs/")
        else:
            assert response.status_code == 401, address
            assert response["WWW-Authenticate"] == 'Bearer realm="Guild Hall", Token realm="Guild Hall"'


@pytest.mark.parametrize("scheme", ["Token", "Bearer", "bearer", "TOKEN"])
def test_a_token_is_accepted_under_both_scheme_names(bob: User, scheme: str) -> None:
    token = Token.make(user=bob)[1]
    assert Client(headers={"Authorization": f"{scheme} {token}"}).get("/api/roster/").status_code == 200


@pytest.mark.django_db
@pytest.mark.parametrize(
    "header", ["Bearer gh_wrong", "Bearer", "Token ", "Bearer a b c", "Bearer \xe9\xff", "Token gh_"]
)
def test_an_invalid_token_is_401(header: str) -> None:
    response = Client(headers={"Authorization": header}).get("/api/roster/")
    assert response.status_code == 401
    assert response.json()["code"] == "authentication_failed"
    assert "WWW-Authenticate" in response


def test_an_invalid_token_is_refused_even_with_a_valid_session(bob: User) -> None:
    client = Client(headers={"Authorization": "Bearer gh_wrong"})
    client.force_login(bob)
    assert client.get("/api/roster/").status_code == 401


def test_the_token_of_an_inactive_user_is_refused(bob: User, as_bob: Client) -> None:
    User.objects.filter(pk=bob.pk).update(is_active=False)
    assert as_bob.get("/api/roster/").status_code == 401


def test_a_token_is_found_in_one_query(as_bob: Client, django_assert_num_queries: DjangoAssertNumQueries) -> None:
    with django_assert_num_queries(1):
        as_bob.get("/api/")


def test_a_session_may_read(bob: User) -> None:
    client = Client()
    client.force_login(bob)
    assert client.get("/api/roster/").status_code == 200


def test_a_session_that_changes_something_needs_its_csrf_token(bob: User, example: GuildMember) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(bob)
    response = client.post("/api/members/example/stop/")
    assert response.status_code == 403
    assert response.json()["code"] == "permission_denied"
    example.refresh_from_db()
    assert example.desired_state == GuildMember.DesiredState.RUNNING


def test_a_token_needs_no_csrf_token(bob: User, example: GuildMember) -> None:
    client = Client(enforce_csrf_checks=True, headers={"Authorization": f"Token {Token.make(user=bob)[1]}"})
    assert client.post("/api/members/example/stop/").status_code == 202


def test_the_token_itself_is_not_stored(bob: User) -> None:
    row, token = Token.make(user=bob)
    assert token not in [str(value) for value in vars(row).values()]
