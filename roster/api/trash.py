"""Removed members over REST. The runtime moves their folders."""

from __future__ import annotations

from typing import Any, cast

from django.contrib.auth.models import User
from django.db.models import QuerySet
from rest_framework import serializers, status
from rest_framework.generics import ListAPIView
from rest_framework.permissions import IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response

from mcp_runtime.control import trash
from roster.api.base import REFUSED, Filters, HallView, NewestFirst, query_of
from roster.api.described import extend_schema
from roster.api.permissions import MayApproveMembers, principal_of, reachable_member
from roster.models import TrashedMember


class TrashedMemberSerializer(serializers.ModelSerializer[TrashedMember]):
    removed_by = serializers.CharField(source="removed_by.username", default=None, allow_null=True)
    expires_at = serializers.DateTimeField(help_text="When the runtime deletes the folder.")
    faults = serializers.ListField(
        child=serializers.CharField(), help_text="Why the folder is not where it should be, for each node."
    )

    class Meta:
        model = TrashedMember
        fields = ["id", "name", "directory", "removed_at", "removed_by", "expires_at", "restore_requested_at", "faults"]


class RemovalOptions(Filters):
    force = serializers.BooleanField(required=False, default=False, help_text="Even if an agent needs the member.")


REMOVE = extend_schema(
    operation_id="members_remove",
    parameters=[RemovalOptions],
    responses={202: TrashedMemberSerializer, 403: REFUSED, 404: REFUSED, 409: REFUSED},
)


def remove(request: Request, name: str) -> Response:
    """Move the folder of the member to the trash."""
    force = query_of(RemovalOptions, request)["force"]
    row = trash.remove_member(reachable_member(request, name), cast(User, request.user), force=force)
    return Response(TrashedMemberSerializer(row).data, status=status.HTTP_202_ACCEPTED)


class TrashView(HallView, ListAPIView[TrashedMember]):
    """The removed members that can be restored."""

    serializer_class = TrashedMemberSerializer
    pagination_class = NewestFirst
    queryset = TrashedMember.objects.none()
    permission_classes = (IsAuthenticated, MayApproveMembers)

    def get_queryset(self) -> QuerySet[TrashedMember]:
        return trash.trashed_members(principal_of(self.request))


class RestoreView(HallView):
    permission_classes = (IsAuthenticated, MayApproveMembers)

    @extend_schema(request=None, responses={202: TrashedMemberSerializer, 403: REFUSED, 404: REFUSED, 409: REFUSED})
    def post(self, request: Request, number: int) -> Response:
        """Move the folder back. The member is then in the roster as it was."""
        row: Any = trash.restore_member(number, principal_of(request))
        return Response(TrashedMemberSerializer(row).data, status=status.HTTP_202_ACCEPTED)
