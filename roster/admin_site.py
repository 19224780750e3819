"""The admin site of a hall. Its first page is the roster. Django's index has a separate page.

It is not in roster.admin, because importing that package registers its screens, and the site must exist before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from django.contrib.admin import AdminSite
from django.contrib.auth.forms import AuthenticationForm
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, URLResolver, path

from roster import roles
from roster.models import GuildMember

if TYPE_CHECKING:
    from roster.admin.members.roster import RosterScreen


class HallAdminSite(AdminSite):
    site_header = "Guild Hall"
    site_title = "Guild Hall"
    index_title = "All lists"
    site_url = None
    # The lists are one click away from each page, and the tables need the width.
    enable_nav_sidebar = False
    login_form = AuthenticationForm  # Django's form for the admin refuses users without staff status

    def has_permission(self, request: HttpRequest) -> bool:
        """Every active user may enter. Each page asks for its own permissions."""
        return request.user.is_active

    def login(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Lead users without any right to the first page, which says so. The page that they asked for refuses them."""
        response = super().login(request, extra_context)
        is_logged_in = request.method == "POST" and response.status_code == 302
        return redirect("admin:index") if is_logged_in and not roles.has_any_right(request.user) else response

    def password_change(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> TemplateResponse:
        with transaction.atomic():  # the password and its entry in the audit log
            return super().password_change(request, extra_context)

    def get_urls(self) -> list[URLResolver | URLPattern]:
        return [path("lists/", self.admin_view(self.lists), name="lists"), *super().get_urls()]

    def index(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> TemplateResponse:
        screen = cast("RosterScreen", self.get_model_admin(GuildMember))
        return screen.roster_view(request, extra_context)

    def lists(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> TemplateResponse:
        """Django's own index: all lists, and the user's last actions."""
        return super().index(request, extra_context)
