"""Authentication with a token of the hall in the Authorization header. For sessions REST framework has a class."""

from __future__ import annotations

from typing import cast

from django.contrib.auth.models import User
from django.http import HttpRequest
from rest_framework.authentication import BaseAuthentication, get_authorization_header
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.request import Request

from mcp_runtime.protocol.errors import TokenError
from mcp_runtime.security import principals
from mcp_runtime.security.access import Principal

SCHEMES = ("bearer", "token")


def token_in(request: HttpRequest | Request) -> str | None:
    """The token in the Authorization header. None if it has none of a token's schemes."""
    scheme, _, token = get_authorization_header(cast(Request, request)).decode("latin-1").strip().partition(" ")
    return token.strip() if scheme.lower() in SCHEMES else None


class TokenAuthentication(BaseAuthentication):
    """Read `Authorization: Bearer gh_...` or `Token gh_...`, with one query. An invalid token gets 401.

    No token is read from URLs, because proxies, browser histories and logs keep URLs.
    """

    def authenticate(self, request: Request) -> tuple[User, Principal] | None:
        if (token := token_in(request)) is None:
            return None
        try:
            return principals.holder_of(token)
        except TokenError as error:
            raise AuthenticationFailed(str(error)) from error

    def authenticate_header(self, request: Request) -> str:
        """WWW-Authenticate. Without it REST framework would answer 403 instead of 401."""
        return 'Bearer realm="Guild Hall", Token realm="Guild Hall"'
