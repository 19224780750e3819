"""Proofs of DPoP, checked with a library of other authors, and the sending of bound tokens."""

from __future__ import annotations

from dataclasses import replace

import jwt
import pytest

from mcp_runtime.client.bearer import Bearer, nonce_in
from mcp_runtime.client.outside import Guard
from mcp_runtime.oauth import clients, discovery, grants
from mcp_runtime.oauth.challenges import Challenge
from mcp_runtime.oauth.clients import OAuthClient
from mcp_runtime.oauth.proof_keys import ProofKey
from mcp_runtime.protocol.errors import ChallengeError, GrantOverError, OAuthError
from tests.support.oauth_server import OAuthWorld, oauth_world
from tests.support.proofs import ProofError, Proofs

URL = "https://vault.example.com/mcp"
REDIRECT = "http://localhost:8000/members/sign-in/"


def test_a_proof_is_for_one_request_and_no_other() -> None:
    key, server = ProofKey.new(), Proofs()
    proof = key.proof("POST", f"{URL}?tenant=1#part", token="the-token")
    for wrong in (("GET", URL, "the-token"), ("POST", f"{URL}2", "the-token"), ("POST", URL, "another"), ("POST", URL)):
        with pytest.raises(ProofError):
            server.thumbprint(proof, *wrong)
    assert server.thumbprint(proof, "POST", URL, "the-token") == key.thumbprint
    with pytest.raises(ProofError, match="used before"):
        server.thumbprint(proof, "POST", URL, "the-token")
    assert server.thumbprint(key.proof("POST", URL, token="the-token"), "POST", URL, "the-token") == key.thumbprint


def test_a_key_is_the_same_after_it_was_kept_and_its_secret_leaves_in_no_proof() -> None:
    key = ProofKey.new()
    kept = ProofKey(key.secret)
    assert kept.thumbprint == key.thumbprint != ProofKey.new().thumbprint
    proof = kept.proof("POST", URL)
    public = jwt.get_unverified_header(proof)["jwk"]
    assert key.thumbprint == Proofs().thumbprint(proof, "POST", URL)
    assert set(public) == {"kty", "crv", "x", "y"}
    assert key.secret not in repr(key)


@pytest.mark.parametrize("number", [1, 2**255])
def test_small_and_large_private_numbers_make_usable_keys(number: int) -> None:
    from mcp_runtime.oauth import assertions

    key = ProofKey(assertions.base64_of(number.to_bytes(32, "big")))
    assert Proofs().thumbprint(key.proof("POST", URL), "POST", URL) == key.thumbprint


@pytest.mark.parametrize("header", [None, "", "with space", 'a"b', "a\\b", "line\nbreak", "ü", "x" * 1001])
def test_a_nonce_that_no_proof_can_have_is_ignored(header: str | None) -> None:
    bearer = Bearer("the-token")
    bearer.note_nonce("first")
    bearer.note_nonce(header)
    assert (nonce_in(header), bearer.nonce) == ("", "first")


def test_only_a_bound_token_is_sent_again_with_a_nonce() -> None:
    error = ChallengeError(401, "", 'DPoP error="use_dpop_nonce"')
    bearer = Bearer("the-token")
    bearer.note_nonce("n1")
    assert bearer.headers("POST", URL) == {"Authorization": "Bearer the-token"}
    assert not bearer.has_new_nonce("", error)
    bearer.key = ProofKey.new()
    assert bearer.headers("POST", URL)["Authorization"] == "DPoP the-token"
    assert bearer.has_new_nonce("", error)
    assert not bearer.has_new_nonce("n1", error)  # it had this one
    assert not bearer.has_new_nonce("", ChallengeError(401, "", 'DPoP error="invalid_token"'))


# At an authorization server ---------------------------------------------------------------------------------------


def signed_in(world: OAuthWorld) -> tuple[discovery.AuthorizationServer, OAuthClient, grants.Tokens]:
    guard = Guard.near(world.url)
    server = discovery.discover(world.url, Challenge(), guard)
    client, attempt = clients.register(server, REDIRECT, guard), grants.Attempt.at(server)
    address = grants.authorization_address(server, client, REDIRECT, ("read",), attempt)
    assert ("dpop_jkt=" in address) == world.binds
    code = grants.code_of(world.approve(address), server, attempt.state)
    return server, client, grants.redeem(server, client, REDIRECT, code, attempt, guard)


@pytest.mark.parametrize("nonce", ["", "nonce-of-the-server"])
def test_tokens_are_bound_to_one_key_from_the_code_to_the_refresh(nonce: str) -> None:
    with oauth_world(binds=True, proofs=Proofs(nonce)) as world:
        server, client, tokens = signed_in(world)
        guard, thumbprint = Guard.near(world.url), ProofKey(tokens.key).thumbprint
        with pytest.raises(OAuthError, match="invalid_dpop_proof"):  # a thief has another key
            grants.refresh(server, client, tokens.refresh, guard, ProofKey.new().secret)
        renewed = grants.refresh(server, client, tokens.refresh, guard, tokens.key)
        assert (tokens.is_bound, renewed.is_bound, renewed.key) == (True, True, tokens.key)
        assert set(world.bound.values()) == {thumbprint}
        assert [tokens.key in str(each) for each in world.seen] == [False] * len(world.seen)


def test_a_code_is_of_no_use_with_another_key() -> None:
    with oauth_world(binds=True) as world:
        guard = Guard.near(world.url)
        server = discovery.discover(world.url, Challenge(), guard)
        client, attempt = clients.register(server, REDIRECT, guard), grants.Attempt.at(server)
        address = grants.authorization_address(server, client, REDIRECT, ("read",), attempt)
        code = grants.code_of(world.approve(address), server, attempt.state)
        with pytest.raises(OAuthError, match="invalid_dpop_proof"):
            grants.redeem(server, client, REDIRECT, code, replace(attempt, key=ProofKey.new().secret), guard)


def test_a_server_that_asks_for_nonces_for_ever_gets_two_requests() -> None:
    with oauth_world(binds=True) as world:
        headers = {"Content-Type": "application/json", "DPoP-Nonce": "another"}
        world.answers["/token"] = lambda seen: (400, headers, b'{"error": "use_dpop_nonce"}')
        with pytest.raises(OAuthError, match="HTTP 400: use_dpop_nonce"):
            signed_in(world)
        assert world.paths().count("/token") == 2


def test_a_server_that_gives_ordinary_tokens_is_believed() -> None:
    with oauth_world() as world:
        world.metadata["dpop_signing_alg_values_supported"] = ["ES256"]
        world.binds = False
        guard = Guard.near(world.url)
        server = discovery.discover(world.url, Challenge(), guard)
        tokens = grants.of_client(server, OAuthClient("x"), (), guard)
        assert (server.binds_tokens, tokens.is_bound) == (True, False)


@pytest.mark.parametrize("algorithms", [None, [], ["RS256", "none"], "ES256"])
def test_a_server_without_our_algorithm_gets_no_proof(algorithms: object) -> None:
    with oauth_world() as world:
        world.metadata["dpop_signing_alg_values_supported"] = algorithms
        _, _, tokens = signed_in(world)
        assert (tokens.key, tokens.is_bound) == ("", False)
        assert [each for each in world.seen if "dpop" in each.headers] == []


def test_a_member_that_accepts_only_bound_tokens_is_never_sent_another() -> None:
    with oauth_world() as world:
        world.resource["dpop_bound_access_tokens_required"] = True
        guard = Guard.near(world.url)
        with pytest.raises(OAuthError, match="accepts only tokens that are bound to a key"):
            discovery.discover(world.url, Challenge(), guard)
        world.metadata["dpop_signing_alg_values_supported"] = ["ES256"]
        server = discovery.discover(world.url, Challenge(), guard)
        with pytest.raises(OAuthError, match="gave a token that is not bound to the key"):
            grants.of_client(server, OAuthClient("x"), (), guard)


def test_a_bound_token_that_nobody_asked_for_is_refused() -> None:
    with oauth_world() as world:
        answer = b'{"access_token": "a", "token_type": "DPoP"}'
        world.answers["/token"] = lambda seen: (200, {"Content-Type": "application/json"}, answer)
        guard = Guard.near(world.url)
        server = discovery.discover(world.url, Challenge(), guard)
        with pytest.raises(OAuthError, match="another type than it was asked for"):
            grants.of_client(server, OAuthClient("x"), (), guard)


def test_a_bound_refresh_token_that_is_over_is_over() -> None:
    with oauth_world(binds=True) as world:
        server, client, tokens = signed_in(world)
        world.refresh.clear()
        with pytest.raises(GrantOverError):
            grants.refresh(server, client, tokens.refresh, Guard.near(world.url), tokens.key)
