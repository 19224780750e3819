"""What the hall knows: rows, their constraints, and facts about one row. Who may change what is said beside each field.

Statuses are written by `mcp_runtime.lifecycle` (members), `mcp_runtime.invocations` (calls) and
`mcp_runtime.sessions` (agents' messages) alone.
"""

from __future__ import annotations

import hashlib
import secrets
import signal
import uuid
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.core.validators import MinValueValidator
from django.db import models, transaction
from django.db.models import F, Q
from django.utils import timezone


class Hall(models.Model):
    """One row per database: the hall's identity, and the lease of its one runtime.

    A lease is live while its holder's heartbeat is younger than `LEASE_SECONDS`. All times are the database's clock.
    """

    LEASE_SECONDS = 10.0

    id = models.PositiveSmallIntegerField(primary_key=True, default=1, editable=False)
    hall_id = models.UUIDField(default=uuid.uuid4, editable=False)
    lease_id = models.UUIDField(null=True, editable=False)
    lease_host = models.CharField(max_length=255, blank=True)
    lease_pid = models.PositiveIntegerField(null=True)
    lease_pid_started_at = models.FloatField(
        null=True, help_text="Seconds since boot (macOS: since the epoch): tells a reused pid."
    )
    lease_taken_at = models.DateTimeField(null=True)
    heartbeat_at = models.DateTimeField(null=True)
    access_version = models.BigIntegerField(
        default=0, help_text="Another number whenever something changed that decides who may do or see what."
    )
    agent_problem = models.TextField(
        blank=True, help_text="What the runtime lacks to run agents, if it lacks anything."
    )
    summed_until = models.DateTimeField(null=True, help_text="Calls that ended before are in the sums (CallSum).")

    class Meta:
        constraints = [models.CheckConstraint(condition=Q(id=1), name="one_hall_per_database")]

    def __str__(self) -> str:
        return f"hall {self.hall_id}"

    @classmethod
    def access_changed(cls) -> None:
        """Whoever keeps in memory who may do what must look anew. In the transaction of the change itself.

        Before it changes rows of members: a sync holds this row first and those second, and two orders can deadlock.
        """
        cls.objects.filter(pk=1).update(access_version=F("access_version") + 1)


class GuildMember(models.Model):
    """One installed plugin: what its folder says, what is wished, what is seen."""

    class Status(models.TextChoices):
        DISCONNECTED = "disconnected", "Disconnected"  # no process, and none is due
        STARTING = "starting", "Starting"  # a process, or the wait for a port; the handshake is not done
        CONNECTED = "connected", "Connected"  # shook hands, tools listed
        STOPPING = "stopping", "Stopping"  # asked to end, not gone yet
        ERROR = "error", "Error"  # ended, or never came up, without being asked; `last_error` says why

    class Wanted(models.TextChoices):
        RUNNING = "running", "Running"
        STOPPED = "stopped", "Stopped"

    name = models.CharField(max_length=64, unique=True)

    # What the folder says. Written by mcp_runtime.discovery.
    directory = models.CharField(max_length=1000, help_text="Relative to the members folder.")
    manifest = models.JSONField(default=dict, help_text="guild-member.json as it was last read without a fault.")
    manifest_error = models.TextField(blank=True, help_text="Why guild-member.json cannot be used, if it cannot.")
    manifest_warnings = models.JSONField(default=list, blank=True)
    display_name = models.CharField(max_length=200, blank=True)
    version = models.CharField(max_length=100, blank=True)
    description = models.TextField(blank=True)
    server_url = models.CharField(max_length=2048, blank=True, help_text="Of a server that runs elsewhere.")
    removed_at = models.DateTimeField(null=True, blank=True, help_text="When its folder was found to be gone.")

    # What is wished. Written through mcp_runtime.control.
    enabled = models.BooleanField(default=True, help_text="May run at all; calls to a disabled member are refused.")
    wanted = models.CharField(max_length=10, choices=Wanted.choices, default=Wanted.RUNNING)
    restart_requested_at = models.DateTimeField(null=True, blank=True)
    refresh_requested_at = models.DateTimeField(null=True, blank=True)
    groups = models.ManyToManyField(
        "auth.Group",
        through="MemberGroup",
        related_name="guild_members",
        blank=True,
        help_text="With groups it is there for their users (and superusers) alone; without, for everybody allowed.",
    )

    # In `last_error`, between the sentence and the member's last lines.
    TAIL_MARK = ". It wrote last:\n"

    # What is seen. Written by mcp_runtime.lifecycle.
    status = models.CharField(max_length=20, choices=Status.choices, default=Status.DISCONNECTED)
    status_changed_at = models.DateTimeField(default=timezone.now)
    last_error = models.TextField(blank=True)
    progress = models.CharField(max_length=200, blank=True, help_text="While it is starting, what it wrote last.")
    warnings = models.JSONField(default=list, blank=True, help_text="Of the running process, e.g. where it listens.")
    pid = models.PositiveIntegerField(null=True, blank=True)
    last_port = models.PositiveIntegerField(null=True, blank=True, help_text="Given again when it is free.")
    exit_code = models.IntegerField(null=True, blank=True, help_text="Of the last exit; -9 is signal 9.")
    started_at = models.DateTimeField(null=True, blank=True)
    protocol_version = models.CharField(max_length=20, blank=True)
    server_info = models.JSONField(default=dict, blank=True)
    capabilities = models.JSONField(default=dict, blank=True)
    instructions = models.TextField(blank=True)
    restarts = models.PositiveIntegerField(default=0, help_text="Tries in a row since it was last stable.")
    restarts_total = models.PositiveIntegerField(default=0)
    next_restart_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["name"]
        verbose_name = "member"
        constraints = [
            models.CheckConstraint(
                condition=Q(status__in=["disconnected", "starting", "connected", "stopping", "error"]),
                name="member_status_is_known",
            )
        ]
        permissions = [("control_member", "Can start, stop and switch members")]

    def __str__(self) -> str:
        return self.name

    @property
    def title(self) -> str:
        return self.display_name or self.name

    @property
    def error(self) -> str:
        """The one sentence that explains why it does not run, whatever the reason; empty when nothing is wrong."""
        return self.manifest_error or (self.last_error if self.status == self.Status.ERROR else "")

    @property
    def last_reason(self) -> str:
        """`last_error` without the lines that the member wrote last: those are for who may read its log."""
        return self.last_error.partition(self.TAIL_MARK)[0]

    @property
    def start_progress(self) -> str:
        """How long it has been starting and what it wrote last; empty when it is not, or began within a second."""
        seconds = (timezone.now() - self.status_changed_at).total_seconds()
        if self.status != self.Status.STARTING or seconds < 1:
            return ""
        return f"starting for {seconds:.0f} s" + (f": {self.progress}" if self.progress else "")

    @property
    def port(self) -> int | None:
        """The port of its process, if it has one."""
        held = getattr(self, "port_allocation", None)  # a reverse one-to-one raises when there is none
        return held.port if held else None

    @property
    def endpoint(self) -> str | None:
        """Where agents reach it, while it is up: by its port, or elsewhere (but for the query, which is the hall's)."""
        if self.status in (self.Status.DISCONNECTED, self.Status.ERROR):
            return None
        if self.server_url:
            return self.server_url.partition("?")[0]
        held = getattr(self, "port_allocation", None)
        return held.endpoint if held else None

    @property
    def all_warnings(self) -> list[str]:
        return [*self.manifest_warnings, *self.warnings]

    @property
    def call_timeout(self) -> float:
        """Seconds a tool call may take in total, unless the tool has its own (REQ-MCP-HTTP-28)."""
        return float(self.manifest.get("timeout", 30.0))

    def timeout_of(self, tool_name: str) -> float:
        return float(self.manifest.get("tool_timeouts", {}).get(tool_name, self.call_timeout))


class MemberGroup(models.Model):
    """A member is there for the users of this group. The last of these rows opens it to everybody again.

    So a group that a member is reserved for cannot be deleted: nothing may be opened by tidying up somewhere else.
    """

    member = models.ForeignKey(GuildMember, on_delete=models.CASCADE)
    group = models.ForeignKey("auth.Group", on_delete=models.PROTECT)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["member", "group"], name="group_is_unique_in_its_member")]

    def __str__(self) -> str:
        return f"{self.member} is for {self.group}"


class PortAllocation(models.Model):
    """The claim on a port, for the life of one server process (REQ-MCP-HTTP-5, 8, 10, 11, 32)."""

    port = models.PositiveIntegerField(unique=True)
    member = models.OneToOneField(GuildMember, on_delete=models.CASCADE, related_name="port_allocation")
    allocated_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["port"]
        constraints = [
            models.CheckConstraint(condition=Q(port__gte=20000, port__lte=30000), name="port_is_in_the_managed_range")
        ]

    def __str__(self) -> str:
        return str(self.port)

    @property
    def endpoint(self) -> str:
        """What is handed out, in the seeds' form (REQ-MCP-HTTP-22, 33); the hall itself talks to 127.0.0.1."""
        return f"http://localhost:{self.port}/mcp"


class Tool(models.Model):
    """A tool of a member, as its last tools/list told it (REQ-MCP-HTTP-36, 37).

    One that left the list keeps its row (`listed` false), so that switching a tool off outlives the tool's absence.
    """

    member = models.ForeignKey(GuildMember, on_delete=models.CASCADE, related_name="tools")
    name = models.CharField(max_length=255)
    position = models.PositiveIntegerField(default=0, help_text="In the member's own order.")
    definition = models.JSONField(default=dict, help_text="Word for word as the member sent it.")
    schema_error = models.TextField(blank=True, help_text="Why arguments are not validated, if they are not.")
    listed = models.BooleanField(default=True, help_text="Was in the member's last tools/list.")
    enabled = models.BooleanField(default=True, help_text="Switched off: hidden from lists, refused everywhere.")

    class Meta:
        ordering = ["member", "position"]
        constraints = [models.UniqueConstraint(fields=["member", "name"], name="tool_name_is_unique_in_its_member")]
        permissions = [("invoke_tool", "Can call tools")]

    def __str__(self) -> str:
        return self.name

    @property
    def title(self) -> str:
        annotations = self.definition.get("annotations")
        fallback = annotations.get("title") if isinstance(annotations, dict) else None
        return str(self.definition.get("title") or fallback or "")

    @property
    def description(self) -> str:
        return str(self.definition.get("description") or "")

    @property
    def input_schema(self) -> dict[str, Any]:
        schema = self.definition.get("inputSchema")
        return schema if isinstance(schema, dict) else {}

    @property
    def output_schema(self) -> dict[str, Any] | None:
        schema = self.definition.get("outputSchema")
        return schema if isinstance(schema, dict) else None


class ArgumentSet(models.Model):
    """Arguments that a user keeps to call a tool with again. Written by roster.argument_sets, without secrets."""

    MAX_NAME = 100

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="argument_sets")
    tool = models.ForeignKey(Tool, on_delete=models.CASCADE, related_name="argument_sets", db_index=False)
    name = models.CharField(max_length=MAX_NAME)
    arguments = models.JSONField(default=dict)
    left_out = models.JSONField(default=list, help_text="Where secrets were that it does not hold, in words.")
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering = ["name"]
        constraints = [
            models.UniqueConstraint(fields=["tool", "user", "name"], name="set_name_is_unique_for_user_and_tool")
        ]

    def __str__(self) -> str:
        return self.name


class Queued(models.Model):
    """What a row of work is while it waits, runs and ends: `queued -> running -> succeeded | failed | cancelled`.

    The row is the queue.
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
        """From being claimed to the end; None while it is not over, or when it was never claimed."""
        return self.finished_at - self.started_at if self.finished_at and self.started_at else None


class Invocation(Queued):
    """One tool call."""

    class ErrorKind(models.TextChoices):
        TOOL = "tool", "Tool"  # a result with isError; the member is well
        PROTOCOL = "protocol", "Protocol"  # a JSON-RPC error object, or an answer that is not MCP
        TRANSPORT = "transport", "Transport"  # sent, then the connection failed or the member exited; may have run
        TIMEOUT = "timeout", "Timeout"  # sent, then the total deadline passed; may have run
        UNAVAILABLE = "unavailable", "Unavailable"  # never sent: the member did not start, or took no connection
        LOST = "lost", "Lost"  # the runtime ended while it ran; never run again by itself

    class Door(models.TextChoices):
        REST = "rest", "REST"
        ADMIN = "admin", "Admin"
        COMMAND = "command", "Command line"
        GATEWAY = "gateway", "Gateway"

    member = models.ForeignKey(GuildMember, on_delete=models.CASCADE, related_name="invocations")
    tool_name = models.CharField(max_length=255)
    arguments = models.JSONField(default=dict)
    timeout = models.FloatField(help_text="Seconds the call may take in total.")

    door = models.CharField(max_length=10, choices=Door.choices)
    requested_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, blank=True, related_name="invocations"
    )
    # SET_NULL: `requester` keeps the token's name in words.
    token = models.ForeignKey(
        "ApiToken", on_delete=models.SET_NULL, null=True, blank=True, related_name="invocations", db_index=False
    )
    requester = models.CharField(max_length=400, blank=True, help_text="Who asked, in words, as of then.")
    idempotency_key = models.CharField(max_length=255, null=True, blank=True)
    secret_paths = models.JSONField(default=list, help_text="Where arguments hold secrets, masked once it is over.")

    progress = models.JSONField(
        null=True, blank=True, help_text="What the member last said of it: progress, total, message."
    )
    result = models.JSONField(null=True, blank=True, help_text="The tool's result as MCP gives it, isError included.")
    error_kind = models.CharField(max_length=20, choices=ErrorKind.choices, blank=True)
    error_code = models.IntegerField(null=True, blank=True, help_text="Of a JSON-RPC error object.")
    error_data = models.JSONField(null=True, blank=True)

    class Meta:
        ordering = ["-id"]
        constraints = [
            # A key belongs to the token that it came with; one that came without a token, to its user.
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
            models.Index(
                fields=["status", "id"], name="invocation_active", condition=Q(status__in=["queued", "running"])
            ),
            models.Index(fields=["member", "-id"], name="invocation_by_member"),
            models.Index(fields=["finished_at"], name="invocation_by_end"),
            models.Index(fields=["token", "-id"], name="invocation_by_token", condition=Q(token__isnull=False)),
        ]

    def __str__(self) -> str:
        return f"{self.pk} {self.tool_name}"


class StatusChange(models.Model):
    """One change of a member's status, with its cause: the timeline people read after the fact."""

    member = models.ForeignKey(GuildMember, on_delete=models.CASCADE, related_name="status_changes")
    old = models.CharField(max_length=20, choices=GuildMember.Status.choices)
    new = models.CharField(max_length=20, choices=GuildMember.Status.choices)
    cause = models.CharField(max_length=40, help_text="In a word or two: start, stop, exit, handshake...")
    message = models.TextField(blank=True)
    exit_code = models.IntegerField(null=True, blank=True, help_text="-9 is signal 9.")
    log_tail = models.TextField(blank=True, help_text="The last lines the member wrote.")
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["-id"]
        indexes = [models.Index(fields=["member", "-id"], name="status_change_by_member")]

    def __str__(self) -> str:
        return f"{self.old} -> {self.new}"

    @property
    def signal_name(self) -> str:
        """`SIGKILL` for exit code -9; empty when no signal ended it."""
        if self.exit_code is None or self.exit_code >= 0:
            return ""
        try:
            return signal.Signals(-self.exit_code).name
        except ValueError:
            return f"signal {-self.exit_code}"


class CallTotal(models.Model):
    """Finished calls whose rows were pruned, so that /metrics counts on without them."""

    member = models.ForeignKey(GuildMember, on_delete=models.CASCADE)
    outcome = models.CharField(max_length=20, help_text="succeeded, cancelled, or the error kind.")
    count = models.PositiveBigIntegerField(default=0)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["member", "outcome"], name="one_total_per_outcome")]

    def __str__(self) -> str:
        return f"{self.outcome}: {self.count}"


class CallSum(models.Model):
    """The calls of a tool, or of a member, that ended within so many seconds. Written by `mcp_runtime.statistics`."""

    member = models.ForeignKey(GuildMember, on_delete=models.CASCADE, db_index=False)
    tool_name = models.CharField(max_length=255, help_text="Empty: all tools of the member together.")
    seconds = models.PositiveIntegerField(help_text="For how long it stands: a minute, a quarter, an hour.")
    begins = models.PositiveBigIntegerField(help_text="Unix time, a multiple of `seconds`.")
    calls = models.PositiveBigIntegerField()
    failed = models.PositiveBigIntegerField()
    took = models.FloatField(help_text="Seconds, of all the calls together.")
    slots = models.JSONField(help_text="How many took how long: counts by place on a logarithmic scale.")

    class Meta:
        constraints = [
            # In this order it is the one index that readers and the deletion of old sums need.
            models.UniqueConstraint(
                fields=["seconds", "begins", "tool_name", "member"], name="one_sum_per_time_and_tool"
            )
        ]

    def __str__(self) -> str:
        return f"{self.calls} calls of {self.tool_name or 'all tools'}"


class ApiToken(models.Model):
    """A user's key to the API and the gateway. Only its SHA-256 is stored: a random token needs no slow hash.

    It opens what its user may, narrowed by its scope. Which kind of scope it has is said by `scope` alone: one whose
    last member left the hall opens nothing, never everything.
    """

    class Scope(models.TextChoices):
        ALL = "all", "Everything its user may"
        MEMBERS = "members", "Some members"  # `members` says which
        TOOLS = "tools", "Some tools"  # `tools` says which; nothing else of their members

    PREFIX = "gh_"

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="api_tokens")
    name = models.CharField(max_length=100, blank=True, help_text="What it is for, to tell it from others.")
    digest = models.CharField(max_length=64, unique=True, editable=False)
    hint = models.CharField(max_length=12, editable=False, help_text="How the token begins, to tell it from others.")
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    expires_at = models.DateTimeField(null=True, blank=True, help_text="From then on it opens nothing; empty: never.")
    revoked_at = models.DateTimeField(null=True, blank=True, editable=False)
    last_used_at = models.DateTimeField(null=True, blank=True, editable=False, help_text="To the minute.")
    made_with = models.ForeignKey(
        "self",
        on_delete=models.CASCADE,
        null=True,
        blank=True,
        editable=False,
        related_name="made_tokens",
        help_text="The token that it was made with, if with any: it ends with that one.",
    )
    scope = models.CharField(max_length=10, choices=Scope.choices, default=Scope.ALL)
    members = models.ManyToManyField(GuildMember, blank=True, related_name="api_tokens")
    tools = models.ManyToManyField(Tool, blank=True, related_name="api_tokens")
    calls_per_minute = models.PositiveIntegerField(
        null=True, blank=True, help_text="0 is no limit; empty is that of GUILD_HALL_CALLS_PER_MINUTE."
    )
    max_in_flight = models.PositiveIntegerField(
        null=True,
        blank=True,
        validators=[MinValueValidator(1)],
        help_text="Calls that may be under way at the same time; empty is GUILD_HALL_MAX_IN_FLIGHT.",
    )

    class Meta:
        ordering = ["-id"]
        verbose_name = "API token"
        constraints = [
            models.CheckConstraint(condition=Q(scope__in=["all", "members", "tools"]), name="token_scope_is_known")
        ]

    def __str__(self) -> str:
        return f"{self.hint}… of {self.user}"

    @property
    def state(self) -> str:
        """`good`, `expired` or `revoked`."""
        if self.revoked_at is not None:
            return "revoked"
        return "expired" if self.expires_at is not None and self.expires_at <= timezone.now() else "good"

    @staticmethod
    def digest_of(token: str) -> str:
        return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()

    @classmethod
    def make(
        cls,
        *,
        user: Any,
        name: str = "",
        expires_at: datetime | None = None,
        scope: Scope = Scope.ALL,
        members: Iterable[GuildMember] = (),
        tools: Iterable[Tool] = (),
        calls_per_minute: int | None = None,
        max_in_flight: int | None = None,
        made_with_id: int | None = None,
    ) -> tuple[ApiToken, str]:
        """A new row and the token itself, which is not kept anywhere: show it once."""
        token = cls.PREFIX + secrets.token_urlsafe(32)
        with transaction.atomic():
            row = cls.objects.create(
                user=user,
                name=name,
                digest=cls.digest_of(token),
                hint=token[:8],
                expires_at=expires_at,
                scope=scope,
                calls_per_minute=calls_per_minute,
                max_in_flight=max_in_flight,
                made_with_id=made_with_id,
            )
            row.members.set(members)
            row.tools.set(tools)
        return row, token

    def revoke(self) -> list[int]:
        """From now on it opens nothing, nor does any token that was made with it, or with one of those; all their ids.

        The rows stay, for the calls that were made with them.
        """
        self.revoked_at = self.revoked_at or timezone.now()
        ended, next_ones = [self.pk], [self.pk]
        with transaction.atomic():
            self.save(update_fields=["revoked_at"])
            while next_ones := list(ApiToken.objects.filter(made_with__in=next_ones).values_list("pk", flat=True)):
                ApiToken.objects.filter(pk__in=next_ones, revoked_at=None).update(revoked_at=self.revoked_at)
                ended += next_ones
        return ended


class TokenClient(models.Model):
    """A program that came to the gateway with a token, as it calls itself: nobody checks what it says.

    Written by `mcp_runtime.gateway.clients`, at most once a minute for each.
    """

    token = models.ForeignKey(ApiToken, on_delete=models.CASCADE, related_name="clients")
    name = models.CharField(max_length=100)
    version = models.CharField(max_length=50, blank=True)
    first_seen_at = models.DateTimeField()
    last_seen_at = models.DateTimeField()
    calls = models.PositiveBigIntegerField(default=0)

    class Meta:
        ordering = ["-last_seen_at"]
        constraints = [
            models.UniqueConstraint(fields=["token", "name", "version"], name="client_is_unique_of_its_token")
        ]

    def __str__(self) -> str:
        return f"{self.name} {self.version}".strip()


class AgentSession(models.Model):
    """A conversation of an agent with some members. Its status is that of its messages: there is no other truth."""

    class Status(models.TextChoices):
        IDLE = "idle", "Idle"  # nothing is under way; the next message goes on from here
        QUEUED = "queued", "Queued"  # a message waits
        RUNNING = "running", "Running"  # an agent works

    name = models.CharField(max_length=100, unique=True)
    members = models.ManyToManyField(GuildMember, related_name="agent_sessions", help_text="Whose tools it may use.")
    direct = models.BooleanField(
        default=False, help_text="The agent calls the members' own endpoints, not the gateway (REQ-MCP-HTTP-33)."
    )
    model = models.CharField(max_length=100, blank=True, help_text="Empty: the Agent SDK's own choice.")
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, blank=True, related_name="agent_sessions"
    )
    creator = models.CharField(max_length=200, blank=True, help_text="Who made it, in words, as of then.")
    # Its id stays when the token is deleted, as that of `AgentMessage.asked_with`.
    made_with = models.ForeignKey(
        "ApiToken",
        on_delete=models.DO_NOTHING,
        db_constraint=False,
        null=True,
        blank=True,
        related_name="made_sessions",
        help_text="The token that it was made with, if with any.",
    )
    created_at = models.DateTimeField(default=timezone.now)
    sdk_session_id = models.CharField(max_length=100, blank=True, help_text="What the Agent SDK resumes.")

    class Meta:
        ordering = ["-id"]

    def __str__(self) -> str:
        return self.name

    @property
    def status(self) -> str:
        """Of the messages that are under way, `running` before `queued`."""
        under_way = {message.status for message in self.messages.all() if not message.is_finished}
        if AgentMessage.Status.RUNNING in under_way:
            return self.Status.RUNNING.value
        return self.Status.QUEUED.value if under_way else self.Status.IDLE.value


class AgentMessage(Queued):
    """One prompt to an agent and how it went."""

    class ErrorKind(models.TextChoices):
        AGENT = "agent", "Agent"  # the agent or its model ended with an error
        TIMEOUT = "timeout", "Timeout"  # the total deadline passed
        UNAVAILABLE = "unavailable", "Unavailable"  # a member would not start, or the SDK or its key is missing
        LOST = "lost", "Lost"  # the runtime ended while it ran; never run again by itself

    session = models.ForeignKey(AgentSession, on_delete=models.CASCADE, related_name="messages")
    prompt = models.TextField()
    timeout = models.FloatField(help_text="Seconds the run may take in total.")
    door = models.CharField(max_length=10, choices=Invocation.Door.choices)
    requested_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, blank=True)
    requester = models.CharField(max_length=200, blank=True, help_text="Who asked, in words, as of then.")
    # Its id stays when the token is deleted: what was asked with one never has more rights than that had.
    asked_with = models.ForeignKey(
        "ApiToken",
        on_delete=models.DO_NOTHING,
        db_constraint=False,
        null=True,
        blank=True,
        related_name="asked_messages",
        help_text="The token of who asked, if with any: revoked, it stops the run.",
    )

    token = models.ForeignKey(
        "ApiToken",
        on_delete=models.SET_NULL,
        null=True,
        blank=True,
        help_text="The agent's own, for as long as it runs.",
    )

    result = models.TextField(blank=True, help_text="The agent's last word.")
    usage = models.JSONField(default=dict, blank=True, help_text="Turns, tokens, cost and time, as the SDK tells them.")
    error_kind = models.CharField(max_length=20, choices=ErrorKind.choices, blank=True)

    class Meta:
        ordering = ["id"]
        constraints = [
            # The second holder of a conversation would write over what the first one said.
            models.UniqueConstraint(
                fields=["session"], condition=Q(status="running"), name="one_message_of_a_session_runs"
            )
        ]
        indexes = [
            models.Index(fields=["status", "id"], name="agent_active", condition=Q(status__in=["queued", "running"]))
        ]

    def __str__(self) -> str:
        return f"message {self.pk}"


class AgentEvent(models.Model):
    """One line of a message's transcript. The ids of a session's events ascend in the order of what happened."""

    class Kind(models.TextChoices):
        TEXT = "text", "Text"  # {"text"}: the agent says something
        TOOL_CALL = "tool_call", "Tool call"  # {"id", "server", "tool", "arguments"}
        TOOL_RESULT = "tool_result", "Tool result"  # {"id", "content", "is_error"}
        SERVERS = "servers", "Servers"  # {"servers": [{"name", "status", "error"}]}: what it could not connect to
        ERROR = "error", "Error"  # {"text"}: what went wrong
        RESULT = "result", "Result"  # {"text", "status", "error_kind"}: how it ended, once, last

    message = models.ForeignKey(AgentMessage, on_delete=models.CASCADE, related_name="events")
    kind = models.CharField(max_length=20, choices=Kind.choices)
    data = models.JSONField(default=dict)
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["id"]
        indexes = [models.Index(fields=["message", "id"], name="agent_event_by_message")]

    def __str__(self) -> str:
        return f"{self.pk} {self.kind}"
