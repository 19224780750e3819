"""The OpenAPI document and its pages. Imported at their first request (see `described`)."""

from __future__ import annotations

import threading
from typing import Any

from django.contrib.auth.views import redirect_to_login
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.settings import patched_settings
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


# Two choices are called `status`. Without these names the generated ones would change with each added value.
NAMES_OF_CHOICES = {
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


class DocumentGenerator(SchemaGenerator):
    """Makes the document at the first request. It is the same for everybody, and takes half a second of a processor."""

    _lock = threading.Lock()
    document: dict[str, Any] = {}

    def get_schema(self, request: Any = None, public: bool = False) -> dict[str, Any]:
        with self._lock:  # the names of choices are settings of the whole process while they are patched
            if not self.document:
                described.hand_over()
                with patched_settings({"ENUM_NAME_OVERRIDES": NAMES_OF_CHOICES}):
                    self.document.update(super().get_schema(None, public))  # type: ignore[no-untyped-call]
        return self.document


class SchemaView(SpectacularAPIView):
    generator_class = DocumentGenerator
    permission_classes = (IsAuthenticated,)


class DocsView(SpectacularSwaggerView):
    permission_classes = (IsAuthenticated,)
    # Its template cannot show REST framework's answer to OPTIONS.
    http_method_names = ("get", "head")

    def handle_exception(self, exc: Exception) -> Any:
        """A browser without a session gets the login page."""
        if isinstance(exc, NotAuthenticated):
            return redirect_to_login(self.request.get_full_path())
        return super().handle_exception(exc)
