"""Tools over REST: a member's list, one tool with its definition, enable and disable. Calls of tools are in `calls`."""

from __future__ import annotations

from typing import Any

import msgspec
from django.db.models import Q
from django.urls import reverse
from msgspec import Raw
from rest_framework import serializers
from rest_framework.permissions import IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response

from mcp_runtime.control.contracts import reason_for_hold
from mcp_runtime.control.members import find_tool, set_tool_enabled, visible_tools, with_text
from mcp_runtime.protocol.errors import ToolHeldError
from roster.api.base import REFUSED, HallView, query_of
from roster.api.described import extend_schema
from roster.api.permissions import MayControl, controlled_member, listable_tool, principal_of, reachable_member
from roster.models import Tool


class _Definition(msgspec.Struct, rename="camel"):
    """A tool's definition. Some keys are read, the others pass unchanged."""

    title: Any = None
    description: Any = None
    annotations: Any = None
    input_schema: Raw = Raw()
    output_schema: Raw = Raw()


def _is_object(text: Raw) -> bool:
    return bytes(memoryview(text)[:1]) == b"{"


class WrittenObject(serializers.DictField):
    """An object in a tool's definition, as its JSON text."""

    def to_representation(self, value: Any) -> Any:
        return value


class ToolSerializer(serializers.ModelSerializer[Tool]):
    """A tool for clients. Select `member`, and best use `control.members.with_text`. Do not save the row."""

    title = serializers.CharField()
    description = serializers.CharField()
    input_schema = WrittenObject(source="definition.input_schema")
    output_schema = WrittenObject(source="definition.output_schema", allow_null=True)
    timeout = serializers.SerializerMethodField(help_text="The maximum duration of a call in seconds.")
    url = serializers.SerializerMethodField()
    invoke_url = serializers.SerializerMethodField()

    class Meta:
        model = Tool
        fields = [
            "name",
            "title",
            "description",
            "version",
            "enabled",
            "input_schema",
            "output_schema",
            "schema_error",
            "timeout",
            "url",
            "invoke_url",
        ]

    def to_representation(self, tool: Tool) -> dict[str, Any]:
        parts = msgspec.json.decode(tool.text, type=_Definition)
        tool.definition = {
            **{"title": parts.title, "description": parts.description, "annotations": parts.annotations},
            "input_schema": parts.input_schema if _is_object(parts.input_schema) else {},
            "output_schema": parts.output_schema if _is_object(parts.output_schema) else None,
            "whole": Raw(tool.text.encode()),
        }
        return dict(super().to_representation(tool))

    def get_timeout(self, tool: Tool) -> float:
        return tool.member.timeout_of(tool.name)

    def get_url(self, tool: Tool) -> str:
        return reverse("tool", args=[tool.member.name, tool.name])

    def get_invoke_url(self, tool: Tool) -> str:
        return reverse("tool-invoke", args=[tool.member.name, tool.name])


class ToolDetailSerializer(ToolSerializer):
    definition = WrittenObject(source="definition.whole", help_text="The tool as the member sent it.")

    class Meta(ToolSerializer.Meta):
        fields = [*ToolSerializer.Meta.fields, "definition"]


class ToolsSerializer(serializers.Serializer[Any]):
    tools = ToolSerializer(many=True)


class ToolFilters(serializers.Serializer[Any]):
    disabled = serializers.BooleanField(default=False, help_text="Also list disabled tools.")


class ToolsView(HallView):
    @extend_schema(
        operation_id="members_tools_list", parameters=[ToolFilters], responses={200: ToolsSerializer, 404: REFUSED}
    )
    def get(self, request: Request, name: str) -> Response:
        """The tools of the member that you may call, enable or disable, in its own order."""
        row, principal = reachable_member(request, name), principal_of(request)
        condition = Q(listed=True, is_held=False) if query_of(ToolFilters, request)["disabled"] else visible_tools()
        rows = with_text(row.tools.filter(condition)).order_by("position")
        tools = [tool for tool in rows if principal.may_list(name, tool.name)]
        return Response({"tools": ToolSerializer(tools, many=True).data})


def _shown_tool(request: Request, name: str, tool: str) -> Tool:
    """The tool for one who may list it. Raises ToolHeldError, because an agent may read the definition."""
    row = listable_tool(request, name, tool)
    if row.is_held:
        raise ToolHeldError(name, tool, reason_for_hold(row))
    return row


class ToolView(HallView):
    """A tool with its schemas and what its member says about it."""

    @extend_schema(responses={200: ToolDetailSerializer, 404: REFUSED, 409: REFUSED})
    def get(self, request: Request, name: str, tool: str) -> Response:
        return Response(ToolDetailSerializer(_shown_tool(request, name, tool)).data)


class ToolVerbView(HallView):
    """POST acts on the tool. GET is for the tool whose own name ends with this word, such as `files/invoke`."""

    verb = ""

    @extend_schema(exclude=True)
    def get(self, request: Request, name: str, tool: str) -> Response:
        return Response(ToolDetailSerializer(_shown_tool(request, name, f"{tool}/{self.verb}")).data)


class ToolEnabledView(ToolVerbView):
    """Enable or disable the tool. A disabled tool is in no list, and calls to it are refused."""

    permission_classes = (IsAuthenticated, MayControl)

    @extend_schema(request=None, responses={200: ToolDetailSerializer, 403: REFUSED, 404: REFUSED})
    def post(self, request: Request, name: str, tool: str) -> Response:
        controlled_member(request, name)
        row = find_tool(name, tool)
        set_tool_enabled(row, self.verb == "enable")
        return Response(ToolDetailSerializer(row).data)
