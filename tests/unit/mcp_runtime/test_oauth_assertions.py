"""Proofs of the hall with a private key, checked by a library of other authors."""

from __future__ import annotations

import re
import time

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)

from mcp_runtime.oauth import assertions, clients, discovery
from mcp_runtime.oauth.discovery import AuthorizationServer
from mcp_runtime.protocol.errors import OAuthError

ISSUER = "https://login.example.com"
P256, RSA = ec.generate_private_key(ec.SECP256R1()), rsa.generate_private_key(65537, 2048)


def pem(key: object, password: bytes = b"") -> str:
    lock = BestAvailableEncryption(password) if password else NoEncryption()
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, lock).decode()  # type: ignore[attr-defined, no-any-return]


def server(*algorithms: str) -> AuthorizationServer:
    return AuthorizationServer(ISSUER, "", "", f"{ISSUER}/token", signing_algorithms=algorithms)


@pytest.mark.parametrize(("key", "algorithm"), [(P256, "ES256"), (RSA, "RS256")])
def test_a_proof_names_the_client_is_for_one_issuer_and_ends_after_a_minute(
    key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey, algorithm: str
) -> None:
    proofs = [assertions.signed("the-hall", pem(key), ISSUER) for _ in range(2)]
    claims = [jwt.decode(proof, key.public_key(), algorithms=[algorithm], audience=ISSUER) for proof in proofs]
    assert (claims[0]["iss"], claims[0]["sub"], claims[0]["aud"]) == ("the-hall", "the-hall", ISSUER)
    assert time.time() < claims[0]["exp"] <= time.time() + assertions.SECONDS
    assert claims[0]["jti"] != claims[1]["jti"]
    with pytest.raises(jwt.InvalidAudienceError):
        jwt.decode(proofs[0], key.public_key(), algorithms=[algorithm], audience="https://other.example.com")


@pytest.mark.parametrize(
    "text",
    [
        "no key",
        "",
        pem(P256).replace("M", "N", 1),
        pem(P256, b"a password"),
        pem(ec.generate_private_key(ec.SECP384R1())),
        pem(ed25519.Ed25519PrivateKey.generate()),
        pem(rsa.generate_private_key(65537, 1024)),
    ],
)
def test_a_key_that_cannot_be_used_is_refused_without_a_word_of_it(text: str) -> None:
    with pytest.raises(OAuthError, match=r"oauth\.private_key") as refusal:
        assertions.signed("the-hall", text, ISSUER)
    assert not [line for line in text.splitlines() if len(line) > 10 and line in str(refusal.value)]


def test_a_server_that_cannot_check_the_key_gets_no_proof() -> None:
    assert clients.with_key("the-hall", pem(P256), server("ES256"), "manifest").method == discovery.SIGNED
    for algorithms, words in ((("RS256",), "accepts RS256"), ((), "no signed proof")):
        with pytest.raises(OAuthError, match=f"{words}.* ES256"):
            clients.with_key("the-hall", pem(P256), server(*algorithms), "manifest")


def test_a_request_with_a_proof_has_no_key_and_no_secret() -> None:
    client = clients.with_key("the-hall", pem(RSA), server("RS256"), "manifest")
    form, headers = client.sign({"grant_type": "client_credentials"}, ISSUER)
    assert headers == {}
    assert set(form) == {"grant_type", "client_id", "client_assertion_type", "client_assertion"}
    assert not re.search("PRIVATE|secret", repr((form, client)))
