"""Edits of manifests over REST. The runtime changes the files when an edit is approved."""

from __future__ import annotations

from typing import Any, cast

from django.contrib.auth.models import User
from django.db.models import BigIntegerField, QuerySet
from rest_framework import serializers, status
from rest_framework.generics import ListAPIView
from rest_framework.permissions import IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response

from mcp_runtime.control import edits
from mcp_runtime.protocol.errors import UnknownEditError
from roster.api.base import REFUSED, Filters, HallView, NewestFirst, Strict, body_of, query_of
from roster.api.described import extend_schema
from roster.api.permissions import MayEditMembers, principal_of, reachable_member
from roster.edits import described
from roster.models import ManifestEdit


class EditedValueSerializer(serializers.Serializer[Any]):
    key = serializers.CharField(help_text="The key in guild-member.json, such as timeout or env.TOKEN.")
    before = serializers.JSONField(allow_null=True, help_text="Null if the file does not have it, or the default.")
    after = serializers.JSONField(allow_null=True)
    default = serializers.JSONField(allow_null=True, help_text="The value that holds when the file has none.")


class EditSerializer(serializers.Serializer[Any]):
    """An edit of a manifest. Values of env and headers are masked if they could be secrets."""

    id = serializers.IntegerField()
    member = serializers.CharField()
    state = serializers.CharField(
        help_text="proposed, approved or written. written: the file of at least one node has the new values."
    )
    changes = EditedValueSerializer(many=True)
    is_forced = serializers.BooleanField(
        help_text="The file had a fault, so the hall does not know its values. The new ones replace them."
    )
    needs_restart = serializers.BooleanField(help_text="Whether the member gets a new process.")
    notes = serializers.ListField(child=serializers.CharField(), help_text="What to know before the approval.")
    missing_secrets = serializers.ListField(
        child=serializers.CharField(), help_text="Secrets without which the member cannot start."
    )
    faults = serializers.ListField(
        child=serializers.CharField(), help_text="Why the file is not changed, for each node where it is not."
    )
    undoes = serializers.IntegerField(allow_null=True, help_text="The edit that this one takes back.")
    undone_by = serializers.IntegerField(allow_null=True, help_text="The edit that takes this one back.")
    may_undo = serializers.BooleanField(help_text="Whether it can be taken back.")
    created_at = serializers.DateTimeField()
    created_by = serializers.CharField(allow_null=True)
    approved_at = serializers.DateTimeField(allow_null=True)
    approved_by = serializers.CharField(allow_null=True)

    def to_representation(self, instance: Any) -> dict[str, Any]:
        return described(instance)


FORCE = "Even if an agent needs the member, and the edit restarts it."


class EditOptions(Filters):
    force = serializers.BooleanField(required=False, default=False, help_text=FORCE)


class EditBody(Strict):
    manifest = serializers.DictField(
        help_text="A JSON Merge Patch (RFC 7396) of guild-member.json: the keys to change with their new values. Null "
        "removes a value. Values of env and headers that could be secrets become secrets of the hall."
    )
    approve = serializers.BooleanField(required=False, default=False, help_text="Approve the edit too.")
    force = serializers.BooleanField(required=False, default=False, help_text=FORCE)


EDIT = extend_schema(
    operation_id="members_edit",
    request=EditBody,
    responses={201: EditSerializer, 202: EditSerializer, 400: REFUSED, 403: REFUSED, 404: REFUSED, 409: REFUSED},
)


def edit_member(request: Request, name: str) -> Response:
    """Propose the edit, and approve it if the body says so."""
    body, user = body_of(EditBody, request.data), cast(User, request.user)
    row, approve = reachable_member(request, name), body["approve"]
    edit = edits.propose_edit(row, body["manifest"], user, approve=approve, force=body["force"])
    return Response(described(edit), status=status.HTTP_202_ACCEPTED if body["approve"] else status.HTTP_201_CREATED)


class EditFilters(Filters):
    member = serializers.CharField(required=False, help_text="The edits of this member.")


class EditsView(HallView, ListAPIView[ManifestEdit]):
    """The edits of the last 30 days, and those that nobody has approved yet. The newest first."""

    serializer_class = EditSerializer
    pagination_class = NewestFirst
    queryset = ManifestEdit.objects.none()
    permission_classes = (IsAuthenticated, MayEditMembers)

    @extend_schema(parameters=[EditFilters])
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        return super().get(request, *args, **kwargs)

    def get_queryset(self) -> QuerySet[ManifestEdit]:
        rows = edits.edits_of(principal_of(self.request))
        member = query_of(EditFilters, self.request).get("member")
        return rows.filter(member__name=member) if member is not None else rows


def _edit(request: Request, number: int) -> ManifestEdit:
    if number > BigIntegerField.MAX_BIGINT:
        raise UnknownEditError(f"there is no edit with the number {number}")
    return edits.find_edit(number, principal_of(request))


class EditView(HallView):
    permission_classes = (IsAuthenticated, MayEditMembers)

    @extend_schema(responses={200: EditSerializer, 403: REFUSED, 404: REFUSED})
    def get(self, request: Request, edit: int) -> Response:
        """An edit, with everything that an approval is about."""
        return Response(described(_edit(request, edit)))

    @extend_schema(responses={204: None, 403: REFUSED, 404: REFUSED, 409: REFUSED})
    def delete(self, request: Request, edit: int) -> Response:
        """Discard it, and the secrets that came with it. Only while no node has changed its file."""
        edits.discard_edit(_edit(request, edit))
        return Response(status=status.HTTP_204_NO_CONTENT)


class EditVerbView(HallView):
    """Approve an edit, or take it back with another one."""

    verb = ""
    permission_classes = (IsAuthenticated, MayEditMembers)

    @extend_schema(
        parameters=[EditOptions],
        request=None,
        responses={202: EditSerializer, 400: REFUSED, 403: REFUSED, 404: REFUSED, 409: REFUSED},
    )
    def post(self, request: Request, edit: int) -> Response:
        force, user = query_of(EditOptions, request)["force"], cast(User, request.user)
        act = edits.approve_edit if self.verb == "approve" else edits.undo_edit
        row = act(_edit(request, edit), user, force=force)
        return Response(described(row), status=status.HTTP_202_ACCEPTED)
