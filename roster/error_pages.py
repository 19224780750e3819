"""The pages in place of one that the user may not see, that is not there, or that went wrong."""

from __future__ import annotations

from http import HTTPStatus

from django.contrib import admin
from django.http import HttpRequest, HttpResponse, HttpResponseBase, JsonResponse
from django.shortcuts import render

from roster.api.errors import MEDIA_TYPE


def forbidden(request: HttpRequest, exception: Exception) -> HttpResponse:
    """The answer to PermissionDenied, with the navigation, so that the user finds back."""
    return _page(request, "roster/forbidden.html", "Not allowed", HTTPStatus.FORBIDDEN)


def missing(request: HttpRequest, exception: Exception) -> HttpResponse:
    """The answer to Http404. It does not say why, because somebody may guess addresses of others."""
    return _page(request, "roster/missing.html", "Not found", HTTPStatus.NOT_FOUND)


def stale(request: HttpRequest, reason: str = "") -> HttpResponse:
    """The answer to a form without the CSRF token of the session, mostly because somebody logged in again meanwhile."""
    return _page(request, "roster/stale.html", "This page is too old", HTTPStatus.FORBIDDEN)


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponseBase:
    """The answer to a request that no page of the hall makes, such as a filter that a list does not have."""
    text = "The hall cannot read this request. Its address or its form may be broken or too long."
    if request.path.startswith("/api/"):
        return _problem(HTTPStatus.BAD_REQUEST, text)
    if not hasattr(request, "user"):  # refused before the middleware that knows it
        return _bare_page(request, "Bad request", text, HTTPStatus.BAD_REQUEST)
    return _page(request, "roster/bad_request.html", "Bad request", HTTPStatus.BAD_REQUEST)


def broken(request: HttpRequest) -> HttpResponseBase:
    """The answer to an error of the hall itself. It reads no row, because the database may be the cause."""
    text = "An error inside the hall ended this request. Its cause is in the log of the web. It is safe to look again."
    if request.path.startswith("/api/"):
        return _problem(HTTPStatus.INTERNAL_SERVER_ERROR, text)
    return _bare_page(request, "The hall made an error", text, HTTPStatus.INTERNAL_SERVER_ERROR)


def unavailable(request: HttpRequest, text: str) -> HttpResponse:
    """The answer while the database is away: a page for people, and one line for scripts, monitors and live parts."""
    if request.path.startswith("/admin/") and "text/html" in request.headers.get("Accept", ""):
        return _bare_page(request, "The hall cannot answer now", text, HTTPStatus.SERVICE_UNAVAILABLE)
    return HttpResponse(f"{text}\n", status=HTTPStatus.SERVICE_UNAVAILABLE, content_type="text/plain")


def _page(request: HttpRequest, template: str, title: str, status: int) -> HttpResponse:
    return render(request, template, {**admin.site.each_context(request), "title": title}, status=status)


def _bare_page(request: HttpRequest, title: str, text: str, status: int) -> HttpResponse:
    """A page without anything that depends on the user."""
    return render(None, "roster/bare_error.html", {"title": title, "text": text}, status=status)


def _problem(status: HTTPStatus, detail: str) -> JsonResponse:
    body = {"title": status.phrase, "status": int(status), "detail": detail}
    return JsonResponse(body, status=status, content_type=MEDIA_TYPE)
