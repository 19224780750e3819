"""The login page, with the button of single sign-on."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from django.conf import settings
from django.contrib import admin
from django.contrib.auth.forms import AuthenticationForm
from django.http import HttpRequest
from django.template.response import TemplateResponse
from django.urls import reverse

from roster.addresses import web_address
from roster.login_backends import allows_passwords
from roster.single_sign_on.attempts import local_path

TEMPLATE = "admin/login.html"


def context(next_path: str) -> dict[str, Any]:
    """What the template needs besides Django's context. The button leads to the address of the settings."""
    if not settings.GUILD_HALL_OIDC_ISSUER:
        return {"allows_passwords": True}
    query = urlencode({"next": path}) if (path := local_path(next_path)) else ""
    return {
        "allows_passwords": allows_passwords(),
        "provider": settings.GUILD_HALL_OIDC_NAME,
        "sign_on_address": f"{web_address()}{reverse('single_sign_on')}{'?' if query else ''}{query}",
    }


def login_page(request: HttpRequest, *, error: str, next_path: str = "", status: int = 200) -> TemplateResponse:
    """The login page with an error, for people whom the provider or the hall refused."""
    values = {
        **admin.site.each_context(request),
        "title": "Log in",
        "subtitle": None,
        "form": AuthenticationForm(request),
        "app_path": reverse("admin:login"),
        "next": next_path or reverse("admin:index"),
        "sign_on_error": error,
        **context(next_path),
    }
    return TemplateResponse(request, TEMPLATE, values, status=status)
