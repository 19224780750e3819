"""The groups for which a member is reserved, over REST."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import Group
from rest_framework import serializers
from rest_framework.permissions import IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response

from mcp_runtime.control.members import reserve_member
from roster.api.base import REFUSED, HallView, Strict, body_of
from roster.api.described import extend_schema
from roster.api.permissions import MayReserveMembers, reachable_member

MAX_GROUPS = 1_000


class GroupsField(serializers.ListField):
    """Groups by their names, as a list of rows."""

    child = serializers.CharField()

    def to_internal_value(self, data: Any) -> list[Any]:
        if isinstance(data, list) and len(data) > MAX_GROUPS:
            raise serializers.ValidationError(f"there may be {MAX_GROUPS} groups at most")
        names = super().to_internal_value(data)
        groups = {group.name: group for group in Group.objects.filter(name__in=names)}
        if missing := [name for name in names if name not in groups]:
            raise serializers.ValidationError(f"there is no group {missing[0][:150]!r}")
        return list(groups.values())


class GroupsBody(Strict):
    groups = GroupsField(help_text="Their names. If empty, everybody who may call tools can use the member.")


class GroupsSerializer(serializers.Serializer[Any]):
    groups = serializers.ListField(child=serializers.CharField())


class MemberGroupsView(HallView):
    permission_classes = (IsAuthenticated, MayReserveMembers)

    @extend_schema(responses={200: GroupsSerializer, 403: REFUSED, 404: REFUSED})
    def get(self, request: Request, name: str) -> Response:
        """Return the groups that the member is reserved for. Without groups it is for everybody who may call tools."""
        return _answer(list(reachable_member(request, name).groups.all()))

    @extend_schema(
        request=GroupsBody,
        responses={200: GroupsSerializer, 400: REFUSED, 403: REFUSED, 404: REFUSED, 409: REFUSED},
    )
    def put(self, request: Request, name: str) -> Response:
        """Reserve the member for these groups instead of those before.

        If you are in none of them and no superuser, the member does not exist for you any more.
        """
        member = reachable_member(request, name)
        groups = body_of(GroupsBody, request.data)["groups"]
        reserve_member(member, groups)
        return _answer(groups)


def _answer(groups: list[Group]) -> Response:
    return Response({"groups": sorted(group.name for group in groups)})
