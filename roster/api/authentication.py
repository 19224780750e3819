"""Who asks: a token of ours in the Authorization header. (A browser's session is REST framework's own class.)"""

from __future__ import annotations

from typing import Any

from django.contrib.auth.base_user import AbstractBaseUser
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from rest_framework.authentication import BaseAuthentication, get_authorization_header
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.request import Request

from roster.models import ApiToken

SCHEMES = ("bearer", "token")


class ApiTokenAuthentication(BaseAuthentication):
    """`Authorization: Bearer gh_...` or `Token gh_...`, in one query. 401 for a token that is not good."""

    def authenticate(self, request: Request) -> tuple[AbstractBaseUser, ApiToken] | None:
        scheme, _, token = get_authorization_header(request).decode("latin-1").strip().partition(" ")
        if scheme.lower() not in SCHEMES:
            return None
        try:
            # `get`, not `first`: sorting the one row costs a sixth of the whole request.
            found = ApiToken.objects.select_related("user").get(digest=ApiToken.digest_of(token.strip()))
        except ApiToken.DoesNotExist as error:
            raise AuthenticationFailed("This token is not known. `manage.py create_token USER` makes one.") from error
        if not found.user.is_active:
            raise AuthenticationFailed("The user of this token is not active.")
        return found.user, found

    def authenticate_header(self, request: Request) -> str:
        """WWW-Authenticate; without it REST framework would answer 403 where 401 is meant."""
        return 'Bearer realm="Guild Hall", Token realm="Guild Hall"'


class ApiTokenScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    """What the OpenAPI document says about it. drf-spectacular finds the class by its existence."""

    target_class = "roster.api.authentication.ApiTokenAuthentication"
    name = "token"

    def get_security_definition(self, auto_schema: Any) -> dict[str, Any]:
        return {"type": "http", "scheme": "bearer", "description": "A token of `manage.py create_token`, gh_..."}
