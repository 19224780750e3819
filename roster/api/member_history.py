"""What happened to a member, over REST: its log and the changes of its status."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from rest_framework import serializers
from rest_framework.generics import ListAPIView
from rest_framework.request import Request
from rest_framework.response import Response

from mcp_runtime.control.logs import log_tail
from mcp_runtime.protocol.errors import LogUnavailableError
from mcp_runtime.security import access
from roster.api.base import REFUSED, HallView, NewestFirst, query_of
from roster.api.described import extend_schema
from roster.api.permissions import principal_of, reachable_member
from roster.models import StatusChange

MAX_LINES = 5000


class LogFilters(serializers.Serializer[Any]):
    lines = serializers.IntegerField(
        default=200, min_value=1, max_value=MAX_LINES, help_text="The number of lines from the end."
    )


class LogSerializer(serializers.Serializer[Any]):
    lines = serializers.ListField(child=serializers.CharField(), help_text="Oldest first.")
    note = serializers.CharField(
        help_text="Why there are no lines, if the log is on a node that does not send it. Otherwise empty."
    )


class MemberLogsView(HallView):
    @extend_schema(parameters=[LogFilters], responses={200: LogSerializer, 403: REFUSED, 404: REFUSED})
    def get(self, request: Request, name: str) -> Response:
        """The last lines that the member wrote, for whomever it worked.

        It needs the permission roster.view_guildmember, and a token that is not for single tools.
        """
        row = reachable_member(request, name)
        access.require_log(principal_of(request), name)
        try:
            lines, note = log_tail(row, query_of(LogFilters, request)["lines"]), ""
        except LogUnavailableError as error:
            lines, note = [], str(error)
        return Response({"lines": lines, "note": note})


class StatusChangeSerializer(serializers.ModelSerializer[StatusChange]):
    signal = serializers.CharField(
        source="signal_name",
        help_text="The signal that ended the process, for example SIGKILL for exit code -9. Otherwise empty.",
    )

    class Meta:
        model = StatusChange
        fields = [
            *("id", "old", "new", "cause", "message", "exit_code", "signal", "log_tail", "created_at"),
            *("repeats", "repeated_at"),
        ]


class MemberStatusChangesView(HallView, ListAPIView[StatusChange]):
    """Every change of the member's status with its cause and its last lines, newest first: for who may read its log.

    Automatic restarts that fail in the same way are counted in the row of the first failure.
    """

    serializer_class = StatusChangeSerializer
    pagination_class = NewestFirst
    queryset = StatusChange.objects.none()

    def get_queryset(self) -> QuerySet[StatusChange]:
        row = reachable_member(self.request, self.kwargs["name"])
        access.require_log(principal_of(self.request), row.name)
        return StatusChange.objects.filter(member=row)
