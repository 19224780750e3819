"""Calls over REST: made, listed, waited for and cancelled."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

from django.contrib.auth import get_user_model
from django.contrib.auth.models import User
from django.db.models import QuerySet
from django.urls import reverse
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema_field
from rest_framework import serializers, status
from rest_framework.exceptions import NotFound
from rest_framework.generics import ListAPIView
from rest_framework.request import Request
from rest_framework.response import Response

from mcp_runtime.calls.invocations import Caller
from mcp_runtime.control.calls import cancel_call, masked_arguments, queue_call
from mcp_runtime.security import access
from mcp_runtime.security.access import Principal
from mcp_runtime.security.limits import Limiter
from roster.api import requests
from roster.api.base import PAGING, REFUSED, HallView, NewestFirst, query_of
from roster.api.described import extend_schema
from roster.api.permissions import principal_of, readable_call, readable_calls
from roster.api.tools import ToolVerbView
from roster.models import Invocation

PREFER = OpenApiParameter(
    "Prefer", str, OpenApiParameter.HEADER, description="wait=N: wait up to N seconds for the end."
)
IDEMPOTENCY_KEY = OpenApiParameter(
    "Idempotency-Key",
    str,
    OpenApiParameter.HEADER,
    description="A repeat with the same key and the same token returns the first call.",
)


class InvocationErrorSummarySerializer(serializers.Serializer[Any]):
    kind = serializers.ChoiceField(choices=Invocation.ErrorKind.choices)
    message = serializers.CharField()
    code = serializers.IntegerField(allow_null=True, help_text="Of a JSON-RPC error object.")


class InvocationErrorSerializer(InvocationErrorSummarySerializer):
    # As a field it hides the property of that name, which only documentation would have used.
    data = serializers.JSONField(  # type: ignore[assignment]
        allow_null=True, help_text="Of a JSON-RPC error object."
    )


class InvocationSummarySerializer(serializers.Serializer[Invocation]):
    """A call without what may be large: `url` has that. Spelt out, as ModelSerializer reads the model at every call."""

    id = serializers.IntegerField(source="pk")
    member = serializers.CharField(source="member.name")
    tool = serializers.CharField(source="tool_name")
    status = serializers.ChoiceField(choices=Invocation.Status.choices)
    source = serializers.ChoiceField(choices=Invocation.Source.choices)  # type: ignore[assignment]
    requester = serializers.CharField(help_text="Who asked, in words, as of then.")
    token = serializers.IntegerField(source="token_id", allow_null=True, help_text="Made with the token of this id.")
    queued_at = serializers.DateTimeField()
    started_at = serializers.DateTimeField(allow_null=True)
    finished_at = serializers.DateTimeField(allow_null=True)
    cancel_requested_at = serializers.DateTimeField(allow_null=True)
    duration = serializers.SerializerMethodField(help_text="Seconds from its start to its end.")
    timeout = serializers.FloatField(help_text="Seconds it may take in total.")
    progress = serializers.DictField(
        allow_null=True, help_text="What the member last said of it: progress, total, message."
    )
    error = serializers.SerializerMethodField(help_text="Why it failed; null when it did not.")
    url = serializers.SerializerMethodField()

    def get_duration(self, invocation: Invocation) -> float | None:
        return invocation.duration.total_seconds() if invocation.duration is not None else None

    @extend_schema_field(InvocationErrorSummarySerializer(allow_null=True))
    def get_error(self, invocation: Invocation) -> dict[str, Any] | None:
        if not invocation.error_kind:
            return None
        return {"kind": invocation.error_kind, "message": invocation.error_message, "code": invocation.error_code}

    def get_url(self, invocation: Invocation) -> str:
        return reverse("invocation", args=[invocation.pk])


class InvocationSerializer(InvocationSummarySerializer):
    arguments = serializers.SerializerMethodField(help_text="Secrets are masked.")
    result = serializers.DictField(allow_null=True, help_text="The tool's result as MCP gives it, isError included.")

    def get_arguments(self, invocation: Invocation) -> dict[str, Any]:
        return masked_arguments(invocation)

    @extend_schema_field(InvocationErrorSerializer(allow_null=True))
    def get_error(self, invocation: Invocation) -> dict[str, Any] | None:
        error = super().get_error(invocation)
        return {**error, "data": invocation.error_data} if error else None


class InvocationFilters(serializers.Serializer[Any]):
    """What narrows the list of calls."""

    status = serializers.MultipleChoiceField(choices=Invocation.Status.choices, required=False)
    member = serializers.CharField(required=False)
    tool = serializers.CharField(required=False)
    source = serializers.MultipleChoiceField(choices=Invocation.Source.choices, required=False)  # type: ignore[assignment]
    error_kind = serializers.MultipleChoiceField(choices=Invocation.ErrorKind.choices, required=False)
    requested_by = serializers.CharField(required=False, help_text="A user's name.")
    since = serializers.DateTimeField(required=False, help_text="Queued then or later.")
    until = serializers.DateTimeField(required=False, help_text="Queued before then.")

    def validate(self, values: dict[str, Any]) -> dict[str, Any]:
        """Refuses a misspelt filter, because to ignore it would widen the list silently."""
        if extra_keys := set(self.initial_data) - set(self.fields) - PAGING:
            field_names = ", ".join(self.fields)
            raise serializers.ValidationError(
                {name: [f"No filter has this name; there are {field_names}."] for name in extra_keys}
            )
        return values


_COLUMNS = [field.name for field in Invocation._meta.concrete_fields]
# Its fields are bound once: to copy them for each call takes a fifth of a request.
_SERIALIZER = InvocationSerializer()


def _invocation(request: Request, pk: int) -> Invocation:
    invocation = readable_call(request, pk)
    if invocation is None:
        raise NotFound(f"There is no invocation {pk}.")
    return invocation


def _response_after_wait(request: Request, invocation: Invocation) -> Response:
    """The call, after the wait that the client prefers."""
    seconds = 0 if invocation.is_finished else requests.preferred_wait(request)
    if not seconds or not requests.wait_for_end(request, invocation, seconds):
        return Response(_SERIALIZER.to_representation(invocation))
    now = _SERIALIZER.to_representation(_invocation(request, invocation.pk))
    return Response(now, headers={"Preference-Applied": f"wait={seconds}"})


def _queue_response(request: Request, invocation: Invocation) -> Response:
    """200 when the call is over, perhaps after a wait, else 202 with its address."""
    response = _response_after_wait(request, invocation)
    if response.data["status"] not in Invocation.FINISHED:
        response.status_code = status.HTTP_202_ACCEPTED
        response["Location"] = response.data["url"]
    return response


class InvocationsView(HallView, ListAPIView[Invocation]):
    """Calls of every source, newest first, without arguments and results: `url` of each has them.

    Without the permission to view calls, a user's own.
    """

    serializer_class = InvocationSummarySerializer
    pagination_class = NewestFirst
    queryset = Invocation.objects.none()

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

    @extend_schema(parameters=[InvocationFilters])
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        return super().get(request, *args, **kwargs)

    def get_queryset(self) -> QuerySet[Invocation]:
        values = query_of(InvocationFilters, self.request)
        # A filter by several words is an empty set where none was given.
        filters = {self.LOOKUPS[name]: value for name, value in values.items() if value}
        # Of the member its name alone: the manifest need not be decoded for every call.
        rows = Invocation.objects.select_related("member").only(*_COLUMNS, "member__name")
        rows = rows.defer("arguments", "result", "error_data")
        return rows.filter(readable_calls(self.request), **filters)


class InvocationView(HallView):
    @extend_schema(parameters=[PREFER], responses={200: InvocationSerializer, 404: REFUSED})
    def get(self, request: Request, pk: int) -> Response:
        """One call with its arguments (secrets masked) and its result."""
        return _response_after_wait(request, _invocation(request, pk))


class InvocationCancelView(HallView):
    @extend_schema(
        parameters=[PREFER],
        request=None,
        responses={200: InvocationSerializer, 202: InvocationSerializer, 403: REFUSED, 404: REFUSED, 409: REFUSED},
    )
    def post(self, request: Request, pk: int) -> Response:
        """A queued call is cancelled at once (200), a running one is asked to end (202).

        Your own, or that of a member that you may stop.
        """
        call = _invocation(request, pk)
        access.require_cancel(principal_of(request), call.member.name, call.requested_by_id)
        return _queue_response(request, cancel_call(call))


# A new one --------------------------------------------------------------------------------------------------------

limiter = Limiter()


def _within_limits(who: Principal) -> AbstractContextManager[None]:
    """Around a call. A browser's session has no limits of its own. Raises TooManyCallsError."""
    if who.token_id is None:
        return nullcontext()
    return limiter.call(who.token_id, who.limits)


class CallSerializer(serializers.Serializer[Any]):
    """The body of an invoke."""

    arguments = serializers.DictField(required=False, help_text="As the tool's input_schema says; {} when left out.")


class InvokeView(ToolVerbView):
    verb = "invoke"

    @extend_schema(
        parameters=[PREFER, IDEMPOTENCY_KEY],
        request=CallSerializer,
        responses={
            200: OpenApiResponse(InvocationSerializer, description="It is over."),
            202: OpenApiResponse(InvocationSerializer, description="It is queued or runs; see Location."),
            400: REFUSED,
            403: REFUSED,
            404: REFUSED,
            409: REFUSED,
            422: REFUSED,
            429: REFUSED,
        },
    )
    def post(self, request: Request, name: str, tool: str) -> Response:
        """Call the tool. Accepted whether or not a runtime is alive: the call waits its turn."""
        with _within_limits(principal_of(request)):
            return self._call(request, name, tool)

    @staticmethod
    def _call(request: Request, name: str, tool: str) -> Response:
        invocation, is_new = queue_call(
            name,
            tool,
            requests.call_arguments(request),
            caller=Caller(Invocation.Source.REST, cast(User, request.user), principal_of(request)),
            idempotency_key=requests.idempotency_key(request),
        )
        response = _queue_response(request, invocation)
        if not is_new:
            response["Idempotent-Replayed"] = "true"
        return response
