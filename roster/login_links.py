"""Links with which the machine's owner lets a user log in once, without a password and without the provider.

`guildhall login_link` makes them. A link is signed and stored nowhere: it names the user's last login and password, so
it ends with the next login, or with another password.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.contrib.auth.models import User
from django.core import signing
from django.db import transaction
from django.utils import timezone

from roster.addresses import web_address
from roster.models import AuditEntry

SALT = "roster.login_links"
LIFETIME = timedelta(minutes=10)
PREFIX = "ghi_"  # logs mask what begins so, see roster.masked_log
MAX_SECRET = 2000


class LinkError(Exception):
    """The link does not work: it is used, too old or wrong, or the user is not active any more."""


@dataclass(frozen=True)
class Link:
    user: User
    address: str


def make(user: User) -> Link:
    """A link for this user, who must be active."""
    text = signing.dumps(state_of(user), salt=SALT)
    secret = PREFIX + base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")
    AuditEntry.record(AuditEntry.Kind.LOGIN_LINK_MADE, f"user {user.get_username()}")
    return Link(user, f"{web_address()}/login-links/{secret}/")


def find(secret: str) -> User:
    """The user of the link. Changes nothing. Raises LinkError."""
    state = _read(secret)
    user = User.objects.filter(pk=state.get("user", 0), is_active=True).first()
    if user is None or state_of(user) != state:
        raise LinkError
    return user


def spend(secret: str) -> User:
    """As `find`, and the link does not work any more. Raises LinkError."""
    with transaction.atomic():
        user = find(secret)
        # Of several requests at the same moment, the database lets one change the row.
        if not User.objects.filter(pk=user.pk, last_login=user.last_login).update(last_login=timezone.now()):
            raise LinkError
    return user


def state_of(user: User) -> dict[str, Any]:
    """What must still be so when the link is used."""
    last_login = user.last_login.isoformat() if user.last_login else None
    return {"user": user.pk, "last_login": last_login, "password": user.get_session_auth_hash()[:16]}


def _read(secret: str) -> dict[str, Any]:
    text = secret.removeprefix(PREFIX)
    if not secret.startswith(PREFIX) or len(text) > MAX_SECRET or not text.isascii():
        raise LinkError
    try:
        signed = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True).decode("ascii")
        state = signing.loads(signed, salt=SALT, max_age=LIFETIME)
    except (signing.BadSignature, binascii.Error, ValueError) as error:
        raise LinkError from error
    return state if isinstance(state, dict) else {}
