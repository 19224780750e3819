"""On every web path: what pages may load, and that one from elsewhere does not reach a hall on localhost."""

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
from roster.database import AWAY, DAMAGED

logger = logging.getLogger("guildhall.web")


class ContentSecurityPolicyMiddleware:
    """What browsers may load and run for any answer of the web: settings.SECURE_CSP, a directive with its sources each.

    Members' words are shown as text; should that ever fail, no script of theirs runs.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response
        self.policy = "; ".join(f"{name} {' '.join(sources)}" for name, sources in settings.SECURE_CSP.items())

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        response = self.get_response(request)
        response.headers["Content-Security-Policy"] = self.policy
        return response


class PageCompressionMiddleware(GZipMiddleware):
    """Pages and their live parts, which are long and alike; not REST, whose calls would wait, and no stream."""

    def process_response(self, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        is_page = response.headers.get("Content-Type", "").startswith("text/html")
        return super().process_response(request, response) if is_page and not response.streaming else response


class DatabaseTroubleMiddleware:
    """503 and a sentence where the database does not answer, or is damaged. The log says more. REST has its own."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        return self.get_response(request)

    def process_exception(self, request: HttpRequest, error: Exception) -> HttpResponse | None:
        if sentence := damage(error):
            logger.error("%s", sentence)
            return HttpResponse(f"{DAMAGED}\n", status=503, content_type="text/plain")
        if isinstance(error, OperationalError | InterfaceError):
            logger.error("the database did not answer: %s", error)
            return HttpResponse(f"{AWAY}\n", status=503, content_type="text/plain")
        return None


class OwnerMiddleware:
    """Tells the server whose request it was, where somebody asked: guildhall.wsgi_server shares its time by that."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        response = self.get_response(request)
        tell = request.META.get("guildhall.owner")
        # A session's user that nobody looked up is not looked up for this. REST framework puts a token's in its place.
        user = getattr(request, "_cached_user", request.user)
        if tell is not None and not isinstance(user, SimpleLazyObject) and user.is_authenticated:
            tell(user.pk, getattr(getattr(request, "auth", None), "token_id", None))
        return response


class OriginMiddleware:
    """403 for a Host that is not ours, and for an Origin that is not the page's own host or trusted (REQ-MCP-HTTP-31).

    A link that somebody followed passes, wherever it stood.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        try:
            host = request.get_host()
        except DisallowedHost:
            return _forbidden(host_fault(request.META.get("HTTP_HOST", "")))
        headers = request.headers
        site = None if headers.get("Sec-Fetch-Mode") == "navigate" else headers.get("Sec-Fetch-Site")
        origins = Origins(settings.ALLOWED_HOSTS, settings.CSRF_TRUSTED_ORIGINS)
        if fault := origins.fault(host, headers.get("Origin"), site):
            return _forbidden(fault)
        return self.get_response(request)


def _forbidden(fault: str) -> HttpResponse:
    return HttpResponse(f"{fault}\n", status=403, content_type="text/plain; charset=utf-8")
