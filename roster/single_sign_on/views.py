"""The two addresses of single sign-on: one leads to the provider, and the provider leads back to the other."""

from __future__ import annotations

import hmac
import logging
from collections.abc import Callable
from datetime import timedelta
from functools import wraps
from typing import Any
from urllib.parse import urlencode

from django.conf import settings
from django.contrib.auth import login
from django.contrib.auth.models import User
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import redirect
from django.urls import path, reverse
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET

from mcp_runtime.control import identity_provider
from mcp_runtime.protocol.errors import ClockError, ProviderError
from roster import audit, roles
from roster.addresses import web_address
from roster.login_backends import PROVIDER
from roster.models import Actor, AuditEntry
from roster.single_sign_on import attempts, people
from roster.single_sign_on.attempts import Attempt
from roster.single_sign_on.page import login_page

logger = logging.getLogger("guildhall.web")

NOT_BEGUN = "This login was not begun in this browser, or it is older than ten minutes. Log in again."
DECLINED = "{} did not log you in ({}). Log in again, or ask the operator of this hall."
# RFC 6749 and OpenID Connect. Other texts of the address are not shown, because anybody can write them.
CODES = {
    *("access_denied", "invalid_request", "invalid_scope", "server_error", "temporarily_unavailable"),
    *("unauthorized_client", "unsupported_response_type", "consent_required", "interaction_required", "login_required"),
}
CALLBACK = "oidc_authentication_callback"  # the name that the library looks up
TARGET = "single sign-on"  # of entries of the audit log about people without a user

View = Callable[[HttpRequest], HttpResponse]


def _with_provider(view: View) -> View:
    """Without an issuer in the settings, the hall has none of these addresses."""

    @never_cache
    @require_GET
    @wraps(view)
    def wrapped(request: HttpRequest) -> HttpResponse:
        if not settings.GUILD_HALL_OIDC_ISSUER:
            raise Http404("there is no single sign-on")
        response = view(request)
        # The address has the code. With `no-referrer` on a page, the hall would refuse the form there (Origin: null).
        is_page = response.status_code != 302
        response.headers["Referrer-Policy"] = "strict-origin" if is_page else "no-referrer"
        return response

    return wrapped


def redirect_uri() -> str:
    """Where the provider sends people back to. It depends on settings only."""
    return web_address() + reverse(CALLBACK)


@_with_provider
def start(request: HttpRequest) -> HttpResponse:
    from mozilla_django_oidc.utils import generate_code_challenge

    next_path = request.GET.get("next", "")
    try:
        provider = identity_provider.discover()
    except ProviderError as error:
        logger.warning("single sign-on: %s", error)
        return login_page(request, error=str(error), next_path=attempts.local_path(next_path), status=503)
    attempt = attempts.begin(provider.issuer, next_path)
    query = {
        "response_type": "code",
        "client_id": settings.GUILD_HALL_OIDC_CLIENT_ID,
        "redirect_uri": redirect_uri(),
        "scope": settings.GUILD_HALL_OIDC_SCOPES,
        "state": attempt.state,
        "nonce": attempt.nonce,
        "code_challenge": generate_code_challenge(attempt.code_verifier, "S256"),
        "code_challenge_method": "S256",
    }
    separator = "&" if "?" in provider.authorization_endpoint else "?"
    response = HttpResponseRedirect(f"{provider.authorization_endpoint}{separator}{urlencode(query)}")
    attempts.store(response, attempt)
    return response


@_with_provider
def callback(request: HttpRequest) -> HttpResponse:
    attempt = attempts.read(request)
    state = request.GET.get("state", "")
    if attempt is None or not hmac.compare_digest(attempt.state.encode(), state.encode("utf-8", "replace")):
        return login_page(request, error=NOT_BEGUN, status=400)  # and keep the cookie: this may be a stranger's link
    response = _finish(request, attempt)
    attempts.delete(response)
    return response


def _finish(request: HttpRequest, attempt: Attempt) -> HttpResponse:
    from roster.single_sign_on.backend import Login

    current: Login | None = None
    try:
        provider = identity_provider.discover()
        _require_issuer(request, attempt, provider)
        if "error" in request.GET:
            raise ProviderError(DECLINED.format(identity_provider.name(), _code(request.GET["error"])))
        current = Login(provider, redirect_uri())
        user = current.of_callback(request, nonce=attempt.nonce, code_verifier=attempt.code_verifier)
    except ProviderError as error:
        _record_refusal(request, error, current.claims if current else {})
        is_persons = isinstance(error, people.NotAllowedError)
        return login_page(request, error=str(error), next_path=attempt.next, status=403 if is_persons else 502)
    login(request, user, backend=PROVIDER)
    request.session.set_expiry(timezone.now() + timedelta(hours=settings.GUILD_HALL_OIDC_SESSION_HOURS))
    return redirect(_destination(user, attempt))


def _require_issuer(request: HttpRequest, attempt: Attempt, provider: identity_provider.Provider) -> None:
    """The answer must be of the provider that was asked (RFC 9207). Raises ProviderError."""
    issuer = request.GET.get("iss")
    is_missing = issuer is None and provider.sends_issuer
    if attempt.issuer != provider.issuer or is_missing or issuer not in (None, provider.issuer):
        raise ProviderError(f"The answer is not of {identity_provider.name()}. Log in again.")


def _code(text: str) -> str:
    return text if text in CODES else "an unknown error"


def _destination(user: User, attempt: Attempt) -> str:
    """As after other logins: users without any right go to the first page, which says so."""
    first_page = reverse("admin:index")
    return attempt.next or first_page if roles.has_any_right(user) else first_page


def _record_refusal(request: HttpRequest, error: ProviderError, claims: dict[str, Any]) -> None:
    """In the log and in the audit log. The claims are empty if the ID token was not good."""
    logger.warning("single sign-on: %s", error)
    user_name = getattr(error, "user_name", "")
    person = {
        "name": people.text_of(claims, settings.GUILD_HALL_OIDC_USERNAME_CLAIM, 150),
        "email": people.text_of(claims, "email", 254),
        "subject": str(claims.get("sub", "")),
    }
    known = {name: text for name, text in person.items() if text}
    details = {"with": identity_provider.name(), **known, "reason": str(error)}
    details |= {"clock": "wrong"} if isinstance(error, ClockError) else {}
    actor = Actor(AuditEntry.Source.WEB, audit.SOMEBODY, address=audit.address_of(request))
    target = f"user {user_name}" if user_name else TARGET
    AuditEntry.record(AuditEntry.Kind.LOGIN_FAILED, target, after=details, actor=actor)


urlpatterns = [
    path("single-sign-on/", start, name="single_sign_on"),
    path("single-sign-on/callback/", callback, name=CALLBACK),
]
