"""Statements about a person or a service that an authorization server trusts, as signed texts (JWT).

A workload has one from its platform. For a person of a company, the identity provider gives one (ID-JAG) in exchange
for an ID token (RFC 8693). The authorization server of the member checks the signature. Here only what the text says
about itself is looked at, so that none is sent to a server that it is not for, and so that errors say what to do.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Sequence
from typing import Any

from mcp_runtime.client.outside import Guard
from mcp_runtime.oauth import grants
from mcp_runtime.oauth.clients import OAuthClient
from mcp_runtime.oauth.discovery import AuthorizationServer
from mcp_runtime.protocol.errors import AccessEndedError, AssertionRefusedError, GrantOverError, TokenRefusedError

TOKEN_EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"  # noqa: S105 - no secret
ID_TOKEN = "urn:ietf:params:oauth:token-type:id_token"  # noqa: S105 - no secret
ID_JAG = "urn:ietf:params:oauth:token-type:id-jag"
TYPE = "oauth-id-jag+jwt"
MAX_ASSERTION = 16_384
MAX_SHOWN = 200


def exchange(
    provider: AuthorizationServer,
    client: OAuthClient,
    id_token: str,
    server: AuthorizationServer,
    scopes: Sequence[str],
    guard: Guard,
    *,
    is_of_user: bool = False,
) -> str:
    """The assertion of the identity provider for `server`, about whom the ID token is about.

    `client` is who the hall is at the provider. The assertion about a user must name the member as its resource.
    Otherwise whoever adds a member could have the tokens of users sent to it that are for another server.

    Raises AccessEndedError if the provider gives none, and ServerAwayError, OAuthError.
    """
    form = {
        "grant_type": TOKEN_EXCHANGE,
        "requested_token_type": ID_JAG,
        "audience": server.issuer,
        "subject_token": id_token,
        "subject_token_type": ID_TOKEN,
    }
    form |= {"scope": " ".join(scopes)} if scopes else {}
    try:
        values = grants.answer_of(provider, client, form, guard, (id_token,))
    except GrantOverError as error:
        text = f"the identity provider does not accept the ID token: {error}"
        text += "; log in to the hall again" if is_of_user else ""
        raise AccessEndedError(text, needs_login=True) from error
    except TokenRefusedError as error:
        raise AccessEndedError(f"the identity provider gave no assertion: {error}") from error
    assertion = values.get("access_token")
    if values.get("issued_token_type") != ID_JAG or not isinstance(assertion, str):
        raise AccessEndedError(f"the identity provider {provider.issuer!r} gave no identity assertion (ID-JAG)")
    _require_fit(assertion, provider, server, is_of_user=is_of_user)
    return assertion


def _require_fit(
    assertion: str, provider: AuthorizationServer, server: AuthorizationServer, *, is_of_user: bool
) -> None:
    header, claims = _parts(assertion, 0), _parts(assertion, 1)
    if header is None or claims is None or header.get("typ") != TYPE:
        raise AccessEndedError(f"the identity provider {provider.issuer!r} gave an unusable identity assertion")
    if fault := _fault(claims, (server.issuer, server.issuer.rstrip("/"), f"{server.issuer}/")):
        raise AccessEndedError(f"the identity assertion of {provider.issuer!r} cannot be used: {fault}")
    if claims.get("iss") != provider.issuer:
        raise AccessEndedError(f"the identity assertion is of another issuer than {provider.issuer!r}")
    if is_of_user and "resource" not in claims:
        raise AccessEndedError(f"the identity assertion of {provider.issuer!r} names no server (resource)")
    resource = claims.get("resource", server.resource)
    if server.resource not in (resource if isinstance(resource, list) else [resource]):
        raise AccessEndedError(f"the identity assertion of {provider.issuer!r} is for another server")


def require_usable(assertion: str, server: AuthorizationServer) -> None:
    """Raise AssertionRefusedError if a text from elsewhere is no signed statement for this server at this time."""
    claims = _parts(assertion, 1)
    if claims is None or _parts(assertion, 0) is None:
        raise AssertionRefusedError("the assertion is no signed token (JWT)")
    audiences = (server.issuer, server.issuer.rstrip("/"), f"{server.issuer}/", server.token_endpoint)
    if fault := _fault(claims, audiences):
        raise AssertionRefusedError(f"the assertion cannot be used at {server.issuer!r}: {fault}")


def _fault(claims: dict[str, Any], audiences: Sequence[str]) -> str:
    ends = claims.get("exp")
    if not isinstance(ends, int | float) or isinstance(ends, bool):
        return "it has no end (exp)"
    if ends <= time.time():
        return "it has expired"
    audience = claims.get("aud")
    named = audience if isinstance(audience, list) else [audience]
    if not any(each in audiences for each in named):
        return f"it is for another audience: {', '.join(str(each) for each in named[:10])[:MAX_SHOWN]!r}"
    return ""


def _parts(token: str, place: int) -> dict[str, Any] | None:
    """The header (0) or the claims (1). None if this is no JWT."""
    texts = token.split(".")
    if len(texts) != 3 or len(token) > MAX_ASSERTION or not token.isascii() or not token.isprintable():
        return None
    try:
        value = json.loads(base64.urlsafe_b64decode(texts[place] + "=" * (-len(texts[place]) % 4)))
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
