"""A provider of OpenID Connect on this machine, with keys of its own. It misbehaves in the ways that tests choose."""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import secrets
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote_plus, urlencode, urlsplit

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

CLIENT_ID = "guild-hall"
CLIENT_SECRET = "a secret: with + signs & %"
DISCOVERY = "/.well-known/openid-configuration"

Claims = dict[str, Any]


@dataclass
class Answer:
    """An answer that replaces the usual one. `seconds` pass before it, and `stay` between its bytes."""

    status: int = 200
    body: bytes = b"{}"
    headers: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    stay: float = 0.0


@functools.cache
def _rsa_key(kid: str) -> rsa.RSAPrivateKey:
    """One for each name, because making one takes a quarter of a second."""
    return rsa.generate_private_key(65537, 2048)


class Provider:
    """Logs everybody in as `person` at once, without a page.

    faults       what no test wants: wrong requests of the hall, and faults of this provider itself
    claims       changes the claims of the next ID tokens
    sign         makes the ID token from its claims, in place of the newest key
    answers      other answers than the usual ones, by the path
    person       the claims about the person. Those in `only_in_userinfo` are not in the ID token
    public       the ids of clients of the gateway, which register themselves and have no secret
    exchange     answers the form of a token exchange (RFC 8693), after the hall has proved who it is
    """

    def __init__(self) -> None:
        self.url = ""
        self.person: Claims = {"sub": "248289761001", "preferred_username": "jane", "email": "jane@example.com"}
        self.person |= {"email_verified": True, "groups": []}
        self.only_in_userinfo: set[str] = set()
        self.keys: dict[str, Any] = {}
        self.rotate("first")
        self.claims: Callable[[Claims], None] = lambda claims: None
        self.sign: Callable[[Claims], str] = self.signed
        self.discovery: Callable[[Claims], None] = lambda document: None
        self.callback: Callable[[dict[str, str]], None] = lambda query: None
        self.exchange: Callable[[dict[str, str]], Answer] = lambda form: Answer(400, b'{"error": "invalid_request"}')
        self.answers: dict[str, Answer] = {}
        self.requests: list[str] = []
        self.faults: list[str] = []
        self.codes: dict[str, dict[str, str]] = {}
        self.public: set[str] = set()

    # Keys

    def rotate(self, kid: str, *, elliptic: bool = False) -> None:
        """Another key, in place of those before."""
        self.keys = {kid: ec.generate_private_key(ec.SECP256R1()) if elliptic else _rsa_key(kid)}

    def signed(self, claims: Claims, *, kid: str | None = None, algorithm: str = "", key: Any = None) -> str:
        own_kid, own_key = next(iter(self.keys.items()))
        is_elliptic = isinstance(own_key, ec.EllipticCurvePrivateKey)
        algorithm = algorithm or ("ES256" if is_elliptic else "RS256")
        return jwt.encode(claims, key or own_key, algorithm=algorithm, headers={"kid": kid or own_kid})

    def access_claims(self, **changes: Any) -> Claims:
        """The claims of an access token for the gateway. A claim that is None is left out."""
        now = int(time.time())
        claims = {"iss": self.url, "sub": self.person["sub"], "aud": "http://localhost:8100/mcp", "iat": now}
        claims |= {"exp": now + 300, "client_id": "inspector", "scope": "openid mcp", "jti": secrets.token_hex(8)}
        return {name: value for name, value in (claims | changes).items() if value is not None}

    def access_token(self, *, typ: str = "at+jwt", header: Claims | None = None, **changes: Any) -> str:
        """As clients get it. RFC 9068."""
        kid, key = next(iter(self.keys.items()))
        headers = {"kid": kid, "typ": typ, **(header or {})}
        algorithm = "ES256" if isinstance(key, ec.EllipticCurvePrivateKey) else "RS256"
        return jwt.encode(self.access_claims(**changes), key, algorithm=algorithm, headers=headers)

    def public_pem(self) -> bytes:
        key = next(iter(self.keys.values())).public_key()
        pem: bytes = key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        return pem

    def jwks(self) -> dict[str, Any]:
        rows = []
        for kid, key in self.keys.items():
            is_elliptic = isinstance(key, ec.EllipticCurvePrivateKey)
            algorithm = ECAlgorithm if is_elliptic else RSAAlgorithm
            row = json.loads(algorithm.to_jwk(key.public_key()))
            rows.append({**row, "kid": kid, "use": "sig", "alg": "ES256" if is_elliptic else "RS256"})
        return {"keys": rows}

    # Answers

    def document(self) -> dict[str, Any]:
        document = {
            "issuer": self.url,
            "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": f"{self.url}/token",
            "jwks_uri": f"{self.url}/jwks",
            "userinfo_endpoint": f"{self.url}/userinfo",
            "response_types_supported": ["code"],
            "authorization_response_iss_parameter_supported": True,
            "id_token_signing_alg_values_supported": ["RS256", "ES256"],
        }
        self.discovery(document)
        return document

    def authorize(self, query: dict[str, str]) -> Answer:
        client_id = query["client_id"] if query.get("client_id") in self.public else CLIENT_ID
        required = {"response_type": "code", "client_id": client_id, "code_challenge_method": "S256"}
        for name, value in required.items():
            if query.get(name) != value:
                self.faults.append(f"{name} is {query.get(name)!r}")
        code = secrets.token_urlsafe(16)
        self.codes[code] = query
        answer = {"code": code, "state": query["state"], "iss": self.url}
        self.callback(answer)
        return Answer(302, b"", {"Location": f"{query['redirect_uri']}?{urlencode(answer)}"})

    def register(self, metadata: Claims) -> Answer:
        """RFC 7591, for clients of the gateway."""
        client_id = f"client-{len(self.public) + 1}"
        self.public.add(client_id)
        body = {**metadata, "client_id": client_id, "token_endpoint_auth_method": "none"}
        return Answer(201, json.dumps(body).encode())

    def token_of_client(self, form: dict[str, str]) -> Answer:
        """An access token for the gateway, for the resource and the scope that the client asked for."""
        query = self.codes.pop(form["code"])
        digest = hashlib.sha256(form["code_verifier"].encode()).digest()
        if base64.urlsafe_b64encode(digest).decode().rstrip("=") != query["code_challenge"]:
            return Answer(400, b'{"error": "invalid_grant"}')
        values = {"client_id": form["client_id"], "aud": query["resource"], "scope": query["scope"]}
        body = {"access_token": self.access_token(**values), "token_type": "Bearer", "expires_in": 300}
        return Answer(200, json.dumps(body).encode())

    def token(self, form: dict[str, str], authorization: str) -> Answer:
        if form.get("client_id") in self.public:
            return self.token_of_client(form)
        query = self.codes.pop(form.get("code", ""), None)
        digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).decode().rstrip("=")
        client_id, _, secret = base64.b64decode(authorization.removeprefix("Basic ")).decode().partition(":")
        if (unquote_plus(client_id), unquote_plus(secret)) != (CLIENT_ID, CLIENT_SECRET):
            return Answer(401, b'{"error": "invalid_client"}')
        if form.get("grant_type") == "urn:ietf:params:oauth:grant-type:token-exchange":
            return self.exchange(form)
        is_good = query is not None and query["code_challenge"] == challenge
        if query is None or not is_good or query["redirect_uri"] != form.get("redirect_uri"):
            return Answer(400, b'{"error": "invalid_grant"}')
        now = int(time.time())
        claims = {name: value for name, value in self.person.items() if name not in self.only_in_userinfo}
        claims |= {"iss": self.url, "aud": CLIENT_ID, "iat": now, "exp": now + 300, "nonce": query["nonce"]}
        self.claims(claims)
        body = {"access_token": "an access token", "token_type": "Bearer", "id_token": self.sign(claims)}
        return Answer(200, json.dumps(body).encode())

    def answer(self, method: str, target: str, body: str, headers: Any) -> Answer:
        parts = urlsplit(target)
        self.requests.append(f"{method} {parts.path}")
        if parts.path in self.answers:
            return self.answers[parts.path]
        if (method, parts.path) == ("GET", "/authorize"):
            return self.authorize(_first(parts.query))
        if (method, parts.path) == ("POST", "/token"):
            return self.token(_first(body), headers.get("Authorization", ""))
        if (method, parts.path) == ("POST", "/register"):
            return self.register(json.loads(body))
        if (method, parts.path) == ("GET", "/userinfo"):
            is_known = headers.get("Authorization") == "Bearer an access token"
            return Answer(200, json.dumps(self.person).encode()) if is_known else Answer(401)
        documents = {DISCOVERY: self.document, "/jwks": self.jwks}
        return Answer(200, json.dumps(documents[parts.path]()).encode()) if parts.path in documents else Answer(404)


def _first(query: str) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(query).items()}


@contextmanager
def serve(context: ssl.SSLContext | None = None) -> Iterator[Provider]:
    """With a context, over https."""
    provider = Provider()
    stopped = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def handle_one(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
            try:
                answer = provider.answer(self.command, self.path, body, self.headers)
            except Exception as error:
                provider.faults.append(repr(error))  # the test fails, because it did not test what it says
                raise
            stopped.wait(answer.seconds)
            try:
                self.send_response(answer.status)
                headers = {
                    "Content-Type": "application/json",
                    "Content-Length": str(len(answer.body)),
                    **answer.headers,
                }
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                for start in range(0, len(answer.body), 1 if answer.stay else 65536):
                    self.wfile.write(answer.body[start : start + (1 if answer.stay else 65536)])
                    stopped.wait(answer.stay)
            except OSError:  # the hall does not wait for the rest
                pass

        do_GET = do_POST = handle_one

        def log_message(self, format: str, *args: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        block_on_close = False

        def handle_error(self, request: Any, client_address: Any) -> None:
            """Say nothing about clients that do not trust the certificate."""

    with Server(("127.0.0.1", 0), Handler) as server:
        provider.url = f"{'http' if context is None else 'https'}://127.0.0.1:{server.server_port}"
        if context is not None:
            server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield provider
        finally:
            stopped.set()
            server.shutdown()
            thread.join()
