"""A client that signs in, over Django's test client, one step after another. Tests change single steps."""

from __future__ import annotations

import base64
import hashlib
import re
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from django.contrib.auth.models import User
from django.test import Client

VERIFIER = "v" * 50
REDIRECT = "http://127.0.0.1:49152/callback"
RESOURCE = "http://localhost:8100/mcp"


def challenge_of(verifier: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).decode().rstrip("=")


class SigningIn:
    """One client, and the browser of one person. Each step returns the response of the hall."""

    def __init__(self, user: User | None = None, redirect: str = REDIRECT, resource: str = RESOURCE) -> None:
        self.program, self.browser = Client(), Client(enforce_csrf_checks=True)
        self.redirect, self.resource = redirect, resource
        self.client_id = ""
        if user is not None:
            self.browser.force_login(user)

    def register(self, **metadata: Any) -> Any:
        body = {"client_name": "Inspector", "redirect_uris": [self.redirect], **metadata}
        response = self.program.post("/oauth/register", body, content_type="application/json")
        self.client_id = response.json().get("client_id", self.client_id)
        return response

    def query(self, **changes: Any) -> str:
        """The query string of the request for a code. A parameter that is None is left out."""
        parameters = {
            "response_type": "code",
            "client_id": self.client_id,
            "redirect_uri": self.redirect,
            "state": "s1",
            "scope": "mcp",
            "resource": self.resource,
            "code_challenge": challenge_of(VERIFIER),
            "code_challenge_method": "S256",
            **changes,
        }
        return urlencode({name: value for name, value in parameters.items() if value is not None}, doseq=True)

    def ask(self, query: str | None = None, **changes: Any) -> Any:
        return self.browser.get(f"/oauth/authorize?{query or self.query(**changes)}")

    def fields(self, page: Any) -> dict[str, str]:
        """The hidden fields of the consent."""
        found = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', page.content.decode())
        return dict(found)

    def decide(self, page: Any, query: str | None = None, **fields: Any) -> Any:
        body = {**self.fields(page), "scope": "all", "days": "90", "decision": "allow", **fields}
        body = {name: value for name, value in body.items() if value is not None}
        return self.browser.post(f"/oauth/authorize?{query or page.wsgi_request.META['QUERY_STRING']}", body)

    def answer(self, response: Any) -> dict[str, str]:
        """The parameters with which the browser was sent back."""
        assert response.status_code == 303, response.content.decode()
        return {name: values[0] for name, values in parse_qs(urlsplit(response["location"]).query).items()}

    def code(self, **fields: Any) -> str:
        """Register, ask and allow."""
        if not self.client_id:
            self.register()
        return self.answer(self.decide(self.ask(), **fields))["code"]

    def exchange(self, code: str, **changes: Any) -> Any:
        body = {
            "grant_type": "authorization_code",
            "code": code,
            "client_id": self.client_id,
            "redirect_uri": self.redirect,
            "code_verifier": VERIFIER,
            "resource": self.resource,
            **changes,
        }
        return self.token({name: value for name, value in body.items() if value is not None})

    def refresh(self, refresh_token: str, **changes: Any) -> Any:
        body = {"grant_type": "refresh_token", "refresh_token": refresh_token, "client_id": self.client_id}
        return self.token({**body, **changes})

    def token(self, body: dict[str, Any]) -> Any:
        return self.program.post(
            "/oauth/token", urlencode(body, doseq=True), content_type="application/x-www-form-urlencoded"
        )

    def sign_in(self, **fields: Any) -> dict[str, Any]:
        """All steps. Returns the tokens."""
        response = self.exchange(self.code(**fields))
        assert response.status_code == 200, response.content
        tokens: dict[str, Any] = response.json()
        return tokens
