"""Checks ID tokens of the provider of single sign-on (OpenID Connect Core 1.0, section 3.1.3.7).

`oauth.signed_tokens` checks the signature, the issuer, the audience and the times. The rest is here.
"""

from __future__ import annotations

import hmac
import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from django.conf import settings
from django.db import Error as DatabaseError

from mcp_runtime.control import identity_provider
from mcp_runtime.control.identity_provider import Provider
from mcp_runtime.members import kept_id_tokens
from mcp_runtime.oauth import signed_tokens
from mcp_runtime.oauth.signed_tokens import LEEWAY, SUBJECT, Expected
from mcp_runtime.protocol.errors import (
    ClockError,
    IdTokenError,
    SecretError,
    SignedTokenError,
    TokenTimeError,
)

logger = logging.getLogger("guildhall.web")

MAX_TOKEN = 65_536  # characters


def verify(token: Any, provider: Provider, *, nonce: str) -> dict[str, Any]:
    """The claims of the token. Raises ProviderError."""
    if not isinstance(token, str) or not 0 < len(token) <= MAX_TOKEN:
        raise _fault("it has no ID token")
    audiences = [settings.GUILD_HALL_OIDC_CLIENT_ID]
    expected = Expected(provider.issuer, audiences, "its ID token", MAX_TOKEN, provider.algorithms)
    try:
        signed = signed_tokens.verify(
            token, expected, lambda again: identity_provider.signing_keys(provider, again=again)
        )
    except TokenTimeError as error:
        raise ClockError(_clock_sentence(error.seconds_apart)) from error
    except SignedTokenError as error:
        raise _fault(str(error)) from error
    _require_claims(signed.claims, nonce)
    return signed.claims


def keep_for_members(user_id: int, id_token: str, claims: Mapping[str, Any]) -> None:
    """Keep the checked ID token of a login, if there is a member that takes it. The login goes on in any case."""
    try:
        kept_id_tokens.keep(user_id, id_token, datetime.fromtimestamp(int(claims["exp"]), UTC))
    except (SecretError, DatabaseError, ValueError, OverflowError) as error:
        logger.warning("single sign-on: the ID token of a login cannot be kept for members: %s", error)


def _require_claims(claims: Mapping[str, Any], nonce: str) -> None:
    client = settings.GUILD_HALL_OIDC_CLIENT_ID
    given = claims.get("nonce")
    if not isinstance(given, str) or not hmac.compare_digest(given.encode(), nonce.encode()):
        raise _fault("its ID token is for another login")
    authorized, audience = claims.get("azp"), claims["aud"]
    is_shared = isinstance(audience, list) and len(audience) > 1
    if authorized != client and (authorized is not None or is_shared):
        raise _fault("its ID token is for another client")
    if not isinstance(claims["sub"], str) or not SUBJECT.fullmatch(claims["sub"]):
        raise _fault("its ID token does not say who the person is")


def _fault(reason: str) -> IdTokenError:
    name = identity_provider.name()
    return IdTokenError(f"The answer of {name} cannot be trusted: {reason}. Ask the operator of this hall.")


def _clock_sentence(apart: float) -> str:
    """The token was made a moment ago, so its times tell how far the clocks are apart."""
    name = identity_provider.name()
    if apart < LEEWAY:
        return f"The answer of {name} is not valid at this time. Log in again."
    return (
        f"The clocks of this hall and of {name} differ by about {max(1, round(apart / 60)):,} minutes, so the answer "
        "counts as expired. The operator of this hall must set its clock."
    )
