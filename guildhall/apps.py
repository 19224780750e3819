"""The admin, with the hall's own front page, and the library for OAuth, without its screens."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType

from django.contrib.admin import apps
from oauth2_provider.apps import DOTConfig

from mcp_runtime.system.late_modules import LateModule, load_late

OAUTH = "oauthlib.oauth2.rfc6749"


class AdminConfig(apps.SimpleAdminConfig):
    """The urls of the web import the screens. Commands and the runtime do not need them."""

    default_site = "roster.admin_site.HallAdminSite"


class OAuthConfig(DOTConfig):  # type: ignore[misc]  # the library has no types
    """Its models, which `roster.sign_in` uses. Grants are listed with the tokens, so its own screens stay out."""

    default_auto_field = "django.db.models.BigAutoField"

    def import_models(self) -> None:
        # For tokens that are signed, which the hall does not have. It takes 8 MB and 0.2 s.
        load_late("jwcrypto.jwk")
        # The models need only the errors of this library. The rest serves the requests of clients.
        load_late("oauthlib.oauth2")
        load_late(OAUTH)
        import_module(f"{OAUTH}.errors")
        sys.modules.setdefault(f"{self.name}.admin", ModuleType(f"{self.name}.admin"))
        super().import_models()
        if isinstance(sys.modules[OAUTH], LateModule):  # its modules import each other, so it runs before them
            del sys.modules[OAUTH]
