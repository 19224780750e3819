"""The admin, with the hall's own front page."""

from __future__ import annotations

from django.contrib.admin import apps


class AdminConfig(apps.AdminConfig):
    default_site = "roster.admin_site.HallAdminSite"
