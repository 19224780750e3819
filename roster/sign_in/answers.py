"""Answers to programs, which have no cookies and may run in a browser. And the bounds of what they send."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import wraps
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse, JsonResponse, QueryDict
from django.views.decorators.csrf import csrf_exempt

from mcp_runtime.security import resources

MAX_BYTES = 20_000  # of a body

View = Callable[..., HttpResponse]


def public(*methods: str) -> Callable[[View], View]:
    """A view for programs: no CSRF token, because it reads no cookie; any origin; no cache; 404 if sign-in is off."""

    def decorate(view: View) -> View:
        @csrf_exempt
        @wraps(view)
        def wrapped(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
            if not resources.is_own_sign_in_on():
                raise Http404("sign-in of clients is off")
            length = request.META.get("CONTENT_LENGTH") or "0"
            if request.method == "OPTIONS":
                response = HttpResponse(status=204)
            elif request.method not in methods:
                response = error(405, "invalid_request", f"Send {methods[0]}.")
            elif not re.fullmatch("[0-9]{1,18}", length):
                response = error(400, "invalid_request", "Content-Length is not a number.")
            elif int(length) > MAX_BYTES:
                response = error(413, "invalid_request", f"The body is longer than {MAX_BYTES} bytes.")
            else:
                response = view(request, *args, **kwargs)
            response.headers["Access-Control-Allow-Origin"] = "*"
            response.headers["Access-Control-Allow-Methods"] = ", ".join(methods)
            response.headers["Access-Control-Allow-Headers"] = "Content-Type, MCP-Protocol-Version"
            response.headers.setdefault("Cache-Control", "no-store")
            return response

        return wrapped

    return decorate


def error(status: int, code: str, description: str) -> JsonResponse:
    """As RFC 6749 and RFC 7591 have it."""
    return JsonResponse({"error": code, "error_description": description}, status=status)


def repeated(parameters: QueryDict) -> str:
    """The name of a parameter that stands there twice. Two readers could read two values. Empty if there is none."""
    return next((name for name, values in parameters.lists() if len(values) > 1), "")
