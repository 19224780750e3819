"""Agents' sessions over REST. A user sees the own ones, and everybody's with the permission to view them."""

from __future__ import annotations

from typing import Any, cast

from django.contrib.auth.models import User
from django.db.models import QuerySet
from django.http import HttpResponseBase
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema
from rest_framework import status
from rest_framework.exceptions import NotFound, PermissionDenied
from rest_framework.generics import ListAPIView
from rest_framework.permissions import IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response

from mcp_runtime import control
from mcp_runtime.invocations import Caller
from roster.api import streams
from roster.api.permissions import MayInvoke, principal_of, readable_sessions
from roster.api.session_serializers import (
    MAX_EVENTS,
    EventFilters,
    MessageSerializer,
    NewMessageSerializer,
    NewSessionSerializer,
    SessionDetailSerializer,
    SessionSerializer,
    Strict,
    TranscriptSerializer,
)
from roster.api.views import REFUSED, HallView, NewestFirst
from roster.models import AgentSession, Invocation

EVENT_STREAM = "text/event-stream"
LAST_EVENT_ID = OpenApiParameter("Last-Event-ID", int, OpenApiParameter.HEADER, description="Go on behind this event.")


def _sessions(request: Request) -> QuerySet[AgentSession]:
    rows = AgentSession.objects.filter(readable_sessions(request))
    return rows.prefetch_related("members", "messages")


def _session(request: Request, pk: int) -> AgentSession:
    found = _sessions(request).filter(pk=pk).first()
    if found is None:
        raise NotFound(f"There is no session {pk}.")
    return found


def _own_session(request: Request, pk: int) -> AgentSession:
    """One that the user may speak in: its agent has the rights of whoever made it."""
    found = _session(request, pk)
    if found.created_by_id != request.user.pk and not request.user.is_superuser:
        raise PermissionDenied("This session is somebody else's: its agent has their rights.")
    return found


def _body(serializer: type[Strict], data: Any) -> dict[str, Any]:
    values = serializer(data=data)
    values.is_valid(raise_exception=True)
    return dict(values.validated_data)


def _caller(request: Request) -> Caller:
    return Caller(Invocation.Door.REST, cast(User, request.user), principal_of(request))


def _wants_stream(request: Request) -> bool:
    return EVENT_STREAM in request.headers.get("Accept", "")


class SessionsView(HallView, ListAPIView[AgentSession]):
    """Agents' sessions, newest first."""

    serializer_class = SessionSerializer
    pagination_class = NewestFirst
    permission_classes = (IsAuthenticated, MayInvoke)
    queryset = AgentSession.objects.none()

    def get_queryset(self) -> QuerySet[AgentSession]:
        return _sessions(self.request)

    @extend_schema(
        request=NewSessionSerializer,
        responses={201: SessionDetailSerializer, 400: REFUSED, 403: REFUSED, 404: REFUSED, 409: REFUSED},
    )
    def post(self, request: Request) -> Response:
        """Make a session. Its members are started."""
        values = _body(NewSessionSerializer, request.data)
        session = control.create_session(
            values["members"],
            caller=_caller(request),
            name=values["name"],
            direct=values["direct"],
            model=values["model"],
        )
        data = SessionDetailSerializer(session).data
        return Response(data, status=status.HTTP_201_CREATED, headers={"Location": data["url"]})


class SessionView(HallView):
    @extend_schema(responses={200: SessionDetailSerializer, 404: REFUSED})
    def get(self, request: Request, pk: int) -> Response:
        """The session with its messages; what the agent did is under events/."""
        return Response(SessionDetailSerializer(_session(request, pk)).data)


class SessionMessagesView(HallView):
    permission_classes = (IsAuthenticated, MayInvoke)

    @extend_schema(
        request=NewMessageSerializer,
        responses={
            202: OpenApiResponse(MessageSerializer, description="It is queued; see the session's events/."),
            (200, EVENT_STREAM): OpenApiResponse(str, description="With `Accept: text/event-stream`: its transcript."),
            400: REFUSED,
            403: REFUSED,
            404: REFUSED,
            409: REFUSED,
            503: OpenApiResponse(REFUSED.response, description="No agent can run; `error` says what is missing."),
        },
    )
    def post(self, request: Request, pk: int) -> HttpResponseBase:
        """Give the agent a prompt. With `Accept: text/event-stream` the transcript comes as it grows.

        When too many wait or listen already, the answer is 202 as without that header.
        """
        session = _own_session(request, pk)
        values = _body(NewMessageSerializer, request.data)
        message = control.queue_message(
            session, values["prompt"], caller=_caller(request), timeout=values.get("timeout")
        )
        if _wants_stream(request) and (streamed := streams.stream(request, session, 0, message)):
            return streamed
        return Response(MessageSerializer(message).data, status=status.HTTP_202_ACCEPTED)


class SessionEventsView(HallView):
    @extend_schema(
        parameters=[EventFilters, LAST_EVENT_ID],
        responses={
            200: TranscriptSerializer,
            (200, EVENT_STREAM): OpenApiResponse(str, description="With `Accept: text/event-stream`."),
            400: REFUSED,
            404: REFUSED,
        },
    )
    def get(self, request: Request, pk: int) -> HttpResponseBase:
        """What the agent said and did, oldest first, behind the event `after` (or Last-Event-ID).

        With `Accept: text/event-stream` it comes as it grows, until nothing is under way.
        """
        session = _session(request, pk)
        given = dict(request.query_params.items())
        if last := request.headers.get("Last-Event-ID"):
            given["after"] = last
        after = _body(EventFilters, given).get("after", 0)
        if _wants_stream(request) and (streamed := streams.stream(request, session, after)):
            return streamed
        more = control.is_under_way(session)
        behind = control.transcript(session, after)
        more = more or behind[MAX_EVENTS:].exists()
        return Response(TranscriptSerializer({"events": behind[:MAX_EVENTS], "more": more}).data)


class SessionStopView(HallView):
    permission_classes = (IsAuthenticated, MayInvoke)

    @extend_schema(request=None, responses={202: SessionDetailSerializer, 403: REFUSED, 404: REFUSED, 409: REFUSED})
    def post(self, request: Request, pk: int) -> Response:
        """What waits is cancelled at once, the agent at work is asked to stop. For who may speak in the session."""
        control.stop_session(_own_session(request, pk))
        return Response(SessionDetailSerializer(_session(request, pk)).data, status=status.HTTP_202_ACCEPTED)
