"""How the OAuth library reads requests and makes tokens. Its settings name these classes and functions."""

from __future__ import annotations

import secrets
from base64 import urlsafe_b64encode
from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest
from django.urls import reverse
from django.utils.crypto import salted_hmac
from oauth2_provider.oauth2_backends import OAuthLibCore

from mcp_runtime.security import resources
from roster.models import AccessToken

# The parameters of a request for a code, and of one for tokens or for their end.
OF_REQUEST = {
    *("response_type", "client_id", "redirect_uri", "scope", "state", "resource"),
    *("code_challenge", "code_challenge_method"),
}
OF_TOKEN = {
    *("grant_type", "code", "redirect_uri", "client_id", "client_secret", "code_verifier", "refresh_token"),
    *("scope", "resource", "token", "token_type_hint"),
}


def new_access_token(request: Any) -> str:
    return AccessToken.PREFIX + _new_text(request, "access token")


def new_refresh_token(request: Any) -> str:
    return AccessToken.REFRESH_PREFIX + _new_text(request, "refresh token")


def _new_text(request: Any, purpose: str) -> str:
    """The next tokens follow from the refresh token and the key of the hall, so that a repeated request gets the same.

    The hall could not answer twice otherwise, because it stores only hashes.
    """
    if request.grant_type != "refresh_token":
        return secrets.token_urlsafe(32)
    digest = salted_hmac(f"roster.sign_in {purpose}", request.refresh_token, algorithm="sha256").digest()
    return urlsafe_b64encode(digest).rstrip(b"=").decode()


def canonical(resource: str) -> str:
    """One text for all addresses of a resource, with which the library compares. Others stay as they are."""
    path = resources.path_of(resource)
    return resource if path is None else f"{resources.gateway_address()}{path}"


class HallCore(OAuthLibCore):  # type: ignore[misc]  # the library has no types
    """Gives the library the parameters that it needs, and no others, because it takes all of them as attributes.

    A code becomes its SHA-256, so that no row has a code of use to anybody.
    """

    def _get_escaped_full_path(self, request: HttpRequest) -> str:
        known = [(name, value) for name, values in request.GET.lists() for value in values if name in OF_REQUEST]
        return f"{request.path}?{urlencode(known)}"

    def extract_body(self, request: HttpRequest) -> list[tuple[str, str]]:
        if request.path == reverse("sign_in:authorize"):
            return []  # its body is the form of the person, and the request of the client is in the address
        pairs = super().extract_body(request)
        return [(name, _stored_form(name, value)) for name, value in pairs if name in OF_TOKEN]


def _stored_form(name: str, value: str) -> str:
    if name == "code":
        return AccessToken.digest_of(value)
    return canonical(value) if name == "resource" else value
