"""REST: parse, call `control`, present. Nothing here is open to anonymous users."""

from __future__ import annotations

from collections import defaultdict
from contextlib import AbstractContextManager, nullcontext
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

from mcp_runtime import access, control
from mcp_runtime.access import Principal
from mcp_runtime.invocations import Caller
from mcp_runtime.limits import Limiter
from roster import agent_config, tokens
from roster.api import requests
from roster.api.permissions import (
    MayControl,
    MayMakeTokens,
    controlled_member,
    listed_tool,
    principal_of,
    reached_member,
    readable_calls,
)
from roster.api.serializers import (
    ROSTER_TOOL_COLUMNS,
    AgentConfigFilters,
    AgentConfigSerializer,
    AgentConfigWish,
    CallSerializer,
    CostSerializer,
    ErrorSerializer,
    InvocationFilters,
    InvocationSerializer,
    InvocationSummarySerializer,
    LogFilters,
    LogSerializer,
    MadeTokenSerializer,
    MemberDetailSerializer,
    MemberSerializer,
    MembersSerializer,
    NewTokenSerializer,
    RosterSerializer,
    StatusChangeSerializer,
    TokenSerializer,
    ToolDetailSerializer,
    ToolFilters,
    ToolSerializer,
    ToolsSerializer,
    VerbOptions,
    as_shown,
    roster_tool,
)
from roster.models import ApiToken, GuildMember, Invocation, StatusChange, Tool
from roster.tokens import TokenWish

REFUSED = OpenApiResponse(ErrorSerializer, description="Refused; `error` says why.")
PREFER = OpenApiParameter(
    "Prefer", str, OpenApiParameter.HEADER, description="wait=N: wait up to N seconds for the end."
)
IDEMPOTENCY_KEY = OpenApiParameter(
    "Idempotency-Key",
    str,
    OpenApiParameter.HEADER,
    description="A repeat with the same key and the same token returns the first call.",
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


def query_of(serializer: type[Serializer[Any]], request: Request) -> dict[str, Any]:
    """The query parameters as `serializer` reads them. Raises ValidationError."""
    values = serializer(data=request.query_params)
    values.is_valid(raise_exception=True)
    return dict(values.validated_data)


# The roster and its members ---------------------------------------------------------------------------------------


def _runtime() -> dict[str, Any]:
    holder = control.live_runtime()
    return {"alive": holder is not None, "holder": str(holder) if holder else None}


def _members(who: Principal, *, runtime_is_alive: bool) -> list[GuildMember]:
    rows = control.roster().select_related("port_allocation")
    # What lists do not show: decoding it for hundreds of members takes longer than all the rest.
    rows = rows.defer("manifest", "server_info", "capabilities", "instructions")
    return [as_shown(row, who, runtime_is_alive=runtime_is_alive) for row in rows if who.reaches(row.name)]


def _member_detail(row: GuildMember, who: Principal) -> dict[str, Any]:
    alive = control.live_runtime() is not None
    return dict(MemberDetailSerializer(as_shown(row, who, runtime_is_alive=alive)).data)


class RosterView(HallView):
    @extend_schema(responses=RosterSerializer)
    def get(self, request: Request) -> Response:
        """Every member that is there for you with its status, its error and the tools that you may call.

        In a constant number of queries.
        """
        runtime, who = _runtime(), principal_of(request)
        rows = _members(who, runtime_is_alive=runtime["alive"])
        names = {row.pk: row.name for row in rows}
        tools: dict[int, list[dict[str, str]]] = defaultdict(list)
        visible = Tool.objects.filter(control.visible_tools(), member__removed_at=None).order_by("position")
        for member_id, *columns in visible.values_list("member_id", *ROSTER_TOOL_COLUMNS):
            if member_id in names and who.may_list(names[member_id], columns[0]):
                tools[member_id].append(roster_tool(*columns))
        members = [
            {**shown, "tools": tools[row.pk]}
            for row, shown in zip(rows, MemberSerializer(rows, many=True).data, strict=True)
        ]
        return Response({"runtime": runtime, "members": members})


class MembersView(HallView):
    @extend_schema(operation_id="members_list", responses=MembersSerializer)
    def get(self, request: Request) -> Response:
        """Every member that is there for you, without its tools."""
        runtime = _runtime()
        rows = _members(principal_of(request), runtime_is_alive=runtime["alive"])
        return Response({"runtime": runtime, "members": MemberSerializer(rows, many=True).data})


class MemberView(HallView):
    @extend_schema(responses={200: MemberDetailSerializer, 404: REFUSED})
    def get(self, request: Request, name: str) -> Response:
        """Everything the hall knows of one member: its manifest, what is wished, what is seen."""
        return Response(_member_detail(reached_member(request, name), principal_of(request)))


class MemberVerbView(HallView):
    """One of control.MEMBER_VERBS. It writes a wish: the runtime acts on it, and the status follows."""

    verb = ""
    permission_classes = (IsAuthenticated, MayControl)

    @extend_schema(
        parameters=[VerbOptions],
        request=None,
        responses={202: MemberDetailSerializer, 403: REFUSED, 404: REFUSED, 409: REFUSED},
    )
    def post(self, request: Request, name: str) -> Response:
        row = controlled_member(request, name)
        force = (
            {"force": True} if query_of(VerbOptions, request)["force"] and self.verb in control.FORCIBLE_VERBS else {}
        )
        control.MEMBER_VERBS[self.verb](row, **force)
        return Response(_member_detail(row, principal_of(request)), status=status.HTTP_202_ACCEPTED)


class MemberLogsView(HallView):
    @extend_schema(parameters=[LogFilters], responses={200: LogSerializer, 403: REFUSED, 404: REFUSED})
    def get(self, request: Request, name: str) -> Response:
        """The last lines that the member wrote, for whomever it worked.

        It needs the permission roster.view_guildmember, and a token that is not for single tools.
        """
        row = reached_member(request, name)
        access.require_log(principal_of(request), name)
        return Response({"lines": control.log_tail(row, query_of(LogFilters, request)["lines"])})


class MemberStatusChangesView(HallView, ListAPIView[StatusChange]):
    """Every change of the member's status with its cause and its last lines, newest first: for who may read its log."""

    serializer_class = StatusChangeSerializer
    pagination_class = NewestFirst
    queryset = StatusChange.objects.none()

    def get_queryset(self) -> QuerySet[StatusChange]:
        row = reached_member(self.request, self.kwargs["name"])
        access.require_log(principal_of(self.request), row.name)
        return StatusChange.objects.filter(member=row)


# Tools ------------------------------------------------------------------------------------------------------------


class ToolsView(HallView):
    @extend_schema(
        operation_id="members_tools_list", parameters=[ToolFilters], responses={200: ToolsSerializer, 404: REFUSED}
    )
    def get(self, request: Request, name: str) -> Response:
        """The tools of the member that you may call (or switch), in its own order."""
        row, who = reached_member(request, name), principal_of(request)
        shown = Q(listed=True) if query_of(ToolFilters, request)["switched_off"] else control.visible_tools()
        rows = row.tools.filter(shown).select_related("member").order_by("position")
        tools = [tool for tool in rows if who.may_list(name, tool.name)]
        return Response({"tools": ToolSerializer(tools, many=True).data})


class ToolView(HallView):
    @extend_schema(responses={200: ToolDetailSerializer, 404: REFUSED})
    def get(self, request: Request, name: str, tool: str) -> Response:
        return Response(ToolDetailSerializer(listed_tool(request, name, tool)).data)


class ToolVerbView(HallView):
    """POST does something to the tool; GET is about the tool whose own name ends like that, such as `files/invoke`."""

    verb = ""

    @extend_schema(exclude=True)
    def get(self, request: Request, name: str, tool: str) -> Response:
        return Response(ToolDetailSerializer(listed_tool(request, name, f"{tool}/{self.verb}")).data)


class ToolSwitchView(ToolVerbView):
    """A tool switched off is hidden from lists, and calls to it are refused."""

    permission_classes = (IsAuthenticated, MayControl)

    @extend_schema(request=None, responses={200: ToolDetailSerializer, 403: REFUSED, 404: REFUSED})
    def post(self, request: Request, name: str, tool: str) -> Response:
        controlled_member(request, name)
        row = control.tool(name, tool)
        control.switch_tool(row, on=self.verb == "enable")
        return Response(ToolDetailSerializer(row).data)


limiter = Limiter()


def _within_limits(who: Principal) -> AbstractContextManager[None]:
    """Around a call. A browser's session has no limits of its own. Raises TooManyCallsError."""
    if who.token_id is None:
        return nullcontext()
    return limiter.call(who.token_id, calls_per_minute=who.calls_per_minute, max_in_flight=who.max_in_flight)


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
        invocation, is_new = control.queue_call(
            name,
            tool,
            requests.call_arguments(request),
            caller=Caller(Invocation.Door.REST, cast(User, request.user), principal_of(request)),
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
    return rows.filter(readable_calls(request))


def _invocation(request: Request, pk: int) -> Invocation:
    found = _invocations(request).filter(pk=pk).first()
    if found is None:
        raise NotFound(f"There is no invocation {pk}.")
    return found


def _awaited(request: Request, invocation: Invocation) -> Response:
    """The call, waited for as the client prefers."""
    seconds = 0 if invocation.is_finished else requests.preferred_wait(request)
    if not seconds or not requests.wait_for_end(request, invocation, seconds):
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
        wanted = query_of(InvocationFilters, self.request)
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
        responses={200: InvocationSerializer, 202: InvocationSerializer, 403: REFUSED, 404: REFUSED, 409: REFUSED},
    )
    def post(self, request: Request, pk: int) -> Response:
        """A queued call is cancelled at once (200), a running one is asked to end (202).

        Your own, or that of a member that you may stop.
        """
        call = _invocation(request, pk)
        access.require_cancel(principal_of(request), call.member.name, call.requested_by_id)
        return _accepted(request, control.cancel_call(call))


# Tokens -----------------------------------------------------------------------------------------------------------


def _tokens(request: Request) -> QuerySet[ApiToken]:
    """One's own. A token that is for a part alone knows of no other."""
    who = principal_of(request)
    own = ApiToken.objects.filter(user=who.user_id).prefetch_related("members", "tools__member")
    return own.filter(pk__in=[who.token_id]) if who.is_narrowed else own


def _own_token(request: Request, pk: int) -> ApiToken:
    found = _tokens(request).filter(pk=pk).first()
    if found is None:
        raise NotFound(f"You have no token {pk}.")
    return found


class TokensView(HallView, ListAPIView[ApiToken]):
    """Your own tokens, newest first; revoked and expired ones too."""

    serializer_class = TokenSerializer
    pagination_class = NewestFirst
    queryset = ApiToken.objects.none()
    permission_classes = (IsAuthenticated, MayMakeTokens)

    def get_queryset(self) -> QuerySet[ApiToken]:
        return _tokens(self.request)

    @extend_schema(
        request=NewTokenSerializer, responses={201: MadeTokenSerializer, 400: REFUSED, 403: REFUSED, 404: REFUSED}
    )
    def post(self, request: Request) -> Response:
        """Make a token of yours. It is in this answer and nowhere else.

        With a token it cannot open more, live longer or do more than that token, whose scope, end and limits it has
        where nothing else is asked for.
        """
        wish = NewTokenSerializer(data=request.data)
        wish.is_valid(raise_exception=True)
        row, token = tokens.make(
            cast(User, request.user), TokenWish(**wish.validated_data), maker=principal_of(request)
        )
        return Response({**TokenSerializer(row).data, "token": token}, status=status.HTTP_201_CREATED)


class TokenView(HallView):
    @extend_schema(responses={200: TokenSerializer, 404: REFUSED})
    def get(self, request: Request, pk: int) -> Response:
        return Response(TokenSerializer(_own_token(request, pk)).data)


class TokenRevokeView(HallView):
    @extend_schema(request=None, responses={200: TokenSerializer, 404: REFUSED})
    def post(self, request: Request, pk: int) -> Response:
        """From now on it opens nothing, nor do tokens made with it; agents that were asked with it are stopped.

        Its row stays, for the calls that were made with it.
        """
        row = _own_token(request, pk)
        control.revoke_token(row)
        return Response(TokenSerializer(row).data)


class AgentConfigView(HallView):
    """What an agent's client wants written down to reach the hall."""

    permission_classes = (IsAuthenticated, MayMakeTokens)

    @extend_schema(parameters=[AgentConfigFilters], responses={200: AgentConfigSerializer, 404: REFUSED, 409: REFUSED})
    def get(self, request: Request) -> Response:
        """The configuration with a placeholder where its token stands: a GET makes nothing. POST makes one."""
        return Response(self._config(request, query_of(AgentConfigFilters, request), None, agent_config.PLACEHOLDER))

    @extend_schema(
        request=AgentConfigWish,
        responses={201: AgentConfigSerializer, 400: REFUSED, 403: REFUSED, 404: REFUSED, 409: REFUSED},
    )
    def post(self, request: Request) -> Response:
        """Make a token for that client and these members, and give the configuration with it. `direct` needs none."""
        body = AgentConfigWish(data=request.data)
        body.is_valid(raise_exception=True)
        wanted, who = body.validated_data, principal_of(request)
        agent_config.chosen_members(who, wanted["members"])
        row, token = None, ""
        if not wanted["direct"]:
            wish = TokenWish(wanted["for"], wanted["members"], expires_at=wanted["expires_at"])
            row, token = tokens.make(cast(User, request.user), wish, maker=who)
        return Response(self._config(request, wanted, row, token), status=status.HTTP_201_CREATED)

    @staticmethod
    def _config(request: Request, wanted: dict[str, Any], row: ApiToken | None, token: str) -> dict[str, Any]:
        who, names, direct = principal_of(request), wanted["members"], wanted["direct"]
        members = agent_config.chosen_members(who, names)
        if direct:
            entries = agent_config.direct_entries(members, all_of_them=bool(names))
        else:
            entries = agent_config.gateway_entries(names, token)
        client = agent_config.FORMATS[wanted["for"]]
        costs = agent_config.costs(who, members, direct=direct)
        return {
            "place": client.place,
            "config": client.write(entries),
            "token": TokenSerializer(row).data if row else None,
            "cost": CostSerializer(sum(costs.values(), agent_config.Cost())).data,
            "cost_by_member": {name: CostSerializer(cost).data for name, cost in costs.items()},
        }


# The API about itself ---------------------------------------------------------------------------------------------


INDEX = ("roster", "members", "invocations", "tokens", "sessions", "docs", "schema")


class IndexView(HallView):
    @extend_schema(exclude=True)
    def get(self, request: Request) -> Response:
        return Response({name: reverse(name) for name in INDEX})


class SchemaView(SpectacularAPIView):
    permission_classes = (IsAuthenticated,)
    # Two choices are called `status`: without names of ours the generated ones change with every word added.
    custom_settings = {
        "ENUM_NAME_OVERRIDES": {
            "MemberStatus": "roster.models.GuildMember.Status",
            "InvocationStatus": "roster.models.Invocation.Status",
            "TokenScope": "roster.models.ApiToken.Scope",
            "SessionStatus": "roster.models.AgentSession.Status",
            "ErrorKind": "roster.models.Invocation.ErrorKind",
            "SessionErrorKind": "roster.models.AgentMessage.ErrorKind",
            "EventKind": "roster.models.AgentEvent.Kind",
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
