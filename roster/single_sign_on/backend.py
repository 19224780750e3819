"""The login at the provider: from the code in the callback to a user of the hall.

The library has the order of the steps. Each step is ours, because the library reads without limits, checks neither the
audience nor the issuer, and finds users by their e-mail address. Only the views of single sign-on import this module.
"""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import User
from django.http import HttpRequest
from mozilla_django_oidc.auth import OIDCAuthenticationBackend

from mcp_runtime.control import id_tokens, identity_provider
from mcp_runtime.control.identity_provider import Provider
from mcp_runtime.protocol.errors import IdTokenError
from roster.single_sign_on import people


class Login(OIDCAuthenticationBackend):  # type: ignore[misc]  # the library has no types
    """One login. `authenticate` returns the user, or raises ProviderError."""

    def __init__(self, provider: Provider, redirect_uri: str) -> None:
        """Not the library's, which wants the addresses of the provider in the settings."""
        self.provider, self.redirect_uri = provider, redirect_uri
        self.OIDC_RP_CLIENT_ID = self.OIDC_RP_CLIENT_SECRET = ""  # `identity_provider` adds them to its request
        self._id_token = ""
        self.claims: dict[str, Any] = {}  # of the ID token, when it is checked

    def of_callback(self, request: HttpRequest, *, nonce: str, code_verifier: str) -> User:
        user: User | None = self.authenticate(request, nonce=nonce, code_verifier=code_verifier)
        if user is None:  # the callback has no code
            name = identity_provider.name()
            raise IdTokenError(f"The answer of {name} has no code. Ask the operator of this hall.")
        return user

    # The steps of `authenticate`, in their order

    def get_token(self, payload: dict[str, Any]) -> dict[str, Any]:
        form = {
            "grant_type": "authorization_code",
            "code": payload["code"],
            "code_verifier": payload["code_verifier"],
            "redirect_uri": self.redirect_uri,  # the library's depends on the Host header
        }
        return identity_provider.exchange(self.provider, form)

    def verify_token(self, token: Any, **kwargs: Any) -> dict[str, Any]:
        self.claims = id_tokens.verify(token, self.provider, nonce=kwargs["nonce"])
        self._id_token = token
        return self.claims

    def store_tokens(self, access_token: Any, id_token: Any) -> None:
        """Do not: the hall needs them for this login only. Later the ID token is kept if a member takes it."""

    def get_or_create_user(self, access_token: Any, id_token: Any, payload: dict[str, Any]) -> User:
        self.claims = self.get_userinfo(access_token, id_token, payload)
        user = people.log_in_as(self.claims)
        id_tokens.keep_for_members(user.pk, self._id_token, self.claims)
        return user

    def get_userinfo(self, access_token: Any, id_token: Any, payload: dict[str, Any]) -> dict[str, Any]:
        """The claims, with those of the userinfo endpoint if the ID token, which is signed, lacks some."""
        lacks = people.needed_claims() - payload.keys()
        if not lacks or not self.provider.userinfo_endpoint or not isinstance(access_token, str):
            return payload
        more = identity_provider.userinfo(self.provider, access_token)
        if more.get("sub") != payload["sub"]:
            raise IdTokenError(
                f"The answer of {identity_provider.name()} cannot be trusted: it is about two different persons. "
                "Ask the operator of this hall."
            )
        return {**more, **payload}
