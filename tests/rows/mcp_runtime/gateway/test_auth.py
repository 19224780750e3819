"""Access control: tokens kept in memory, and the pages that may ask."""

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


def asking(*headers: bytes | None, kept: Principals | None = None, between: Any = None) -> list[Any]:
    """Who comes with each header, or why not."""

    async def ask() -> list[Any]:
        told: list[Any] = []
        for header in headers:
            try:
                told.append((await (kept or Principals()).principal(header)).name)
            except TokenError as error:
                told.append(str(error))
        return told

    return asyncio.run(ask())


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tokens that the database was asked about."""
    asked: list[str] = []

    def look(token: str) -> Principal:
        asked.append(token)
        if token == "bad":
            raise TokenError("This token is not known.")
        return Principal(1, token, expires_at=timezone.now() + timedelta(hours=-1 if token == "old" else 1))

    monkeypatch.setattr(principals, "principal_of_token", look)
    return asked


@pytest.mark.django_db(transaction=True)
def test_a_token_opens_for_its_user() -> None:
    _, token = Token.make(user=User.objects.create_user("ann"))
    good = f"Bearer {token}".encode()
    told = asking(good, b"Bearer gh_wrong")
    assert told[0] == "ann"
    assert told[1].startswith("This token is not known.")


@pytest.mark.django_db
def test_only_a_bearer_is_looked_up(looks: list[str]) -> None:
    assert asking(None, b"Basic abc", b"Bearer", b"Bearer  ", b"gh_1") == [auth.MISSING] * 5
    assert asking(b"token gh_1 ", b"BEARER gh_2") == ["gh_1", "gh_2"]
    assert looks == ["gh_1", "gh_2"]


@pytest.mark.django_db
def test_a_good_token_is_looked_up_once_until_anything_changes(looks: list[str]) -> None:
    kept = Principals()
    asking(b"Bearer a", b"Bearer a", b"Bearer bad", b"Bearer bad", b"Bearer old", b"Bearer old", kept=kept)
    assert looks == ["a", "bad", "bad", "old", "old"]
    kept.forget()
    asking(b"Bearer a", kept=kept)
    assert looks[-1] == "a"
    assert len(looks) == 6


@pytest.mark.django_db
def test_a_look_that_a_change_overtook_is_not_kept(looks: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    kept, look = Principals(), principals.principal_of_token

    def overtaken(token: str) -> Principal:
        kept.forget()
        return look(token)

    monkeypatch.setattr(principals, "principal_of_token", overtaken)
    asking(b"Bearer a", b"Bearer a", kept=kept)
    assert looks == ["a", "a"]


@pytest.mark.django_db
def test_the_memory_of_tokens_is_bounded(looks: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auth, "MAX_PRINCIPALS", 2)
    kept = Principals()
    asking(b"Bearer a", b"Bearer b", b"Bearer c", b"Bearer c", b"Bearer a", kept=kept)
    assert looks == ["a", "b", "c", "a"]
