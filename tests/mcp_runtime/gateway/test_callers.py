"""Who may come in: tokens kept in memory, and the pages that may ask."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from mcp_runtime import access
from mcp_runtime.access import Principal
from mcp_runtime.errors import TokenError
from mcp_runtime.gateway import callers
from mcp_runtime.gateway.callers import Callers, Origins
from roster.models import ApiToken

HOSTS = ["127.0.0.1", "hall.example"]


def asking(*headers: bytes | None, kept: Callers | None = None, between: Any = None) -> list[Any]:
    """Who comes with each header, or why not."""

    async def ask() -> list[Any]:
        told: list[Any] = []
        for header in headers:
            try:
                told.append((await (kept or Callers()).principal(header)).name)
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

    monkeypatch.setattr(access, "principal_of_token", look)
    return asked


@pytest.mark.django_db(transaction=True)
def test_a_token_opens_for_its_user() -> None:
    _, token = ApiToken.make(user=User.objects.create_user("ann"))
    good = f"Bearer {token}".encode()
    told = asking(good, b"Bearer gh_wrong")
    assert told[0] == "ann"
    assert told[1].startswith("This token is not known.")


@pytest.mark.django_db
def test_only_a_bearer_is_looked_up(looks: list[str]) -> None:
    assert asking(None, b"Basic abc", b"Bearer", b"Bearer  ", b"gh_1") == [callers.MISSING] * 5
    assert asking(b"token gh_1 ", b"BEARER gh_2") == ["gh_1", "gh_2"]
    assert looks == ["gh_1", "gh_2"]


@pytest.mark.django_db
def test_a_good_token_is_looked_up_once_until_anything_changes(looks: list[str]) -> None:
    kept = Callers()
    asking(b"Bearer a", b"Bearer a", b"Bearer bad", b"Bearer bad", b"Bearer old", b"Bearer old", kept=kept)
    assert looks == ["a", "bad", "bad", "old", "old"]
    kept.forget()
    asking(b"Bearer a", kept=kept)
    assert looks[-1] == "a"
    assert len(looks) == 6


@pytest.mark.django_db
def test_a_look_that_a_change_overtook_is_not_kept(looks: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    kept, look = Callers(), access.principal_of_token

    def overtaken(token: str) -> Principal:
        kept.forget()
        return look(token)

    monkeypatch.setattr(access, "principal_of_token", overtaken)
    asking(b"Bearer a", b"Bearer a", kept=kept)
    assert looks == ["a", "a"]


@pytest.mark.django_db
def test_the_memory_of_tokens_is_bounded(looks: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callers, "MAX_KEPT", 2)
    kept = Callers()
    asking(b"Bearer a", b"Bearer b", b"Bearer c", b"Bearer c", b"Bearer a", kept=kept)
    assert looks == ["a", "b", "c", "a"]


def fault(**headers: str) -> str:
    named = {"host": "127.0.0.1:8100", **{name.replace("_", "-"): value for name, value in headers.items()}}
    told = {name.encode(): value.encode() for name, value in named.items()}
    return Origins(HOSTS, ["http://trusted.example"]).fault(told)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"host": "hall.example"},
        {"origin": "http://127.0.0.1:8100"},
        {"origin": "http://trusted.example", "sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-origin"},
    ],
)
def test_programs_and_the_halls_own_pages_may_ask(headers: dict[str, str]) -> None:
    assert fault(**headers) == ""


@pytest.mark.parametrize(
    ("headers", "said"),
    [
        ({"host": "evil.example"}, "Host 'evil.example' is not one of the hall's"),
        ({"host": ""}, "Host '' is not one of the hall's"),
        ({"host": "127.0.0.1:0"}, "is not one of the hall's"),
        ({"host": "127.0.0.1:65536"}, "is not one of the hall's"),
        ({"host": "127.0.0.1:99999999"}, "is not one of the hall's"),
        ({"host": f"127.0.0.1:{'9' * 5000}"}, "is not one of the hall's"),
        ({"origin": "http://evil.example"}, "Origin 'http://evil.example' is not allowed here"),
        ({"origin": "http://127.0.0.1:9"}, "is not allowed here"),
        ({"origin": "null"}, "is not allowed here"),
        ({"origin": "http://["}, "is not allowed here"),
        ({"origin": "http://127.0.0.1:8100/x"}, "is not allowed here"),
        ({"sec_fetch_site": "cross-site"}, "A page of another site"),
    ],
)
def test_pages_from_elsewhere_may_not(headers: dict[str, str], said: str) -> None:
    assert said in fault(**headers)
