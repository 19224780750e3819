"""The index of the API, its OpenAPI document and pages, and the answer for unknown URLs."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import redirect
from django.urls import resolve, reverse
from django.views.decorators.csrf import csrf_exempt
from rest_framework.exceptions import NotFound
from rest_framework.request import Request
from rest_framework.response import Response

from roster.api.base import HallView
from roster.api.described import extend_schema

INDEX = (
    *("roster", "members", "nodes", "calls", "tokens", "agents", "proposals", "secrets", "tool-sets"),
    *("audit", "docs", "schema"),
)


class IndexView(HallView):
    @extend_schema(exclude=True)
    def get(self, request: Request) -> Response:
        return Response({name: reverse(name) for name in INDEX})


@csrf_exempt  # as for all views of REST framework, which has its own check
def schema_view(request: HttpRequest) -> HttpResponseBase:
    from roster.api.document import SchemaView

    return SchemaView.as_view()(request)


@csrf_exempt
def docs_view(request: HttpRequest) -> HttpResponseBase:
    from roster.api.document import DocsView

    return DocsView.as_view()(request)


class NowhereView(HallView):
    """Answer an unknown URL in JSON. Add a missing slash at its end if that is safe."""

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
