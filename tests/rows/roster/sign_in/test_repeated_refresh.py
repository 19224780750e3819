"""Programs that share the tokens of one sign-in, and refresh them at the same moment."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from django.utils import timezone
from oauth2_provider.models import AccessToken as LibraryToken
from oauth2_provider.models import RefreshToken

from mcp_runtime.rows.database import unit_of_work
from mcp_runtime.security.principals import principal_of_token
from roster.models import AccessToken, Token
from roster.sign_in.protocol import new_access_token, new_refresh_token
from roster.sign_in.validator import HallValidator
from tests.support.sign_in import RESOURCE, SigningIn

pytestmark = pytest.mark.django_db


def texts(answer: dict[str, Any]) -> tuple[str, str]:
    return answer["access_token"], answer["refresh_token"]


def test_a_refresh_that_is_repeated_within_half_a_minute_has_the_same_answer(client_of_boss: SigningIn) -> None:
    client = client_of_boss
    first = client.sign_in()
    second = client.refresh(first["refresh_token"]).json()
    LibraryToken.objects.update(expires=timezone.now() + timedelta(seconds=3500))
    repeated = client.refresh(first["refresh_token"]).json()
    assert texts(repeated) == texts(second)
    assert repeated["expires_in"] in (3499, 3500)
    assert set(texts(second)).isdisjoint(texts(first))
    assert principal_of_token(repeated["access_token"]).token_id == Token.objects.get().pk
    assert AccessToken.objects.count() == 2
    assert RefreshToken.objects.filter(revoked=None).count() == 1
    assert client.refresh(repeated["refresh_token"]).status_code == 200


@pytest.mark.django_db(transaction=True)
def test_programs_that_refresh_at_the_same_moment_get_the_same_tokens(client_of_boss: SigningIn) -> None:
    token = client_of_boss.sign_in()["refresh_token"]
    answers: list[dict[str, Any]] = []
    barrier = threading.Barrier(6)

    def refresh() -> None:
        program = SigningIn()
        program.client_id = client_of_boss.client_id
        barrier.wait(10)
        answers.append(unit_of_work(lambda: program.refresh(token).json()))

    threads = [threading.Thread(target=refresh) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(answers) == 6
    assert {texts(answer) for answer in answers} == {texts(answers[0])}
    assert Token.objects.get().state == "good"
    assert principal_of_token(answers[0]["access_token"]).token_id == Token.objects.get().pk


def test_a_request_that_read_the_token_before_another_used_it_gets_the_same_answer(
    client_of_boss: SigningIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, read, others = client_of_boss, HallValidator.validate_refresh_token, []
    token = client.sign_in()["refresh_token"]

    def read_and_wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        is_valid = read(self, *args, **kwargs)
        monkeypatch.undo()
        others.append(client.refresh(token))  # between the look at the token and the answer
        return is_valid

    monkeypatch.setattr(HallValidator, "validate_refresh_token", read_and_wait)
    response = client.refresh(token)
    assert [each.status_code for each in (*others, response)] == [200, 200]
    assert texts(response.json()) == texts(others[0].json())
    assert Token.objects.get().state == "good"


def _other_key(client: SigningIn, token: str, settings: Any) -> Any:
    settings.SECRET_KEY = "another key of another hall"
    return client.refresh(token)


def _other_resource(client: SigningIn, token: str, settings: Any) -> Any:
    return client.refresh(token, resource=f"{RESOURCE}/notes")


def _revoked(client: SigningIn, token: str, settings: Any) -> Any:
    Token.objects.update(revoked_at=timezone.now())
    return client.refresh(token)


@pytest.mark.parametrize("way", [_other_key, _other_resource, _revoked])
def test_a_repeated_refresh_with_something_else_gives_nothing(
    client_of_boss: SigningIn, settings: Any, way: Callable[[SigningIn, str, Any], Any]
) -> None:
    token = client_of_boss.sign_in()["refresh_token"]
    assert client_of_boss.refresh(token).status_code == 200
    response = way(client_of_boss, token, settings)
    assert response.status_code == 400
    assert "access_token" not in response.json()
    assert Token.objects.get().state == "revoked"


def test_the_next_tokens_cannot_be_made_without_the_key_of_the_hall(client_of_boss: SigningIn, settings: Any) -> None:
    first = client_of_boss.sign_in()
    request = SimpleNamespace(grant_type="refresh_token", refresh_token=first["refresh_token"])
    known = {new_access_token(request), new_refresh_token(request)}
    second = client_of_boss.refresh(first["refresh_token"]).json()
    assert known == set(texts(second))
    settings.SECRET_KEY = "another key of another hall"
    assert known.isdisjoint({new_access_token(request), new_refresh_token(request)})
