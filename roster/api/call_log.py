"""What a member wrote during a call, over REST."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from mcp_runtime.control.logs import log_of_call
from mcp_runtime.security import access
from roster.api.base import REFUSED, HallView
from roster.api.calls import get_call
from roster.api.described import extend_schema
from roster.api.permissions import principal_of, reachable_member


class CallLogSerializer(serializers.Serializer[Any]):
    lines = serializers.ListField(
        child=serializers.CharField(), help_text="At most 1,000, oldest first, each with its time (UTC)."
    )
    is_cut = serializers.BooleanField(help_text="Whether there are more lines.")
    is_late = serializers.BooleanField(help_text="Whether the stored log begins after the beginning of the call.")


class CallLogView(HallView):
    @extend_schema(responses={200: CallLogSerializer, 403: REFUSED, 404: REFUSED, 503: REFUSED})
    def get(self, request: Request, pk: int) -> Response:
        """The lines that the member wrote between the beginning of the call and its end, or now.

        Lines do not name their call, so lines of other calls that ran at the same time may be among them. It needs the
        permission roster.view_guildmember, and a token that is not for single tools.
        """
        call = get_call(request, pk)
        reachable_member(request, call.member.name)
        access.require_log(principal_of(request), call.member.name)
        span = log_of_call(call)
        return Response({"lines": span.lines, "is_cut": span.is_cut, "is_late": span.is_late})
