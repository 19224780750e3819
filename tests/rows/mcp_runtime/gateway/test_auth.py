"""Access control: tokens, and the principals in memory."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from mcp_runtime.gateway import auth
from mcp_runtime.gateway.auth import Principals
from mcp_runtime.protocol.errors import TokenError
from mcp_runtime.security import principals
from mcp_runtime.security.access import Principal
from roster.models import Token


def authenticate(*headers: bytes | None, cache: Principals | None = None, between: Any = None) -> list[Any]:
    """For each header the name of its principal, or the error."""

    async def authenticate_all() -> list[Any]:
        results: list[Any] = []
        for header in headers:
            try:
                results.append((await (cache or Principals()).principal(header)).name)
            except TokenError as error:
                results.append(str(error))
        return results

    return asyncio.run(authenticate_all())


@pytest.fixture
def lookups(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tokens that were looked up in the database."""
    tokens: list[str] = []

    def look_up(token: str) -> Principal:
        tokens.append(token)
        if token == "bad":
            raise TokenError("This token is not known.")
        return Principal(1, token, expires_at=timezone.now() + timedelta(hours=-1 if token == "old" else 1))

    monkeypatch.setattr(principals, "principal_of_token", look_up)
    return tokens


@pytest.mark.django_db(transaction=True)
def test_a_token_authenticates_its_user() -> None:
    _, token = Token.make(user=User.objects.create_user("ann"))
    header = f"Bearer {token}".encode()
    results = authenticate(header, b"Bearer gh_wrong")
    assert results[0] == "ann"
    assert results[1].startswith("This token is not known.")


@pytest.mark.django_db
def test_only_a_header_with_a_token_is_looked_up(lookups: list[str]) -> None:
    assert authenticate(None, b"Basic abc", b"Bearer", b"Bearer  ", b"gh_1") == [auth.MISSING] * 5
    assert authenticate(b"token gh_1 ", b"BEARER gh_2") == ["gh_1", "gh_2"]
    assert lookups == ["gh_1", "gh_2"]


@pytest.mark.django_db
def test_a_valid_token_is_looked_up_once_until_something_changes(lookups: list[str]) -> None:
    cache = Principals()
    authenticate(b"Bearer a", b"Bearer a", b"Bearer bad", b"Bearer bad", b"Bearer old", b"Bearer old", cache=cache)
    assert lookups == ["a", "bad", "bad", "old", "old"]
    cache.forget()
    authenticate(b"Bearer a", cache=cache)
    assert lookups[-1] == "a"
    assert len(lookups) == 6


@pytest.mark.django_db
def test_a_principal_is_not_cached_if_something_changes_during_its_lookup(
    lookups: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, look_up = Principals(), principals.principal_of_token

    def look_up_during_change(token: str) -> Principal:
        cache.forget()
        return look_up(token)

    monkeypatch.setattr(principals, "principal_of_token", look_up_during_change)
    authenticate(b"Bearer a", b"Bearer a", cache=cache)
    assert lookups == ["a", "a"]


@pytest.mark.django_db
def test_the_number_of_principals_in_memory_is_limited(lookups: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auth, "MAX_PRINCIPALS", 2)
    cache = Principals()
    authenticate(b"Bearer a", b"Bearer b", b"Bearer c", b"Bearer c", b"Bearer a", cache=cache)
    assert lookups == ["a", "b", "c", "a"]
