"""The admin, with the hall's own front page."""

from __future__ import annotations

from django.contrib.admin import apps


class AdminConfig(apps.SimpleAdminConfig):
    """The urls of the web import the screens. Commands and the runtime do not need them."""

    default_site = "roster.admin_site.HallAdminSite"
