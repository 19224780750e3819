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
from roster.login_backends import allows_passwords
from roster.models import GuildMember

if TYPE_CHECKING:
    from roster.admin.members.roster import RosterScreen

APP_NAMES = {"auth": "People", "roster": "The hall"}  # instead of Django's, by label
NO_PASSWORDS = "This hall has no logins with a password. Use the button."


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
        if not request.user.is_active:
            return False
        from roster.admin.rows import principal_of

        principal_of(request)  # before the first question for a permission, because it brings all of them
        return True

    def login(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Lead users without any right to the first page, which says so. The page that they asked for refuses them."""
        from roster.single_sign_on import page

        if request.method == "POST" and not allows_passwords():
            return page.login_page(request, error=NO_PASSWORDS, status=403)
        next_path = request.POST.get("next", request.GET.get("next", ""))
        response = super().login(request, {**page.context(next_path), **(extra_context or {})})
        is_logged_in = request.method == "POST" and response.status_code == 302
        return redirect("admin:index") if is_logged_in and not roles.has_any_right(request.user) else response

    def password_change(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> TemplateResponse:
        with transaction.atomic():  # the password and its entry in the audit log
            return super().password_change(request, extra_context)

    def get_urls(self) -> list[URLResolver | URLPattern]:
        from roster.admin import choosing, search

        return [
            path("lists/", self.admin_view(self.lists), name="lists"),
            path("search/", self.admin_view(search.search_view), name="search"),
            path("search/pins/<int:tool_id>/", self.admin_view(search.pin_view), name="search_pin"),
            path("choices/<slug:offer>/", self.admin_view(choosing.choices_view), name="choices"),
            *super().get_urls(),
        ]

    def index(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> TemplateResponse:
        screen = cast("RosterScreen", self.get_model_admin(GuildMember))
        return screen.roster_view(request, extra_context)

    def lists(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> TemplateResponse:
        """Django's own index: all lists, and the user's last actions."""
        return super().index(request, extra_context)

    def app_index(
        self, request: HttpRequest, app_label: str, extra_context: dict[str, Any] | None = None
    ) -> TemplateResponse:
        """Django's page with the lists of one app. People know nothing of apps, so they get the page with all lists."""
        super().app_index(request, app_label, extra_context)  # raises Http404
        return self.lists(request, extra_context)

    def get_app_list(self, request: HttpRequest, app_label: str | None = None) -> list[Any]:
        apps: list[Any] = super().get_app_list(request, app_label)
        for app in apps:
            app["name"] = APP_NAMES.get(app["app_label"], app["name"])
            for model in app["models"]:
                model["name"] = self._list_name(model)
        return apps

    def _list_name(self, model: dict[str, Any]) -> str:
        return str(getattr(self.get_model_admin(model["model"]), "list_name", model["name"]))
