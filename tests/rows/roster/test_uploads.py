"""Who may send a large body, as the web asks before it reads one."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import InterfaceError, OperationalError
from django.test import Client, RequestFactory
from django.utils import timezone

from roster import uploads
from roster.models import Token
from tests.support.admin import allow

pytestmark = pytest.mark.django_db


@pytest.fixture
def ada(db: None) -> User:
    user = User.objects.create_user("ada")
    allow(user, "approve_member")
    return user


def asked(session: Client | None = None, authorization: str = "") -> bool:
    factory = RequestFactory()
    if session is not None:
        factory.cookies.update(session.cookies)
    headers: dict[str, Any] = {"authorization": authorization} if authorization else {}
    return uploads.may_upload(factory.post("/api/members/", headers=headers).environ)


def session_of(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def test_a_token_must_be_good_and_for_everything(ada: User) -> None:
    token, text = Token.make(user=ada)
    assert asked(authorization=f"Bearer {text}")
    assert asked(authorization=f"token {text} ")
    assert not asked(authorization=text)
    for change in ({"scope": "members"}, {"scope": "all", "revoked_at": timezone.now()}):
        Token.objects.filter(pk=token.pk).update(**change)
        assert not asked(authorization=f"Bearer {text}")


def test_a_session_must_be_of_a_person_who_may_add_members(ada: User) -> None:
    session = session_of(ada)
    assert asked(session)
    assert asked(session, "Bearer token-of-a-proxy")
    assert not asked(session_of(User.objects.create_user("bob")))
    User.objects.filter(pk=ada.pk).update(is_active=False)
    assert not asked(session)
    assert not asked()


@pytest.mark.parametrize("error", [OperationalError, InterfaceError])
def test_without_a_database_nobody_may(ada: User, error: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(request: Any) -> bool:
        raise error("away")

    monkeypatch.setattr(uploads, "get_user", fail)
    assert not asked(session_of(ada))
