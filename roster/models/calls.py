"""Tool calls, the figures of those that ended, and presets of arguments."""

from __future__ import annotations

from datetime import timedelta
from typing import TypeAlias

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils import timezone

from mcp_runtime.protocol import errors
from roster.json_field import JsonField
from roster.models.members import GuildMember, Tool


class QueuedWork(models.Model):
    """A row of work that waits, runs and ends: `queued -> running -> succeeded | failed | cancelled`.

    The rows are the queue.
    """

    class Status(models.TextChoices):
        QUEUED = "queued", "Queued"  # accepted; nothing was sent or started
        RUNNING = "running", "Running"  # claimed by the runtime of `lease_id`; may have been sent
        SUCCEEDED = "succeeded", "Succeeded"  # a result that is no error
        FAILED = "failed", "Failed"  # `error_kind` and `error_message` say why
        CANCELLED = "cancelled", "Cancelled"  # somebody asked for it

    ACTIVE = (Status.QUEUED, Status.RUNNING)
    FINISHED = (Status.SUCCEEDED, Status.FAILED, Status.CANCELLED)

    status = models.CharField(max_length=20, choices=Status.choices, default=Status.QUEUED)
    queued_at = models.DateTimeField(default=timezone.now)
    started_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)
    cancel_requested_at = models.DateTimeField(null=True, blank=True)
    lease_id = models.UUIDField(null=True, blank=True, help_text="The runtime that claimed it.")
    error_message = models.TextField(blank=True)

    class Meta:
        abstract = True

    @property
    def is_finished(self) -> bool:
        return self.status in self.FINISHED

    @property
    def duration(self) -> timedelta | None:
        """Time from the claim to the end. None before the end, or without a claim."""
        return self.finished_at - self.started_at if self.finished_at and self.started_at else None


class Call(QueuedWork):
    """One tool call."""

    ErrorKind: TypeAlias = errors.ErrorKind
    # A result may have megabytes, and lists show neither.
    UNLISTED = ("arguments", "result", "error_data", "search_text")

    class Source(models.TextChoices):
        REST = "rest", "REST"
        ADMIN = "admin", "Admin"
        COMMAND = "command", "Command line"
        GATEWAY = "gateway", "Gateway"

    member = models.ForeignKey(GuildMember, on_delete=models.CASCADE, related_name="calls")
    tool_name = models.CharField(max_length=255)
    tool_version = models.CharField(
        max_length=64,
        blank=True,
        default="",
        db_default="",
        help_text="The version of the tool when the call was made. Empty if the hall did not know the tool.",
    )
    tool_set = models.CharField(
        max_length=64, null=True, blank=True, help_text="The name of the tool set at whose address it was called."
    )
    arguments = JsonField(default=dict)
    timeout = models.FloatField(help_text="The maximum duration of the call in seconds.")

    source = models.CharField(max_length=10, choices=Source.choices)
    requested_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, blank=True, related_name="calls"
    )
    # SET_NULL: `requester` keeps the token's name in words.
    token = models.ForeignKey(
        "Token", on_delete=models.SET_NULL, null=True, blank=True, related_name="calls", db_index=False
    )
    requester = models.CharField(
        max_length=400, blank=True, help_text="The names of the user and the token when the call was made."
    )
    idempotency_key = models.CharField(max_length=255, null=True, blank=True)
    secret_paths = JsonField(
        default=list, help_text="The places of secrets in the arguments. The hall masks them when the call ends."
    )

    search_text = models.TextField(
        null=True,
        blank=True,
        editable=False,
        help_text="The words of the masked arguments, the result and the error. The end of the call writes it, and the "
        "database has an index of it (mcp_runtime.calls.text_index).",
    )

    progress = JsonField(
        null=True, blank=True, help_text="The last progress that the member reported: progress, total, message."
    )
    result = JsonField(null=True, blank=True, help_text="The result of the tool as in MCP, with isError.")
    error_kind = models.CharField(max_length=20, choices=ErrorKind.choices, blank=True)
    error_code = models.IntegerField(null=True, blank=True, help_text="The code of the JSON-RPC error.")
    error_data = JsonField(null=True, blank=True)

    class Meta:
        ordering = ["-id"]
        constraints = [
            # A key belongs to the token of its request. Without a token it belongs to the user.
            models.UniqueConstraint(
                fields=["token", "idempotency_key"],
                condition=Q(idempotency_key__isnull=False, token__isnull=False),
                name="idempotency_key_is_unique_per_token",
            ),
            models.UniqueConstraint(
                fields=["requested_by", "idempotency_key"],
                condition=Q(idempotency_key__isnull=False, token__isnull=True),
                name="idempotency_key_is_unique_without_token",
            ),
        ]
        indexes = [
            models.Index(fields=["status", "id"], name="call_active", condition=Q(status__in=["queued", "running"])),
            models.Index(fields=["member", "-id"], name="call_by_member"),
            models.Index(fields=["finished_at"], name="call_by_end"),
            models.Index(fields=["token", "-id"], name="call_by_token", condition=Q(token__isnull=False)),
        ]

    def __str__(self) -> str:
        return f"{self.pk} {self.tool_name}"


class CallTotal(models.Model):
    """The number of finished calls whose rows were pruned. /metrics includes them."""

    member = models.ForeignKey(GuildMember, on_delete=models.CASCADE)
    outcome = models.CharField(max_length=20, help_text="succeeded, cancelled, or the error kind.")
    count = models.PositiveBigIntegerField(default=0)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["member", "outcome"], name="one_total_per_outcome")]

    def __str__(self) -> str:
        return f"{self.outcome}: {self.count}"


class CallRollup(models.Model):
    """Figures of calls of a tool or member that ended in one span of time. `mcp_runtime.calls.statistics` writes it."""

    member = models.ForeignKey(GuildMember, on_delete=models.CASCADE, db_index=False)
    tool_name = models.CharField(max_length=255, help_text="If empty, the figures of all tools of the member.")
    seconds = models.PositiveIntegerField(help_text="The length of the time span: 60, 900 or 3600 seconds.")
    begins = models.PositiveBigIntegerField(help_text="Unix time, a multiple of `seconds`.")
    calls = models.PositiveBigIntegerField()
    failed = models.PositiveBigIntegerField()
    took = models.FloatField(help_text="The durations of all the calls together, in seconds.")
    slots = JsonField(help_text="The number of calls by duration, on a logarithmic scale.")

    class Meta:
        constraints = [
            # With this order of columns one index serves both readers and the deletion of old rollups.
            models.UniqueConstraint(
                fields=["seconds", "begins", "tool_name", "member"], name="one_rollup_per_time_and_tool"
            )
        ]

    def __str__(self) -> str:
        return f"{self.calls} calls of {self.tool_name or 'all tools'}"


class Preset(models.Model):
    """Arguments that a user saved for further calls of a tool. roster.presets writes it, without secrets."""

    MAX_NAME = 100

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="presets")
    tool = models.ForeignKey(Tool, on_delete=models.CASCADE, related_name="presets", db_index=False)
    name = models.CharField(max_length=MAX_NAME)
    arguments = JsonField(default=dict)
    left_out = JsonField(default=list, help_text="The places of secrets that it does not contain, as text.")
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering = ["name"]
        constraints = [
            models.UniqueConstraint(fields=["tool", "user", "name"], name="preset_name_is_unique_for_user_and_tool")
        ]

    def __str__(self) -> str:
        return self.name
