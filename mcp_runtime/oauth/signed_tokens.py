"""Checks signed tokens (JWT) of an issuer that the operator chose (RFC 7519, RFC 8725).

Only signatures with the issuer's public keys count. Nothing in a token chooses how it is checked: its algorithm must be
one of ALGORITHMS and fit the kind of the key, and keys or addresses of keys in its header are ignored.
"""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from mcp_runtime.protocol.errors import OtherKeyError, SignedTokenError, TokenTimeError

# Algorithm and kind of key. None of them works with a shared secret.
ALGORITHMS = {
    **dict.fromkeys(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"), "RSA"),
    **dict.fromkeys(("ES256", "ES384", "ES512"), "EC"),
    "EdDSA": "OKP",
}
LEEWAY = 60.0  # seconds by which clocks may differ
MIN_RSA_BITS = 2048
MAX_SUBJECT = 255
SUBJECT = re.compile(rf"[\x20-\x7e]{{1,{MAX_SUBJECT}}}")  # ASCII, says OpenID Connect
REQUIRED = ("iss", "sub", "aud", "exp", "iat")


@dataclass(frozen=True)
class SignedToken:
    header: dict[str, Any]
    claims: dict[str, Any]


@dataclass(frozen=True)
class Expected:
    """What a token must be. `what` names it in errors, for example "its ID token"."""

    issuer: str
    audiences: Collection[str] | None  # of which the token must name one. None if the caller checks that
    what: str
    max_length: int
    algorithms: Collection[str] = ()  # those of the issuer. Empty if it does not say
    required: Collection[str] = REQUIRED


def verify(token: str, expected: Expected, keys: Callable[[bool], list[dict[str, Any]]]) -> SignedToken:
    """The parts of a token whose signature, issuer, audience and times are good.

    `keys` returns the keys of the issuer. If the key of the token is not among them, it is called again, with True,
    because it may be new. Raises SignedTokenError, and what `keys` raises.
    """
    import jwt

    header, unchecked = _parts(token, expected)
    algorithm = _algorithm(header, expected)
    key = _key(header, algorithm, keys, expected)
    try:
        claims: dict[str, Any] = jwt.decode(
            token,
            key,
            algorithms=[algorithm],
            issuer=expected.issuer,
            audience=None if expected.audiences is None else list(expected.audiences),
            leeway=LEEWAY,
            options={"require": list(expected.required), "verify_aud": expected.audiences is not None},
        )
    except (jwt.ExpiredSignatureError, jwt.ImmatureSignatureError) as error:
        # The signature is good. The times tell how far the clocks are apart, if the token was made a moment ago.
        issued_at = unchecked.get("iat")
        apart = abs(time.time() - issued_at) if isinstance(issued_at, int | float) else 0.0
        raise TokenTimeError(f"{expected.what} is not valid at this time", apart) from error
    except jwt.PyJWTError as error:
        raise SignedTokenError(_reason(error, expected.what)) from error
    except (ValueError, TypeError, OverflowError, RecursionError) as error:  # what the library does not expect
        raise SignedTokenError(f"{expected.what} cannot be read") from error
    return SignedToken(header, claims)


def _parts(token: str, expected: Expected) -> tuple[dict[str, Any], dict[str, Any]]:
    """The header and the claims, before the signature is checked. Two readers must read the same in them."""
    if not 0 < len(token) <= expected.max_length:
        raise SignedTokenError(f"{expected.what} is empty or longer than {expected.max_length:,} characters")
    texts = token.split(".")
    if len(texts) != 3:
        raise SignedTokenError(f"{expected.what} cannot be read")
    try:
        header, claims = (_json(text) for text in texts[:2])
    except (ValueError, RecursionError) as error:
        raise SignedTokenError(f"{expected.what} cannot be read") from error
    if not isinstance(header, dict) or not isinstance(claims, dict):
        raise SignedTokenError(f"{expected.what} cannot be read")
    return header, claims


def _json(text: str) -> Any:
    padded = text.encode("ascii") + b"=" * (-len(text) % 4)
    return json.loads(base64.b64decode(padded, b"-_", validate=True), object_pairs_hook=_without_repetition)


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name stands there twice")
    return found


def _algorithm(header: Mapping[str, Any], expected: Expected) -> str:
    algorithm = header.get("alg")
    if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
        raise SignedTokenError(f"{expected.what} is not signed with a public key")
    if expected.algorithms and algorithm not in expected.algorithms:
        raise SignedTokenError(f"{expected.what} has an algorithm that its discovery document does not have")
    if "crit" in header:
        raise SignedTokenError(f"{expected.what} has extensions that this hall does not know")
    return algorithm


def _key(
    header: Mapping[str, Any], algorithm: str, keys: Callable[[bool], list[dict[str, Any]]], expected: Expected
) -> Any:
    for again in (False, True):
        fitting = [key for key in keys(again) if _fits(key, header, algorithm)]
        if len(fitting) == 1:
            return _parsed(fitting[0], algorithm)
    raise OtherKeyError(f"{expected.what} is signed with a key that it does not publish")


def _fits(key: Mapping[str, Any], header: Mapping[str, Any], algorithm: str) -> bool:
    is_for_it = key.get("use", "sig") == "sig" and key.get("alg", algorithm) == algorithm
    return (
        is_for_it
        and key.get("kty") == ALGORITHMS[algorithm]
        and ("kid" not in header or key.get("kid") == header["kid"])
    )


def _parsed(jwk: Mapping[str, Any], algorithm: str) -> Any:
    import jwt

    try:
        key = jwt.PyJWK(dict(jwk), algorithm).key
    except (jwt.PyJWTError, ValueError, TypeError) as error:
        raise SignedTokenError("one of its keys cannot be read") from error
    if hasattr(key, "private_bytes"):
        raise SignedTokenError("it publishes a private key")
    if getattr(key, "key_size", MIN_RSA_BITS) < MIN_RSA_BITS and ALGORITHMS[algorithm] == "RSA":
        raise SignedTokenError(f"one of its keys is shorter than {MIN_RSA_BITS} bits")
    return key


def _reason(error: Exception, what: str) -> str:
    import jwt

    reasons: list[tuple[type[Exception], str]] = [
        (jwt.InvalidAudienceError, "is for another audience"),
        (jwt.InvalidIssuerError, "is of another issuer"),
        (jwt.MissingRequiredClaimError, "lacks a claim"),
        (jwt.InvalidSignatureError, "has a wrong signature"),
    ]
    return f"{what} {next((text for kind, text in reasons if isinstance(error, kind)), 'cannot be read')}"
