"""Agents, their messages (a queue, like calls), and the events of each message."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils import timezone

from roster.json_field import JsonField
from roster.models.calls import Call, QueuedWork
from roster.models.members import GuildMember


class Agent(models.Model):
    """An agent that works with some members on request. Its status is derived from its messages."""

    class Status(models.TextChoices):
        IDLE = "idle", "Idle"  # nothing is in progress, and the next message continues from here
        QUEUED = "queued", "Queued"  # a message waits
        RUNNING = "running", "Running"  # an agent works

    name = models.CharField(max_length=100, unique=True)
    members = models.ManyToManyField(
        GuildMember, related_name="agents", help_text="The agent can use the tools of these members."
    )
    direct = models.BooleanField(
        default=False, help_text="The agent calls the endpoints of the members, not the gateway (REQ-MCP-HTTP-33)."
    )
    model = models.CharField(max_length=100, blank=True, help_text="If empty, the Agent SDK chooses the model.")
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, blank=True, related_name="agents"
    )
    creator = models.CharField(
        max_length=200, blank=True, help_text="The names of the user and the token when the agent was created."
    )
    # The id stays when the token is deleted, as for `AgentMessage.asked_with`.
    made_with = models.ForeignKey(
        "Token",
        on_delete=models.DO_NOTHING,
        db_constraint=False,
        null=True,
        blank=True,
        related_name="made_agents",
        help_text="The token with which the agent was created.",
    )
    created_at = models.DateTimeField(default=timezone.now)
    sdk_session_id = models.CharField(max_length=100, blank=True, help_text="The session that the Agent SDK resumes.")
    node = models.ForeignKey(
        "roster.Node",
        null=True,
        blank=True,
        editable=False,
        on_delete=models.SET_NULL,
        related_name="agents",
        help_text="The node with the files of the conversation. Empty until the first message runs.",
    )

    class Meta:
        ordering = ["-id"]

    def __str__(self) -> str:
        return self.name

    @property
    def status(self) -> str:
        """The status of the messages in progress, `running` before `queued`."""
        under_way = {message.status for message in self.messages.all() if not message.is_finished}
        if AgentMessage.Status.RUNNING in under_way:
            return self.Status.RUNNING.value
        return self.Status.QUEUED.value if under_way else self.Status.IDLE.value


class AgentMessage(QueuedWork):
    """One prompt to an agent and its outcome."""

    class ErrorKind(models.TextChoices):
        AGENT = "agent", "Agent"  # the agent or its model ended with an error
        TIMEOUT = "timeout", "Timeout"  # the total deadline passed
        UNAVAILABLE = "unavailable", "Unavailable"  # a member would not start, or the SDK or its key is missing
        LOST = "lost", "Lost"  # the runtime ended while it ran; never run again automatically

    agent = models.ForeignKey(Agent, on_delete=models.CASCADE, related_name="messages")
    prompt = models.TextField()
    timeout = models.FloatField(help_text="The maximum duration of the run in seconds.")
    source = models.CharField(max_length=10, choices=Call.Source.choices)
    requested_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, blank=True)
    requester = models.CharField(
        max_length=200, blank=True, help_text="The names of the user and the token when the message was sent."
    )
    # The id stays when the token is deleted, so that the run never gets more rights than the token had.
    asked_with = models.ForeignKey(
        "Token",
        on_delete=models.DO_NOTHING,
        db_constraint=False,
        null=True,
        blank=True,
        related_name="asked_messages",
        help_text="The token with which the message was sent. If it is revoked, the run stops.",
    )

    token = models.ForeignKey(
        "Token",
        on_delete=models.SET_NULL,
        null=True,
        blank=True,
        help_text="The token of the agent during the run.",
    )

    result = models.TextField(blank=True, help_text="The last text of the agent.")
    usage = JsonField(
        default=dict, blank=True, help_text="Turns, tokens, cost and time, as the Agent SDK reports them."
    )
    error_kind = models.CharField(max_length=20, choices=ErrorKind.choices, blank=True)

    class Meta:
        ordering = ["id"]
        constraints = [
            # Two runs would overwrite the files of the agent's session in the Agent SDK.
            models.UniqueConstraint(
                fields=["agent"], condition=Q(status="running"), name="one_message_of_an_agent_runs"
            )
        ]
        indexes = [
            models.Index(fields=["status", "id"], name="agent_active", condition=Q(status__in=["queued", "running"]))
        ]

    def __str__(self) -> str:
        return f"message {self.pk}"


class AgentEvent(models.Model):
    """One line of a message's transcript. The ids of an agent's events ascend in the order in which they happened."""

    class Kind(models.TextChoices):
        TEXT = "text", "Text"  # {"text"}: the agent says something
        TOOL_CALL = "tool_call", "Tool call"  # {"id", "server", "tool", "arguments"}
        TOOL_RESULT = "tool_result", "Tool result"  # {"id", "content", "is_error"}
        SERVERS = "servers", "Servers"  # {"servers": [{"name", "status", "error"}]}: without a connection
        ERROR = "error", "Error"  # {"text"}: what went wrong
        RESULT = "result", "Result"  # {"text", "status", "error_kind"}: how it ended. The last event, once

    message = models.ForeignKey(AgentMessage, on_delete=models.CASCADE, related_name="events")
    kind = models.CharField(max_length=20, choices=Kind.choices)
    data = JsonField(default=dict)
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["id"]
        indexes = [models.Index(fields=["message", "id"], name="agent_event_by_message")]

    def __str__(self) -> str:
        return f"{self.pk} {self.kind}"
