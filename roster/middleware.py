"""On every web path: what pages may load, and that one from elsewhere does not reach a hall on localhost."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import urlsplit

from django.conf import settings
from django.core.exceptions import DisallowedHost
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.http.request import split_domain_port
from django.middleware.gzip import GZipMiddleware
from django.utils.functional import SimpleLazyObject

MAX_PORT, MAX_PORT_DIGITS = 65_535, 5


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

    A request without Origin is no page's doing, a link that somebody followed, or what a page of another site loads
    as an image or a script. Browsers tell the last by Sec-Fetch-*; it gets 403, all else passes.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        try:
            host = request.get_host()
            port = split_domain_port(host)[1]  # Django looks at the name alone
            if port and not (len(port) <= MAX_PORT_DIGITS and 1 <= int(port) <= MAX_PORT):
                raise DisallowedHost
        except DisallowedHost:
            text = "This host is none of the hall's; GUILD_HALL_ALLOWED_HOSTS names more.\n"
            return HttpResponse(text, status=403, content_type="text/plain")
        origin = request.headers.get("Origin")
        if origin is not None and not self._is_ours(origin, host):
            return HttpResponse("Origin is not allowed here.\n", status=403, content_type="text/plain")
        if origin is None and self._is_loaded_from_elsewhere(request):
            return HttpResponse("Pages of other sites may not load this.\n", status=403, content_type="text/plain")
        return self.get_response(request)

    @staticmethod
    def _is_loaded_from_elsewhere(request: HttpRequest) -> bool:
        # To browsers other ports of this machine are the same site: a member's page is none of ours.
        site, mode = request.headers.get("Sec-Fetch-Site"), request.headers.get("Sec-Fetch-Mode")
        return site in ("cross-site", "same-site") and mode != "navigate"

    @staticmethod
    def _is_ours(origin: str, host: str) -> bool:
        if origin in settings.CSRF_TRUSTED_ORIGINS:
            return True
        try:
            parts = urlsplit(origin)
        except ValueError:
            return False
        return parts.scheme in ("http", "https") and parts.netloc.lower() == host.lower() and not parts.path
