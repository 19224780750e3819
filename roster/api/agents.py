"""Agents over REST, and their transcripts as server-sent events.

Users see their own agents. With the permission to view agents they see those of others.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, cast

from django.contrib.auth.models import User
from django.core.serializers.json import DjangoJSONEncoder
from django.db.models import QuerySet
from django.http import HttpResponseBase, StreamingHttpResponse
from django.urls import reverse
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema_field
from rest_framework import serializers, status
from rest_framework.exceptions import NotFound, PermissionDenied
from rest_framework.generics import ListAPIView
from rest_framework.permissions import IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response

from mcp_runtime.calls.transitions import Requester
from mcp_runtime.control.agents import create_agent, is_under_way, queue_message, stop_agent, transcript, wait_note
from mcp_runtime.control.calls import wait_between_looks
from mcp_runtime.rows.database import give_connection_back
from roster.api import requests
from roster.api.base import REFUSED, HallView, NewestFirst, Strict, body_of
from roster.api.described import extend_schema
from roster.api.permissions import MayInvoke, principal_of, readable_agents
from roster.models import Agent, AgentEvent, AgentMessage, Call

MAX_EVENTS = 500
MAX_TIMEOUT = 86_400
EVENT_STREAM = "text/event-stream"
LAST_EVENT_ID = OpenApiParameter("Last-Event-ID", int, OpenApiParameter.HEADER, description="Go on behind this event.")
LOOK_SECONDS = 0.2
# A proxy or client closes a connection without data for long.
COMMENT_SECONDS = 15.0
BATCH = 100


# Agents as JSON, and the bodies that create them ------------------------------------------------------------------


class NewAgentSerializer(Strict):
    members = serializers.ListField(
        child=serializers.CharField(), help_text="The agent can use the tools of these members."
    )
    name = serializers.CharField(required=False, default="", help_text="If it is missing, the hall chooses a name.")
    direct = serializers.BooleanField(
        required=False, default=False, help_text="The agent calls the endpoints of the members, not the gateway."
    )
    model = serializers.CharField(
        required=False, default="", max_length=100, help_text="If empty, the Agent SDK chooses the model."
    )


class NewMessageSerializer(Strict):
    prompt = serializers.CharField(trim_whitespace=False)
    timeout = serializers.FloatField(
        required=False, min_value=1, max_value=MAX_TIMEOUT, help_text="The maximum duration of the run in seconds."
    )


class EventFilters(Strict):
    after = serializers.IntegerField(
        required=False, min_value=0, max_value=2**62, help_text="The last id that you received."
    )


class MessageErrorSerializer(serializers.Serializer[Any]):
    kind = serializers.ChoiceField(choices=AgentMessage.ErrorKind.choices)
    message = serializers.CharField()


class MessageSerializer(serializers.Serializer[AgentMessage]):
    """One prompt and its outcome."""

    id = serializers.IntegerField(source="pk")
    prompt = serializers.CharField()
    status = serializers.ChoiceField(choices=AgentMessage.Status.choices)
    source = serializers.ChoiceField(choices=Call.Source.choices)  # type: ignore[assignment]
    requester = serializers.CharField(help_text="The names of the user and the token when the message was sent.")
    queued_at = serializers.DateTimeField()
    started_at = serializers.DateTimeField(allow_null=True)
    finished_at = serializers.DateTimeField(allow_null=True)
    cancel_requested_at = serializers.DateTimeField(allow_null=True)
    timeout = serializers.FloatField(help_text="The maximum duration in seconds.")
    result = serializers.CharField(help_text="The last text of the agent.")
    usage = serializers.DictField(help_text="Turns, tokens, cost and time, as the Agent SDK reports them.")
    error = serializers.SerializerMethodField(help_text="The error, if it failed. Otherwise null.")
    agent_url = serializers.SerializerMethodField()

    @extend_schema_field(MessageErrorSerializer(allow_null=True))
    def get_error(self, message: AgentMessage) -> dict[str, str] | None:
        return {"kind": message.error_kind, "message": message.error_message} if message.error_kind else None

    def get_agent_url(self, message: AgentMessage) -> str:
        return reverse("agent", args=[message.agent_id])


class AgentSerializer(serializers.Serializer[Agent]):
    id = serializers.IntegerField(source="pk")
    name = serializers.CharField()
    status = serializers.ChoiceField(choices=Agent.Status.choices)
    members = serializers.SerializerMethodField()
    direct = serializers.BooleanField()
    model = serializers.CharField()
    creator = serializers.CharField(help_text="The names of the user and the token when the agent was created.")
    created_at = serializers.DateTimeField()
    sdk_session_id = serializers.CharField(
        help_text="The session that the Agent SDK resumes. Empty before the first run."
    )
    url = serializers.SerializerMethodField()

    def get_members(self, agent: Agent) -> list[str]:
        return sorted(member.name for member in agent.members.all())

    def get_url(self, agent: Agent) -> str:
        return reverse("agent", args=[agent.pk])


class AgentDetailSerializer(AgentSerializer):
    messages = MessageSerializer(many=True, source="messages.all")
    note = serializers.SerializerMethodField(
        help_text="Names the node for which its messages wait, because it has the files of the conversation and is not "
        "alive. Otherwise empty."
    )

    def get_note(self, agent: Agent) -> str:
        return wait_note(agent)


class EventSerializer(serializers.Serializer[AgentEvent]):
    """One line of the transcript; `data` depends on `kind`."""

    id = serializers.IntegerField(source="pk")
    message = serializers.IntegerField(source="message_id")
    kind = serializers.ChoiceField(choices=AgentEvent.Kind.choices)
    data = serializers.DictField()  # type: ignore[assignment]  # a field; the serializer's own `data` stays
    created_at = serializers.DateTimeField()


class TranscriptSerializer(serializers.Serializer[Any]):
    events = EventSerializer(many=True)
    more = serializers.BooleanField(
        help_text="There are more events, or more may follow. Repeat the request with the last id as `after`."
    )


# Views ------------------------------------------------------------------------------------------------------------


def _agents(request: Request) -> QuerySet[Agent]:
    rows = Agent.objects.filter(readable_agents(request))
    return rows.prefetch_related("members", "messages")


def _agent(request: Request, pk: int) -> Agent:
    agent = _agents(request).filter(pk=pk).first()
    if agent is None:
        raise NotFound(f"There is no agent {pk}.")
    return agent


def _own_agent(request: Request, pk: int) -> Agent:
    """An agent of the user. Only its creator may send messages, because an agent has the rights of its creator."""
    agent = _agent(request, pk)
    if agent.created_by_id != request.user.pk and not request.user.is_superuser:
        raise PermissionDenied("This agent belongs to another user, and has that user's rights.")
    return agent


def _requester_of(request: Request) -> Requester:
    return Requester(Call.Source.REST, cast(User, request.user), principal_of(request))


def _wants_stream(request: Request) -> bool:
    return EVENT_STREAM in request.headers.get("Accept", "")


class AgentsView(HallView, ListAPIView[Agent]):
    """Agents, newest first."""

    serializer_class = AgentSerializer
    pagination_class = NewestFirst
    permission_classes = (IsAuthenticated, MayInvoke)
    queryset = Agent.objects.none()

    def get_queryset(self) -> QuerySet[Agent]:
        return _agents(self.request)

    @extend_schema(
        request=NewAgentSerializer,
        responses={201: AgentDetailSerializer, 400: REFUSED, 403: REFUSED, 404: REFUSED, 409: REFUSED},
    )
    def post(self, request: Request) -> Response:
        """Create an agent. Its members are started."""
        values = body_of(NewAgentSerializer, request.data)
        agent = create_agent(
            values["members"],
            requester=_requester_of(request),
            name=values["name"],
            direct=values["direct"],
            model=values["model"],
        )
        data = AgentDetailSerializer(agent).data
        return Response(data, status=status.HTTP_201_CREATED, headers={"Location": data["url"]})


class AgentView(HallView):
    @extend_schema(responses={200: AgentDetailSerializer, 404: REFUSED})
    def get(self, request: Request, pk: int) -> Response:
        """The agent with its messages. Its actions are under events/."""
        return Response(AgentDetailSerializer(_agent(request, pk)).data)


class AgentMessagesView(HallView):
    permission_classes = (IsAuthenticated, MayInvoke)

    @extend_schema(
        request=NewMessageSerializer,
        responses={
            202: OpenApiResponse(MessageSerializer, description="It is queued; see the agent's events/."),
            (200, EVENT_STREAM): OpenApiResponse(str, description="With `Accept: text/event-stream`: its transcript."),
            400: REFUSED,
            403: REFUSED,
            404: REFUSED,
            409: REFUSED,
            503: OpenApiResponse(REFUSED.response, description="No agent can run; `error` says what is missing."),
        },
    )
    def post(self, request: Request, pk: int) -> HttpResponseBase:
        """Send the agent a prompt. With `Accept: text/event-stream` the transcript is sent as it grows.

        If too many clients wait or listen already, the answer is 202 as without that header.
        """
        agent = _own_agent(request, pk)
        values = body_of(NewMessageSerializer, request.data)
        message = queue_message(
            agent, values["prompt"], requester=_requester_of(request), timeout=values.get("timeout")
        )
        if _wants_stream(request) and (response := stream(request, agent, 0, message)):
            return response
        return Response(MessageSerializer(message).data, status=status.HTTP_202_ACCEPTED)


class AgentEventsView(HallView):
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
        """The agent's texts and actions, oldest first, after the event `after` (or Last-Event-ID).

        With `Accept: text/event-stream` they are sent as they happen, until nothing is in progress.
        """
        agent = _agent(request, pk)
        params = dict(request.query_params.items())
        if last := request.headers.get("Last-Event-ID"):
            params["after"] = last
        after = body_of(EventFilters, params).get("after", 0)
        if _wants_stream(request) and (response := stream(request, agent, after)):
            return response
        may_grow = is_under_way(agent)
        behind = transcript(agent, after)
        may_grow = may_grow or behind[MAX_EVENTS:].exists()
        return Response(TranscriptSerializer({"events": behind[:MAX_EVENTS], "more": may_grow}).data)


class AgentStopView(HallView):
    permission_classes = (IsAuthenticated, MayInvoke)

    @extend_schema(request=None, responses={202: AgentDetailSerializer, 403: REFUSED, 404: REFUSED, 409: REFUSED})
    def post(self, request: Request, pk: int) -> Response:
        """Cancel waiting messages at once, and request the agent at work to stop. Only for the agent's creator."""
        stop_agent(_own_agent(request, pk))
        return Response(AgentDetailSerializer(_agent(request, pk)).data, status=status.HTTP_202_ACCEPTED)


# A transcript while it grows. Each stream holds a seat, because it holds a thread of the web ----------------------


def stream(
    request: Request, agent: Agent, after: int, message: AgentMessage | None = None
) -> StreamingHttpResponse | None:
    """The transcript after the event `after`, of one message or all of them, until nothing is in progress.

    None if there is no seat for this principal. Each event has its id, for Last-Event-ID. The last one is `end`. A
    stream without `end` was cut off because the web ended.
    """
    seat = ExitStack()
    if not seat.enter_context(requests.seat(principal_of(request).owner, request.META)):
        return None
    response = StreamingHttpResponse(
        requests.SeatedStream(_events(agent, after, message, requests.wait_callback(request.META)), seat),
        content_type="text/event-stream",
    )
    response["Cache-Control"] = "no-store"
    response["X-Accel-Buffering"] = "no"
    return response


def _events(agent: Agent, after: int, message: AgentMessage | None, before_wait: Callable[[], None]) -> Iterator[str]:
    if message is not None:
        yield _event("message", MessageSerializer(message).data)
    last_sent_at = time.monotonic()
    while True:
        may_grow = is_under_way(agent, message=message)
        batch = list(transcript(agent, after, message=message)[:BATCH])
        for row in batch:
            after, last_sent_at = row.pk, time.monotonic()
            yield _event(row.kind, EventSerializer(row).data, row.pk)
        if len(batch) == BATCH:
            continue
        if not may_grow:
            break
        if time.monotonic() > last_sent_at + COMMENT_SECONDS:
            last_sent_at = time.monotonic()
            yield ":\n\n"
        give_connection_back()
        before_wait()
        if wait_between_looks(LOOK_SECONDS):
            return
    if message is not None:
        message.refresh_from_db()
        yield _event("end", MessageSerializer(message).data)
    else:
        yield _event("end", {})


def _event(kind: str, data: Any, event_id: int | None = None) -> str:
    head = f"id: {event_id}\n" if event_id is not None else ""
    return f"{head}event: {kind}\ndata: {json.dumps(data, cls=DjangoJSONEncoder)}\n\n"
