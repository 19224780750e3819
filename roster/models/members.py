"""Members, and their tools, ports, groups and status changes."""

from __future__ import annotations

import json
import signal
from collections.abc import Collection
from typing import Any

from django.db import models
from django.db.models import Q
from django.utils import timezone

from roster.json_field import JsonField


class GuildMember(models.Model):
    """One installed plugin: what its folder says, the desired state, the status."""

    class Status(models.TextChoices):
        DISCONNECTED = "disconnected", "Disconnected"  # no process, and none is due
        STARTING = "starting", "Starting"  # a process, or the wait for a port; the handshake is not done
        CONNECTED = "connected", "Connected"  # shook hands, tools listed
        STOPPING = "stopping", "Stopping"  # requested to end, not ended yet
        ERROR = "error", "Error"  # ended or never came up without a request. `last_error` says why

    class DesiredState(models.TextChoices):
        RUNNING = "running", "Running"
        STOPPED = "stopped", "Stopped"

    name = models.CharField(max_length=64, unique=True)

    # What the folder says. Written by mcp_runtime.members.discovery.
    directory = models.CharField(max_length=1000, help_text="The path relative to the members folder.")
    manifest = JsonField(default=dict, help_text="The last valid content of guild-member.json.")
    manifest_error = models.TextField(blank=True, help_text="Why guild-member.json cannot be used. Empty if it can.")
    manifest_error_key = models.TextField(
        db_default="",
        blank=True,
        editable=False,
        help_text="The place of the first fault in guild-member.json, such as args.1. Empty if the fault has none.",
    )
    manifest_warnings = JsonField(default=list, blank=True)
    display_name = models.CharField(max_length=200, blank=True)
    version = models.CharField(max_length=100, blank=True)
    description = models.TextField(blank=True)
    server_url = models.CharField(max_length=2048, blank=True, help_text="The address of a remote server.")
    removed_at = models.DateTimeField(
        null=True, blank=True, help_text="The time when the hall noticed that the folder is gone."
    )
    digest = models.CharField(
        max_length=64,
        db_default="",
        blank=True,
        editable=False,
        help_text="The digest of the folder on the node that owns it.",
    )

    # The desired state. Written through mcp_runtime.control.
    enabled = models.BooleanField(
        default=True, help_text="A disabled member does not run, and calls to it are refused."
    )
    desired_state = models.CharField(max_length=10, choices=DesiredState.choices, default=DesiredState.RUNNING)
    restart_requested_at = models.DateTimeField(null=True, blank=True)
    refresh_requested_at = models.DateTimeField(null=True, blank=True)
    groups = models.ManyToManyField(
        "auth.Group",
        through="MemberGroup",
        related_name="guild_members",
        blank=True,
        help_text="If a member has groups, only their users and superusers can use it.",
    )

    # In `last_error`, between the sentence and the member's last lines.
    TAIL_MARK = ". Last output:\n"

    # The owner. mcp_runtime.rows.ownership writes it. Only the runtime with this lease writes the observed state.
    node = models.ForeignKey(
        "roster.Node", null=True, blank=True, editable=False, on_delete=models.SET_NULL, related_name="members"
    )
    lease_id = models.UUIDField(
        null=True, blank=True, editable=False, help_text="The lease of the runtime that owns it, or owned it last."
    )
    epoch = models.BigIntegerField(
        db_default=0, editable=False, help_text="Changes with every change of the owner, and with every start."
    )
    # Written through mcp_runtime.control, and by mcp_runtime.members.discovery if the folder is only on another node.
    # The owner gives the member away, and then it is empty.
    requested_node = models.ForeignKey(
        "roster.Node", null=True, blank=True, on_delete=models.SET_NULL, related_name="requested_members"
    )

    # The observed state. mcp_runtime.members.status writes it when the status changes. Between two changes other
    # modules of mcp_runtime.members write some of it:
    #   progress         starting
    #   no_answer_since  signs_of_life
    #   needs_sign_in    credentials, when calls need more scopes
    #   warnings         lifecycle
    #   next_restart_at  availability, supervisor
    #   restarts         supervisor, which sets it to 0
    # `restarts_total` counts each automatic restart. The rows of StatusChange do not, because they merge repeated ones.
    status = models.CharField(max_length=20, choices=Status.choices, default=Status.DISCONNECTED)
    status_changed_at = models.DateTimeField(default=timezone.now)
    last_error = models.TextField(blank=True)
    needs_sign_in = models.BooleanField(
        default=False,
        db_default=False,
        editable=False,
        help_text="A person must sign in at its authorization server, for all calls or for some that need more scopes.",
    )
    progress = models.CharField(max_length=200, blank=True, help_text="The last output of the member during its start.")
    no_answer_since = models.DateTimeField(
        null=True, blank=True, help_text="The time of the first call without a response, if no later call got one."
    )
    warnings = JsonField(
        default=list, blank=True, help_text="Warnings about the running process, for example about its address."
    )
    pid = models.PositiveIntegerField(null=True, blank=True)
    last_port = models.PositiveIntegerField(
        null=True, blank=True, help_text="The next start uses this port again if it is free."
    )
    exit_code = models.IntegerField(
        null=True, blank=True, help_text="The exit code of the last process. -9 means signal 9."
    )
    started_at = models.DateTimeField(null=True, blank=True)
    protocol_version = models.CharField(max_length=20, blank=True)
    server_info = JsonField(default=dict, blank=True)
    capabilities = JsonField(default=dict, blank=True)
    instructions = models.TextField(blank=True)
    restarts = models.PositiveIntegerField(
        default=0, help_text="The number of restarts since the member was last stable."
    )
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
        """One sentence that explains why it does not run. Empty if nothing is wrong."""
        return self.manifest_error or (self.last_error if self.status == self.Status.ERROR else "")

    @property
    def last_reason(self) -> str:
        """`last_error` without the member's last lines, which need the permission to read its log."""
        return self.last_error.partition(self.TAIL_MARK)[0]

    def true_status(self, live_ids: Collection[int]) -> str:
        """The true status. `live_ids` are the ids of the live nodes.

        A member whose node is not alive is not connected. A folder that cannot be used is an error.
        """
        has_runtime = self.node_id in live_ids
        return self.status_of(self.status, has_manifest_error=bool(self.manifest_error), has_runtime=has_runtime)

    @classmethod
    def status_of(cls, status: str, *, has_manifest_error: bool, has_runtime: bool) -> str:
        """The true status for these columns of a row. `has_runtime` is whether the runtime of its node is alive."""
        if has_manifest_error and (not has_runtime or status == cls.Status.DISCONNECTED):
            return cls.Status.ERROR.value
        return str(status) if has_runtime else cls.Status.DISCONNECTED.value

    @property
    def start_progress(self) -> str:
        """How long it has been starting, and its last output. Empty if it is not starting, or for the first second."""
        seconds = (timezone.now() - self.status_changed_at).total_seconds()
        if self.status != self.Status.STARTING or seconds < 1:
            return ""
        return f"starting for {seconds:.0f} s" + (f": {self.progress}" if self.progress else "")

    @property
    def port(self) -> int | None:
        """The port of its process, if it has one."""
        allocation = getattr(self, "port_allocation", None)  # a reverse one-to-one relation raises if there is no row
        return allocation.port if allocation else None

    @property
    def endpoint(self) -> str | None:
        """The address for agents while it is up: its port, or its url without the query, which only the hall knows."""
        if self.status in (self.Status.DISCONNECTED, self.Status.ERROR):
            return None
        if self.server_url:
            return self.server_url.partition("?")[0]
        allocation = getattr(self, "port_allocation", None)
        return allocation.endpoint if allocation else None

    @property
    def silence(self) -> str:
        """Since when it has given no answer, in words. Empty if it answers, or if nobody called it."""
        since = self.no_answer_since
        if since is None or self.status != self.Status.CONNECTED:
            return ""
        return f"no answer since {since:%Y-%m-%d %H:%M:%S} UTC"

    @property
    def all_warnings(self) -> list[str]:
        return [*([self.silence] if self.silence else []), *self.manifest_warnings, *self.warnings]

    # From the manifest. A row that is older than a key lacks it. Then the default of the declaration holds.

    @property
    def call_timeout(self) -> float:
        """Seconds a tool call may take in total, unless the tool has its own (REQ-MCP-HTTP-28)."""
        return float(self.manifest.get("timeout", 30.0))

    def timeout_of(self, tool_name: str) -> float:
        return float(self.manifest.get("tool_timeouts", {}).get(tool_name, self.call_timeout))

    @property
    def node_labels(self) -> frozenset[str]:
        """The labels that a node needs to run it."""
        return frozenset(self.manifest.get("node", {}).get("labels", ()))

    @property
    def state(self) -> str:
        """Where the member keeps its data: `local`, `shared` or `none`."""
        return self.manifest.get("node", {}).get("state") or ("none" if self.server_url else "local")

    @property
    def sandbox(self) -> str:
        """Whether its process has a sandbox: `off`, `on` or `require`."""
        return str(self.manifest.get("sandbox", "off"))

    @property
    def signs_in_by_user(self) -> bool:
        """Whether each user has an own sign-in at it, so that a call has the account of the user who asks."""
        return (self.manifest.get("oauth") or {}).get("credentials") == "user"

    @property
    def allowed_issuer(self) -> str:
        """The only authorization server that its manifest allows. Empty if it names none."""
        return str((self.manifest.get("oauth") or {}).get("issuer") or "")

    @property
    def max_concurrency(self) -> int:
        """Calls that may run in it at the same time."""
        return int(self.manifest.get("max_concurrency", 16))


class MemberGroup(models.Model):
    """Reserve a member for the users of a group. A member without such rows is open to everybody.

    So a group that a member is reserved for cannot be deleted. Otherwise its deletion could open the member.
    """

    member = models.ForeignKey(GuildMember, on_delete=models.CASCADE)
    group = models.ForeignKey("auth.Group", on_delete=models.PROTECT)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["member", "group"], name="group_is_unique_in_its_member")]

    def __str__(self) -> str:
        return f"{self.member} is for {self.group}"


class PortAllocation(models.Model):
    """The claim on a port, for the lifetime of one server process (REQ-MCP-HTTP-5, 8, 10, 11, 32)."""

    port = models.PositiveIntegerField()
    lease_id = models.UUIDField(null=True, editable=False, help_text="The lease of the runtime that uses the port.")
    member = models.OneToOneField(GuildMember, on_delete=models.CASCADE, related_name="port_allocation")
    allocated_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["port"]
        constraints = [
            models.CheckConstraint(condition=Q(port__gte=20000, port__lte=30000), name="port_is_in_the_managed_range"),
            models.UniqueConstraint(fields=["lease_id", "port"], name="port_is_unique_in_its_runtime"),
        ]

    def __str__(self) -> str:
        return str(self.port)

    @property
    def endpoint(self) -> str:
        """The address for clients, in the form of the seeds (REQ-MCP-HTTP-22, 33). The hall itself uses 127.0.0.1."""
        return f"http://localhost:{self.port}/mcp"


class StatusChange(models.Model):
    """One change of a member's status, with its cause. Together they are the timeline that people read later."""

    member = models.ForeignKey(GuildMember, on_delete=models.CASCADE, related_name="status_changes")
    old = models.CharField(max_length=20, choices=GuildMember.Status.choices)
    new = models.CharField(max_length=20, choices=GuildMember.Status.choices)
    cause = models.CharField(max_length=40, help_text="The cause in one or two words: start, stop, exit, handshake...")
    message = models.TextField(blank=True)
    exit_code = models.IntegerField(null=True, blank=True, help_text="-9 means signal 9.")
    log_tail = models.TextField(blank=True, help_text="The last lines of the member's output.")
    created_at = models.DateTimeField(default=timezone.now)
    repeats = models.PositiveIntegerField(
        default=0, db_default=0, help_text="How many automatic restarts after it failed in the same way."
    )
    repeated_at = models.DateTimeField(null=True, blank=True, help_text="When the last of these restarts failed.")

    class Meta:
        ordering = ["-id"]
        indexes = [models.Index(fields=["member", "-id"], name="status_change_by_member")]

    def __str__(self) -> str:
        return f"{self.old} → {self.new}"

    @property
    def signal_name(self) -> str:
        """`SIGKILL` for exit code -9. Empty if no signal ended it."""
        if self.exit_code is None or self.exit_code >= 0:
            return ""
        try:
            return signal.Signals(-self.exit_code).name
        except ValueError:
            return f"signal {-self.exit_code}"


class MemberExtras(models.Model):
    """The prompts, resources and resource templates that a member listed last. The owner of the member writes them."""

    member = models.OneToOneField(GuildMember, on_delete=models.CASCADE, primary_key=True, related_name="extras")
    prompts = JsonField(default=list, help_text="The prompts as the member sent them.")
    resources = JsonField(default=list, help_text="The resources as the member sent them.")
    resource_templates = JsonField(default=list, help_text="The resource templates as the member sent them.")
    digest = models.CharField(max_length=64, editable=False, help_text="SHA-256 of the three lists.")

    def __str__(self) -> str:
        return f"extras of {self.member_id}"


class DisabledExtra(models.Model):
    """A prompt, a resource or a resource template that somebody disabled. It is in no list, and nobody can use it.

    The row stays when it leaves the list of its member, so that it is still disabled when it comes back.
    """

    class Kind(models.TextChoices):
        PROMPT = "prompt", "prompt"
        RESOURCE = "resource", "resource"
        RESOURCE_TEMPLATE = "resourceTemplate", "resource template"

    MAX_KEY = 255

    member = models.ForeignKey(GuildMember, on_delete=models.CASCADE, related_name="disabled_extras")
    kind = models.CharField(max_length=20, choices=Kind.choices)
    name = models.TextField(help_text="The name of the prompt, the URI of the resource, or the URI template.")
    key = models.CharField(max_length=MAX_KEY, help_text="The name, or its beginning and its hash if it is long.")

    class Meta:
        default_permissions = ()
        constraints = [
            models.UniqueConstraint(fields=["member", "kind", "key"], name="extra_is_disabled_once_in_its_member")
        ]

    def __str__(self) -> str:
        return f"{self.get_kind_display()} {self.name[:200]}"


class Tool(models.Model):
    """A tool of a member, as in its last tools/list (REQ-MCP-HTTP-36, 37).

    A tool that left the list keeps its row (`listed` false), so that it is still disabled when it comes back.
    """

    member = models.ForeignKey(GuildMember, on_delete=models.CASCADE, related_name="tools")
    name = models.CharField(max_length=255)
    position = models.PositiveIntegerField(default=0, help_text="The place of the tool in the member's list.")
    definition = JsonField(default=dict, help_text="The tool as the member sent it.")
    schema_error = models.TextField(blank=True, help_text="Why arguments are not validated. Empty if they are.")
    listed = models.BooleanField(default=True, help_text="The tool was in the member's last tools/list.")
    enabled = models.BooleanField(default=True, help_text="A disabled tool is in no list, and nobody can call it.")
    # As in its contract, for lists and calls, which do not read contracts.
    version = models.CharField(
        max_length=64, blank=True, default="", db_default="", help_text="The SHA-256 of the definition."
    )
    is_held = models.BooleanField(
        default=False,
        db_default=False,
        help_text="The definition waits for an approval. A held tool is in no list, and nobody can call it.",
    )

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

    @property
    def text(self) -> str:
        """The definition as JSON. For rows of `control.members.with_text` it is the text in the database."""
        definition = vars(self).get("definition_text")
        return json.dumps(self.definition) if definition is None else str(definition)
