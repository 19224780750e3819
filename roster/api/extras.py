"""Prompts, resources and resource templates over REST: lists, use, completion, watching, enable and disable.

Their names are in the body or the query, because the name of a resource is a URI.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from drf_spectacular.utils import OpenApiResponse
from rest_framework import serializers
from rest_framework.permissions import IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response

from mcp_runtime.control import extra_uses
from mcp_runtime.control.extras import Extra, Kind, extras_of, find_extra, search, set_extra_enabled
from mcp_runtime.control.watches import watches
from roster.api import requests
from roster.api.base import REFUSED, Filters, HallView, Strict, body_of, query_of
from roster.api.calls import PREFER
from roster.api.described import extend_schema
from roster.api.permissions import MayControl, controlled_member, principal_of, reachable_member
from roster.models import GuildMember

MAX_PAGE = 2_000
ANSWERS = dict.fromkeys((400, 403, 404, 409, 429, 502, 503), REFUSED)

# Lists ------------------------------------------------------------------------------------------------------------


class ArgumentSerializer(serializers.Serializer[Any]):
    name = serializers.CharField()
    title = serializers.CharField()
    description = serializers.CharField()
    required = serializers.BooleanField(source="is_required")  # type: ignore[assignment]


class ExtraSerializer(serializers.Serializer[Any]):
    """The common fields. The texts are the member's, and nobody has checked them."""

    title = serializers.CharField()
    description = serializers.CharField()
    enabled = serializers.BooleanField(source="is_enabled")
    listed = serializers.BooleanField(source="is_listed", help_text="The member lists it now.")


class PromptSerializer(ExtraSerializer):
    name = serializers.CharField()
    arguments = ArgumentSerializer(many=True)
    definition = serializers.DictField(help_text="The prompt as the member sent it.")


class ResourceSerializer(ExtraSerializer):
    uri = serializers.CharField(source="name")
    mime_type = serializers.CharField()
    size = serializers.IntegerField(allow_null=True, help_text="In bytes, as the member says. Null if it does not.")
    definition = serializers.DictField(help_text="The resource as the member sent it.")


class VariableSerializer(serializers.Serializer[Any]):
    name = serializers.CharField()
    required = serializers.BooleanField(source="is_required")  # type: ignore[assignment]


class TemplateSerializer(ExtraSerializer):
    uri_template = serializers.CharField(source="name")
    mime_type = serializers.CharField()
    variables = serializers.SerializerMethodField(help_text="The variables for which it needs values.")
    definition = serializers.DictField(help_text="The resource template as the member sent it.")

    def get_variables(self, extra: Extra) -> list[dict[str, Any]]:
        return [dict(each) for each in VariableSerializer(extra_uses.variables_of(extra.name), many=True).data]


class ExtraFilters(Filters):
    search = serializers.CharField(required=False, help_text="Words in the name or URI, the title or the description.")
    disabled = serializers.BooleanField(default=False, help_text="Also list disabled ones.")
    offset = serializers.IntegerField(default=0, min_value=0, help_text="How many to leave out at the beginning.")
    limit = serializers.IntegerField(default=100, min_value=1, max_value=MAX_PAGE, help_text="How many to list.")


class PromptsSerializer(serializers.Serializer[Any]):
    count = serializers.IntegerField(help_text="How many there are in all.")
    prompts = PromptSerializer(many=True)


class ResourcesSerializer(serializers.Serializer[Any]):
    count = serializers.IntegerField(help_text="How many there are in all.")
    resources = ResourceSerializer(many=True)


class TemplatesSerializer(serializers.Serializer[Any]):
    count = serializers.IntegerField(help_text="How many there are in all.")
    resource_templates = TemplateSerializer(many=True)


def _page(request: Request, name: str, kind: Kind) -> tuple[int, list[Extra]]:
    """How many there are, and one page of them. Held ones are left out, because an agent may read the definition."""
    row, principal = reachable_member(request, name), principal_of(request)
    filters = query_of(ExtraFilters, request)
    if not (principal.may_use_all(name) or principal.may_control(name)):
        return 0, []
    shown = [each for each in extras_of(row, kind) if not each.hold and (each.is_enabled or filters["disabled"])]
    shown = search(shown, filters.get("search", ""))
    return len(shown), shown[filters["offset"] : filters["offset"] + filters["limit"]]


class PromptsView(HallView):
    @extend_schema(parameters=[ExtraFilters], responses={200: PromptsSerializer, 400: REFUSED, 404: REFUSED})
    def get(self, request: Request, name: str) -> Response:
        """The prompts that the member listed last, and that you may use, enable or disable. Held ones are left out."""
        count, page = _page(request, name, Kind.PROMPT)
        return Response({"count": count, "prompts": PromptSerializer(page, many=True).data})


class ResourcesView(HallView):
    @extend_schema(parameters=[ExtraFilters], responses={200: ResourcesSerializer, 400: REFUSED, 404: REFUSED})
    def get(self, request: Request, name: str) -> Response:
        """The resources that the member listed last, and that you may use, enable or disable."""
        count, page = _page(request, name, Kind.RESOURCE)
        return Response({"count": count, "resources": ResourceSerializer(page, many=True).data})


class TemplatesView(HallView):
    @extend_schema(parameters=[ExtraFilters], responses={200: TemplatesSerializer, 400: REFUSED, 404: REFUSED})
    def get(self, request: Request, name: str) -> Response:
        """The resource templates that the member listed last. Held ones are left out."""
        count, page = _page(request, name, Kind.RESOURCE_TEMPLATE)
        return Response({"count": count, "resource_templates": TemplateSerializer(page, many=True).data})


# Use --------------------------------------------------------------------------------------------------------------


def _seat(request: Request) -> AbstractContextManager[None]:
    return requests.seat_for_member(principal_of(request).owner, request.META)


class TextsField(serializers.DictField):
    """An object with values that are strings."""

    child = serializers.CharField(allow_blank=True, trim_whitespace=False, max_length=100_000)


class TextField(serializers.CharField):
    """A name or a URI, unchanged."""

    def __init__(self, **options: Any) -> None:
        super().__init__(trim_whitespace=False, **options)


class GetPromptSerializer(Strict):
    name = TextField(max_length=300_000)
    arguments = TextsField(required=False)


class PromptResultSerializer(serializers.Serializer[Any]):
    """The result of `prompts/get` as in MCP. It may have other keys."""

    description = serializers.CharField(required=False)
    messages = serializers.ListField(child=serializers.DictField())


class PromptGetView(HallView):
    @extend_schema(request=GetPromptSerializer, responses={200: PromptResultSerializer, **ANSWERS})
    def post(self, request: Request, name: str) -> Response:
        """Get the messages of a prompt. This starts the member if it is stopped."""
        row, values = reachable_member(request, name), body_of(GetPromptSerializer, request.data)
        with _seat(request):
            arguments = values.get("arguments", {})
            return Response(extra_uses.get_prompt(principal_of(request), row, values["name"], arguments))


class ReadResourceSerializer(Strict):
    uri = TextField(required=False, max_length=300_000, help_text="The URI. It may be in no list.")
    uri_template = TextField(required=False, max_length=300_000, help_text="In place of a URI.")
    arguments = TextsField(required=False, help_text="The values for the variables of the template.")

    def validate(self, values: dict[str, Any]) -> dict[str, Any]:
        values = super().validate(values)
        if ("uri" in values) == ("uri_template" in values) or ("uri" in values and "arguments" in values):
            raise serializers.ValidationError("Give uri, or uri_template and arguments.")
        return values


class ResourceResultSerializer(serializers.Serializer[Any]):
    """The result of `resources/read` as in MCP. It may have other keys."""

    contents = serializers.ListField(child=serializers.DictField())


class ResourceReadView(HallView):
    @extend_schema(request=ReadResourceSerializer, responses={200: ResourceResultSerializer, **ANSWERS})
    def post(self, request: Request, name: str) -> Response:
        """Read a resource. This starts the member if it is stopped."""
        row, values = reachable_member(request, name), body_of(ReadResourceSerializer, request.data)
        uri = values.get("uri")
        if uri is None:
            template = find_extra(row, Kind.RESOURCE_TEMPLATE, values["uri_template"])
            uri = extra_uses.expand(template.name, values.get("arguments", {}))
        with _seat(request):
            return Response(extra_uses.read_resource(principal_of(request), row, uri))


class CompletionSerializer(serializers.Serializer[Any]):
    values = serializers.ListField(child=serializers.CharField())
    total = serializers.IntegerField(allow_null=True, help_text="How many the member has. Null if it does not say so.")
    has_more = serializers.BooleanField()


class CompletePromptSerializer(Strict):
    name = TextField(max_length=300_000)
    argument = TextField(max_length=1_000, help_text="The name of the argument.")
    value = TextField(allow_blank=True, max_length=100_000, default="", help_text="The beginning of its value.")
    arguments = TextsField(required=False, help_text="The values of the other arguments.")


class CompleteTemplateSerializer(Strict):
    uri_template = TextField(max_length=300_000)
    argument = TextField(max_length=1_000, help_text="The name of the variable.")
    value = TextField(allow_blank=True, max_length=100_000, default="", help_text="The beginning of its value.")
    arguments = TextsField(required=False, help_text="The values of the other variables.")


def _completion(request: Request, row: GuildMember, extra: Extra, values: dict[str, Any]) -> Response:
    context = values.get("arguments", {})
    with _seat(request):
        principal = principal_of(request)
        found = extra_uses.complete(principal, row, extra, values["argument"], values["value"], context)
    return Response(CompletionSerializer(found).data)


class PromptCompleteView(HallView):
    @extend_schema(request=CompletePromptSerializer, responses={200: CompletionSerializer, **ANSWERS})
    def post(self, request: Request, name: str) -> Response:
        """Values for an argument of a prompt, if the member completes arguments."""
        row, values = reachable_member(request, name), body_of(CompletePromptSerializer, request.data)
        return _completion(request, row, find_extra(row, Kind.PROMPT, values["name"]), values)


class TemplateCompleteView(HallView):
    @extend_schema(request=CompleteTemplateSerializer, responses={200: CompletionSerializer, **ANSWERS})
    def post(self, request: Request, name: str) -> Response:
        """Values for a variable of a resource template, if the member completes arguments."""
        row, values = reachable_member(request, name), body_of(CompleteTemplateSerializer, request.data)
        return _completion(request, row, find_extra(row, Kind.RESOURCE_TEMPLATE, values["uri_template"]), values)


# Watch ------------------------------------------------------------------------------------------------------------


class WatchRequestSerializer(Strict):
    uri = TextField(max_length=300_000)
    cursor = serializers.RegexField(
        r"^[0-9a-f]{16}-[0-9]{1,9}$", required=False, help_text="The cursor of the last answer. Leave it out at first."
    )


class WatchSerializer(serializers.Serializer[Any]):
    cursor = serializers.CharField(help_text="For the next request.")
    updated = serializers.BooleanField(help_text="The member announced an update since the cursor of the request.")
    updated_at = serializers.DateTimeField(allow_null=True, help_text="The time of the last update, if there was one.")
    is_gap = serializers.BooleanField(help_text="Updates before this answer may be unknown. Read the resource again.")


class ResourceWatchView(HallView):
    @extend_schema(
        parameters=[PREFER],
        request=WatchRequestSerializer,
        responses={200: OpenApiResponse(WatchSerializer, description="The state of the subscription."), **ANSWERS},
    )
    def post(self, request: Request, name: str) -> Response:
        """Subscribe to a resource, and wait for updates. The subscription ends 30 s after the last request."""
        row, values = reachable_member(request, name), body_of(WatchRequestSerializer, request.data)
        known_id, _, known_updates = values.get("cursor", "").partition("-")
        after = (known_id, int(known_updates)) if known_id else None
        wait = requests.preferred_wait(request)
        with _seat(request):
            state = watches.look(principal_of(request), row, values["uri"], after=after, wait=wait)
        is_gap = after is None or after[0] != state.id
        answer = {
            "cursor": f"{state.id}-{state.updates}",
            "updated": state.updates > (0 if after is None or is_gap else after[1]),
            "updated_at": state.updated_at,
            "is_gap": is_gap,
        }
        return Response(WatchSerializer(answer).data)


# Enable and disable -----------------------------------------------------------------------------------------------


class PromptNameSerializer(Strict):
    name = TextField(max_length=300_000)


class UriSerializer(Strict):
    uri = TextField(max_length=300_000)


class UriTemplateSerializer(Strict):
    uri_template = TextField(max_length=300_000)


class ExtraEnabledView(HallView):
    """Enable or disable it. What is disabled is in no list of the gateway, and nobody can use it."""

    permission_classes = (IsAuthenticated, MayControl)
    verb = ""

    def change(self, request: Request, name: str, kind: Kind, body: type[Strict], key: str) -> Extra:
        row, is_enabled = controlled_member(request, name), self.verb == "enable"
        extra = find_extra(row, kind, body_of(body, request.data)[key])
        set_extra_enabled(row, extra, is_enabled)
        return replace(extra, is_enabled=is_enabled)


class PromptEnabledView(ExtraEnabledView):
    @extend_schema(request=PromptNameSerializer, responses={200: PromptSerializer, 403: REFUSED, 404: REFUSED})
    def post(self, request: Request, name: str) -> Response:
        extra = self.change(request, name, Kind.PROMPT, PromptNameSerializer, "name")
        return Response(PromptSerializer(extra).data)


class ResourceEnabledView(ExtraEnabledView):
    @extend_schema(request=UriSerializer, responses={200: ResourceSerializer, 403: REFUSED, 404: REFUSED})
    def post(self, request: Request, name: str) -> Response:
        extra = self.change(request, name, Kind.RESOURCE, UriSerializer, "uri")
        return Response(ResourceSerializer(extra).data)


class TemplateEnabledView(ExtraEnabledView):
    @extend_schema(request=UriTemplateSerializer, responses={200: TemplateSerializer, 403: REFUSED, 404: REFUSED})
    def post(self, request: Request, name: str) -> Response:
        extra = self.change(request, name, Kind.RESOURCE_TEMPLATE, UriTemplateSerializer, "uri_template")
        return Response(TemplateSerializer(extra).data)
