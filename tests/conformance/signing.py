"""The hall's OAuth client without a browser: the suite's authorization server approves everything at once.

It signs in as `control.sign_ins` does, and keeps the tokens in memory.
"""

from __future__ import annotations

import http.client
from typing import Any
from urllib.parse import parse_qs, urlsplit

from mcp_runtime.client.bearer import Bearer
from mcp_runtime.client.outside import Guard
from mcp_runtime.oauth import challenges, clients, discovery, grants, identity_assertions
from mcp_runtime.oauth.challenges import Challenge
from mcp_runtime.oauth.clients import OAuthClient
from mcp_runtime.oauth.discovery import AuthorizationServer
from mcp_runtime.oauth.proof_keys import ProofKey
from mcp_runtime.protocol.errors import ChallengeError, OAuthError

REDIRECT = "http://localhost:8000/members/sign-in/"
DOCUMENT = "https://conformance-test.local/client-metadata.json"  # the suite expects this address
MAX_SIGN_INS = 3
UNATTENDED = ("auth/client-credentials", "auth/enterprise-managed-authorization", "auth/wif-jwt-bearer")


class SigningBearer(Bearer):
    """Signs in when the server refuses a request. `context` is that of the suite."""

    def __init__(self, url: str, context: dict[str, Any]) -> None:
        super().__init__()
        self._url = url
        self._context = context
        self._guard = Guard.near(url)
        self._clients: dict[str, OAuthClient] = {}  # by issuer
        self._scopes: tuple[str, ...] = ()
        self._count = 0

    def renew(self, used: str, error: ChallengeError) -> bool:
        challenge = challenges.read(error.challenge)
        if self._count >= MAX_SIGN_INS or (error.status == 403 and not challenge.asks_for_more):
            return False
        self._count += 1
        tokens = self._tokens(challenge)
        self.token, self.key = tokens.access, ProofKey(tokens.key) if tokens.is_bound else None
        return True

    def _tokens(self, challenge: Challenge) -> grants.Tokens:
        is_own = self._context.get("name", "").startswith(UNATTENDED)
        server = discovery.discover(self._url, challenge, self._guard, needs_person=not is_own)
        self._scopes = grants.wanted_scopes(server, challenge, (), self._scopes)
        if assertion := self._assertion(server):
            return grants.of_assertion(server, self._client(server), assertion, self._scopes, self._guard)
        if is_own:
            return grants.of_client(server, self._client(server), self._scopes, self._guard)
        client, attempt = self._client(server), grants.Attempt.at(server)
        address = grants.authorization_address(server, client, REDIRECT, self._scopes, attempt)
        code = grants.code_of(brought_back(address), server, attempt.state)
        return grants.redeem(server, client, REDIRECT, code, attempt, self._guard)

    def _assertion(self, server: AuthorizationServer) -> str:
        """The statement with which the hall gets tokens in some scenarios. Otherwise empty."""
        if assertion := self._context.get("valid_jwt"):
            identity_assertions.require_usable(assertion, server)
            return str(assertion)
        if id_token := self._context.get("idp_id_token"):
            provider = discovery.identity_provider(self._context["idp_issuer"], server.resource, self._guard)
            client = clients.known(self._context["idp_client_id"], "", provider, "manifest")
            return identity_assertions.exchange(provider, client, id_token, server, self._scopes, self._guard)
        return ""

    def _client(self, server: AuthorizationServer) -> OAuthClient:
        if server.issuer not in self._clients:
            self._clients[server.issuer] = self._new_client(server)
        return self._clients[server.issuer]

    def _new_client(self, server: AuthorizationServer) -> OAuthClient:
        if key := self._context.get("private_key_pem"):
            return clients.with_key(self._context["client_id"], key, server, "manifest")
        if client_id := self._context.get("client_id"):
            return clients.known(client_id, self._context.get("client_secret", ""), server, "manifest")
        if server.reads_documents:
            return OAuthClient(DOCUMENT, source="document")
        return clients.register(server, REDIRECT, self._guard, self._scopes)


def brought_back(address: str) -> dict[str, list[str]]:
    """The parameters of the redirect to which the address leads."""
    parts = urlsplit(address)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=5)
    try:
        connection.request("GET", f"{parts.path}?{parts.query}")
        location = connection.getresponse().headers["Location"]
    finally:
        connection.close()
    if not location or not location.startswith(REDIRECT):
        raise OAuthError("the authorization server led elsewhere")
    return parse_qs(urlsplit(location).query)
