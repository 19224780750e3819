"""The registry of MCP servers over REST: search it, and see what a server needs before it is proposed."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rest_framework import serializers
from rest_framework.permissions import IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response

from mcp_runtime.control import registry
from roster.api.base import REFUSED, Filters, HallView, query_of
from roster.api.described import extend_schema
from roster.api.permissions import MayApproveMembers


class FieldSerializer(serializers.Serializer[Any]):
    key = serializers.CharField(help_text="Its name in `values` of POST /api/members/.")
    title = serializers.CharField(help_text="How people call it. Empty if it has no other name than its key.")
    description = serializers.CharField()
    is_required = serializers.BooleanField()
    is_secret = serializers.BooleanField(help_text="Whether its value becomes a secret of the hall.")
    is_repeated = serializers.BooleanField(help_text="Whether it may have several values, one on each line.")
    default = serializers.CharField()
    placeholder = serializers.CharField()
    choices = serializers.ListField(child=serializers.CharField())


class WaySerializer(serializers.Serializer[Any]):
    number = serializers.IntegerField(help_text="`way` of POST /api/members/.")
    label = serializers.CharField()  # type: ignore[assignment]
    refusal = serializers.CharField(help_text="Why the hall cannot run it this way. Empty if it can.")
    fields = FieldSerializer(many=True)  # type: ignore[assignment]


class ListedSerializer(serializers.Serializer[Any]):
    name = serializers.CharField()
    title = serializers.CharField()
    description = serializers.CharField()
    version = serializers.CharField()
    document = serializers.CharField(help_text="Its server.json.")
    ways = WaySerializer(many=True)
    fault = serializers.CharField(help_text="Why its server.json cannot be used. Empty if it can.")


class RegistryPageSerializer(serializers.Serializer[Any]):
    servers = ListedSerializer(many=True)
    cursor = serializers.CharField(help_text="For the next page. Empty if this is the last one.")


class RegistryFilters(Filters):
    search = serializers.CharField(required=False, default="", max_length=200, help_text="A part of the name.")
    after = serializers.CharField(
        required=False, default="", max_length=registry.MAX_CURSOR, help_text="The cursor of the page before."
    )
    versions_of = serializers.CharField(
        required=False, default="", max_length=300, help_text="All versions of the server with exactly this name."
    )


class RegistryView(HallView):
    permission_classes = (IsAuthenticated, MayApproveMembers)

    @extend_schema(
        parameters=[RegistryFilters],
        responses={200: RegistryPageSerializer, 400: REFUSED, 403: REFUSED, 404: REFUSED, 409: REFUSED, 502: REFUSED},
    )
    def get(self, request: Request) -> Response:
        """The newest versions of servers in the registry, or all versions of one."""
        query = query_of(RegistryFilters, request)
        name = query["versions_of"]
        page = registry.versions(name) if name else registry.search(query["search"], query["after"])
        return Response({"servers": [asdict(each) for each in page.servers], "cursor": page.cursor})
