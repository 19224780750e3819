"""A user is deleted at the moment in which a client gets the user's tokens."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import DatabaseError, connection, transaction
from django.test import Client

from mcp_runtime.control import grants
from mcp_runtime.rows.database import unit_of_work
from roster.models import Grant, Token
from roster.sign_in.validator import HallValidator
from tests.conftest import eventually
from tests.support.sign_in import SigningIn

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def olga(boss: User) -> User:
    return User.objects.create_superuser("olga")


@pytest.fixture
def client(olga: User) -> SigningIn:
    client = SigningIn(olga)
    client.register()
    return client


def delete(user: User, way: str) -> None:
    """As an administrator does it, on the page of the user or in the list, or without the admin."""
    if way == "shell":
        User.objects.get(pk=user.pk).delete()
        return
    admin = Client()
    admin.force_login(User.objects.get(username="boss"))
    if way == "one":
        response = admin.post(f"/admin/auth/user/{user.pk}/delete/", {"post": "yes"})
    else:
        body = {"action": "delete_selected", "_selected_action": [user.pk], "post": "yes"}
        response = admin.post("/admin/auth/user/", body)
    assert response.status_code == 302


def in_thread(work: Callable[[], object], outcomes: list[Any]) -> threading.Thread:
    def run() -> None:
        try:
            outcomes.append(unit_of_work(work))
        except (DatabaseError, AssertionError) as error:
            outcomes.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def a_statement_waits_for_a_lock() -> bool:
    """SQLite has one writer, whose lock nobody sees. There the other request waits at its first statement."""
    if connection.vendor == "sqlite":
        return True
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_locks WHERE NOT granted")
        return bool(cursor.fetchone()[0])


@pytest.mark.parametrize("way", ["one", "list"])
@pytest.mark.parametrize("is_refresh", [True, False])
def test_a_user_who_is_deleted_while_a_client_gets_tokens_takes_them_along(
    client: SigningIn, olga: User, monkeypatch: pytest.MonkeyPatch, way: str, is_refresh: bool
) -> None:
    add, outcomes, threads = grants.add_access_token, [], []
    ask = tokens_of(client, is_refresh=is_refresh)

    def add_slowly(*args: Any, **more: Any) -> None:
        add(*args, **more)
        threads.append(in_thread(lambda: delete(olga, way), outcomes))
        eventually(lambda: outcomes or a_statement_waits_for_a_lock())

    monkeypatch.setattr(grants, "add_access_token", add_slowly)
    assert ask().status_code == 200
    threads[0].join(30)
    assert outcomes == [None]
    assert (Grant.objects.count(), Token.objects.count(), User.objects.filter(pk=olga.pk).count()) == (0, 0, 0)


@pytest.mark.parametrize("way", ["one", "list"])
@pytest.mark.parametrize("is_refresh", [True, False])
def test_a_client_that_comes_while_its_user_is_deleted_learns_that_its_grant_is_over(
    client: SigningIn, olga: User, way: str, is_refresh: bool
) -> None:
    ask = tokens_of(client, is_refresh=is_refresh)
    outcomes: list[Any] = []
    with transaction.atomic():
        delete(olga, way)
        thread = in_thread(ask, outcomes)
        if connection.vendor == "postgresql":
            eventually(lambda: outcomes or a_statement_waits_for_a_lock())
    thread.join(30)
    assert [(each.status_code, each.json()["error"]) for each in outcomes] == [(400, "invalid_grant")]


@pytest.mark.parametrize("is_refresh", [True, False])
def test_tokens_that_cannot_be_stored_because_the_user_is_gone_are_an_invalid_grant(
    client: SigningIn, olga: User, monkeypatch: pytest.MonkeyPatch, is_refresh: bool
) -> None:
    """Whoever deletes the user without the admin takes no lock."""
    ask, add = tokens_of(client, is_refresh=is_refresh), grants.add_access_token

    def add_late(*args: Any, **more: Any) -> None:
        delete(olga, "shell")
        add(*args, **more)

    monkeypatch.setattr(grants, "add_access_token", add_late)
    response = ask()
    assert (response.status_code, response.json()["error"]) == (400, "invalid_grant")


def tokens_of(client: SigningIn, *, is_refresh: bool) -> Callable[[], Any]:
    """A request for tokens, which comes later."""
    if is_refresh:
        token = client.sign_in()["refresh_token"]
        return lambda: client.refresh(token)
    code = client.code()
    return lambda: client.exchange(code)


def test_a_code_that_goes_with_its_user_while_it_is_read_is_an_invalid_grant(
    client: SigningIn, olga: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask, read = tokens_of(client, is_refresh=False), HallValidator.validate_code

    def read_late(self: Any, *args: Any, **kwargs: Any) -> Any:
        is_valid = read(self, *args, **kwargs)
        delete(olga, "shell")
        return is_valid

    monkeypatch.setattr(HallValidator, "validate_code", read_late)
    response = ask()
    assert (response.status_code, response.json()["error"]) == (400, "invalid_grant")
