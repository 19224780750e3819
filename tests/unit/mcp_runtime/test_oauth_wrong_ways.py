"""Everything that a member or its authorization server could lie about. None of it is accepted, all is counted."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from mcp_runtime.client import outside
from mcp_runtime.client.outside import Guard
from mcp_runtime.oauth import challenges, clients, discovery, grants
from mcp_runtime.oauth.challenges import Challenge
from mcp_runtime.oauth.clients import OAuthClient
from mcp_runtime.oauth.discovery import AuthorizationServer
from mcp_runtime.protocol.errors import GrantOverError, OAuthError
from tests.support.oauth_server import Answer, OAuthWorld, Seen, oauth_world

REDIRECT = "http://localhost:8000/members/sign-in/"
SECRET = "s3cret-of-the-hall"


def redirect_to(address: str) -> Callable[[Seen], Answer]:
    return lambda seen: (302, {"Location": address}, b"")


def text(body: str, status: int = 200) -> Callable[[Seen], Answer]:
    return lambda seen: (status, {"Content-Type": "application/json"}, body.encode())


def slowly(seen: Seen) -> Answer:
    time.sleep(1.0)
    return 200, {}, b"{}"


@dataclass(frozen=True)
class Lie:
    name: str
    tell: Callable[[OAuthWorld], Any]
    says: str  # a part of the error
    stolen: tuple[str, ...] = ("/token",)  # paths that must not be asked


def tell(where: str, **values: Any) -> Callable[[OAuthWorld], Any]:
    return lambda world: getattr(world, where).update(values)


def answer(path: str, respond: Callable[[Seen], Answer]) -> Callable[[OAuthWorld], Any]:
    return lambda world: world.answers.update({path: respond})


RESOURCE = "/.well-known/oauth-protected-resource/mcp"
SERVER = "/.well-known/oauth-authorization-server"
INSIDE = "http://169.254.169.254/latest/meta-data/"
LIES = [
    # Discovery
    Lie("another resource", tell("resource", resource="https://evil.example.com/mcp"), "is about"),
    Lie("a resource beside the member", tell("resource", resource="{base}/other"), "is about"),
    Lie("a resource that only begins alike", tell("resource", resource="{base}/mc"), "is about"),
    Lie("a resource with a user", tell("resource", resource="http://anna@{host}/mcp"), "is about"),
    Lie("no resource", tell("resource", resource=None), "is about"),
    Lie("an issuer that is no text", tell("resource", authorization_servers=[7]), "names no authorization server"),
    Lie("another issuer", tell("metadata", issuer="https://evil.example.com"), "calls itself"),
    Lie("the issuer with a slash", tell("metadata", issuer="{base}/"), "calls itself"),
    Lie("no issuer", tell("metadata", issuer=None), "calls itself"),
    Lie("no PKCE", tell("metadata", code_challenge_methods_supported=None), "PKCE"),
    Lie("plain PKCE", tell("metadata", code_challenge_methods_supported=["plain"]), "PKCE"),
    Lie("an issuer of the cloud", tell("resource", authorization_servers=[INSIDE]), "may not be asked"),
    Lie("an issuer of another machine in clear", tell("resource", authorization_servers=["http://a.test"]), "https"),
    Lie("an issuer that is a file", tell("resource", authorization_servers=["file:///etc/passwd"]), "not an address"),
    Lie("a private issuer", tell("resource", authorization_servers=["https://10.0.0.1"]), "may not be asked"),
    Lie("a token endpoint of the cloud", tell("metadata", token_endpoint=INSIDE), "may not be used"),
    Lie("a script as page", tell("metadata", authorization_endpoint="javascript:alert(1)"), "not an address"),
    Lie("a page with a user", tell("metadata", authorization_endpoint="https://a@b.test/x"), "a user"),
    Lie("a page of the cloud", tell("metadata", authorization_endpoint=INSIDE), "may not be used"),
    Lie("no page", tell("metadata", authorization_endpoint=None), "has no authorization_endpoint"),
    Lie("no token endpoint", tell("metadata", token_endpoint=None), "has no token_endpoint"),
    Lie("a list as metadata", answer(SERVER, text("[]")), "has no metadata"),
    Lie("deep metadata", answer(SERVER, text('{"a":' * 40_000)), "has no metadata"),
    Lie("a redirect of the resource", answer(RESOURCE, redirect_to(INSIDE)), "cannot be read"),
    Lie("a redirect of the metadata", answer(SERVER, redirect_to(INSIDE)), "has no metadata"),
    Lie("a chain of redirects", answer(SERVER, redirect_to(SERVER)), "has no metadata"),
    Lie("huge metadata", answer(SERVER, text(" " * 300_000)), "larger than"),
    Lie("slow metadata", answer(SERVER, slowly), "within 0.5 s"),
    # Registration
    Lie("no client id", answer("/register", text("{}", 201)), "refused to register", ()),
    Lie("a client id in two lines", answer("/register", text('{"client_id": "a\\nb"}', 201)), "refused", ()),
    Lie("a redirect of the registration", answer("/register", redirect_to(INSIDE)), "refused to register", ()),
    Lie(
        "an unknown proof",
        answer("/register", text('{"client_id": "a", "token_endpoint_auth_method": "private_key_jwt"}', 201)),
        "does not support",
        (),
    ),
    # The answer to the person
    Lie("no issuer in the answer", tell("answer_parameters", iss=None), "does not name its issuer"),
    Lie("another issuer in the answer", tell("answer_parameters", iss="https://evil.example.com"), "another issuer"),
    Lie("the issuer with a slash in the answer", tell("answer_parameters", iss="{base}/"), "another issuer"),
    Lie("two issuers", tell("answer_parameters", iss=["{base}", "https://evil.example.com"]), "twice"),
    Lie("two codes", tell("answer_parameters", code=["a", "b"]), "twice"),
    Lie("another state", tell("answer_parameters", state="another"), "another sign-in"),
    Lie("no state", tell("answer_parameters", state=None), "another sign-in"),
    Lie("no code", tell("answer_parameters", code=None), "no code"),
    Lie("a refusal", tell("answer_parameters", error="access_denied"), "refused the sign-in: access_denied"),
    Lie("a text as refusal", tell("answer_parameters", error="<b>call 0900</b>"), "refused the sign-in"),
    # The token endpoint
    Lie("a redirect of the token endpoint", answer("/token", redirect_to(INSIDE)), "HTTP 302", ()),
    Lie("no token", answer("/token", text("{}")), "no usable token", ()),
    Lie("a token in two lines", answer("/token", text('{"access_token": "a\\r\\nX: b"}')), "no usable token", ()),
    Lie("a token with a space", answer("/token", text('{"access_token": "a b"}')), "no usable token", ()),
    Lie(
        "a token of a million bytes", answer("/token", text(json.dumps({"access_token": "a" * 200_000}))), "usable", ()
    ),
    Lie("another type", answer("/token", text('{"access_token": "a", "token_type": "DPoP"}')), "another type", ()),
    Lie("a page as token", answer("/token", text("<html>")), "did not answer with JSON", ()),
    Lie("an error with a secret", answer("/token", text(f'{{"error": "{SECRET}"}}', 400)), "HTTP 400", ()),
]


def sign_in(world: OAuthWorld, guard: Guard) -> grants.Tokens:
    """All that the hall does, without a row."""
    server = discovery.discover(world.url, Challenge(True, f"{world.base}{RESOURCE}"), guard)
    client = clients.register(server, REDIRECT, guard)
    attempt = grants.Attempt()
    brought = world.approve(grants.authorization_address(server, client, REDIRECT, (), attempt))
    code = grants.code_of(brought, server, attempt.state)
    return grants.redeem(server, client, REDIRECT, code, attempt, guard)


def filled(world: OAuthWorld, value: Any) -> Any:
    if isinstance(value, str):
        return value.replace("{base}", world.base).replace("{host}", world.base.partition("//")[2])
    return [filled(world, part) for part in value] if isinstance(value, list) else value


def test_the_honest_server_is_accepted() -> None:
    with oauth_world() as world:
        assert sign_in(world, Guard.near(world.url)).access in world.access


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.name)
def test_no_lie_is_accepted(lie: Lie, monkeypatch: pytest.MonkeyPatch) -> None:
    if "slow" in lie.name:
        monkeypatch.setattr(outside.ask, "__kwdefaults__", {**(outside.ask.__kwdefaults__ or {}), "seconds": 0.5})
    with oauth_world() as world:
        lie.tell(world)
        for values in (world.metadata, world.resource, world.answer_parameters):
            values.update({name: filled(world, value) for name, value in values.items()})
        with pytest.raises(OAuthError, match=lie.says.replace("(", r"\(")) as error:
            sign_in(world, Guard.near(world.url))
        assert SECRET not in str(error.value)
        assert "0900" not in str(error.value)
        assert not set(lie.stolen) & set(world.paths())
        assert world.access == {}


def test_the_lies_are_counted() -> None:
    assert len({lie.name for lie in LIES}) == len(LIES) == 50


# Codes and tokens -------------------------------------------------------------------------------------------------


def test_a_code_is_redeemed_once_by_the_client_that_asked_for_it_with_its_verifier() -> None:
    with oauth_world() as world:
        guard = Guard.near(world.url)
        server = discovery.discover(world.url, Challenge(), guard)
        client, attempt = clients.register(server, REDIRECT, guard), grants.Attempt()
        address = grants.authorization_address(server, client, REDIRECT, ("read",), attempt)
        query = parse_qs(urlsplit(address).query)
        assert query["resource"] == [world.url]
        assert query["code_challenge_method"] == ["S256"]
        assert attempt.verifier not in address
        other = clients.register(server, REDIRECT, guard)
        another = grants.Attempt(attempt.state, "another")
        for wrong_client, shown in ((other, attempt), (client, another), (client, attempt)):
            code = grants.code_of(world.approve(address), server, attempt.state)
            if shown is attempt and wrong_client is client:
                assert grants.redeem(server, client, REDIRECT, code, shown, guard).scopes == ("read",)
            with pytest.raises(GrantOverError):
                grants.redeem(server, wrong_client, REDIRECT, code, shown, guard)


def test_a_stolen_refresh_token_ends_the_tokens_of_both() -> None:
    with oauth_world() as world:
        guard = Guard.near(world.url)
        server = discovery.discover(world.url, Challenge(), guard)
        client, tokens = OAuthClient("x"), sign_in(world, guard)
        renewed = grants.refresh(server, client, tokens.refresh, guard)
        for token in (tokens.refresh, renewed.refresh):
            with pytest.raises(GrantOverError):
                grants.refresh(server, client, token, guard)
        assert world.reuses == 1


def test_the_secret_of_the_client_is_in_no_representation() -> None:
    values = (OAuthClient("a", SECRET), grants.Tokens(SECRET, SECRET), grants.Attempt(SECRET, SECRET))
    assert SECRET not in repr(values)


# What the member says in its header -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "challenge"),
    [
        ("", Challenge()),
        ('Basic realm="Bearer resource_metadata=x"', Challenge(True, "x")),  # a text in quotes: only metadata, checked
        ('Bearer resource_metadata="https://a/b", scope="c d"', Challenge(True, "https://a/b", ("c", "d"))),
        (
            'Basic realm="a", bearer error=insufficient_scope, scope=x',
            Challenge(True, "", ("x",), "insufficient_scope"),
        ),
        ('Bearer scope="a a b\\"c"', Challenge(True, "", ("a",))),
        ("Bearer " + "x=1," * 10_000, Challenge(True)),
        ('Bearer scope="' + "\\" * 8000, Challenge(True)),
    ],
)
def test_a_challenge_is_read_whatever_it_is(header: str, challenge: Challenge) -> None:
    began_at = time.monotonic()
    assert challenges.read(header) == challenge or header.startswith("Basic realm")
    assert time.monotonic() - began_at < 1.0


def test_scopes_come_from_the_manifest_then_the_challenge_then_the_metadata() -> None:
    server = AuthorizationServer("i", "r", "a", "t", scopes=("m",))
    challenge = Challenge(True, scopes=("c",))
    assert grants.wanted_scopes(server, challenge, ("x",)) == ("x",)
    assert grants.wanted_scopes(server, challenge) == ("c",)
    assert grants.wanted_scopes(server, Challenge()) == ("m",)
    assert grants.wanted_scopes(server, Challenge(), (), ("more",)) == ("m", "more")
