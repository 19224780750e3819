"""The API about itself: its index, its OpenAPI schema and pages, and what is said where nothing is."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.views import redirect_to_login
from django.http import HttpResponseBase
from django.shortcuts import redirect
from django.urls import resolve, reverse
from drf_spectacular.utils import extend_schema
from drf_spectacular.views import SpectacularAPIView, SpectacularSwaggerView
from rest_framework.exceptions import NotAuthenticated, NotFound
from rest_framework.permissions import IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response

from roster.api.base import HallView

INDEX = ("roster", "members", "invocations", "tokens", "sessions", "docs", "schema")


class IndexView(HallView):
    @extend_schema(exclude=True)
    def get(self, request: Request) -> Response:
        return Response({name: reverse(name) for name in INDEX})


class SchemaView(SpectacularAPIView):
    permission_classes = (IsAuthenticated,)
    # Two choices are called `status`: without names of ours the generated ones change with every word added.
    custom_settings = {
        "ENUM_NAME_OVERRIDES": {
            "MemberStatus": "roster.models.GuildMember.Status",
            "InvocationStatus": "roster.models.Invocation.Status",
            "TokenScope": "roster.models.ApiToken.Scope",
            "SessionStatus": "roster.models.AgentSession.Status",
            "ErrorKind": "roster.models.Invocation.ErrorKind",
            "SessionErrorKind": "roster.models.AgentMessage.ErrorKind",
            "EventKind": "roster.models.AgentEvent.Kind",
        }
    }


class DocsView(SpectacularSwaggerView):
    permission_classes = (IsAuthenticated,)
    # Its template cannot show what REST framework answers to OPTIONS.
    http_method_names = ("get", "head")

    def handle_exception(self, exc: Exception) -> Any:
        """A browser without a session is shown the way in."""
        if isinstance(exc, NotAuthenticated):
            return redirect_to_login(self.request.get_full_path())
        return super().handle_exception(exc)


class NowhereView(HallView):
    """An address that is none, said in JSON; a forgotten slash at its end is mended where that is safe."""

    schema = None

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        if not self._lacks_only_a_slash(request):
            raise NotFound("There is nothing at this address; /api/ lists what there is.")
        if request.method not in ("GET", "HEAD"):
            raise NotFound("There is nothing at this address; it needs a slash at its end.")

    def get(self, request: Request, *args: Any, **kwargs: Any) -> HttpResponseBase:
        query = request.META.get("QUERY_STRING", "")
        return redirect(f"{request.path}/" + (f"?{query}" if query else ""))

    def _lacks_only_a_slash(self, request: Request) -> bool:
        if request.path.endswith("/"):
            return False
        match = resolve(f"{request.path_info}/")
        return getattr(match.func, "view_class", None) is not NowhereView
