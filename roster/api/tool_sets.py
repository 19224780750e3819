"""Tool sets over REST: list, create, replace and delete them, and see what a client sees."""

from __future__ import annotations

from typing import Any, cast

from django.contrib.auth.models import User
from django.db.models import QuerySet
from rest_framework import serializers, status
from rest_framework.exceptions import PermissionDenied
from rest_framework.generics import ListAPIView
from rest_framework.request import Request
from rest_framework.response import Response

from mcp_runtime.control import tool_sets
from mcp_runtime.control.tool_sets import Entry, Values
from mcp_runtime.security.access import Principal
from roster.api.base import REFUSED, HallView, NewestFirst, Strict, body_of
from roster.api.described import extend_schema
from roster.api.groups import GroupsField
from roster.api.permissions import principal_of
from roster.models import ToolSet, ToolSetEntry


class ToolSetEntrySerializer(serializers.Serializer[Any]):
    member = serializers.CharField(max_length=64)
    tool = serializers.CharField(
        required=False,
        default="",
        allow_blank=True,
        trim_whitespace=False,
        max_length=255,
        help_text="If empty, all of the member.",
    )
    new_name = serializers.CharField(required=False, default="", allow_blank=True, max_length=64)
    new_description = serializers.CharField(
        required=False, default="", allow_blank=True, max_length=ToolSetEntry.MAX_DESCRIPTION
    )

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        """Refuse unknown keys, as `Strict` does for a whole body."""
        if isinstance(data, dict) and (extra_keys := set(data) - set(self.fields)):
            raise serializers.ValidationError({str(key)[:100]: ["There is no such field."] for key in extra_keys})
        values: dict[str, Any] = super().to_internal_value(data)
        return values


class ToolSetBody(Strict):
    """All values of a tool set. What is missing is empty afterwards."""

    title = serializers.CharField(required=False, default="", allow_blank=True, max_length=ToolSet.MAX_TITLE)
    description = serializers.CharField(
        required=False, default="", allow_blank=True, max_length=ToolSet.MAX_DESCRIPTION
    )
    groups = GroupsField(required=False, default=list, help_text="Their names. If empty, it is for everybody.")
    entries = ToolSetEntrySerializer(many=True, required=False, default=list)


class ToolSetSerializer(serializers.ModelSerializer[ToolSet]):
    path = serializers.SerializerMethodField(help_text="Its address at the gateway.")
    groups = serializers.SerializerMethodField(help_text="The groups that it is reserved for, if you may change it.")
    created_by = serializers.CharField(source="created_by.username", default=None, allow_null=True)
    entries = serializers.SerializerMethodField(help_text="Without members that are hidden from you.")

    class Meta:
        model = ToolSet
        fields = ["name", "title", "description", "path", "groups", "created_at", "changed_at", "created_by", "entries"]

    def get_path(self, row: ToolSet) -> str:
        return f"/sets/{row.name}/mcp"

    def get_groups(self, row: ToolSet) -> list[str] | None:
        return sorted(group.name for group in row.groups.all()) if self.context["may_change"] else None

    def get_entries(self, row: ToolSet) -> list[dict[str, Any]]:
        entries = tool_sets.entries_of(row, self.context["principal"])
        return list(ToolSetEntrySerializer(entries, many=True).data)


class ListedToolSerializer(serializers.Serializer[Any]):
    name = serializers.CharField(help_text="In the tool set.")
    member = serializers.CharField()
    tool = serializers.CharField()
    description = serializers.CharField()
    fault = serializers.CharField(help_text="Why the tool is not at the address of the set. Empty if it is there.")


class ToolSetDetailSerializer(ToolSetSerializer):
    tools = serializers.SerializerMethodField(help_text="What you see at its address, and what is missing there.")

    class Meta(ToolSetSerializer.Meta):
        fields = [*ToolSetSerializer.Meta.fields, "tools"]

    def get_tools(self, row: ToolSet) -> list[dict[str, Any]]:
        principal: Principal = self.context["principal"]
        entries = tool_sets.entries_of(row, principal)
        return list(ListedToolSerializer(tool_sets.preview(entries, principal), many=True).data)


def _context(request: Request) -> dict[str, Any]:
    return {"principal": principal_of(request), "may_change": request.user.has_perm("roster.change_toolset")}


def _answer(request: Request, row: ToolSet) -> dict[str, Any]:
    return dict(ToolSetDetailSerializer(row, context=_context(request)).data)


def _require(request: Request, action: str) -> None:
    """Raise PermissionDenied. Narrowed tokens change no tool sets, because other clients would see the change."""
    if not request.user.has_perm(f"roster.{action}_toolset"):
        raise PermissionDenied(f"This needs the permission roster.{action}_toolset.")
    if principal_of(request).is_narrowed:
        raise PermissionDenied("This needs a token that is for everything its user may do.")


class ToolSetsView(HallView, ListAPIView[ToolSet]):
    """The tool sets that you may use."""

    serializer_class = ToolSetSerializer
    pagination_class = NewestFirst
    queryset = ToolSet.objects.none()

    def get_queryset(self) -> QuerySet[ToolSet]:
        rows = tool_sets.visible_tool_sets(principal_of(self.request))
        return rows.select_related("created_by").prefetch_related("groups")

    def get_serializer_context(self) -> dict[str, Any]:
        return {**super().get_serializer_context(), **_context(self.request)}


class ToolSetView(HallView):
    @extend_schema(responses={200: ToolSetDetailSerializer, 404: REFUSED})
    def get(self, request: Request, tool_set: str) -> Response:
        """A tool set, and what you see at its address."""
        return Response(_answer(request, tool_sets.find_tool_set(tool_set, principal_of(request))))

    @extend_schema(
        request=ToolSetBody,
        responses={
            **{200: ToolSetDetailSerializer, 201: ToolSetDetailSerializer, 400: REFUSED},
            **{403: REFUSED, 404: REFUSED, 409: REFUSED},
        },
    )
    def put(self, request: Request, tool_set: str) -> Response:
        """Create a tool set, or replace all its values. Entries of members that are hidden from you stay."""
        principal = principal_of(request)
        existing = tool_sets.visible_tool_sets(principal).filter(name=tool_set).first()
        _require(request, "change" if existing else "add")
        body = body_of(ToolSetBody, request.data)
        entries = [Entry(**entry) for entry in body.pop("entries")]
        values = Values(name=tool_set, entries=entries, **body)
        if existing is None:
            row = tool_sets.create_tool_set(values, principal, cast(User, request.user))
            return Response(_answer(request, row), status=status.HTTP_201_CREATED)
        tool_sets.change_tool_set(existing, values, principal)
        return Response(_answer(request, existing))

    @extend_schema(responses={204: None, 403: REFUSED, 404: REFUSED})
    def delete(self, request: Request, tool_set: str) -> Response:
        """Delete it. Tokens that are for it give no access any more."""
        _require(request, "delete")
        tool_sets.delete_tool_set(tool_sets.find_tool_set(tool_set, principal_of(request)))
        return Response(status=status.HTTP_204_NO_CONTENT)
