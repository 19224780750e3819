"""Agents' sessions as JSON, and the bodies that make them."""

from __future__ import annotations

from typing import Any

from django.urls import reverse
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from roster.models import AgentEvent, AgentMessage, AgentSession, Invocation

MAX_EVENTS = 500
MAX_TIMEOUT = 86_400


class Strict(serializers.Serializer[Any]):
    """Refuses a misspelt key: passed over, it would do something else than was meant."""

    def validate(self, values: dict[str, Any]) -> dict[str, Any]:
        if unknown := set(self.initial_data) - set(self.fields):
            known = ", ".join(self.fields)
            raise serializers.ValidationError({name: [f"This key is unknown; there are {known}."] for name in unknown})
        return values


class NewSessionSerializer(Strict):
    members = serializers.ListField(child=serializers.CharField(), help_text="Whose tools the agent may use.")
    name = serializers.CharField(required=False, default="", help_text="Made up when left out.")
    direct = serializers.BooleanField(
        required=False, default=False, help_text="The agent calls the members' own endpoints, not the gateway."
    )
    model = serializers.CharField(required=False, default="", max_length=100, help_text="The Agent SDK's choice.")


class NewMessageSerializer(Strict):
    prompt = serializers.CharField(trim_whitespace=False)
    timeout = serializers.FloatField(
        required=False, min_value=1, max_value=MAX_TIMEOUT, help_text="Seconds the run may take in total."
    )


class EventFilters(Strict):
    after = serializers.IntegerField(required=False, min_value=0, max_value=2**62, help_text="The last id you have.")


class MessageErrorSerializer(serializers.Serializer[Any]):
    kind = serializers.ChoiceField(choices=AgentMessage.ErrorKind.choices)
    message = serializers.CharField()


class MessageSerializer(serializers.Serializer[AgentMessage]):
    """One prompt and how it went."""

    id = serializers.IntegerField(source="pk")
    prompt = serializers.CharField()
    status = serializers.ChoiceField(choices=AgentMessage.Status.choices)
    door = serializers.ChoiceField(choices=Invocation.Door.choices)
    requester = serializers.CharField(help_text="Who asked, in words, as of then.")
    queued_at = serializers.DateTimeField()
    started_at = serializers.DateTimeField(allow_null=True)
    finished_at = serializers.DateTimeField(allow_null=True)
    cancel_requested_at = serializers.DateTimeField(allow_null=True)
    timeout = serializers.FloatField(help_text="Seconds it may take in total.")
    result = serializers.CharField(help_text="The agent's last word.")
    usage = serializers.DictField(help_text="Turns, tokens, cost and time, as the SDK tells them.")
    error = serializers.SerializerMethodField(help_text="Why it failed; null when it did not.")
    session_url = serializers.SerializerMethodField()

    @extend_schema_field(MessageErrorSerializer(allow_null=True))
    def get_error(self, message: AgentMessage) -> dict[str, str] | None:
        return {"kind": message.error_kind, "message": message.error_message} if message.error_kind else None

    def get_session_url(self, message: AgentMessage) -> str:
        return reverse("session", args=[message.session_id])


class SessionSerializer(serializers.Serializer[AgentSession]):
    id = serializers.IntegerField(source="pk")
    name = serializers.CharField()
    status = serializers.ChoiceField(choices=AgentSession.Status.choices)
    members = serializers.SerializerMethodField()
    direct = serializers.BooleanField()
    model = serializers.CharField()
    creator = serializers.CharField(help_text="Who made it, in words, as of then.")
    created_at = serializers.DateTimeField()
    sdk_session_id = serializers.CharField(help_text="What the Agent SDK resumes; empty before the first run.")
    url = serializers.SerializerMethodField()

    def get_members(self, session: AgentSession) -> list[str]:
        return sorted(member.name for member in session.members.all())

    def get_url(self, session: AgentSession) -> str:
        return reverse("session", args=[session.pk])


class SessionDetailSerializer(SessionSerializer):
    messages = MessageSerializer(many=True, source="messages.all")


class EventSerializer(serializers.Serializer[AgentEvent]):
    """One line of the transcript; `data` depends on `kind`."""

    id = serializers.IntegerField(source="pk")
    message = serializers.IntegerField(source="message_id")
    kind = serializers.ChoiceField(choices=AgentEvent.Kind.choices)
    data = serializers.DictField()  # type: ignore[assignment]  # a field; the serializer's own `data` stays
    created_at = serializers.DateTimeField()


class TranscriptSerializer(serializers.Serializer[Any]):
    events = EventSerializer(many=True)
    more = serializers.BooleanField(help_text="More is there, or may come: ask again with the last id as `after`.")
