"""Sessions: those of Django's own engine are valid, and each knows the version of access of its request."""

from __future__ import annotations

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.contrib.sessions.backends import db

from mcp_runtime.rows import lease
from mcp_runtime.security import principals
from mcp_runtime.security.access import Principal
from roster.models import Hall
from roster.sessions import SessionStore

pytestmark = pytest.mark.django_db


def test_a_session_of_another_version_of_the_hall_is_valid_here_and_there() -> None:
    assert settings.SESSION_ENGINE == "roster.sessions"
    old = db.SessionStore()
    old["word"] = "old"
    old.save()
    assert SessionStore(old.session_key)["word"] == "old"
    new = SessionStore()
    new["word"] = "new"
    new.save()
    assert db.SessionStore(new.session_key)["word"] == "new"


def test_a_session_brings_the_version_of_access() -> None:
    lease.hall()
    session = SessionStore()
    session["word"] = "kept"
    session.save()
    first, second = SessionStore(session.session_key), SessionStore(session.session_key)
    assert first.access_version is None
    assert first["word"] == "kept"
    assert first.access_version == principals.version()
    Hall.note_access_change()
    assert second["word"] == "kept"
    assert second.access_version == principals.version() != first.access_version


def test_an_unknown_session_is_empty_and_has_no_version() -> None:
    session = SessionStore("x" * 32)
    assert session.get("word") is None
    assert session.access_version is None
    assert session.session_key is None


def test_the_holder_of_a_session_is_read_again_after_a_change() -> None:
    lease.hall()
    user = User.objects.create_user("anna")

    def holder() -> tuple[Principal, frozenset[str] | None]:
        return principals.holder_of_session(User.objects.get(pk=user.pk), principals.version())

    assert holder()[1] == frozenset()
    user.is_superuser = True
    user.save()
    principal, permissions = holder()
    assert principal.controls
    assert permissions is None
