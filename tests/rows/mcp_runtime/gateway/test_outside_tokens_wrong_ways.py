"""Tokens that the gateway must not take, from somebody who has the network, another client or an old token."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from mcp_runtime.gateway import outside_tokens
from mcp_runtime.oauth import issuers
from roster.models import Grant
from tests.support import outside_issuer
from tests.support import provider as support
from tests.support.gateway_world import World
from tests.support.provider import Answer, Claims, Provider

Make = Callable[[Provider], str]
OWN = rsa.generate_private_key(65537, 2048)


@pytest.fixture(autouse=True)
def _given_up_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(issuers, "TIMEOUT", 1.0)


@pytest.fixture
def provider(settings: Any) -> Iterator[Provider]:
    with outside_issuer.serve(settings) as provider:
        yield provider


def encoded(part: Any) -> str:
    text = part if isinstance(part, str) else json.dumps(part)
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def by_hand(header: Any, claims: Any, signature: str = "") -> str:
    return f"{encoded(header)}.{encoded(claims)}.{signature}"


def signed_by_hand(provider: Provider, header: Any, claims: Any) -> str:
    """A good signature over any text, such as one in which a name stands twice."""
    text = f"{encoded(header)}.{encoded(claims)}"
    signature = jwt.algorithms.RSAAlgorithm(jwt.algorithms.RSAAlgorithm.SHA256).sign(
        text.encode(), provider.keys["first"]
    )
    return f"{text}.{base64.urlsafe_b64encode(signature).decode().rstrip('=')}"


def claims(**changes: Any) -> Make:
    return lambda provider: provider.access_token(**changes)


def header(**values: Any) -> Make:
    return lambda provider: provider.access_token(header=values)


def later(seconds: int) -> int:
    return int(time.time()) + seconds


def hmac_with(secret: Callable[[Provider], bytes]) -> Make:
    def make(provider: Provider) -> str:
        text = by_hand({"alg": "HS256", "kid": "first", "typ": "at+jwt"}, provider.access_claims()).rstrip(".")
        digest = hmac.new(secret(provider), text.encode(), hashlib.sha256).digest()
        return f"{text}.{base64.urlsafe_b64encode(digest).decode().rstrip('=')}"

    return make


def own_key(**header: Any) -> Make:
    """Signed with a key of the attacker, who tells the gateway in the header where the key is."""

    def make(provider: Provider) -> str:
        headers = {"kid": "first", "typ": "at+jwt", **header}
        return jwt.encode(provider.access_claims(), OWN, algorithm="RS256", headers=headers)

    return make


OWN_JWK = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(OWN.public_key()))


def changed(provider: Provider) -> str:
    head, _, signature = provider.access_token().split(".")
    return f"{head}.{encoded(provider.access_claims(sub='admin'))}.{signature}"


def with_twice(name: str, value: str) -> Make:
    def make(provider: Provider) -> str:
        text = json.dumps(provider.access_claims())
        return signed_by_hand(provider, {"alg": "RS256", "kid": "first"}, f'{{"{name}": {value}, {text[1:]}')

    return make


def key_of_another_kind(provider: Provider) -> str:
    token = jwt.encode(
        provider.access_claims(), ec.generate_private_key(ec.SECP256R1()), algorithm="ES256", headers={"kid": "first"}
    )
    return str(token)


def id_token(**changes: Any) -> Make:
    """As the issuer makes it for the client, with the hall as its audience, if the attacker is lucky."""

    def make(provider: Provider) -> str:
        row = provider.access_claims(nonce="n", at_hash="h", **changes)
        return provider.signed(row)

    return make


def answers(path: str, answer: Callable[[Provider], Answer]) -> Make:
    def make(provider: Provider) -> str:
        provider.answers[path] = answer(provider)
        return provider.access_token()

    return make


def discovery(**changes: Any) -> Make:
    def make(provider: Provider) -> str:
        provider.discovery = lambda document: document.update(changes)
        return provider.access_token()

    return make


def redirect(path: str) -> Make:
    def make(provider: Provider) -> str:
        document = provider.document() if path == support.DISCOVERY else provider.jwks()
        provider.answers["/elsewhere"] = Answer(body=json.dumps(document).encode())
        provider.answers[path] = Answer(302, b"", {"Location": f"{provider.url}/elsewhere"})
        return provider.access_token()

    return make


def keys(*rows: Callable[[Claims], Claims]) -> Make:
    def make(provider: Provider) -> str:
        own = provider.jwks()["keys"][0]
        provider.answers["/jwks"] = Answer(body=json.dumps({"keys": [row(own) for row in rows]}).encode())
        return provider.access_token()

    return make


HUGE = b'{"keys": [' + b" " * issuers.MAX_BYTES + b"]}"
WRONG: dict[str, Make] = {
    "alg none": lambda provider: by_hand({"alg": "none", "typ": "at+jwt"}, provider.access_claims()),
    "alg NONE with a kid": lambda provider: by_hand({"alg": "NONE", "kid": "first"}, provider.access_claims()),
    "no alg": lambda provider: by_hand({"kid": "first"}, provider.access_claims(), "x"),
    "an alg that is a list": lambda provider: by_hand({"alg": ["RS256"]}, provider.access_claims(), "x"),
    "HS256 with the public key": hmac_with(lambda provider: provider.public_pem()),
    "HS256 with nothing": hmac_with(lambda _: b""),
    "no signature": lambda provider: provider.access_token().rpartition(".")[0] + ".",
    "a changed claim": changed,
    "another issuer": claims(iss="https://evil.example"),
    "the issuer with a slash": lambda provider: provider.access_token(iss=f"{provider.url}/"),
    "the issuer in a list": lambda provider: signed_by_hand(
        provider, {"alg": "RS256", "kid": "first"}, {**provider.access_claims(), "iss": [provider.url]}
    ),
    "no issuer": claims(iss=None),
    "another audience": claims(aud="https://graph.microsoft.com"),
    "the client as audience": claims(aud="inspector"),
    "another audience in a list": claims(aud=["a", "b"]),
    "an audience that begins like ours": claims(aud="http://localhost:8100.evil.example/mcp"),
    "our audience in a longer text": claims(aud="x http://localhost:8100/mcp"),
    "two addresses of the gateway": claims(aud=["http://localhost:8100/mcp/notes", "http://localhost:8100/mcp/other"]),
    "an audience that is a number": claims(aud=1),
    "no audience": claims(aud=None),
    "expired": lambda provider: provider.access_token(exp=later(-120)),
    "no exp": claims(exp=None),
    "an exp that is a text": claims(exp="tomorrow"),
    "an exp that is infinite": claims(exp=float("inf")),
    "valid in the future": lambda provider: provider.access_token(nbf=later(3600)),
    "made in the future": lambda provider: provider.access_token(iat=later(3600)),
    "no iat": claims(iat=None),
    "no subject": claims(sub=None),
    "an empty subject": claims(sub=""),
    "a subject that is a number": claims(sub=248289761001),
    "a long subject": claims(sub="s" * 256),
    "another subject": claims(sub="another"),
    "no client": claims(client_id=None),
    "an empty client": claims(client_id=""),
    "a client that is a list": claims(client_id=["inspector"]),
    "a long client": claims(client_id="c" * 256),
    "a client with a line break": claims(client_id="a\nb"),
    "two different clients": claims(azp="another"),
    "no scope": claims(scope=None),
    "a scope that is an object": claims(scope={"mcp": True}),
    "a scope that only begins so": claims(scope="mcp:read"),
    "an unknown kid": header(kid="another"),
    "a kid that is a path": header(kid="../../dev/null"),
    "a kid that is a number": lambda provider: by_hand({"alg": "RS256", "kid": 1}, provider.access_claims(), "x"),
    "the kid of another kind of key": key_of_another_kind,
    "a key of its own": own_key(),
    "a key of its own without kid": lambda provider: jwt.encode(provider.access_claims(), OWN, algorithm="RS256"),
    "jwk": own_key(jwk=OWN_JWK),
    "jku": own_key(jku="http://127.0.0.1:1/keys"),
    "x5u": own_key(x5u="http://127.0.0.1:1/certificate"),
    "x5c": own_key(x5c=["MIIB"]),
    "unknown critical extensions": header(crit=["x"], x=1),
    "an algorithm that does not fit the key": lambda provider: by_hand(
        {"alg": "ES256", "kid": "first"}, provider.access_claims(), "x"
    ),
    "an ID token": id_token(),
    "an ID token with typ JWT and a scope": id_token(scope="mcp"),
    "an ID token of Keycloak": lambda provider: provider.signed({**provider.access_claims(), "typ": "ID"}),
    "a refresh token of Keycloak": lambda provider: provider.signed({**provider.access_claims(), "typ": "Refresh"}),
    "a logout token": lambda provider: provider.access_token(typ="logout+jwt"),
    "a security event": lambda provider: provider.access_token(typ="secevent+jwt"),
    "a token that is bound to a key": claims(cnf={"jkt": "0ZcOCORZNYy-DWpqq30jZyJGHTN0d2HglBV3uiguA4I"}),
    "the subject twice": with_twice("sub", '"another"'),
    "the audience twice": with_twice("aud", '"another"'),
    "the issuer twice": with_twice("iss", '"https://evil.example"'),
    "a header with a name twice": lambda provider: signed_by_hand(
        provider, '{"alg": "none", "alg": "RS256", "kid": "first"}', provider.access_claims()
    ),
    "claims that are a list": lambda provider: signed_by_hand(provider, {"alg": "RS256", "kid": "first"}, [1]),
    "claims that nest deeply": lambda provider: signed_by_hand(provider, {"alg": "RS256", "kid": "first"}, "[" * 3_000),
    "an encrypted token": lambda provider: f"{encoded({'alg': 'dir', 'enc': 'A256GCM'})}..a.b.c",
    "a text with a dot": lambda _: "a.b",
    "a text with two dots": lambda _: "a.b.c",
    "only dots": lambda _: "..",
    "a token with a line break inside": lambda provider: provider.access_token().replace(".", ".%0a", 1),
    "other characters in base64": lambda provider: provider.access_token().replace(".", "!.", 1),
    "a token that is too long": claims(much="x" * outside_tokens.MAX_LENGTH),
    "huge keys": answers("/jwks", lambda _: Answer(body=HUGE)),
    "slow keys": answers("/jwks", lambda _: Answer(seconds=30)),
    "keys byte by byte": answers("/jwks", lambda _: Answer(body=b" " * 1000, stay=0.05)),
    "keys that are no list": answers("/jwks", lambda _: Answer(body=b'{"keys": {}}')),
    "no keys": answers("/jwks", lambda _: Answer(body=b'{"keys": []}')),
    "keys with an error": answers("/jwks", lambda _: Answer(status=500)),
    "keys by a redirect": redirect("/jwks"),
    "a discovery by a redirect": redirect(support.DISCOVERY),
    "a discovery of another issuer": discovery(issuer="https://evil.example"),
    "a discovery without an issuer": discovery(issuer=None),
    "keys at the metadata of a cloud": discovery(jwks_uri="https://169.254.169.254/keys"),
    "keys at another port of this machine": discovery(jwks_uri="http://127.0.0.1:1/keys"),
    "keys over http elsewhere": discovery(jwks_uri="http://evil.example/keys"),
    "keys in a file": discovery(jwks_uri="file:///etc/passwd"),
    "a key for encryption": keys(lambda key: {**key, "use": "enc"}),
    "a key for another algorithm": keys(lambda key: {**key, "alg": "ES256"}),
    "a symmetric key": keys(lambda key: {"kty": "oct", "k": "c2VjcmV0", "kid": key["kid"]}),
    "a key that cannot be read": keys(lambda key: {**key, "n": "!"}),
    "two keys with one kid": keys(lambda key: key, lambda key: {**OWN_JWK, "kid": key["kid"], "use": "sig"}),
}


@pytest.mark.parametrize("name", WRONG)
def test_nobody_comes_in_with(world: World, provider: Provider, name: str) -> None:
    world.member("notes")
    outside_issuer.make_person(provider)
    response = world.agent("/mcp", WRONG[name](provider)).send("tools/list")
    assert response.status_code in (401, 403, 503), response.text
    assert ("www-authenticate" in response.headers) == (response.status_code != 503)
    assert Grant.objects.count() == 0


def test_a_token_without_a_fault_comes_in(world: World, provider: Provider) -> None:
    """Otherwise the matrix above would prove nothing."""
    outside_issuer.make_person(provider)
    assert world.agent("/mcp", provider.access_token()).send("ping").status_code not in (401, 403, 503)
    assert Grant.objects.count() == 1
    assert len(WRONG) == 92


def test_a_token_longer_than_all_headers_is_refused_by_the_server(world: World, provider: Provider) -> None:
    response = world.agent("/mcp", provider.access_token(much="x" * 200_000)).send("ping")
    assert response.status_code == 431


def test_of_two_keys_that_change_places_each_counts_only_while_it_is_published(
    world: World, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside_issuer.make_person(provider)
    monkeypatch.setattr(issuers, "KEYS_AGAIN_SECONDS", 0.0)

    def comes_in(token: str) -> bool:
        return world.agent("/mcp", token).send("ping").status_code not in (401, 503)

    old = [provider.access_token() for _ in range(2)]
    assert comes_in(old[0])
    first = provider.keys
    provider.rotate("second", elliptic=True)
    assert comes_in(provider.access_token())
    assert not comes_in(old[1])  # its key is gone, and it was never seen before
    second, provider.keys = provider.keys, first
    assert comes_in(old[1])
    provider.keys = {**first, **second}
    assert comes_in(provider.access_token())


def test_wrong_tokens_do_not_make_the_gateway_ask_again_and_again(world: World, provider: Provider) -> None:
    outside_issuer.make_person(provider)
    for number in range(20):
        world.agent("/mcp", provider.access_token(header={"kid": f"k{number}"})).send("ping")
    assert provider.requests == [f"GET {support.DISCOVERY}", "GET /jwks"]
