"""REST: parse, call `control`, present. Nothing here is open to anonymous users."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, cast

from django.contrib.auth import get_user_model
from django.contrib.auth.models import User
from django.contrib.auth.views import redirect_to_login
from django.db.models import Q, QuerySet
from django.http import HttpResponseBase
from django.shortcuts import redirect
from django.urls import resolve, reverse
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema
from drf_spectacular.views import SpectacularAPIView, SpectacularSwaggerView
from rest_framework import status
from rest_framework.exceptions import NotAuthenticated, NotFound
from rest_framework.generics import ListAPIView
from rest_framework.pagination import CursorPagination
from rest_framework.permissions import IsAuthenticated
from rest_framework.renderers import BaseRenderer, JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import Serializer
from rest_framework.views import APIView

from mcp_runtime import control
from mcp_runtime.invocations import Caller
from roster.api import requests
from roster.api.permissions import MayControl, MayInvoke, readable_calls
from roster.api.serializers import (
    ROSTER_TOOL_COLUMNS,
    CallSerializer,
    ErrorSerializer,
    InvocationFilters,
    InvocationSerializer,
    InvocationSummarySerializer,
    LogFilters,
    LogSerializer,
    MemberDetailSerializer,
    MemberSerializer,
    MembersSerializer,
    RosterSerializer,
    StatusChangeSerializer,
    ToolDetailSerializer,
    ToolFilters,
    ToolSerializer,
    ToolsSerializer,
    as_shown,
    roster_tool,
)
from roster.models import GuildMember, Invocation, StatusChange, Tool

REFUSED = OpenApiResponse(ErrorSerializer, description="Refused; `error` says why.")
PREFER = OpenApiParameter(
    "Prefer", str, OpenApiParameter.HEADER, description="wait=N: wait up to N seconds for the end."
)
IDEMPOTENCY_KEY = OpenApiParameter(
    "Idempotency-Key", str, OpenApiParameter.HEADER, description="A repeat with the same key returns the first call."
)


class HallView(APIView):
    """JSON in, JSON out, whatever the client says it accepts: with one renderer there is nothing to negotiate."""

    renderer_classes = (JSONRenderer,)
    parser_classes = (requests.ObjectParser,)

    def perform_content_negotiation(self, request: Request, force: bool = False) -> tuple[BaseRenderer, str]:
        return JSONRenderer(), JSONRenderer.media_type

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        requests.refuse_chunks(request)
        if "\0" in request.path:  # PostgreSQL would not even look for such a name
            raise NotFound


class NewestFirst(CursorPagination):
    """Pages that stay put while new rows arrive. Addresses without a host: right behind any proxy."""

    ordering = "-id"
    page_size = 50
    max_page_size = 200
    page_size_query_param = "page_size"

    def paginate_queryset(self, queryset: Any, request: Request, view: APIView | None = None) -> list[Any] | None:
        page: list[Any] | None = super().paginate_queryset(queryset, request, view)
        self.base_url = request.get_full_path()
        return page

    def decode_cursor(self, request: Request) -> Any:
        cursor = super().decode_cursor(request)
        # The library passes on whatever a made-up cursor says, and the database would fail on it.
        if cursor is not None and cursor.position is not None and not _is_id(str(cursor.position)):
            raise NotFound(self.invalid_cursor_message)
        return cursor


def _is_id(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 18


def _query(serializer: type[Serializer[Any]], request: Request) -> dict[str, Any]:
    """The query parameters as `serializer` reads them. Raises ValidationError."""
    values = serializer(data=request.query_params)
    values.is_valid(raise_exception=True)
    return dict(values.validated_data)


# The roster and its members ---------------------------------------------------------------------------------------


def _runtime() -> dict[str, Any]:
    holder = control.live_runtime()
    return {"alive": holder is not None, "holder": str(holder) if holder else None}


def _members(*, runtime_is_alive: bool) -> list[GuildMember]:
    rows = control.roster().select_related("port_allocation")
    # What lists do not show: decoding it for hundreds of members takes longer than all the rest.
    rows = rows.defer("manifest", "server_info", "capabilities", "instructions")
    return [as_shown(row, runtime_is_alive=runtime_is_alive) for row in rows]


def _member_detail(row: GuildMember) -> dict[str, Any]:
    alive = control.live_runtime() is not None
    return dict(MemberDetailSerializer(as_shown(row, runtime_is_alive=alive)).data)


class RosterView(HallView):
    @extend_schema(responses=RosterSerializer)
    def get(self, request: Request) -> Response:
        """Every member with its status, error and tools, in a constant number of queries."""
        runtime = _runtime()
        rows = _members(runtime_is_alive=runtime["alive"])
        tools: dict[int, list[dict[str, str]]] = defaultdict(list)
        visible = Tool.objects.filter(control.visible_tools(), member__removed_at=None).order_by("position")
        for member_id, *columns in visible.values_list("member_id", *ROSTER_TOOL_COLUMNS):
            tools[member_id].append(roster_tool(*columns))
        members = [
            {**shown, "tools": tools[row.pk]}
            for row, shown in zip(rows, MemberSerializer(rows, many=True).data, strict=True)
        ]
        return Response({"runtime": runtime, "members": members})


class MembersView(HallView):
    @extend_schema(operation_id="members_list", responses=MembersSerializer)
    def get(self, request: Request) -> Response:
        """Every member, without its tools."""
        runtime = _runtime()
        rows = _members(runtime_is_alive=runtime["alive"])
        return Response({"runtime": runtime, "members": MemberSerializer(rows, many=True).data})


class MemberView(HallView):
    @extend_schema(responses={200: MemberDetailSerializer, 404: REFUSED})
    def get(self, request: Request, name: str) -> Response:
        """Everything the hall knows of one member: its manifest, what is wished, what is seen."""
        return Response(_member_detail(control.member(name)))


class MemberVerbView(HallView):
    """One of control.MEMBER_VERBS. It writes a wish: the runtime acts on it, and the status follows."""

    verb = ""
    permission_classes = (IsAuthenticated, MayControl)

    @extend_schema(request=None, responses={202: MemberDetailSerializer, 403: REFUSED, 404: REFUSED, 409: REFUSED})
    def post(self, request: Request, name: str) -> Response:
        row = control.member(name)
        control.MEMBER_VERBS[self.verb](row)
        return Response(_member_detail(row), status=status.HTTP_202_ACCEPTED)


class MemberLogsView(HallView):
    @extend_schema(parameters=[LogFilters], responses={200: LogSerializer, 404: REFUSED})
    def get(self, request: Request, name: str) -> Response:
        """The last lines that the member wrote."""
        return Response({"lines": control.log_tail(control.member(name), _query(LogFilters, request)["lines"])})


class MemberStatusChangesView(HallView, ListAPIView[StatusChange]):
    """Every change of the member's status with its cause, newest first."""

    serializer_class = StatusChangeSerializer
    pagination_class = NewestFirst
    queryset = StatusChange.objects.none()

    def get_queryset(self) -> QuerySet[StatusChange]:
        return StatusChange.objects.filter(member=control.member(self.kwargs["name"]))


# Tools ------------------------------------------------------------------------------------------------------------


class ToolsView(HallView):
    @extend_schema(
        operation_id="members_tools_list", parameters=[ToolFilters], responses={200: ToolsSerializer, 404: REFUSED}
    )
    def get(self, request: Request, name: str) -> Response:
        """The member's tools, in its own order."""
        row = control.member(name)
        shown = Q(listed=True) if _query(ToolFilters, request)["switched_off"] else control.visible_tools()
        tools = row.tools.filter(shown).select_related("member").order_by("position")
        return Response({"tools": ToolSerializer(tools, many=True).data})


class ToolView(HallView):
    @extend_schema(responses={200: ToolDetailSerializer, 404: REFUSED})
    def get(self, request: Request, name: str, tool: str) -> Response:
        return Response(ToolDetailSerializer(control.tool(name, tool)).data)


class ToolVerbView(HallView):
    """POST does something to the tool; GET is about the tool whose own name ends like that, such as `files/invoke`."""

    verb = ""

    @extend_schema(exclude=True)
    def get(self, request: Request, name: str, tool: str) -> Response:
        return Response(ToolDetailSerializer(control.tool(name, f"{tool}/{self.verb}")).data)


class ToolSwitchView(ToolVerbView):
    """A tool switched off is hidden from lists, and calls to it are refused."""

    permission_classes = (IsAuthenticated, MayControl)

    @extend_schema(request=None, responses={200: ToolDetailSerializer, 403: REFUSED, 404: REFUSED})
    def post(self, request: Request, name: str, tool: str) -> Response:
        row = control.tool(name, tool)
        control.switch_tool(row, on=self.verb == "enable")
        return Response(ToolDetailSerializer(row).data)


class InvokeView(ToolVerbView):
    verb = "invoke"
    permission_classes = (IsAuthenticated, MayInvoke)

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
        },
    )
    def post(self, request: Request, name: str, tool: str) -> Response:
        """Call the tool. Accepted whether or not a runtime is alive: the call waits its turn."""
        invocation, is_new = control.queue_call(
            name,
            tool,
            requests.call_arguments(request),
            caller=Caller(Invocation.Door.REST, cast(User, request.user)),
            idempotency_key=requests.idempotency_key(request),
        )
        response = _accepted(request, invocation)
        if not is_new:
            response["Idempotent-Replayed"] = "true"
        return response


# Invocations ------------------------------------------------------------------------------------------------------

_COLUMNS = [field.name for field in Invocation._meta.concrete_fields]
_OWN_COLUMNS = [field.name for field in Invocation._meta.concrete_fields if not field.is_relation]


def _invocations(request: Request) -> QuerySet[Invocation]:
    # Of the member its name alone: the manifest need not be decoded for every call.
    rows = Invocation.objects.select_related("member").only(*_COLUMNS, "member__name")
    return rows.filter(readable_calls(request.user))


def _invocation(request: Request, pk: int) -> Invocation:
    found = _invocations(request).filter(pk=pk).first()
    if found is None:
        raise NotFound(f"There is no invocation {pk}.")
    return found


def _awaited(request: Request, invocation: Invocation) -> Response:
    """The call, waited for as the client prefers."""
    seconds = 0 if invocation.is_finished else requests.preferred_wait(request)
    if not seconds or not requests.wait_for_end(invocation, seconds):
        return Response(InvocationSerializer(invocation).data)
    # Columns by name: without names it would forget the member, and read it again.
    invocation.refresh_from_db(fields=_OWN_COLUMNS)
    return Response(InvocationSerializer(invocation).data, headers={"Preference-Applied": f"wait={seconds}"})


def _accepted(request: Request, invocation: Invocation) -> Response:
    """200 when the call is over, if need be after waiting; else 202 and where to look for it."""
    response = _awaited(request, invocation)
    if response.data["status"] not in Invocation.FINISHED:
        response.status_code = status.HTTP_202_ACCEPTED
        response["Location"] = response.data["url"]
    return response


class InvocationsView(HallView, ListAPIView[Invocation]):
    """Calls through every door, newest first, without arguments and results: `url` of each has them.

    Without the permission to view calls, a user's own.
    """

    serializer_class = InvocationSummarySerializer
    pagination_class = NewestFirst
    queryset = Invocation.objects.none()

    LOOKUPS = {
        "status": "status__in",
        "member": "member__name",
        "tool": "tool_name",
        "door": "door__in",
        "error_kind": "error_kind__in",
        "requested_by": f"requested_by__{get_user_model().USERNAME_FIELD}",
        "since": "queued_at__gte",
        "until": "queued_at__lt",
    }

    @extend_schema(parameters=[InvocationFilters])
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        return super().get(request, *args, **kwargs)

    def get_queryset(self) -> QuerySet[Invocation]:
        wanted = _query(InvocationFilters, self.request)
        # A filter by several words is an empty set where none was given.
        filters = {self.LOOKUPS[name]: value for name, value in wanted.items() if value}
        return _invocations(self.request).defer("arguments", "result", "error_data").filter(**filters)


class InvocationView(HallView):
    @extend_schema(parameters=[PREFER], responses={200: InvocationSerializer, 404: REFUSED})
    def get(self, request: Request, pk: int) -> Response:
        """One call with its arguments (secrets masked) and its result."""
        return _awaited(request, _invocation(request, pk))


class InvocationCancelView(HallView):
    @extend_schema(
        parameters=[PREFER],
        request=None,
        responses={200: InvocationSerializer, 202: InvocationSerializer, 404: REFUSED, 409: REFUSED},
    )
    def post(self, request: Request, pk: int) -> Response:
        """A queued call is cancelled at once (200), a running one is asked to end (202)."""
        return _accepted(request, control.cancel_call(_invocation(request, pk)))


# The API about itself ---------------------------------------------------------------------------------------------


class IndexView(HallView):
    @extend_schema(exclude=True)
    def get(self, request: Request) -> Response:
        return Response({name: reverse(name) for name in ("roster", "members", "invocations", "docs", "schema")})


class SchemaView(SpectacularAPIView):
    permission_classes = (IsAuthenticated,)
    # Two choices are called `status`: without names of ours the generated ones change with every word added.
    custom_settings = {
        "ENUM_NAME_OVERRIDES": {
            "MemberStatus": "roster.models.GuildMember.Status",
            "InvocationStatus": "roster.models.Invocation.Status",
        }
    }


class DocsView(SpectacularSwaggerView):
    permission_classes = (IsAuthenticated,)
    # Its template cannot show what REST framework answers to OPTIONS.
    http_method_names = ("get", "head")

    def handle_exception(self, exc: Exception) -> Any:
        """A browser without a session is shown the way in."""
        if isinstance(exc, NotAuthenticated):
            return redirect_to_login(self.request.get_full_path())
        return super().handle_exception(exc)


class NowhereView(HallView):
    """An address that is none, said in JSON; a forgotten slash at its end is mended where that is safe."""

    schema = None

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        if not self._lacks_only_a_slash(request):
            raise NotFound("There is nothing at this address; /api/ lists what there is.")
        if request.method not in ("GET", "HEAD"):
            raise NotFound("There is nothing at this address; it needs a slash at its end.")

    def get(self, request: Request, *args: Any, **kwargs: Any) -> HttpResponseBase:
        query = request.META.get("QUERY_STRING", "")
        return redirect(f"{request.path}/" + (f"?{query}" if query else ""))

    def _lacks_only_a_slash(self, request: Request) -> bool:
        if request.path.endswith("/"):
            return False
        match = resolve(f"{request.path_info}/")
        return getattr(match.func, "view_class", None) is not NowhereView
