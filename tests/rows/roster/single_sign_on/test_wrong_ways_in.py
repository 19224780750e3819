"""Single sign-on, as somebody attacks it who has the provider, the network or the browser. Nobody is logged in."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import jwt
import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from django.contrib.auth.models import User
from django.core import signing

from mcp_runtime.control import identity_provider
from mcp_runtime.oauth import issuers
from roster.models import AuditEntry, Identity
from roster.single_sign_on import attempts
from tests.rows.roster.single_sign_on.conftest import Person
from tests.support import provider as support
from tests.support.certificates import Authority
from tests.support.provider import Answer, Claims, Provider

pytestmark = pytest.mark.django_db

Wrong = Callable[[Provider], None]


def claims(**changes: Any) -> Wrong:
    """An ID token with these claims. None takes a claim away."""

    def change(row: Claims) -> None:
        row.update(changes)
        for name in [name for name, value in changes.items() if value is None]:
            del row[name]

    return lambda provider: setattr(provider, "claims", change)


def signed(sign: Callable[[Provider, Claims], str]) -> Wrong:
    return lambda provider: setattr(provider, "sign", lambda row: sign(provider, row))


def unsigned(header: dict[str, Any], row: Claims, signature: str = "") -> str:
    parts = (base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in (header, row))
    return f"{'.'.join(parts)}.{signature}"


def hmac_with_public_key(provider: Provider, row: Claims) -> str:
    """The library refuses to make such a token, so it is made by hand."""
    import hashlib
    import hmac

    text = unsigned({"alg": "HS256", "kid": "first", "typ": "JWT"}, row).rstrip(".")
    digest = hmac.new(provider.public_pem(), text.encode(), hashlib.sha256).digest()
    return f"{text}.{base64.urlsafe_b64encode(digest).decode().rstrip('=')}"


def with_own_key_in_header(provider: Provider, row: Claims) -> str:
    key = rsa.generate_private_key(65537, 2048)
    own = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key()))
    return jwt.encode(row, key, algorithm="RS256", headers={"kid": "first", "jwk": own})


def cut(provider: Provider, row: Claims) -> str:
    return provider.signed(row).rpartition(".")[0] + "."


def changed(provider: Provider, row: Claims) -> str:
    header, _, signature = provider.signed(row).split(".")
    payload = unsigned({}, {**row, "sub": "admin"}).split(".")[1]
    return f"{header}.{payload}.{signature}"


def short_key(provider: Provider) -> None:
    """The library refuses to sign with it, so the token is signed by hand."""
    key = rsa.generate_private_key(65537, 1024)
    provider.keys = {"short": key}

    def sign(row: Claims) -> str:
        text = unsigned({"alg": "RS256", "kid": "short"}, row).rstrip(".")
        signature = key.sign(text.encode(), padding.PKCS1v15(), hashes.SHA256())
        return f"{text}.{base64.urlsafe_b64encode(signature).decode().rstrip('=')}"

    provider.sign = sign


def keys(**changes: Any) -> Wrong:
    """Keys with other members of their JWKs."""

    def change(provider: Provider) -> None:
        row = {**provider.jwks()["keys"][0], **changes}
        provider.answers["/jwks"] = Answer(body=json.dumps({"keys": [row]}).encode())

    return change


def answer(path: str, **values: Any) -> Wrong:
    return lambda provider: provider.answers.update({path: Answer(**values)})


def discovery(**changes: Any) -> Wrong:
    return lambda provider: setattr(provider, "discovery", lambda document: document.update(changes))


def callback(**changes: str) -> Wrong:
    return lambda provider: setattr(provider, "callback", lambda query: query.update(changes))


def redirect_elsewhere(path: str, status: int) -> Wrong:
    """A redirect to the very same answer at another path, which must not be followed."""

    def change(provider: Provider) -> None:
        provider.answers[path] = Answer(status, b"", {"Location": f"{provider.url}/elsewhere"})
        provider.answers["/elsewhere"] = Answer(body=json.dumps(provider.document()).encode())

    return change


def other_userinfo(provider: Provider) -> None:
    provider.only_in_userinfo = {"preferred_username"}
    provider.answers["/userinfo"] = Answer(body=b'{"sub": "another", "preferred_username": "jane"}')


HUGE = b'{"issuer": "' + b"x" * issuers.MAX_BYTES + b'"}'
WRONG: dict[str, Wrong] = {
    "a wrong nonce": claims(nonce="another"),
    "no nonce": claims(nonce=None),
    "a nonce that is no text": claims(nonce=["x"]),
    "another audience": claims(aud="another-client"),
    "another audience in a list": claims(aud=["another-client"]),
    "no audience": claims(aud=None),
    "several audiences without azp": claims(aud=[support.CLIENT_ID, "another-client"]),
    "another azp": claims(azp="another-client"),
    "an azp that is no text": claims(azp=[support.CLIENT_ID]),
    "another issuer": claims(iss="https://evil.example"),
    "the issuer with a slash": lambda provider: claims(iss=f"{provider.url}/")(provider),
    "no issuer": claims(iss=None),
    "expired": lambda provider: claims(iat=int(time.time()) - 7200, exp=int(time.time()) - 3600)(provider),
    "no exp": claims(exp=None),
    "an exp that is no number": claims(exp="tomorrow"),
    "an exp that is infinite": claims(exp=float("inf")),
    "made in the future": lambda provider: claims(iat=int(time.time()) + 3600)(provider),
    "no iat": claims(iat=None),
    "an iat that is not a number": claims(iat=float("nan")),
    "not yet valid": lambda provider: claims(nbf=int(time.time()) + 3600)(provider),
    "no subject": claims(sub=None),
    "an empty subject": claims(sub=""),
    "a subject that is a number": claims(sub=1),
    "a long subject": claims(sub="s" * 256),
    "a subject with a NUL": claims(sub="a\0b"),
    "alg none": signed(lambda _, row: unsigned({"alg": "none"}, row)),
    "alg None with a kid": signed(lambda _, row: unsigned({"alg": "None", "kid": "first"}, row)),
    "no alg": signed(lambda _, row: unsigned({"kid": "first"}, row, "x")),
    "an alg that is a list": signed(lambda _, row: unsigned({"alg": ["RS256"], "kid": "first"}, row, "x")),
    "HS256 with the public key": signed(hmac_with_public_key),
    "HS256 with the client secret": signed(
        lambda provider, row: provider.signed(row, algorithm="HS256", key=support.CLIENT_SECRET * 2)
    ),
    "an algorithm that the discovery lacks": signed(lambda provider, row: provider.signed(row, algorithm="RS512")),
    "a key of its own": signed(lambda provider, row: provider.signed(row, key=rsa.generate_private_key(65537, 2048))),
    "a key of its own in the header": signed(with_own_key_in_header),
    "an unknown kid": signed(lambda provider, row: provider.signed(row, kid="another")),
    "no signature": signed(cut),
    "a changed claim": signed(changed),
    "no ID token": signed(lambda _, row: ""),
    "an ID token that is none": signed(lambda _, row: "a.b.c"),
    "an encrypted ID token": signed(lambda _, row: unsigned({"alg": "RSA-OAEP", "enc": "A256GCM"}, row, "a.b.c")),
    "an ID token that is too long": claims(much="x" * 70_000),
    "unknown critical extensions": signed(
        lambda provider, row: jwt.encode(
            row, provider.keys["first"], algorithm="RS256", headers={"kid": "first", "crit": ["x"], "x": 1}
        )
    ),
    "a short key": short_key,
    "a key for encryption": keys(use="enc"),
    "a key for another algorithm": keys(alg="ES256"),
    "a symmetric key": keys(kty="oct", k="c2VjcmV0"),
    "a key that cannot be read": keys(n="!"),
    "keys that are no list": answer("/jwks", body=b'{"keys": {}}'),
    "no keys": answer("/jwks", body=b'{"keys": []}'),
    "keys by a redirect": redirect_elsewhere("/jwks", 302),
    "huge keys": answer("/jwks", body=HUGE),
    "a huge discovery": answer(support.DISCOVERY, body=HUGE),
    "a discovery that is no JSON": answer(support.DISCOVERY, body=b"<html>"),
    "a discovery that is a list": answer(support.DISCOVERY, body=b"[]"),
    "a discovery that nests deeply": answer(support.DISCOVERY, body=b"[" * 100_000),
    "a discovery with an error": answer(support.DISCOVERY, status=500),
    **{
        f"a discovery with redirect {status}": redirect_elsewhere(support.DISCOVERY, status)
        for status in (301, 307, 308)
    },
    "a discovery of another issuer": discovery(issuer="https://evil.example"),
    "a discovery without an issuer": discovery(issuer=None),
    "a token endpoint over http elsewhere": discovery(token_endpoint="http://evil.example/token"),
    "a token endpoint that is a file": discovery(token_endpoint="file:///etc/passwd"),
    "a token endpoint at another port of this machine": discovery(token_endpoint="http://127.0.0.1:1/token"),
    "keys at the metadata address": discovery(jwks_uri="https://169.254.169.254/keys"),
    "an authorization endpoint that is a script": discovery(authorization_endpoint="javascript:alert(1)"),
    "no code flow": discovery(response_types_supported=["id_token"]),
    "the token endpoint refuses": answer("/token", status=400, body=b'{"error": "invalid_grant"}'),
    "the token endpoint redirects": redirect_elsewhere("/token", 307),
    "the token endpoint answers with a text": answer("/token", body=b'"a"'),
    "another person in the userinfo": other_userinfo,
    "a refusal of the provider": callback(error="access_denied"),
    "another issuer in the callback": callback(iss="https://evil.example"),
    "no issuer in the callback": lambda provider: setattr(provider, "callback", lambda query: query.pop("iss")),
    "another state": callback(state="another"),
    "no state": lambda provider: setattr(provider, "callback", lambda query: query.pop("state")),
    "another code": callback(code="another"),
    "no code": lambda provider: setattr(provider, "callback", lambda query: query.pop("code")),
}


@pytest.mark.parametrize("name", WRONG)
def test_nobody_comes_in_with(provider: Provider, person: Person, name: str) -> None:
    WRONG[name](provider)
    response = person.begin()
    if response.status_code == 302:
        response = person.client.get(person.at_provider(response))
    assert response.status_code in (400, 502, 503)
    assert 'class="errornote"' in response.content.decode()
    assert not person.is_logged_in
    assert (User.objects.count(), Identity.objects.count()) == (0, 0)


def test_the_same_login_without_a_fault_comes_in(provider: Provider, person: Person) -> None:
    """Otherwise the matrix above would prove nothing."""
    assert person.log_in().status_code == 302
    assert person.is_logged_in
    assert len(WRONG) == 78


# The browser ------------------------------------------------------------------------------------------------------


def test_a_callback_of_another_browser_logs_nobody_in(provider: Provider, person: Person) -> None:
    """Somebody begins a login of their own, and gives the end of it to another person."""
    address = person.at_provider(person.begin())
    victim = Person()
    assert victim.client.get(address).status_code == 400
    victim.begin()
    assert victim.client.get(address).status_code == 400
    assert not victim.is_logged_in


def test_a_callback_works_once(provider: Provider, person: Person) -> None:
    address = person.at_provider(person.begin())
    cookies = person.client.cookies.output()
    assert person.client.get(address).status_code == 302
    assert Person().client.get(address).status_code == 400
    assert person.client.get(address).status_code == 400
    again = Person()
    again.client.cookies.load(cookies.replace("Set-Cookie: ", ""))
    assert again.client.get(address).status_code in (400, 502)  # the provider knows the code no more
    assert not again.is_logged_in


def test_an_old_or_forged_attempt_logs_nobody_in(
    provider: Provider, person: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = person.at_provider(person.begin())
    name = attempts.cookie_name()
    good = person.client.cookies[name].value
    state = parse_qs(urlsplit(address).query)["state"][0]
    forged = [
        signing.dumps({"state": state}, salt=attempts.SALT),
        signing.dumps([state], salt=attempts.SALT),
        signing.dumps(signing.loads(good, salt=attempts.SALT), salt="another"),
        signing.dumps(signing.loads(good, salt=attempts.SALT), key="another key of a hall", salt=attempts.SALT),
        f"{good}x",
        "",
    ]
    for value in forged:
        person.client.cookies[name] = value
        assert person.client.get(address).status_code == 400
    person.client.cookies[name] = good
    monkeypatch.setattr(attempts, "SECONDS", -1)
    assert person.client.get(address).status_code == 400
    assert not person.is_logged_in


def test_the_code_needs_the_verifier_of_this_browser(provider: Provider, person: Person) -> None:
    """With PKCE, a code that somebody saw is worth nothing in a login of theirs."""
    seen = parse_qs(urlsplit(person.at_provider(person.begin())).query)
    thief = Person()
    own = parse_qs(urlsplit(thief.at_provider(thief.begin())).query)
    query = {"code": seen["code"][0], "state": own["state"][0], "iss": own["iss"][0]}
    assert thief.client.get(f"/single-sign-on/callback/?{urlencode(query)}").status_code == 502
    assert not thief.is_logged_in


def test_a_code_of_one_provider_is_not_given_to_another(provider: Provider, person: Person, settings: Any) -> None:
    """The setting changes while somebody logs in. The code of the first provider stays with it."""
    address = person.at_provider(person.begin())
    with support.serve() as other:
        settings.GUILD_HALL_OIDC_ISSUER = other.url
        assert person.client.get(address).status_code == 502
        assert other.requests == [f"GET {support.DISCOVERY}"]
    assert not person.is_logged_in


@pytest.mark.parametrize(
    "target",
    [
        "https://evil.example/",
        "//evil.example/",
        "/\\evil.example/",
        "///evil.example",
        "http:evil.example",
        "javascript:alert(1)",
        "/admin/\r\nX: y",
        "admin/",
        "http://localhost:8000/admin/roster/call/",
        f"/{'a' * 2000}",
        f"/{'é' * 500}",
    ],
)
def test_a_login_leads_to_no_other_place(provider: Provider, person: Person, target: str) -> None:
    response = person.log_in(target)
    assert (response.status_code, response.headers["Location"]) == (302, "/admin/")


def test_the_host_of_a_request_decides_nothing(provider: Provider, person: Person, settings: Any) -> None:
    settings.ALLOWED_HOSTS = ["evil.example"]
    person.client.defaults["HTTP_HOST"] = "evil.example"
    query = parse_qs(urlsplit(person.begin().headers["Location"]).query)
    assert query["redirect_uri"] == ["http://localhost:8000/single-sign-on/callback/"]
    page = person.client.get("/admin/login/").content.decode()
    assert 'href="http://localhost:8000/single-sign-on/"' in page
    assert person.log_in("http://evil.example/").headers["Location"] == "/admin/"
    settings.GUILD_HALL_WEB_URL = "https://hall.example.com/prefix"
    response = person.begin()
    query = parse_qs(urlsplit(response.headers["Location"]).query)
    assert query["redirect_uri"] == ["https://hall.example.com/prefix/single-sign-on/callback/"]
    cookie = response.cookies[attempts.cookie_name()]
    assert (cookie["path"], cookie["secure"], cookie["httponly"], cookie["samesite"]) == (
        "/prefix/single-sign-on/",
        True,
        True,
        "Lax",
    )


def test_a_slow_provider_is_given_up_within_the_deadline(
    provider: Provider, person: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(issuers, "TIMEOUT", 0.5)
    for wrong in (Answer(seconds=30), Answer(body=b"{" * 1000, stay=0.1)):
        provider.answers[support.DISCOVERY] = wrong
        began = time.monotonic()
        response = person.begin()
        assert response.status_code == 503
        assert time.monotonic() - began < 5
        assert "Example Ltd cannot be reached" in response.content.decode()


def test_a_provider_needs_a_certificate_that_the_hall_trusts(
    provider: Provider, person: Person, settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path)
    with support.serve(authority.context()) as safe:
        settings.GUILD_HALL_OIDC_ISSUER = safe.url
        response = person.begin()
        assert response.status_code == 503
        assert "its certificate is not trusted" in response.content.decode()
        assert safe.requests == []
        identity_provider.forget()
        monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
        assert person.begin().status_code == 302


def test_a_text_of_the_address_is_not_shown(provider: Provider, person: Person) -> None:
    """Only codes of the specification are: anybody can write the rest of the address."""
    provider.callback = lambda query: query.update(error="call 0900-EVIL", error_description="<b>evil</b>")
    page = person.log_in().content.decode()
    assert "Example Ltd did not log you in (an unknown error)." in page
    assert "evil" not in page.lower().replace("guild", "")


def test_a_login_that_nobody_began_leaves_no_row(provider: Provider, person: Person) -> None:
    from django.contrib.sessions.models import Session

    for _ in range(3):
        person.begin()
        person.client.get("/single-sign-on/callback/?state=x&code=y")
    assert Session.objects.count() == 0
    assert AuditEntry.objects.count() == 0


def test_without_an_issuer_the_hall_has_no_such_addresses(person: Person) -> None:
    for path in ("/single-sign-on/", "/single-sign-on/callback/"):
        assert person.client.get(path).status_code == 404


@pytest.mark.parametrize("path", ["/single-sign-on/", "/single-sign-on/callback/"])
def test_other_methods_are_refused(provider: Provider, person: Person, path: str) -> None:
    assert person.client.post(path).status_code == 405
