"""Who asks: a token of ours in the Authorization header. (A browser's session is REST framework's own class.)"""

from __future__ import annotations

from django.contrib.auth.models import User
from rest_framework.authentication import BaseAuthentication, get_authorization_header
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.request import Request

from mcp_runtime.protocol.errors import TokenError
from mcp_runtime.security import principals
from mcp_runtime.security.access import Principal

SCHEMES = ("bearer", "token")


class ApiTokenAuthentication(BaseAuthentication):
    """`Authorization: Bearer gh_...` or `Token gh_...`, in one query. 401 for a token that is not good.

    Nowhere else: an address with a token in it would be kept by proxies, histories and logs.
    """

    def authenticate(self, request: Request) -> tuple[User, Principal] | None:
        scheme, _, token = get_authorization_header(request).decode("latin-1").strip().partition(" ")
        if scheme.lower() not in SCHEMES:
            return None
        try:
            return principals.holder_of(token.strip())
        except TokenError as error:
            raise AuthenticationFailed(str(error)) from error

    def authenticate_header(self, request: Request) -> str:
        """WWW-Authenticate; without it REST framework would answer 403 where 401 is meant."""
        return 'Bearer realm="Guild Hall", Token realm="Guild Hall"'
