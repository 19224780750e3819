"""The public page of a link of `guildhall login_link`. Only a POST logs the user in, as for invitations."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.contrib.auth import login
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import path
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from roster import login_links
from roster.invitation_page import without_path_in_referrer
from roster.login_backends import local_backend

TEMPLATE = "roster/login_link.html"


@never_cache
@without_path_in_referrer
@require_http_methods(["GET", "HEAD", "POST"])
def login_link(request: HttpRequest, link_secret: str) -> HttpResponse:
    try:
        if request.method == "POST":
            login(request, login_links.spend(link_secret), backend=local_backend())
            return redirect("admin:index")
        return _page(request, "Log in", link_user=login_links.find(link_secret))
    except login_links.LinkError:
        return _page(request, "This link cannot be used", status=410)


def _page(request: HttpRequest, title: str, *, status: int = 200, **context: Any) -> HttpResponse:
    names = {"title": title, "site_title": admin.site.site_title, "site_header": admin.site.site_header}
    return render(request, TEMPLATE, {**names, **context}, status=status)


urlpatterns = [path("login-links/<str:link_secret>/", login_link, name="login_link")]
