"""Origin, on every web path: a page from elsewhere must not reach a hall on localhost (REQ-MCP-HTTP-31)."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import urlsplit

from django.conf import settings
from django.http import HttpRequest, HttpResponse, HttpResponseBase


class OriginMiddleware:
    """400 for a Host that is not ours, 403 for an Origin that is not the page's own host or a trusted one.

    A request without Origin does not come from a page of another site, and passes.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        host = request.get_host()  # raises DisallowedHost, which Django answers with 400
        origin = request.headers.get("Origin")
        if origin is not None and not self._is_ours(origin, host):
            return HttpResponse("Origin is not allowed here.\n", status=403, content_type="text/plain")
        return self.get_response(request)

    @staticmethod
    def _is_ours(origin: str, host: str) -> bool:
        if origin in settings.CSRF_TRUSTED_ORIGINS:
            return True
        try:
            parts = urlsplit(origin)
        except ValueError:
            return False
        return parts.scheme in ("http", "https") and parts.netloc.lower() == host.lower() and not parts.path
