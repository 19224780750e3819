"""A hall whose gateway takes the access tokens of an outside issuer, which is also its provider of single sign-on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.contrib.auth.models import User
from django.utils import timezone

from mcp_runtime.gateway import outside_tokens
from roster.models import Identity
from tests.support import provider as support
from tests.support.provider import Provider


@contextmanager
def serve(settings: Any) -> Iterator[Provider]:
    outside_tokens.forget()
    with support.serve() as provider:
        settings.GUILD_HALL_OIDC_ISSUER = provider.url
        settings.GUILD_HALL_SIGN_IN_ISSUER = provider.url
        yield provider
        assert provider.faults == []
    outside_tokens.forget()


def make_person(provider: Provider, name: str = "jane", subject: str = "", **fields: Any) -> User:
    """A user that single sign-on has made. By default a superuser, who may use everything."""
    user = User.objects.create_user(name, **{"is_superuser": True, **fields})
    now = timezone.now()
    subject = subject or provider.person["sub"]
    Identity.objects.create(user=user, issuer=provider.url, subject=subject, created_at=now, last_login_at=now)
    return user
