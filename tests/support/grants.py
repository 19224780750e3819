"""Grants without the consent of a person."""

from __future__ import annotations

import secrets
from datetime import timedelta
from typing import Any

from django.contrib.auth.models import User
from django.utils import timezone

from mcp_runtime.control.grants import NewGrant, add_access_token, make_grant
from mcp_runtime.control.tokens import NewToken
from mcp_runtime.security import principals
from roster.models import AccessToken, Grant, Token


def make_access_token(
    resource: str = "/mcp", *, user: User | None = None, seconds: float = 3600, **scope: Any
) -> tuple[Grant, str]:
    """A grant for a path of the gateway, and an access token of it."""
    user = user or User.objects.create_superuser(f"person-{secrets.token_hex(4)}")
    new = NewGrant("client", "Client", "http://127.0.0.1/callback", resource, 1, NewToken(**scope))
    grant = make_grant(user, new, maker=principals.principal_of_user(user))
    Token.objects.filter(pk=grant.pk).update(expires_at=grant.ends_at)
    text = AccessToken.PREFIX + secrets.token_urlsafe(32)
    add_access_token(grant, text, timezone.now() + timedelta(seconds=seconds))
    return grant, text
