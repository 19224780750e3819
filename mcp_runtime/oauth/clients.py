"""Who the hall is at an authorization server: its client id there, and how it proves that (RFC 7591, RFC 6749)."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from mcp_runtime.client.outside import Guard, ask
from mcp_runtime.oauth import assertions
from mcp_runtime.oauth.discovery import SIGNED, AuthorizationServer
from mcp_runtime.protocol.errors import ClientError, OAuthError, ServerAwayError

CLIENT_NAME = "Guild Hall"
MAX_ID, MAX_SECRET = 2048, 8192
REPLACEABLE = ("registered", "entered")  # sources of clients that another one can replace in the next sign-in
GRANTS = ("authorization_code", "refresh_token")


@dataclass(frozen=True)
class OAuthClient:
    """`method` is one of `discovery.METHODS`, or SIGNED: then `secret` is a private key. `source` says how the hall got
    the id."""

    id: str
    secret: str = field(default="", repr=False)
    method: str = "none"
    source: str = "manifest"

    def sign(self, form: Mapping[str, str], issuer: str) -> tuple[dict[str, str], dict[str, str]]:
        """The form and the headers of a request to the server of this issuer, with the proof of the client.

        Raises OAuthError if the private key cannot be used.
        """
        if self.method == "client_secret_basic" and self.secret:
            pair = f"{quote(self.id, safe='')}:{quote(self.secret, safe='')}"
            return dict(form), {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}
        proof = {"client_id": self.id} if self.id else {}
        if self.method == "client_secret_post" and self.secret:
            proof["client_secret"] = self.secret
        if self.method == SIGNED:
            proof["client_assertion_type"] = assertions.TYPE
            proof["client_assertion"] = assertions.signed(self.id, self.secret, issuer)
        return {**form, **proof}, {}


def known(client_id: str, secret: str, server: AuthorizationServer, source: str) -> OAuthClient:
    """A client that somebody registered at the authorization server by hand."""
    methods = [method for method in server.auth_methods if method != "none"] or ["client_secret_basic"]
    return OAuthClient(client_id, secret, methods[0] if secret else "none", source)


def with_key(client_id: str, pem: str, server: AuthorizationServer, source: str) -> OAuthClient:
    """A client that proves with a private key who it is. Raises OAuthError if the server cannot check that."""
    algorithm = assertions.algorithm_of(pem)
    if algorithm not in server.signing_algorithms:
        names = ", ".join(server.signing_algorithms) or "no signed proof that the hall knows"
        raise OAuthError(f"{server.issuer!r} accepts {names}, and oauth.private_key is a key for {algorithm}")
    return OAuthClient(client_id, pem, SIGNED, source)


def description(redirect: str, **more: Any) -> dict[str, Any]:
    """What the hall says about itself, for a registration or in its published document."""
    return {
        "client_name": CLIENT_NAME,
        "redirect_uris": [redirect],
        "grant_types": list(GRANTS),
        "response_types": ["code"],
        "application_type": "web" if redirect.startswith("https:") else "native",
        **more,
    }


def register(server: AuthorizationServer, redirect: str, guard: Guard, scopes: Sequence[str] = ()) -> OAuthClient:
    """Register the hall at the authorization server. Raises OAuthError, ServerAwayError."""
    method = server.auth_methods[0] if server.auth_methods else "none"
    document = description(redirect, token_endpoint_auth_method=method)
    document |= {"scope": " ".join(scopes)} if scopes else {}
    try:
        answer = ask(server.registration_endpoint, guard, document=document)
    except ClientError as error:
        raise ServerAwayError(f"the hall cannot register at {server.issuer!r}: {error}") from error
    if answer.status >= 500:
        raise ServerAwayError(f"the hall cannot register at {server.issuer!r}: HTTP {answer.status}")
    values = answer.json_object() if answer.status in (200, 201) else None
    client_id = (values or {}).get("client_id")
    if values is None or not _is_text(client_id, MAX_ID):
        raise OAuthError(f"{server.issuer!r} refused to register the hall: HTTP {answer.status}")
    secret = values.get("client_secret") or ""
    if secret and not _is_text(secret, MAX_SECRET):
        raise OAuthError(f"{server.issuer!r} gave the hall a secret that it cannot use")
    chosen = values.get("token_endpoint_auth_method", method)
    if chosen not in ("none", "client_secret_basic", "client_secret_post"):
        raise OAuthError(
            f"{server.issuer!r} registered the hall for {json.dumps(chosen)[:100]}, which it does not support"
        )
    return OAuthClient(str(client_id), secret, chosen if secret else "none", "registered")


def _is_text(value: Any, longest: int) -> bool:
    return isinstance(value, str) and 0 < len(value) <= longest and value.isascii() and value.isprintable()
