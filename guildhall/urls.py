"""The URLs of the web: admin, REST, invitations, and three for monitors."""

from __future__ import annotations

from django.contrib import admin
from django.urls import include, path
from django.views.generic import RedirectView

admin.autodiscover()  # the screens, which register themselves

urlpatterns = [
    path("", RedirectView.as_view(pattern_name="admin:index")),
    path("admin/", admin.site.urls),
    path("api/", include("roster.api.urls")),
    path("", include("roster.invitation_page")),
    path("", include("roster.monitoring")),
]
