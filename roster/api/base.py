"""The base of all REST views: JSON, pages, query parameters, the body of a refusal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from drf_spectacular.utils import OpenApiResponse
from rest_framework import serializers
from rest_framework.exceptions import NotFound
from rest_framework.pagination import CursorPagination
from rest_framework.parsers import BaseParser
from rest_framework.renderers import BaseRenderer, JSONRenderer
from rest_framework.request import Request
from rest_framework.utils.encoders import JSONEncoder
from rest_framework.views import APIView

from roster.api import requests


class ProblemSerializer(serializers.Serializer[Any]):
    """The body of every refusal: the problem details of RFC 9457, with members of the hall."""

    title = serializers.CharField(help_text="The name of the status.")
    status = serializers.IntegerField(help_text="The status of the response.")
    detail = serializers.CharField(help_text="A sentence for people.")
    code = serializers.CharField(help_text="A word for programs.")
    path = serializers.CharField(required=False, help_text="The place of the fault in the arguments.")
    reason = serializers.CharField(required=False, help_text="The fault at this place.")
    kind = serializers.CharField(required=False, help_text="The error kind, if a member failed.")
    faults = serializers.DictField(
        child=serializers.ListField(child=serializers.CharField()),
        required=False,
        help_text="The faults of each field, as sentences.",
    )


REFUSED = OpenApiResponse(ProblemSerializer, description="Refused. `detail` says why.")


class QuickRenderer(JSONRenderer):
    """Write JSON in a tenth of the usual time or less, because no other thread of the process runs meanwhile."""

    def render(self, data: Any, accepted_media_type: Any = None, renderer_context: Any = None) -> bytes:
        return b"" if data is None else msgspec.json.encode(data, enc_hook=_as_plain_type)


def _as_plain_type(value: Any) -> Any:
    """Convert what msgspec does not know: subclasses of built-in types, such as safe strings, and types of Django."""
    if isinstance(value, str):
        return str.__str__(value)  # `str(value)` may return the same object
    if isinstance(value, int | float):
        return value + 0
    return JSONEncoder().default(value)


class HallView(APIView):
    """JSON in and out, whatever the client accepts, because there is only one renderer."""

    renderer_classes = (QuickRenderer,)
    parser_classes: Sequence[type[BaseParser]] = (requests.ObjectParser,)

    def perform_content_negotiation(self, request: Request, force: bool = False) -> tuple[BaseRenderer, str]:
        return QuickRenderer(), QuickRenderer.media_type

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        requests.require_content_length(request)
        if "\0" in request.path:  # PostgreSQL refuses a query for such a name
            raise NotFound


PAGING = {"cursor", "page_size"}


class Filters(serializers.Serializer[Any]):
    """The query parameters that filter a list."""

    def validate(self, values: dict[str, Any]) -> dict[str, Any]:
        """Refuse unknown filters. If a misspelt filter were ignored, the list would contain too many rows."""
        if unknown_names := set(self.initial_data) - set(self.fields) - PAGING:
            field_names = ", ".join(self.fields)
            raise serializers.ValidationError(
                {name: [f"Unknown filter. The filters are {field_names}."] for name in unknown_names}
            )
        return values


class NewestFirst(CursorPagination):
    """Pages that do not shift when new rows arrive. Their URLs have no host, so they are right behind any proxy."""

    ordering = "-id"
    page_size = 50
    max_page_size = 200
    page_size_query_param = "page_size"

    def paginate_queryset(self, queryset: Any, request: Request, view: APIView | None = None) -> list[Any] | None:
        page: list[Any] | None = super().paginate_queryset(queryset, request, view)
        self.base_url = request.get_full_path()
        return page

    def decode_cursor(self, request: Request) -> Any:
        cursor = super().decode_cursor(request)
        # The library does not check an invented cursor, and the database would fail on it.
        if cursor is not None and cursor.position is not None and not _is_id(str(cursor.position)):
            raise NotFound(self.invalid_cursor_message)
        return cursor


def _is_id(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 18


def query_of(serializer: type[serializers.Serializer[Any]], request: Request) -> dict[str, Any]:
    """The query parameters as `serializer` reads them. Raises ValidationError."""
    values = serializer(data=request.query_params)
    values.is_valid(raise_exception=True)
    return dict(values.validated_data)


class Strict(serializers.Serializer[Any]):
    """Refuse unknown keys. With a misspelt key ignored, the request would do something else than the client means."""

    def validate(self, values: dict[str, Any]) -> dict[str, Any]:
        if extra_keys := set(self.initial_data) - set(self.fields):
            field_names = ", ".join(self.fields)
            # By `repr`: a key may hold what no answer can (a lone surrogate).
            raise serializers.ValidationError(
                {repr(name): [f"This key is unknown; there are {field_names}."] for name in extra_keys}
            )
        return values


def body_of(serializer: type[Strict], data: Any) -> dict[str, Any]:
    """The body as `serializer` reads it. Raises ValidationError."""
    values = serializer(data=data)
    values.is_valid(raise_exception=True)
    return dict(values.validated_data)
