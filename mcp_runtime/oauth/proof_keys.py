"""Keys to which access tokens are bound (DPoP, RFC 9449): a token is of no use to somebody who steals it alone.

The hall makes one key for each sign-in, and keeps it with the tokens. Each request has a new proof, which names the
method, the address and the token.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import secrets
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mcp_runtime.oauth import assertions

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

ALGORITHM = "ES256"
TYPE = "dpop+jwt"
HEADER = "DPoP"


@dataclass(frozen=True)
class ProofKey:
    """`secret` is the private number of a key on P-256, in base64url without padding."""

    secret: str = field(repr=False)

    @classmethod
    def new(cls) -> ProofKey:
        from cryptography.hazmat.primitives.asymmetric import ec

        number = ec.generate_private_key(ec.SECP256R1()).private_numbers().private_value
        return cls(assertions.base64_of(number.to_bytes(assertions.P256_BYTES, "big")))

    @functools.cached_property
    def thumbprint(self) -> str:
        """The name of the public key (RFC 7638), for the parameter `dpop_jkt`."""
        text = json.dumps(self._public, sort_keys=True, separators=(",", ":"))
        return assertions.base64_of(hashlib.sha256(text.encode()).digest())

    def proof(self, method: str, url: str, *, token: str = "", nonce: str = "") -> str:
        """The proof for one request, as a JWT. `nonce` is what the server asked for, if it did."""
        claims = {
            "jti": secrets.token_urlsafe(16),
            "htm": method,
            "htu": url.partition("#")[0].partition("?")[0],
            "iat": int(time.time()),
        }
        claims |= {"ath": assertions.base64_of(hashlib.sha256(token.encode()).digest())} if token else {}
        claims |= {"nonce": nonce} if nonce else {}
        header = {"typ": TYPE, "alg": ALGORITHM, "jwk": self._public}
        return assertions.jwt_of(header, claims, self._key)

    @functools.cached_property
    def _key(self) -> EllipticCurvePrivateKey:
        from cryptography.hazmat.primitives.asymmetric import ec

        number = int.from_bytes(base64.urlsafe_b64decode(self.secret + "="), "big")
        return ec.derive_private_key(number, ec.SECP256R1())

    @functools.cached_property
    def _public(self) -> dict[str, str]:
        numbers = self._key.public_key().public_numbers()
        x, y = (assertions.base64_of(part.to_bytes(assertions.P256_BYTES, "big")) for part in (numbers.x, numbers.y))
        return {"crv": "P-256", "kty": "EC", "x": x, "y": y}
