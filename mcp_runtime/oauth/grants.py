"""A sign-in and its tokens: the address for the person, the checks of what comes back, and requests of tokens."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlencode

from mcp_runtime.client.bearer import NONCE_HEADER, USE_NONCE, nonce_in
from mcp_runtime.client.outside import Guard, OutsideAnswer, ask
from mcp_runtime.oauth import proof_keys
from mcp_runtime.oauth.challenges import Challenge, scopes_in
from mcp_runtime.oauth.clients import OAuthClient
from mcp_runtime.oauth.discovery import OFFLINE, AuthorizationServer
from mcp_runtime.oauth.proof_keys import ProofKey
from mcp_runtime.protocol.errors import (
    AccessEndedError,
    ClientError,
    ClientOverError,
    GrantOverError,
    OAuthError,
    ServerAwayError,
    TokenRefusedError,
)

JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"
MAX_TOKEN = 16_384
# The longest time from one assertion to the next, and the life of their tokens if the authorization server says none.
# Who gives the assertions cannot end an access earlier. Most tokens and logins live for an hour.
ASSERTED_SECONDS = 3600.0
MAX_SECONDS = 10 * 365 * 86_400
# Only these codes of an authorization server are repeated to people. Everything else of its answers could be a secret.
CODES = {
    *("invalid_request", "invalid_client", "invalid_grant", "unauthorized_client", "unsupported_grant_type"),
    *("invalid_scope", "invalid_target", "access_denied", "server_error", "temporarily_unavailable"),
    *("unsupported_response_type", "consent_required", "login_required", "interaction_required"),
    *("invalid_dpop_proof", "use_dpop_nonce"),
}


@dataclass(frozen=True)
class Attempt:
    """One try of a person to sign in. `state` and `verifier` are secret until it ends.

    `key` is the secret of a `ProofKey`, if the tokens will be bound to one.
    """

    state: str = field(repr=False, default_factory=lambda: secrets.token_urlsafe(32))
    verifier: str = field(repr=False, default_factory=lambda: secrets.token_urlsafe(48))
    key: str = field(repr=False, default="")

    @classmethod
    def at(cls, server: AuthorizationServer) -> Attempt:
        return cls(key=ProofKey.new().secret if server.binds_tokens else "")


@dataclass(frozen=True)
class Tokens:
    """What a token endpoint gave. `seconds` is the lifetime of the access token, None if it is not known.

    `key` is the secret of the `ProofKey` of the request. The access token is bound to it if `is_bound`, and the refresh
    token may be in any case (RFC 9449, section 5).
    """

    access: str = field(repr=False)
    refresh: str = field(default="", repr=False)
    scopes: tuple[str, ...] = ()
    seconds: float | None = None
    key: str = field(default="", repr=False)
    is_bound: bool = False


def wanted_scopes(
    server: AuthorizationServer, challenge: Challenge, chosen: Iterable[str] = (), more: Iterable[str] = ()
) -> tuple[str, ...]:
    """The scopes to ask for: those `chosen`, else of the challenge, else of the metadata, and `more` in any case."""
    scopes = [*(tuple(chosen) or challenge.scopes or server.scopes), *more]
    return tuple(dict.fromkeys([*scopes, *([OFFLINE] if server.offers_offline else [])]))


def authorization_address(
    server: AuthorizationServer, client: OAuthClient, redirect: str, scopes: Sequence[str], attempt: Attempt
) -> str:
    """The address that the person opens."""
    digest = hashlib.sha256(attempt.verifier.encode()).digest()
    query = {
        "response_type": "code",
        "client_id": client.id,
        "redirect_uri": redirect,
        "state": attempt.state,
        "code_challenge": base64.urlsafe_b64encode(digest).rstrip(b"=").decode(),
        "code_challenge_method": "S256",
        "resource": server.resource,
    }
    query |= {"scope": " ".join(scopes)} if scopes else {}
    query |= {"dpop_jkt": ProofKey(attempt.key).thumbprint} if attempt.key else {}
    separator = "&" if "?" in server.authorization_endpoint else "?"
    return f"{server.authorization_endpoint}{separator}{urlencode(query)}"


def code_of(answer: Mapping[str, Sequence[str]], server: AuthorizationServer, state: str) -> str:
    """The code in the parameters that the person brings back. Raises OAuthError.

    The issuer is checked first, because the answer of another server must not even end the attempt with its error.
    """
    if any(len(answer.get(name, ())) > 1 for name in ("code", "state", "iss", "error")):
        raise OAuthError("the answer of the authorization server has a parameter twice")
    values = {name: parts[0] for name, parts in answer.items() if parts}
    if not hmac.compare_digest(values.get("state", "").encode(), state.encode()):
        raise OAuthError("the answer of the authorization server belongs to another sign-in")
    issuer = values.get("iss")
    if issuer is None and server.names_itself:
        raise OAuthError(f"the answer does not name its issuer, which {server.issuer!r} always does")
    if issuer is not None and issuer != server.issuer:
        raise OAuthError(f"the answer is of another issuer than {server.issuer!r}")
    if error := values.get("error"):
        raise OAuthError(f"{server.issuer!r} refused the sign-in{_code(error)}")
    code = values.get("code", "")
    if not code or len(code) > MAX_TOKEN or not code.isascii() or not code.isprintable():
        raise OAuthError("the answer of the authorization server has no code")
    return code


# Requests of tokens -----------------------------------------------------------------------------------------------


def redeem(
    server: AuthorizationServer, client: OAuthClient, redirect: str, code: str, attempt: Attempt, guard: Guard
) -> Tokens:
    """The tokens for a code. Raises OAuthError, ServerAwayError, and ClientOverError if the client is not known."""
    verifier = attempt.verifier
    form = {"grant_type": "authorization_code", "code": code, "redirect_uri": redirect, "code_verifier": verifier}
    return _tokens(server, client, form, guard, (code, verifier), attempt.key)


def refresh(
    server: AuthorizationServer, client: OAuthClient, refresh_token: str, guard: Guard, key: str = ""
) -> Tokens:
    """New tokens. Without a new refresh token the old one stays. `key` is that of the tokens before.

    Raises GrantOverError if a person must sign in again, or ClientOverError, and ServerAwayError, OAuthError.
    """
    form = {"grant_type": "refresh_token", "refresh_token": refresh_token}
    tokens = _tokens(server, client, form, guard, (refresh_token,), key)
    return replace(tokens, refresh=tokens.refresh or refresh_token)


def of_client(
    server: AuthorizationServer, client: OAuthClient, scopes: Sequence[str], guard: Guard, key: str = ""
) -> Tokens:
    """Tokens for the hall itself, without a person. Raises OAuthError, ServerAwayError."""
    form = {"grant_type": "client_credentials"} | ({"scope": " ".join(scopes)} if scopes else {})
    return _tokens(server, client, form, guard, (), key)


def of_assertion(
    server: AuthorizationServer,
    client: OAuthClient,
    assertion: str,
    scopes: Sequence[str],
    guard: Guard,
    key: str = "",
) -> Tokens:
    """Tokens for a statement of somebody whom the authorization server trusts (RFC 7523, section 2.1).

    Raises AccessEndedError if the server does not accept it, and OAuthError, ServerAwayError. A refresh token of
    the answer is left out, because the next assertion is what decides whether the access goes on.
    """
    form = {"grant_type": JWT_BEARER, "assertion": assertion} | ({"scope": " ".join(scopes)} if scopes else {})
    try:
        tokens = _tokens(server, client, form, guard, (assertion,), key)
    except GrantOverError as error:
        raise AccessEndedError(str(error)) from error
    seconds = ASSERTED_SECONDS if tokens.seconds is None else tokens.seconds
    return replace(tokens, refresh="", seconds=seconds)


def revoke(server: AuthorizationServer, client: OAuthClient, token: str, guard: Guard) -> bool:
    """Let the authorization server end the token, if it can. Returns whether it said that it did. Never raises."""
    if not server.revocation_endpoint or not token:
        return False
    try:
        form, headers = client.sign({"token": token}, server.issuer)
        answer = ask(server.revocation_endpoint, guard, form=form, headers=headers, secrets=(token, client.secret))
    except (ClientError, OAuthError):
        return False
    return answer.status == 200


def _tokens(
    server: AuthorizationServer,
    client: OAuthClient,
    form: Mapping[str, str],
    guard: Guard,
    secret_values: Sequence[str],
    key: str,
) -> Tokens:
    """A bound refresh token goes with its `key`, also if the metadata of the server has changed since."""
    proof_key = (ProofKey(key) if key else ProofKey.new()) if key or server.binds_tokens else None
    values = answer_of(server, client, form, guard, secret_values, proof_key)
    return _parse(server, values, proof_key)


def answer_of(
    server: AuthorizationServer,
    client: OAuthClient,
    form: Mapping[str, str],
    guard: Guard,
    secret_values: Sequence[str],
    proof_key: ProofKey | None = None,
) -> dict[str, Any]:
    """What the token endpoint answers to this form, with the resource and the proof of the client.

    Raises GrantOverError, ClientOverError, TokenRefusedError, ServerAwayError, OAuthError.
    """
    answer = _answer(server, client, form, guard, secret_values, proof_key, "")
    values = answer.json_object()
    nonce = nonce_in(answer.headers.get(NONCE_HEADER))
    if proof_key and nonce and answer.status == 400 and (values or {}).get("error") == USE_NONCE:
        answer = _answer(server, client, form, guard, secret_values, proof_key, nonce)
        values = answer.json_object()
    if answer.status != 200:
        is_of_sign_in = form["grant_type"] in ("authorization_code", "refresh_token")
        raise _refusal(server, answer.status, values, is_of_sign_in=is_of_sign_in)
    if values is None:
        raise OAuthError(f"the token endpoint of {server.issuer!r} did not answer with JSON")
    return values


def _answer(
    server: AuthorizationServer,
    client: OAuthClient,
    form: Mapping[str, str],
    guard: Guard,
    secret_values: Sequence[str],
    proof_key: ProofKey | None,
    nonce: str,
) -> OutsideAnswer:
    signed, headers = client.sign({**form, "resource": server.resource}, server.issuer)
    if proof_key is not None:
        headers |= {proof_keys.HEADER: proof_key.proof("POST", server.token_endpoint, nonce=nonce)}
    known_secrets = [value for value in (*secret_values, client.secret, signed.get("client_assertion")) if value]
    try:
        return ask(server.token_endpoint, guard, form=signed, headers=headers, secrets=known_secrets)
    except ClientError as error:
        raise ServerAwayError(f"the token endpoint of {server.issuer!r} cannot be asked: {error}") from error


def _refusal(
    server: AuthorizationServer, status: int, values: Mapping[str, Any] | None, *, is_of_sign_in: bool
) -> OAuthError:
    error = (values or {}).get("error")
    text = f"the token endpoint of {server.issuer!r} answered with HTTP {status}{_code(error)}"
    if status >= 500 or status == 429 or error == "temporarily_unavailable":
        return ServerAwayError(text)
    if is_of_sign_in and error in ("invalid_client", "unauthorized_client"):
        return ClientOverError(text)
    if error == "invalid_grant":
        return GrantOverError(text)
    return TokenRefusedError(text) if error and isinstance(error, str) else OAuthError(text)


def _code(error: Any) -> str:
    return f": {error}" if isinstance(error, str) and error in CODES else ""


def _parse(server: AuthorizationServer, values: Mapping[str, Any], proof_key: ProofKey | None) -> Tokens:
    access, refresh_token = values.get("access_token"), values.get("refresh_token") or ""
    if not _is_token(access) or (refresh_token and not _is_token(refresh_token)):
        raise OAuthError(f"the token endpoint of {server.issuer!r} gave no usable token")
    kind = str(values.get("token_type", "bearer")).lower()
    if kind != "bearer" and (kind != "dpop" or proof_key is None):
        raise OAuthError(f"the token endpoint of {server.issuer!r} gave a token of another type than it was asked for")
    if kind == "bearer" and server.must_bind:
        raise OAuthError(f"the token endpoint of {server.issuer!r} gave a token that is not bound to the key")
    scope = values.get("scope")
    scopes = scopes_in(scope) if isinstance(scope, str) else ()
    key = proof_key.secret if proof_key else ""
    return Tokens(str(access), refresh_token, scopes, _seconds(values.get("expires_in")), key, is_bound=kind == "dpop")


def _seconds(value: Any) -> float | None:
    """The lifetime of a token. Some servers send it as text."""
    if isinstance(value, str) and value.isascii() and value.isdigit():
        value = int(value[:12])
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if 0 < value <= MAX_SECONDS else None


def _is_token(value: Any) -> bool:
    """Whether it can be in a header: RFC 6750 has visible ASCII without spaces."""
    return isinstance(value, str) and 0 < len(value) <= MAX_TOKEN and all("!" <= char <= "~" for char in value)
