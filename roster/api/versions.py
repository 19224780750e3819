"""Newer versions of members' packages over REST. The node of the member looks for them, only on request."""

from __future__ import annotations

from typing import Any, cast

from django.contrib.auth.models import User
from rest_framework import serializers, status
from rest_framework.permissions import IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response

from mcp_runtime.control import versions
from mcp_runtime.control.packages import relock
from mcp_runtime.protocol.errors import RequestRefusedError
from roster.api.base import REFUSED, HallView, query_of
from roster.api.described import extend_schema
from roster.api.edits import EditSerializer
from roster.api.members import MemberDetailSerializer, VerbOptions, member_detail
from roster.api.permissions import MayEditMembers, principal_of, reachable_member
from roster.edits import described


class VersionSerializer(serializers.Serializer[Any]):
    package = serializers.CharField(help_text="The package of npm or PyPI that the member runs.")
    version = serializers.CharField(help_text="The exact version in the manifest. Empty if it names none.")
    is_asked = serializers.BooleanField(help_text="Whether the node of the member is finding out the newest one.")
    newest = serializers.CharField(help_text="The newest version. Empty if it is not known.")
    is_newer = serializers.BooleanField()
    fault = serializers.CharField(help_text="Why it is not known, if somebody asked.")
    answered_at = serializers.DateTimeField(allow_null=True)


class NewestVersionView(HallView):
    permission_classes = (IsAuthenticated, MayEditMembers)

    @extend_schema(responses={200: VersionSerializer, 403: REFUSED, 404: REFUSED, 409: REFUSED})
    def get(self, request: Request, name: str) -> Response:
        """What the hall knows about the newest version of the member's package."""
        row = reachable_member(request, name)
        report = versions.version_report(row)
        if report is None:
            raise RequestRefusedError(f"member {row.name!r} runs no package that the hall could install")
        return Response(VersionSerializer(report).data)

    @extend_schema(request=None, responses={202: VersionSerializer, 403: REFUSED, 404: REFUSED, 409: REFUSED})
    def post(self, request: Request, name: str) -> Response:
        """Let the node of the member ask for the newest version."""
        report = versions.ask_for_newest(reachable_member(request, name))
        return Response(VersionSerializer(report).data, status=status.HTTP_202_ACCEPTED)


class NewestVersionEditView(HallView):
    permission_classes = (IsAuthenticated, MayEditMembers)

    @extend_schema(request=None, responses={201: EditSerializer, 403: REFUSED, 404: REFUSED, 409: REFUSED})
    def post(self, request: Request, name: str) -> Response:
        """Propose an edit to the newest version."""
        edit = versions.propose_newest(reachable_member(request, name), cast(User, request.user))
        return Response(described(edit), status=status.HTTP_201_CREATED)


class RelockView(HallView):
    permission_classes = (IsAuthenticated, MayEditMembers)

    @extend_schema(
        parameters=[VerbOptions],
        request=None,
        responses={202: MemberDetailSerializer, 403: REFUSED, 404: REFUSED, 409: REFUSED},
    )
    def post(self, request: Request, name: str) -> Response:
        """Delete the lock of the member's packages, and restart the member if it runs.

        Its next start makes another lock, with the newest packages that the arguments allow.
        """
        row = reachable_member(request, name)
        relock(row, force=query_of(VerbOptions, request)["force"])
        return Response(member_detail(row, principal_of(request)), status=status.HTTP_202_ACCEPTED)
