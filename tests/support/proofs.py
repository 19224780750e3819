"""Checks proofs of DPoP (RFC 9449, section 4.3) as a server does, with a library of other authors."""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import time
from dataclasses import dataclass, field

import jwt


class ProofError(Exception):
    """The proof is not good."""


class NonceNeededError(ProofError):
    """The proof is good, but it has not the nonce of the server."""


@dataclass
class Proofs:
    """The proofs that one server has seen. With `nonce`, a proof must have it.

    With `is_strict`, the server accepts each nonce that it gave once.
    """

    nonce: str = ""
    is_strict: bool = False
    unused: set[str] = field(default_factory=set)  # the nonces of a strict server
    jtis: set[str] = field(default_factory=set)

    def thumbprint(self, proof: str, method: str, url: str, token: str = "") -> str:
        """The thumbprint of the key that signed this proof (RFC 7638). Raises ProofError."""
        if not proof or "," in proof:
            raise ProofError("no proof, or several")
        header = jwt.get_unverified_header(proof)
        key = header.get("jwk", {})
        if header.get("typ") != "dpop+jwt" or "d" in key:
            raise ProofError("another header")
        try:
            claims = jwt.decode(proof, jwt.PyJWK(key, "ES256").key, ["ES256"], options={"require": ["iat", "jti"]})
        except jwt.PyJWTError as error:
            raise ProofError(str(error)) from error
        if (claims.get("htm"), claims.get("htu")) != (method, url) or abs(time.time() - claims["iat"]) > 60:
            raise ProofError("of another request")
        if claims.get("ath") != (digest_of(token) if token else None) or claims["jti"] in self.jtis:
            raise ProofError("of another token, or used before")
        self.jtis.add(claims["jti"])
        if self.is_strict:
            self.nonce = secrets.token_urlsafe(8)
            self.unused.add(self.nonce)
            is_known = claims.get("nonce") in self.unused
            self.unused.discard(claims.get("nonce", ""))
        else:
            is_known = not self.nonce or claims.get("nonce") == self.nonce
        if not is_known:
            raise NonceNeededError(self.nonce)
        names = {name: key[name] for name in ("crv", "kty", "x", "y")}
        return digest_of(json.dumps(names, sort_keys=True, separators=(",", ":")))


def digest_of(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
