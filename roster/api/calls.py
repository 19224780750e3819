"""Calls over REST: create, list, read and cancel them."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from functools import lru_cache
from typing import Any, cast

from django.contrib.auth import get_user_model
from django.contrib.auth.models import User
from django.db.models import Q, QuerySet
from django.urls import get_script_prefix, reverse
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema_field
from rest_framework import serializers, status
from rest_framework.exceptions import NotFound
from rest_framework.generics import ListAPIView
from rest_framework.request import Request
from rest_framework.response import Response

from mcp_runtime.calls.transitions import Requester
from mcp_runtime.control import call_search
from mcp_runtime.control.calls import cancel_call, masked_arguments, queue_call
from mcp_runtime.control.tool_sets import ToolSetsOfCalls
from mcp_runtime.security import access
from mcp_runtime.security.access import Principal
from mcp_runtime.security.limits import Limiter
from roster.api import requests
from roster.api.base import REFUSED, Filters, HallView, NewestFirst, query_of
from roster.api.described import extend_schema
from roster.api.permissions import principal_of, readable_call, readable_calls
from roster.api.tools import ToolVerbView
from roster.models import Call

PREFER = OpenApiParameter(
    "Prefer",
    str,
    OpenApiParameter.HEADER,
    description=f"`wait=N`: wait up to N seconds (at most {requests.MAX_WAIT}) for the end of the call.",
)
IDEMPOTENCY_KEY = OpenApiParameter(
    "Idempotency-Key",
    str,
    OpenApiParameter.HEADER,
    description=(
        "If the same token (without a token: the same user) already made a call with this key, the tool is not called "
        "again. The response is the first call, with the header `Idempotent-Replayed: true`."
    ),
)


class CallErrorSummarySerializer(serializers.Serializer[Any]):
    kind = serializers.ChoiceField(choices=Call.ErrorKind.choices)
    message = serializers.CharField()
    code = serializers.IntegerField(
        allow_null=True, help_text="The code of the JSON-RPC error, if the member returned one. Otherwise null."
    )


class CallErrorSerializer(CallErrorSummarySerializer):
    # mypy thinks that this field overrides the property `data` of serializers. It does not, because the metaclass of
    # serializers removes fields from the class.
    data = serializers.JSONField(  # type: ignore[assignment]
        allow_null=True, help_text="The data of the JSON-RPC error, if the member returned some. Otherwise null."
    )


class CallSummarySerializer(serializers.Serializer[Call]):
    """A call without its arguments and its result, which may be large. A GET request to `url` returns them."""

    # Not a ModelSerializer, because that inspects the model again for each instance of the serializer.
    id = serializers.IntegerField(source="pk")
    member = serializers.CharField(source="member.name")
    tool = serializers.CharField(source="tool_name")
    tool_version = serializers.CharField(
        help_text="The version of the tool when the call was made. Empty if the hall did not know the tool."
    )
    tool_set = serializers.SerializerMethodField(
        help_text="The name of the tool set at whose address it was called. Null for calls at other addresses, and for "
        "calls of others if the tool set does not exist for you."
    )
    status = serializers.ChoiceField(choices=Call.Status.choices)
    source = serializers.ChoiceField(choices=Call.Source.choices)  # type: ignore[assignment]
    requester = serializers.CharField(help_text="The names of the user and the token when the call was made.")
    token = serializers.IntegerField(source="token_id", allow_null=True, help_text="The id of the token.")
    queued_at = serializers.DateTimeField()
    started_at = serializers.DateTimeField(allow_null=True)
    finished_at = serializers.DateTimeField(allow_null=True)
    cancel_requested_at = serializers.DateTimeField(allow_null=True)
    duration = serializers.SerializerMethodField(help_text="Seconds from started_at to finished_at.")
    timeout = serializers.FloatField(help_text="The maximum duration in seconds.")
    progress = serializers.DictField(
        allow_null=True, help_text="The last progress that the member reported, with progress, total and message."
    )
    error = serializers.SerializerMethodField(help_text="The error, if the call failed. Otherwise null.")
    url = serializers.SerializerMethodField()

    def get_tool_set(self, call: Call) -> str | None:
        tool_sets: ToolSetsOfCalls = self.context["tool_sets"]
        return tool_sets.of(call)

    def get_duration(self, call: Call) -> float | None:
        return call.duration.total_seconds() if call.duration is not None else None

    @extend_schema_field(CallErrorSummarySerializer(allow_null=True))
    def get_error(self, call: Call) -> dict[str, Any] | None:
        if not call.error_kind:
            return None
        return {"kind": call.error_kind, "message": call.error_message, "code": call.error_code}

    def get_url(self, call: Call) -> str:
        return f"{_url_of_calls(get_script_prefix())}{call.pk}/"


@lru_cache(maxsize=8)
def _url_of_calls(script_prefix: str) -> str:
    """Return the URL of a call without its id. `reverse` takes a thirtieth of the time of a request."""
    return reverse("call", args=[0]).removesuffix("0/")


class CallSerializer(CallSummarySerializer):
    """A call with its arguments and its result."""

    def to_representation(self, call: Call) -> dict[str, Any]:
        """Return what REST framework would return. Its work for each field takes a tenth of the time of a request."""
        return {
            "id": call.pk,
            "member": call.member.name,
            "tool": call.tool_name,
            "tool_version": call.tool_version,
            "tool_set": self.get_tool_set(call),
            "status": call.status,
            "source": call.source,
            "requester": call.requester,
            "token": call.token_id,
            "queued_at": _timestamp(call.queued_at),
            "started_at": _timestamp(call.started_at),
            "finished_at": _timestamp(call.finished_at),
            "cancel_requested_at": _timestamp(call.cancel_requested_at),
            "duration": self.get_duration(call),
            "timeout": call.timeout,
            "progress": call.progress,
            "error": self.get_error(call),
            "url": self.get_url(call),
            "arguments": self.get_arguments(call),
            "result": call.result,
        }

    arguments = serializers.SerializerMethodField(help_text="The arguments. Secrets are masked.")
    result = serializers.DictField(allow_null=True, help_text="The result of the tool as in MCP, including isError.")

    def get_arguments(self, call: Call) -> dict[str, Any]:
        return masked_arguments(call)

    @extend_schema_field(CallErrorSerializer(allow_null=True))
    def get_error(self, call: Call) -> dict[str, Any] | None:
        error = super().get_error(call)
        return {**error, "data": call.error_data} if error else None


def _timestamp(moment: datetime | None) -> str | None:
    return moment.isoformat().replace("+00:00", "Z") if moment is not None else None


class CallFilters(Filters):
    """The filters of the list of calls."""

    status = serializers.MultipleChoiceField(choices=Call.Status.choices, required=False)
    member = serializers.CharField(required=False)
    tool = serializers.CharField(required=False)
    tool_set = serializers.CharField(required=False, help_text="The name of a tool set.")
    source = serializers.MultipleChoiceField(choices=Call.Source.choices, required=False)  # type: ignore[assignment]
    error_kind = serializers.MultipleChoiceField(choices=Call.ErrorKind.choices, required=False)
    requested_by = serializers.CharField(required=False, help_text="The name of a user.")
    since = serializers.DateTimeField(required=False, help_text="Only calls that were queued at this time or later.")
    until = serializers.DateTimeField(required=False, help_text="Only calls that were queued before this time.")
    search = serializers.CharField(
        required=False,
        max_length=200,
        help_text="Only ended calls with all these words in their arguments, result or error. A word of three or more "
        "letters also finds longer words that begin with it. Of each call, the hall searches the first 2,000 "
        "characters of the arguments, and of the result and the error.",
    )


_COLUMNS = [field.name for field in Call._meta.concrete_fields]


def tool_sets_of(request: Request) -> ToolSetsOfCalls:
    return ToolSetsOfCalls(principal_of(request), is_superuser=cast(User, request.user).is_superuser)


def _represent(request: Request, call: Call) -> dict[str, Any]:
    return CallSerializer(context={"tool_sets": tool_sets_of(request)}).to_representation(call)


def get_call(request: Request, pk: int) -> Call:
    """Return the call. Raises NotFound if it does not exist or this principal may not read it."""
    call = readable_call(request, pk)
    if call is None:
        raise NotFound(f"There is no call {pk}.")
    return call


def _response_after_wait(request: Request, call: Call) -> Response:
    """Return a response with the call.

    If the client prefers it, wait for the end of the call first. Do not wait if too many other requests are waiting.
    """
    seconds = 0 if call.is_finished else requests.preferred_wait(request)
    if not seconds or not requests.wait_for_end(request, call, seconds):
        return Response(_represent(request, call))
    representation = _represent(request, get_call(request, call.pk))
    return Response(representation, headers={"Preference-Applied": f"wait={seconds}"})


def _response_to_change(request: Request, call: Call) -> Response:
    """Return the response to a request that created or cancelled a call.

    The status is 200 if the call has ended, perhaps after a wait. Otherwise it is 202, with the URL of the call.
    """
    response = _response_after_wait(request, call)
    if response.data["status"] not in Call.FINISHED:
        response.status_code = status.HTTP_202_ACCEPTED
        response["Location"] = response.data["url"]
    return response


LOOKUPS = {
    "status": "status__in",
    "member": "member__name",
    "tool": "tool_name",
    "source": "source__in",
    "error_kind": "error_kind__in",
    "requested_by": f"requested_by__{get_user_model().USERNAME_FIELD}",
    "since": "queued_at__gte",
    "until": "queued_at__lt",
}


def filtered_calls(request: Request, values: dict[str, Any]) -> QuerySet[Call]:
    """The calls that the principal may see and that pass the filters, without the search."""
    # If the query does not contain a MultipleChoiceField, the value of the field is an empty set.
    filters = {LOOKUPS[name]: value for name, value in values.items() if value and name in LOOKUPS}
    # Load only the name of each member. Otherwise its manifest would be decoded again for each call.
    rows = Call.objects.select_related("member").only(*_COLUMNS, "member__name")
    if tool_set := values.get("tool_set"):
        rows = rows.filter(tool_sets_of(request).calls_through(tool_set))
    return rows.filter(readable_calls(request), **filters)


def search_of(values: dict[str, Any]) -> Q:
    """The condition of the filter `search`, which is empty without it. Raises SearchError."""
    text = values.get("search", "")
    if not text:
        return Q()
    call_search.require_available()
    return call_search.matching(text)


class CallsView(HallView, ListAPIView[Call]):
    """List the calls from all sources, newest first, without arguments and results.

    A user with the permission to view calls sees all calls, except those of other users in members that are reserved
    for other groups. Without the permission, a user sees only their own calls. A token whose scope is limited sees only
    the calls that were made with it.
    """

    serializer_class = CallSummarySerializer
    pagination_class = NewestFirst
    queryset = Call.objects.none()

    @extend_schema(parameters=[CallFilters], responses={200: CallSummarySerializer(many=True), 400: REFUSED})
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        with call_search.limit() if "search" in request.query_params else nullcontext():
            return super().get(request, *args, **kwargs)

    def get_queryset(self) -> QuerySet[Call]:
        values = query_of(CallFilters, self.request)
        return filtered_calls(self.request, values).filter(search_of(values)).defer(*Call.UNLISTED)

    def get_serializer_context(self) -> dict[str, Any]:
        return {**super().get_serializer_context(), "tool_sets": tool_sets_of(self.request)}


class CallView(HallView):
    @extend_schema(parameters=[PREFER], responses={200: CallSerializer, 404: REFUSED})
    def get(self, request: Request, pk: int) -> Response:
        """Return one call with its arguments and its result. Secrets in the arguments are masked."""
        return _response_after_wait(request, get_call(request, pk))


class CallCancelView(HallView):
    @extend_schema(
        parameters=[PREFER],
        request=None,
        responses={200: CallSerializer, 202: CallSerializer, 403: REFUSED, 404: REFUSED, 409: REFUSED},
    )
    def post(self, request: Request, pk: int) -> Response:
        """Cancel a call. A queued call ends at once (200). The runtime cancels a running call a moment later (202).

        You can cancel your own calls. With the permissions to view all calls and to stop the member, you can cancel
        the calls of other users.
        """
        call = get_call(request, pk)
        access.require_cancel(principal_of(request), call.member.name, call.requested_by_id)
        return _response_to_change(request, cancel_call(call))


# A new call -------------------------------------------------------------------------------------------------------

limiter = Limiter()


def _within_limits(principal: Principal) -> AbstractContextManager[None]:
    """Count a call against the limits of the token while the context lasts. Raises TooManyCallsError.

    A request with a browser session has no limits.
    """
    if principal.token_id is None:
        return nullcontext()
    return limiter.call(principal.token_id, principal.limits)


class InvokeRequestSerializer(serializers.Serializer[Any]):
    """The body of a request to call a tool."""

    arguments = serializers.DictField(
        required=False, help_text="The arguments. They must match the input_schema of the tool. The default is {}."
    )


class InvokeView(ToolVerbView):
    verb = "invoke"

    @extend_schema(
        parameters=[PREFER, IDEMPOTENCY_KEY],
        request=InvokeRequestSerializer,
        responses={
            200: OpenApiResponse(CallSerializer, description="The call has ended."),
            202: OpenApiResponse(
                CallSerializer, description="The call is queued or running. The header Location is its URL."
            ),
            400: REFUSED,
            403: REFUSED,
            404: REFUSED,
            409: REFUSED,
            422: REFUSED,
            429: REFUSED,
        },
    )
    def post(self, request: Request, name: str, tool: str) -> Response:
        """Call the tool. While no runtime is running, the call stays in the queue."""
        with _within_limits(principal_of(request)):
            return self._invoke(request, name, tool)

    @staticmethod
    def _invoke(request: Request, name: str, tool: str) -> Response:
        call, is_new = queue_call(
            name,
            tool,
            requests.call_arguments(request),
            requester=Requester(Call.Source.REST, cast(User, request.user), principal_of(request)),
            idempotency_key=requests.idempotency_key(request),
        )
        response = _response_to_change(request, call)
        if not is_new:
            response["Idempotent-Replayed"] = "true"
        return response
