"""Proofs with a private key: a signed statement of the hall about itself (`private_key_jwt`, RFC 7523).

Each is for one authorization server, for a minute, and has an id, so that nobody can use it elsewhere or again.
"""

from __future__ import annotations

import base64
import json
import secrets
import time
from typing import TYPE_CHECKING, Any

from mcp_runtime.protocol.errors import OAuthError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes

TYPE = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
SECONDS = 60
MIN_RSA_BITS = 2048
P256_BYTES = 32  # of each half of a signature


def algorithm_of(pem: str) -> str:
    """The algorithm for this private key, ES256 or RS256. Raises OAuthError, which says nothing of the key."""
    return _algorithm(_key(pem))


def signed(client_id: str, pem: str, audience: str) -> str:
    """The statement, as a JWT. `audience` is the issuer that reads it. Raises OAuthError."""
    key, now = _key(pem), int(time.time())
    claims = {"iss": client_id, "sub": client_id, "aud": audience, "iat": now, "exp": now + SECONDS}
    claims["jti"] = secrets.token_urlsafe(16)
    return jwt_of({"alg": _algorithm(key), "typ": "JWT"}, claims, key)


def jwt_of(header: dict[str, Any], claims: dict[str, Any], key: PrivateKeyTypes) -> str:
    """The claims with a signature. `header` names the algorithm, which must be that of the key."""
    text = f"{_encoded(header)}.{_encoded(claims)}"
    return f"{text}.{base64_of(_signature(key, text.encode()))}"


def _key(pem: str) -> PrivateKeyTypes:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        return load_pem_private_key(pem.encode(), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise OAuthError("oauth.private_key is no private key in PEM without a password") from None


def _algorithm(key: PrivateKeyTypes) -> str:
    from cryptography.hazmat.primitives.asymmetric import ec, rsa

    if isinstance(key, ec.EllipticCurvePrivateKey) and isinstance(key.curve, ec.SECP256R1):
        return "ES256"
    if isinstance(key, rsa.RSAPrivateKey) and key.key_size >= MIN_RSA_BITS:
        return "RS256"
    raise OAuthError(f"oauth.private_key must be an EC key on P-256, or an RSA key of {MIN_RSA_BITS} bits or more")


def _signature(key: Any, text: bytes) -> bytes:
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec, padding
    from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

    if _algorithm(key) == "RS256":
        signature: bytes = key.sign(text, padding.PKCS1v15(), hashes.SHA256())
        return signature
    halves = decode_dss_signature(key.sign(text, ec.ECDSA(hashes.SHA256())))
    return b"".join(half.to_bytes(P256_BYTES, "big") for half in halves)


def _encoded(values: dict[str, Any]) -> str:
    return base64_of(json.dumps(values, separators=(",", ":")).encode())


def base64_of(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
