"""Middleware of all web paths. It limits what pages may load, and keeps other sites out of a hall on localhost."""

from __future__ import annotations

import logging
from collections.abc import Callable

from django.conf import settings
from django.core.exceptions import DisallowedHost
from django.db import InterfaceError, OperationalError
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.middleware.gzip import GZipMiddleware
from django.utils.functional import SimpleLazyObject

from mcp_runtime.rows.database import damage
from mcp_runtime.security.origins import Origins, host_fault
from roster import audit, error_pages
from roster.database import AWAY, DAMAGED
from roster.models.audit import acting

logger = logging.getLogger("guildhall.web")

# Sign-in of clients that run in a browser (roster/sign_in/answers.py). These addresses read no cookie.
PUBLIC = ("/.well-known/oauth-authorization-server", "/oauth/token", "/oauth/register", "/oauth/revoke")


class ContentSecurityPolicyMiddleware:
    """Add settings.SECURE_CSP to each response that has no policy. It says what browsers may load and run.

    Texts of members are escaped. If that ever failed, their scripts still would not run.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response
        self.policy = "; ".join(f"{name} {' '.join(sources)}" for name, sources in settings.SECURE_CSP.items())

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        response = self.get_response(request)
        response.headers.setdefault("Content-Security-Policy", self.policy)
        return response


class PageCompressionMiddleware(GZipMiddleware):
    """Compress pages and their live parts, which are long and repetitive. Not REST, which must be fast, nor streams."""

    def process_response(self, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        is_page = response.headers.get("Content-Type", "").startswith("text/html")
        return super().process_response(request, response) if is_page and not response.streaming else response


class DatabaseTroubleMiddleware:
    """Answer 503 if the database does not answer or is damaged. The log has details. REST has its own handler."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        return self.get_response(request)

    def process_exception(self, request: HttpRequest, error: Exception) -> HttpResponse | None:
        if sentence := damage(error):
            logger.error("%s", sentence)
            return error_pages.unavailable(request, DAMAGED)
        if isinstance(error, OperationalError | InterfaceError):
            logger.error("the database did not answer: %s", error)
            return error_pages.unavailable(request, AWAY)
        return None


class OwnerMiddleware:
    """Report the user or token of each request to guildhall.wsgi_server, which shares its time among them."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        response = self.get_response(request)
        tell = request.META.get("guildhall.owner")
        # Use a session's user only if it has been loaded already. For a token, REST framework has set the user.
        user = getattr(request, "_cached_user", request.user)
        if tell is not None and not isinstance(user, SimpleLazyObject) and user.is_authenticated:
            tell(user.pk, getattr(getattr(request, "auth", None), "token_id", None))
        return response


class ActorMiddleware:
    """The user or token of a request is the actor of its entries in the audit log."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        with acting(lambda: audit.actor_of(request)):
            return self.get_response(request)


class OriginMiddleware:
    """Answer 403 to a foreign Host, and to an Origin that is neither the page's host nor trusted (REQ-MCP-HTTP-31).

    A followed link passes, from any site.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        try:
            host = request.get_host()
        except DisallowedHost:
            return _forbidden(host_fault(request.META.get("HTTP_HOST", "")))
        if request.path.startswith(PUBLIC):
            return self.get_response(request)
        headers = request.headers
        site = None if headers.get("Sec-Fetch-Mode") == "navigate" else headers.get("Sec-Fetch-Site")
        origins = Origins(settings.ALLOWED_HOSTS, settings.CSRF_TRUSTED_ORIGINS)
        if fault := origins.fault(host, headers.get("Origin"), site):
            return _forbidden(fault)
        return self.get_response(request)


def _forbidden(fault: str) -> HttpResponse:
    return HttpResponse(f"{fault}\n", status=403, content_type="text/plain; charset=utf-8")
