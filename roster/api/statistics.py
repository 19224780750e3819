"""The figures of a member's calls over REST, as in its plots."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from mcp_runtime.control.calls import SPANS, call_series
from mcp_runtime.security import access
from roster.api.base import REFUSED, HallView, query_of
from roster.api.described import extend_schema
from roster.api.permissions import principal_of, reachable_member


class StatisticsFilters(serializers.Serializer[Any]):
    span = serializers.ChoiceField(
        choices=SPANS,
        default=SPANS[0],
        help_text="60 points of one minute, 96 of 15 minutes, or 168 of one hour. The last point is not complete.",
    )
    tool = serializers.CharField(
        required=False, default="", max_length=255, help_text="Only this tool. If empty, all tools of the member."
    )


class PointSerializer(serializers.Serializer[Any]):
    """Calls that ended. Times are seconds from the claim to the end. Null if no call was started."""

    begins_at = serializers.DateTimeField()
    calls = serializers.IntegerField()
    failed = serializers.IntegerField()
    p50 = serializers.FloatField(allow_null=True, help_text="The median duration, accurate to 20 %.")
    p95 = serializers.FloatField(allow_null=True, help_text="The 95th percentile of durations, accurate to 20 %.")
    mean = serializers.FloatField(allow_null=True)


class StatisticsSerializer(serializers.Serializer[Any]):
    span = serializers.CharField()
    seconds = serializers.IntegerField(help_text="The length of each point in seconds.")
    total = PointSerializer(help_text="All points together.")
    points = PointSerializer(many=True, help_text="Oldest first. Points without calls are included.")


class MemberStatisticsView(HallView):
    @extend_schema(parameters=[StatisticsFilters], responses={200: StatisticsSerializer, 403: REFUSED, 404: REFUSED})
    def get(self, request: Request, name: str) -> Response:
        """How many calls of the member ended and failed, from every source, and how long they took.

        It needs a permission to view members or calls; of a single tool, to view tools or calls.
        """
        row, principal = reachable_member(request, name), principal_of(request)
        values = query_of(StatisticsFilters, request)
        access.require_figures(principal, name, values["tool"])
        series = call_series(values["span"], member=row, tool_name=values["tool"])
        values = {
            "span": series.span.name,
            "seconds": series.span.seconds,
            "total": series.total,
            "points": series.points,
        }
        return Response(StatisticsSerializer(values).data)
