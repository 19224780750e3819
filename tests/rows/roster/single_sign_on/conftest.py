"""A hall with a provider of single sign-on, and a browser of one person."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
import requests
from django.conf import settings as django_settings
from django.test import Client

from mcp_runtime.control import identity_provider
from tests.support import provider as support
from tests.support.provider import Provider


@pytest.fixture(autouse=True)
def _static_root() -> None:
    django_settings.STATIC_ROOT.mkdir(exist_ok=True)  # WhiteNoise warns about a missing folder


@pytest.fixture
def provider(settings: Any) -> Iterator[Provider]:
    """A provider, and a hall that lets everybody of it in."""
    identity_provider.forget()
    with support.serve() as provider:
        settings.GUILD_HALL_OIDC_ISSUER = provider.url
        settings.GUILD_HALL_OIDC_NAME = "Example Ltd"
        settings.GUILD_HALL_OIDC_CLIENT_ID = support.CLIENT_ID
        settings.GUILD_HALL_OIDC_CLIENT_SECRET = support.CLIENT_SECRET
        settings.GUILD_HALL_OIDC_ALLOW = ["everybody"]
        settings.AUTHENTICATION_BACKENDS = [
            "django.contrib.auth.backends.ModelBackend",
            "roster.login_backends.ProviderBackend",
        ]
        yield provider
        assert provider.faults == []
    identity_provider.forget()


class Person:
    """Somebody with a browser, as far as the test needs one."""

    def __init__(self) -> None:
        self.client = Client()

    def begin(self, next_path: str = "") -> Any:
        """Press the button. Returns the redirect to the provider, or the page with an error."""
        return self.client.get("/single-sign-on/", {"next": next_path} if next_path else {})

    def at_provider(self, response: Any) -> str:
        """The path to which the provider sends the browser back."""
        assert response.status_code == 302, response.content.decode()
        answer = requests.get(response.headers["Location"], allow_redirects=False, timeout=10)
        assert answer.status_code == 302
        parts = urlsplit(answer.headers["Location"])
        assert f"{parts.scheme}://{parts.netloc}{parts.path}" == "http://localhost:8000/single-sign-on/callback/"
        return f"{parts.path}?{parts.query}"

    def log_in(self, next_path: str = "") -> Any:
        """The whole way. Returns the response to the callback."""
        return self.client.get(self.at_provider(self.begin(next_path)))

    @property
    def is_logged_in(self) -> bool:
        return "_auth_user_id" in self.client.session


@pytest.fixture
def person() -> Person:
    return Person()
