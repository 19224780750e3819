"""The OpenAPI document and its pages. Imported at their first request (see `described`)."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.views import redirect_to_login
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.views import SpectacularAPIView, SpectacularSwaggerView
from rest_framework.exceptions import NotAuthenticated
from rest_framework.permissions import IsAuthenticated

from roster.api import described
from roster.models import Call


class TokenScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    """The description of the authentication in the OpenAPI document. drf-spectacular finds the class automatically."""

    target_class = "roster.api.authentication.TokenAuthentication"
    name = "token"

    def get_security_definition(self, auto_schema: Any) -> dict[str, Any]:
        return {"type": "http", "scheme": "bearer", "description": "A token of `guildhall create_token`, gh_..."}


class SchemaView(SpectacularAPIView):
    permission_classes = (IsAuthenticated,)
    # Two choices are called `status`. Without these names the generated ones would change with each added value.
    custom_settings = {
        "ENUM_NAME_OVERRIDES": {
            "MemberStatus": "roster.models.GuildMember.Status",
            "CallStatus": "roster.models.Call.Status",
            "SourceEnum": "roster.models.Call.Source",
            "AuditSource": "roster.models.AuditEntry.Source",
            "TokenScope": "roster.models.Token.Scope",
            "AgentStatus": "roster.models.Agent.Status",
            "ErrorKind": Call.ErrorKind.choices,
            "MessageErrorKind": "roster.models.AgentMessage.ErrorKind",
            "EventKind": "roster.models.AgentEvent.Kind",
        }
    }


class DocsView(SpectacularSwaggerView):
    permission_classes = (IsAuthenticated,)
    # Its template cannot show REST framework's answer to OPTIONS.
    http_method_names = ("get", "head")

    def handle_exception(self, exc: Exception) -> Any:
        """A browser without a session gets the login page."""
        if isinstance(exc, NotAuthenticated):
            return redirect_to_login(self.request.get_full_path())
        return super().handle_exception(exc)


described.hand_over()
