"""The URLs of the web: admin, REST, invitations, logins, sign-ins of members, and three for monitors."""

from __future__ import annotations

from django.contrib import admin
from django.urls import include, path
from django.views.generic import RedirectView

admin.autodiscover()  # the screens, which register themselves

handler400 = "roster.error_pages.bad_request"
handler403 = "roster.error_pages.forbidden"
handler404 = "roster.error_pages.missing"
handler500 = "roster.error_pages.broken"

urlpatterns = [
    path("", RedirectView.as_view(pattern_name="admin:index", query_string=True)),
    path("admin/", admin.site.urls),
    path("api/", include("roster.api.urls")),
    path("", include("roster.invitation_page")),
    path("", include("roster.login_link_page")),
    path("", include("roster.member_sign_in_page")),
    path("", include("roster.single_sign_on.views")),
    path("", include("roster.sign_in.urls")),
    path("", include("roster.monitoring")),
]
