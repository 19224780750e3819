"""A member behind OAuth and its authorization server, both over real HTTP on loopback. A test can let both lie.

The member serves MCP with one tool, and asks for a token. The authorization server approves everything at once. `lies`
changes what it answers: a value of `metadata` or `resource`, or a whole answer by its path.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlencode, urlsplit

import jwt
from cryptography.hazmat.primitives.asymmetric import ec

from mcp_runtime.oauth import providers
from tests.support.proofs import NonceNeededError, ProofError, Proofs

ECHOED = {"tools/call", "prompts/get", "resources/read", "completion/complete", "resources/subscribe"}
Answer = tuple[int, dict[str, str], bytes]

LEFT_OUT = "left out"  # in place of a claim


@dataclass
class Seen:
    """One request to one of both servers."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def form(self) -> dict[str, str]:
        return {name: parts[0] for name, parts in parse_qs(self.body.decode()).items()}


@dataclass
class OAuthWorld:
    """Both servers. Numbers and sets change while they run."""

    lifetime: float | None = 3600.0  # seconds of an access token
    scopes: tuple[str, ...] = ("read",)  # that the member asks for
    needs: dict[str, str] = field(default_factory=dict)  # the scope that a tool needs
    auth_methods: tuple[str, ...] = ("none",)
    registers: bool = True
    rotates: bool = True
    echoes: bool = False  # the member says which token a call, a prompt, a resource or a completion had
    has_sessions: bool = False  # of MCP: each session is of one token, and other tokens are `mixed_up` in it
    lists_openly: bool = False  # the member asks for no token for its handshake and its lists
    sessions: dict[str, str] = field(default_factory=dict)  # id -> token hash at its beginning
    is_away: bool = False  # the token endpoint answers 503
    binds: bool = False  # tokens are bound to the key of a proof (DPoP), at both servers
    proofs: Proofs = field(default_factory=Proofs)  # that the token endpoint saw
    proofs_of_member: Proofs = field(default_factory=Proofs)
    bound: dict[str, str] = field(default_factory=dict)  # access or refresh token -> thumbprint of its key
    token_delay: float = 0.0
    metadata: dict[str, Any] = field(default_factory=dict)  # replaces values; None removes them
    resource: dict[str, Any] = field(default_factory=dict)
    answers: dict[str, Callable[[Seen], Answer]] = field(default_factory=dict)  # by path
    answer_parameters: dict[str, Any] = field(default_factory=dict)  # of the answer of the authorization endpoint
    seen: list[Seen] = field(default_factory=list)
    access: dict[str, tuple[float, str]] = field(default_factory=dict)  # token -> (end, scopes)
    refresh: dict[str, str] = field(default_factory=dict)  # token -> scopes
    used_refresh: set[str] = field(default_factory=set)
    reuses: int = 0  # of refresh tokens, each of which ends all tokens
    # The identity provider of a company, at /idp on the same address. The authorization server trusts what it signs.
    key: ec.EllipticCurvePrivateKey = field(default_factory=lambda: ec.generate_private_key(ec.SECP256R1()))
    provider_metadata: dict[str, Any] = field(default_factory=dict)
    assertion_claims: dict[str, Any] = field(default_factory=dict)  # replaces claims; None removes them
    assertion_header: dict[str, Any] = field(default_factory=lambda: {"typ": "oauth-id-jag+jwt"})
    issued_type: str = "urn:ietf:params:oauth:token-type:id-jag"
    id_token_audience: str = "hall-at-idp"
    used_assertions: set[str] = field(default_factory=set)
    clients: dict[str, str] = field(default_factory=dict)  # id -> secret
    accounts: dict[str, str] = field(default_factory=dict)  # hash of an access token -> account of the person
    account: str = ""  # of the person who approves next
    codes: dict[str, dict[str, str]] = field(default_factory=dict)
    base: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def url(self) -> str:
        return f"{self.base}/mcp"

    @property
    def refreshes(self) -> int:
        return sum(each.form.get("grant_type") == "refresh_token" for each in self.seen if each.path == "/token")

    @property
    def provider(self) -> str:
        """The issuer of the identity provider."""
        return f"{self.base}/idp"

    def signed(self, header: dict[str, Any] | None = None, **claims: Any) -> str:
        """A statement of the identity provider, or of a platform that the authorization server trusts as well."""
        now = int(time.time())
        values = {"iss": self.provider, "iat": now, "exp": now + 300, "jti": str(uuid.uuid4()), **claims}
        given = {name: value for name, value in values.items() if value is not None}
        return jwt.encode(given, self.key, algorithm="ES256", headers=header)

    def id_token(self, subject: str, **claims: Any) -> str:
        return self.signed(**{"sub": subject, "aud": self.id_token_audience, **claims})

    def paths(self) -> list[str]:
        return [each.path for each in self.seen]

    def expire(self) -> None:
        """Let all access tokens end now."""
        self.access = {token: (0.0, scopes) for token, (_, scopes) in self.access.items()}

    def approve(self, address: str) -> dict[str, list[str]]:
        """What a person does who opens the address and approves. Returns the parameters of the redirect."""
        query = {name: parts[0] for name, parts in parse_qs(urlsplit(address).query).items()}
        return parse_qs(urlsplit(self._redirect(query)).query)

    # The authorization server

    def _redirect(self, query: dict[str, str]) -> str:
        code = secrets.token_urlsafe(8)
        self.codes[code] = {**query, "account": self.account}
        values = {"code": code, "state": query.get("state", ""), "iss": self.base, **self.answer_parameters}
        given = {name: value for name, value in values.items() if value is not None}
        return f"{query['redirect_uri']}?{urlencode(given, doseq=True)}"

    def as_metadata(self) -> dict[str, Any]:
        values = {
            "issuer": self.base,
            "authorization_endpoint": f"{self.base}/authorize",
            "token_endpoint": f"{self.base}/token",
            "revocation_endpoint": f"{self.base}/revoke",
            "registration_endpoint": f"{self.base}/register" if self.registers else None,
            "code_challenge_methods_supported": ["S256"],
            "token_endpoint_auth_methods_supported": list(self.auth_methods),
            "authorization_response_iss_parameter_supported": True,
            "dpop_signing_alg_values_supported": ["RS256", "ES256"] if self.binds else None,
            **self.metadata,
        }
        return {name: value for name, value in values.items() if value is not None}

    def resource_metadata(self) -> dict[str, Any]:
        values = {"resource": self.url, "authorization_servers": [self.base], **self.resource}
        return {name: value for name, value in values.items() if value is not None}

    def register(self, seen: Seen) -> Answer:
        wanted = json.loads(seen.body)
        client_id, secret = secrets.token_urlsafe(8), secrets.token_urlsafe(16)
        method = wanted.get("token_endpoint_auth_method", "none")
        self.clients[client_id] = "" if method == "none" else secret
        return _json({**wanted, "client_id": client_id} | ({} if method == "none" else {"client_secret": secret}), 201)

    def token(self, seen: Seen) -> Answer:
        form = seen.form
        time.sleep(self.token_delay)
        if self.is_away:
            return 503, {}, b""
        client_id, secret = self._client(seen)
        if client_id in self.clients and self.clients[client_id] != secret:
            return _json({"error": "invalid_client"}, 401)
        with self.lock:
            try:
                return self._bound_to(self._thumbprint(seen), form, client_id)
            except NonceNeededError as need:
                status, headers, body = _json({"error": "use_dpop_nonce"}, 400)
                return status, {**headers, "DPoP-Nonce": str(need)}, body
            except ProofError:
                return _json({"error": "invalid_dpop_proof"}, 400)

    def _thumbprint(self, seen: Seen) -> str:
        """Of the key that the token request proves. Empty if tokens are not bound."""
        proof, url = seen.headers.get("dpop", ""), f"{self.base}/token"
        return self.proofs.thumbprint(proof, "POST", url) if self.binds else ""

    def _bound_to(self, thumbprint: str, form: dict[str, str], client_id: str) -> Answer:
        if self.codes.get(form.get("code", ""), {}).get("dpop_jkt", thumbprint) != thumbprint:
            raise ProofError("of another key than the code")
        if self.bound.get(form.get("refresh_token", ""), thumbprint) != thumbprint:
            raise ProofError("of another key than the refresh token")
        status, headers, body = self._of_grant(form, client_id)
        values = json.loads(body)
        if not thumbprint or status != 200:
            return status, headers, body
        for name in ("access_token", "refresh_token"):
            self.bound |= {values[name]: thumbprint} if name in values else {}
        return _json({**values, "token_type": "DPoP"})

    def _of_grant(self, form: dict[str, str], client_id: str) -> Answer:
        if form["grant_type"] == "authorization_code":
            return self._of_code(form, client_id)
        if form["grant_type"] == "client_credentials":
            return self._give(form.get("scope", ""), has_refresh=False)
        if form["grant_type"] == "urn:ietf:params:oauth:grant-type:jwt-bearer":
            return self._of_assertion(form, client_id)
        return self._of_refresh(form)

    def exchange(self, seen: Seen) -> Answer:
        """An identity assertion in exchange for an ID token (RFC 8693)."""
        form = seen.form
        client_id, secret = self._client(seen)
        if client_id != self.id_token_audience or self.clients.get(client_id, "") != secret:
            return _json({"error": "invalid_client"}, 401)
        kinds = (form["grant_type"], form["requested_token_type"], form["subject_token_type"])
        names = ("grant-type:token-exchange", "token-type:id-jag", "token-type:id_token")
        if kinds != tuple(f"urn:ietf:params:oauth:{name}" for name in names):
            return _json({"error": "invalid_request"}, 400)
        try:
            person = jwt.decode(
                form["subject_token"], self.key.public_key(), ["ES256"], audience=client_id, issuer=self.provider
            )
        except jwt.PyJWTError:
            return _json({"error": "invalid_grant", "error_description": form["subject_token"]}, 400)
        claims = {"sub": person["sub"], "aud": form["audience"], "resource": form["resource"], "client_id": "the-hall"}
        claims = {name: value for name, value in (claims | self.assertion_claims).items() if value != LEFT_OUT}
        assertion = self.signed(self.assertion_header, **claims)
        return _json({"access_token": assertion, "issued_token_type": self.issued_type, "token_type": "N_A"})

    def _of_assertion(self, form: dict[str, str], client_id: str) -> Answer:
        try:
            claims = jwt.decode(form["assertion"], self.key.public_key(), ["ES256"], audience=self.base)
        except jwt.PyJWTError:
            return _json({"error": "invalid_grant", "error_description": form["assertion"]}, 400)
        is_other = claims.get("client_id", client_id) != client_id or claims.get("resource", self.url) != self.url
        if is_other or claims["jti"] in self.used_assertions:
            return _json({"error": "invalid_grant"}, 400)
        if jwt.get_unverified_header(form["assertion"]).get("typ") == "oauth-id-jag+jwt":
            self.used_assertions.add(claims["jti"])
        return self._give(form.get("scope", ""), has_refresh=False, account=claims["sub"])

    def _client(self, seen: Seen) -> tuple[str, str]:
        kind, _, value = seen.headers.get("authorization", "").partition(" ")
        if kind == "Basic":
            client_id, _, secret = base64.b64decode(value).decode().partition(":")
            return unquote(client_id), unquote(secret)
        return seen.form.get("client_id", ""), seen.form.get("client_secret", "")

    def _of_code(self, form: dict[str, str], client_id: str) -> Answer:
        query = self.codes.pop(form.get("code", ""), None)
        if query is None:
            return _json({"error": "invalid_grant"}, 400)
        digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        is_proved = base64.urlsafe_b64encode(digest).rstrip(b"=").decode() == query.get("code_challenge")
        is_same = query["client_id"] == client_id and query["redirect_uri"] == form.get("redirect_uri")
        if not is_proved or not is_same or query.get("resource") != form.get("resource"):
            return _json({"error": "invalid_grant"}, 400)
        return self._give(query.get("scope", ""), account=query["account"])

    def _of_refresh(self, form: dict[str, str]) -> Answer:
        token = form.get("refresh_token", "")
        if token in self.used_refresh:  # RFC 9700: somebody stole it, so all tokens end
            self.reuses += 1
            self.refresh.clear()
            self.access.clear()
        if token not in self.refresh:
            return _json({"error": "invalid_grant"}, 400)
        scopes, account = self.refresh[token], self.accounts.get(hash_of(token), "")
        if self.rotates:
            del self.refresh[token]
            self.used_refresh.add(token)
        return self._give(scopes, account=account)

    def _give(self, scopes: str, *, has_refresh: bool = True, account: str = "") -> Answer:
        access, refresh = f"access-{secrets.token_urlsafe(16)}", f"refresh-{secrets.token_urlsafe(16)}"
        self.accounts |= {hash_of(access): account, hash_of(refresh): account}
        self.access[access] = (time.monotonic() + (self.lifetime or 3600.0), scopes)
        values: dict[str, Any] = {"access_token": access, "token_type": "Bearer", "scope": scopes}
        values |= {} if self.lifetime is None else {"expires_in": self.lifetime}
        if has_refresh and (self.rotates or not self.refresh):
            self.refresh[refresh] = scopes
            values["refresh_token"] = refresh
        return _json(values)

    # The member

    def mcp(self, seen: Seen) -> Answer:
        token = token_of(seen)
        if self.binds and token:
            try:
                with self.lock:
                    self._require_proof(seen, token)
            except NonceNeededError as need:
                challenge = self.challenge('error="use_dpop_nonce"')
                return 401, {**challenge, "DPoP-Nonce": str(need)}, b"no"
            except ProofError:
                return 401, self.challenge('error="invalid_dpop_proof"'), b"no"
        end, scopes = self.access.get(token, (0.0, ""))
        is_open = self.lists_openly and b"tools/call" not in seen.body and not token
        if end <= time.monotonic() and not is_open:
            return 401, self.challenge(f'scope="{" ".join(self.scopes)}"' if self.scopes else ""), b"no"
        message = json.loads(seen.body)
        if "id" not in message:
            return 202, {}, b""
        params = message.get("params", {})
        needed = self.needs.get(params.get("name", ""), "")
        if message["method"] == "tools/call" and needed and needed not in scopes.split():
            return 403, self.challenge(f'error="insufficient_scope", scope="{needed}"'), b"no"
        result = self._result(message["method"], params)
        if self.echoes and message["method"] in ECHOED:
            text = hash_of(token)
            result = {
                "tools/call": {"content": [{"type": "text", "text": text}]},
                "prompts/get": {"messages": [{"role": "user", "content": {"type": "text", "text": text}}]},
                "resources/read": {"contents": [{"uri": params.get("uri", ""), "text": text}]},
                "completion/complete": {"completion": {"values": [text]}},
                "resources/subscribe": {},
            }[message["method"]]
        status, headers, body = _json({"jsonrpc": "2.0", "id": message["id"], "result": result})
        if self.has_sessions and message["method"] == "initialize":
            session = secrets.token_urlsafe(8)
            self.sessions[session] = hash_of(token)
            headers["Mcp-Session-Id"] = session
        return status, headers, body

    def _require_proof(self, seen: Seen, token: str) -> None:
        thumbprint = self.proofs_of_member.thumbprint(seen.headers.get("dpop", ""), seen.method, self.url, token)
        if self.bound.get(token) != thumbprint or not seen.headers["authorization"].startswith("DPoP "):
            raise ProofError("of another key than the token")

    def hashes_by_method(self) -> dict[str, set[str]]:
        """The hashes of the tokens that each method of MCP had. A token may have ended since."""
        found: dict[str, set[str]] = {}
        for seen in list(self.seen):
            if seen.path == "/mcp" and seen.method == "POST" and seen.body:
                token = token_of(seen)
                found.setdefault(str(json.loads(seen.body).get("method")), set()).add(hash_of(token))
        return found

    def mixed_up(self) -> list[str]:
        """The methods that came in a session which another account began. `accounts` tells accounts apart."""
        mixed = []
        for seen in list(self.seen):
            session = seen.headers.get("mcp-session-id", "")
            token = token_of(seen)
            if session and self.account_of(hash_of(token)) != self.account_of(self.sessions[session]):
                mixed.append(seen.body.decode() or seen.method)
        return mixed

    def account_of(self, token_hash: str) -> str:
        return self.accounts.get(token_hash, "")

    def challenge(self, more: str) -> dict[str, str]:
        parts = [f'resource_metadata="{self.base}/.well-known/oauth-protected-resource/mcp"', more]
        scheme = "DPoP" if self.binds else "Bearer"
        return {"WWW-Authenticate": f"{scheme} {', '.join(filter(None, parts))}"}

    def _result(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        if method == "initialize":
            version = params["protocolVersion"]
            more = {"prompts": {}, "resources": {"subscribe": True}, "completions": {}} if self.echoes else {}
            return {"protocolVersion": version, "capabilities": {"tools": {}, **more}, "serverInfo": {"name": "vault"}}
        if method == "prompts/list":
            return {"prompts": [{"name": "ask"}]}
        if method == "resources/list":
            return {"resources": [{"uri": "vault://key", "name": "key"}]}
        if method == "resources/templates/list":
            return {"resourceTemplates": []}
        if method == "tools/list":
            names = ("look", "write")
            return {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in names]}
        return {"content": [{"type": "text", "text": "open"}]}

    def respond(self, seen: Seen) -> Answer:
        path = urlsplit(seen.path).path
        if path in self.answers:
            return self.answers[path](seen)
        match path:
            case "/mcp":
                return self.mcp(seen) if seen.method == "POST" else (405, {}, b"")
            case "/.well-known/oauth-protected-resource/mcp":
                return _json(self.resource_metadata())
            case "/.well-known/oauth-authorization-server":
                return _json(self.as_metadata())
            case "/authorize":
                query = {name: parts[0] for name, parts in parse_qs(urlsplit(seen.path).query).items()}
                return 302, {"Location": self._redirect(query)}, b""
            case "/register":
                return self.register(seen)
            case "/.well-known/oauth-authorization-server/idp":
                values = {"issuer": self.provider, "token_endpoint": f"{self.base}/idp/token", **self.provider_metadata}
                return _json(values)
            case "/idp/token":
                return self.exchange(seen)
            case "/token":
                return self.token(seen)
            case "/revoke":
                self.refresh.pop(seen.form.get("token", ""), None)
                return 200, {}, b""
        return 404, {}, b""


def token_of(seen: Seen) -> str:
    return seen.headers.get("authorization", "").removeprefix("Bearer ").removeprefix("DPoP ")


def hash_of(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()[:16] if token else ""


def _json(value: Any, status: int = 200) -> Answer:
    return status, {"Content-Type": "application/json"}, json.dumps(value).encode()


@contextmanager
def oauth_world(**options: Any) -> Iterator[OAuthWorld]:
    world = OAuthWorld(**options)
    providers.forget()  # one of before may have had the same port

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args: Any) -> None:
            pass

        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            seen = Seen(self.command, self.path, headers, body)
            world.seen.append(seen)
            status, answer_headers, content = world.respond(seen)
            self.send_response(status)
            for name, value in answer_headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_DELETE = _serve

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    world.base = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield world
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
