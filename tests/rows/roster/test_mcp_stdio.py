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


def row() -> Token:
    return Token.objects.get(name=NAME)


def test_it_is_good_for_an_hour_and_gone_at_the_end(admin: User) -> None:
    key = ShortToken(None, None)
    who = principals.principal_of_token(key.text)
    assert (who.name, who.members) == ("admin", None)
    assert timedelta() < LIFE - (row().expires_at - timezone.now()) < timedelta(minutes=1)
    key.end()
    assert not Token.objects.exists()


def test_it_is_the_users_and_for_the_member_alone(admin: User) -> None:
    User.objects.create_user("bob")
    GuildMember.objects.create(name="one", directory="one")
    who = principals.principal_of_token(ShortToken("bob", "one").text)
    assert (who.name, who.members, who.invokes) == ("bob", frozenset({"one"}), False)
    for user, member, reason in [
        ("nobody", None, "no user 'nobody'"),
        ("bob", "two", "no member 'two' is in the roster"),
    ]:
        with pytest.raises(CommandError, match=reason):
            ShortToken(user, member)
    User.objects.update(is_active=False)
    with pytest.raises(CommandError, match="there is no superuser for the token"):
        ShortToken(None, None)


def test_it_is_renewed_before_its_end_and_after_a_sleep_but_never_once_revoked(
    admin: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    Hall.objects.create(hall_id=uuid.uuid4())
    key = ShortToken(None, None)
    first, version = row().expires_at, principals.version()
    assert key.text == key.text
    assert row().expires_at == first
    monkeypatch.setattr(mcp_stdio, "RENEW_BEFORE_END", LIFE)  # from now on it is always due
    Token.objects.update(expires_at=timezone.now() - timedelta(hours=9))
    key.renew()
    text = key.text
    assert row().expires_at > first
    assert principals.version() != version  # so the gateway looks again
    assert principals.principal_of_token(text).name == "admin"
    row().revoke()
    key.renew()
    with pytest.raises(TokenError, match="revoked"):
        principals.principal_of_token(key.text)


def test_what_killed_runs_left_goes_a_week_after_its_end(admin: User) -> None:
    for days in (6, 8):
        Token.make(user=admin, name=NAME, expires_at=timezone.now() - timedelta(days=days))
    theirs, _ = Token.make(user=admin, name="theirs", expires_at=timezone.now() - timedelta(days=8))
    ShortToken(None, None)
    assert Token.objects.filter(name=NAME).count() == 2
    assert Token.objects.filter(pk=theirs.pk).exists()


def test_a_database_that_cannot_be_used_is_said_in_one_line(
    admin: User, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    key = ShortToken(None, None)

    def away(*_: object) -> None:
        raise OperationalError("database is\nlocked")

    with connection.execute_wrapper(away), pytest.raises(CommandError, match=r"cannot be used \(database is locked\)"):
        ShortToken(None, None)
    monkeypatch.setattr(mcp_stdio, "RENEW_BEFORE_END", LIFE)  # from now on it is always due
    with connection.execute_wrapper(away):
        key.renew()  # what it has goes on
    assert "the token could not be renewed (database is" in capsys.readouterr().err
    assert principals.principal_of_token(key.text).name == "admin"
