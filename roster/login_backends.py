"""How users with a session have logged in. Django stores the class in the session, and asks it for the user.

Neither class checks a password, so nobody logs in with one where Django's own backend is not in the settings.
"""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.contrib.auth.backends import ModelBackend

PROVIDER = "roster.login_backends.ProviderBackend"


class LinkBackend(ModelBackend):
    """Sessions of links that `guildhall login_link` made, where passwords are switched off."""

    def authenticate(self, *_: Any, **__: Any) -> None:
        return None


class ProviderBackend(LinkBackend):
    """Sessions of users whom the provider of single sign-on logged in. They end when there is no provider any more."""


def local_backend() -> str:
    """The backend for logins without the provider."""
    return str(settings.AUTHENTICATION_BACKENDS[0])


def allows_passwords() -> bool:
    return not settings.GUILD_HALL_OIDC_ONLY
