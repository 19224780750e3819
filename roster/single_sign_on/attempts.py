"""A login that has begun: what the browser keeps until the provider sends it back.

It is in a signed cookie and not in a session, because a session is a row, and anybody can begin a login. The cookie is
for one address, ends soon, and the answer to it deletes it.
"""

from __future__ import annotations

import secrets
from dataclasses import asdict, dataclass
from urllib.parse import urlsplit

from django.conf import settings
from django.core import signing
from django.http import HttpRequest, HttpResponseBase
from django.utils.http import url_has_allowed_host_and_scheme

from roster.addresses import web_address

SALT = "roster.single_sign_on"
SECONDS = 600
MAX_NEXT = 2000  # a consent to a client has a long address, and browsers refuse cookies from 4,096 bytes on
PATH = "/single-sign-on/"


@dataclass(frozen=True)
class Attempt:
    state: str
    nonce: str
    code_verifier: str
    issuer: str
    next: str  # a path of the hall, or empty


def begin(issuer: str, next_path: str) -> Attempt:
    state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
    return Attempt(state, nonce, verifier, issuer, local_path(next_path))


def local_path(text: str) -> str:
    """The text if it is a path of this hall, otherwise nothing. No host counts as ours, the request's neither."""
    is_local = text.startswith("/") and url_has_allowed_host_and_scheme(text, allowed_hosts=None)
    is_plain = len(text) <= MAX_NEXT and text.isascii() and text.isprintable()  # others take more bytes in the cookie
    return text if is_local and is_plain else ""


def cookie_name() -> str:
    """The name has the port, because a browser sends cookies to all halls of a host."""
    return f"guildhall_{settings.GUILD_HALL_PORT}_sign_on"


def store(response: HttpResponseBase, attempt: Attempt) -> None:
    web = urlsplit(web_address())
    response.set_cookie(
        cookie_name(),
        signing.dumps(asdict(attempt), salt=SALT),
        max_age=SECONDS,
        path=web.path + PATH,
        secure=web.scheme == "https",
        httponly=True,
        samesite="Lax",  # the provider sends the browser back by a link
    )


def read(request: HttpRequest) -> Attempt | None:
    """The attempt of this browser. None if there is none, or if it is too old."""
    try:
        return Attempt(**signing.loads(request.COOKIES.get(cookie_name(), ""), salt=SALT, max_age=SECONDS))
    except (signing.BadSignature, TypeError, ValueError):
        return None


def delete(response: HttpResponseBase) -> None:
    response.delete_cookie(cookie_name(), path=urlsplit(web_address()).path + PATH, samesite="Lax")
