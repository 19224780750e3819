"""Passes: with which the web and commands ask the gateway."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.contrib.auth.models import Permission, User
from django.core import signing
from django.utils import timezone

from mcp_runtime.protocol.errors import TokenError
from mcp_runtime.security import passes, principals
from mcp_runtime.security.access import OPERATOR, Principal
from roster.models import GuildMember, Hall, Token

pytestmark = pytest.mark.django_db


@pytest.fixture
def ann() -> User:
    Hall.objects.create()
    user = User.objects.create_user("ann")
    user.user_permissions.add(Permission.objects.get(codename="invoke_tool"))
    return user


def text_of(principal: Principal, seconds: float = 60.0) -> str:
    scheme, _, text = passes.authorization(principal, seconds).partition(" ")
    assert scheme == passes.SCHEME
    return text


def test_a_pass_is_the_user_with_its_current_rights(ann: User) -> None:
    text = text_of(principals.principal_of_user(ann))
    assert (passes.principal_of(text).name, passes.principal_of(text).invokes) == ("ann", True)
    ann.user_permissions.clear()
    assert not passes.principal_of(text).invokes
    ann.is_active = False
    ann.save()
    with pytest.raises(TokenError, match="is not active"):
        passes.principal_of(text)
    ann.delete()
    with pytest.raises(TokenError, match="was deleted"):
        passes.principal_of(text)


def test_a_pass_of_a_token_has_its_scope_and_ends_with_it(ann: User) -> None:
    notes = GuildMember.objects.create(name="notes", directory="notes")
    ends_at = timezone.now() + timedelta(seconds=20)
    options = {"scope": Token.Scope.MEMBERS, "members": [notes], "expires_at": ends_at}
    row, token = Token.make(user=ann, **options)
    text = text_of(principals.principal_of_token(token))
    principal = passes.principal_of(text)
    assert (principal.token_id, principal.members, principal.expires_at) == (row.pk, {"notes"}, ends_at)
    Token.objects.filter(pk=row.pk).update(revoked_at=timezone.now())
    with pytest.raises(TokenError, match="was revoked"):
        passes.principal_of(text)
    Token.objects.all().delete()
    with pytest.raises(TokenError, match="was deleted"):
        passes.principal_of(text)


def test_a_pass_of_the_operator_may_do_everything() -> None:
    principal = passes.principal_of(text_of(OPERATOR))
    assert (principal.user_id, principal.invokes, principal.controls) == (None, True, True)


def test_a_pass_ends(ann: User) -> None:
    text = text_of(principals.principal_of_user(ann), seconds=-1.0)
    with pytest.raises(TokenError, match="has expired"):
        passes.principal_of(text)
    principal = passes.principal_of(text_of(principals.principal_of_user(ann), 30.0))
    assert principal.expires_at is not None
    assert timedelta(seconds=20) < principal.expires_at - timezone.now() <= timedelta(seconds=30)


def test_what_this_hall_has_not_signed_as_a_pass_is_none() -> None:
    for text in ("", "x", "a:b:c", signing.dumps([None, None, 9e12], salt="another")):
        with pytest.raises(TokenError, match="no pass of this hall"):
            passes.principal_of(text)


def test_the_web_accepts_no_pass(ann: User) -> None:
    from django.test import Client

    client = Client(headers={"Authorization": passes.authorization(principals.principal_of_user(ann), 60.0)})
    assert client.get("/api/roster/").status_code == 401
