"""The token of one run of `mcp_stdio`."""

from __future__ import annotations

import uuid
from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.core.management.base import CommandError
from django.db import OperationalError, connection
from django.utils import timezone

from mcp_runtime.protocol.errors import TokenError
from mcp_runtime.security import principals
from roster.management.commands import mcp_stdio
from roster.management.commands.mcp_stdio import LIFE, NAME, ShortToken
from roster.models import GuildMember, Hall, Token

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def admin() -> User:
    return User.objects.create_superuser("admin")


def get_row() -> Token:
    return Token.objects.get(name=NAME)


def test_the_token_is_valid_for_an_hour_and_deleted_at_the_end(admin: User) -> None:
    key = ShortToken(None, None)
    principal = principals.principal_of_token(key.text)
    assert (principal.name, principal.members) == ("admin", None)
    assert timedelta() < LIFE - (get_row().expires_at - timezone.now()) < timedelta(minutes=1)
    key.end()
    assert not Token.objects.exists()


def test_the_token_belongs_to_the_user_and_is_limited_to_the_member(admin: User) -> None:
    User.objects.create_user("bob")
    GuildMember.objects.create(name="one", directory="one")
    principal = principals.principal_of_token(ShortToken("bob", "one").text)
    assert (principal.name, principal.members, principal.invokes) == ("bob", frozenset({"one"}), False)
    for user, member, reason in [
        ("nobody", None, "no user 'nobody'"),
        ("bob", "two", "no member 'two' is in the roster"),
    ]:
        with pytest.raises(CommandError, match=reason):
            ShortToken(user, member)
    User.objects.update(is_active=False)
    with pytest.raises(CommandError, match="there is no superuser for the token"):
        ShortToken(None, None)


def test_the_token_is_renewed_before_and_after_its_end_unless_it_is_revoked(
    admin: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    Hall.objects.create(hall_id=uuid.uuid4())
    key = ShortToken(None, None)
    first, version = get_row().expires_at, principals.version()
    assert key.text == key.text
    assert get_row().expires_at == first
    monkeypatch.setattr(mcp_stdio, "RENEW_BEFORE_END", LIFE)  # from now on a renewal is always due
    Token.objects.update(expires_at=timezone.now() - timedelta(hours=9))
    key.renew()
    text = key.text
    assert get_row().expires_at > first
    assert principals.version() != version  # so the gateway reads the token again
    assert principals.principal_of_token(text).name == "admin"
    get_row().revoke()
    key.renew()
    with pytest.raises(TokenError, match="revoked"):
        principals.principal_of_token(key.text)


def test_tokens_of_killed_runs_are_deleted_a_week_after_their_end(admin: User) -> None:
    for days in (6, 8):
        Token.make(user=admin, name=NAME, expires_at=timezone.now() - timedelta(days=days))
    other_token, _ = Token.make(user=admin, name="theirs", expires_at=timezone.now() - timedelta(days=8))
    ShortToken(None, None)
    assert Token.objects.filter(name=NAME).count() == 2
    assert Token.objects.filter(pk=other_token.pk).exists()


def test_an_unusable_database_is_reported_in_one_line(
    admin: User, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    key = ShortToken(None, None)

    def fail(*_: object) -> None:
        raise OperationalError("database is\nlocked")

    with connection.execute_wrapper(fail), pytest.raises(CommandError, match=r"cannot be used \(database is locked\)"):
        ShortToken(None, None)
    monkeypatch.setattr(mcp_stdio, "RENEW_BEFORE_END", LIFE)  # from now on a renewal is always due
    with connection.execute_wrapper(fail):
        key.renew()  # the old token stays valid
    assert "the token could not be renewed (database is" in capsys.readouterr().err
    assert principals.principal_of_token(key.text).name == "admin"
