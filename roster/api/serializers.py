"""Rows as JSON, and query parameters as values. Secrets and the environment of a member never leave.

Members go through `as_shown` first: what a dead runtime left on a row is not true any more.
"""

from __future__ import annotations

from typing import Any

from django.db.models.fields.json import KT
from django.urls import reverse
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from mcp_runtime import control
from mcp_runtime.access import Principal
from roster import agent_config, tokens
from roster.models import ApiToken, GuildMember, Invocation, StatusChange, Tool

MAX_LINES = 5000
PAGING = {"cursor", "page_size"}


class RuntimeSerializer(serializers.Serializer[Any]):
    alive = serializers.BooleanField()
    holder = serializers.CharField(allow_null=True, help_text="Which process on which host.")


# Members ----------------------------------------------------------------------------------------------------------


def as_shown(row: GuildMember, who: Principal, *, runtime_is_alive: bool) -> GuildMember:
    """The row as `who` may see it; never to be saved."""
    if not who.may_read_log(row.name):
        row.last_error, row.progress = row.last_reason, ""
    if not who.views_members:
        row.manifest = {}  # people write keys into its arguments
    row.status = control.shown_status(row, runtime_is_alive=runtime_is_alive)
    if not runtime_is_alive:
        row.warnings = []
        row.pid = row.started_at = row.next_restart_at = None
    return row


class MemberSerializer(serializers.ModelSerializer[GuildMember]):
    """What lists show of a member."""

    title = serializers.CharField()
    error = serializers.CharField(help_text="Why it does not run; its last lines for who may read its log.")
    progress = serializers.CharField(
        source="start_progress", help_text="How long it has been starting and what it wrote last; else empty."
    )
    warnings = serializers.ListField(child=serializers.CharField(), source="all_warnings")
    port = serializers.SerializerMethodField()
    endpoint = serializers.SerializerMethodField(help_text="The member's own MCP endpoint, here or elsewhere.")
    url = serializers.SerializerMethodField()

    class Meta:
        model = GuildMember
        fields = [
            "name",
            "title",
            "version",
            "description",
            "enabled",
            "wanted",
            "status",
            "status_changed_at",
            "error",
            "progress",
            "warnings",
            "port",
            "endpoint",
            "url",
        ]

    def get_port(self, row: GuildMember) -> int | None:
        # While a process can have it; a dead runtime's claim is nobody's address.
        return row.port if row.endpoint else None

    def get_endpoint(self, row: GuildMember) -> str | None:
        return row.endpoint

    def get_url(self, row: GuildMember) -> str:
        return reverse("member", args=[row.name])


class ManifestSerializer(serializers.Serializer[dict[str, Any]]):
    """guild-member.json as it was last read without a fault. Of the environment only the names: values may be keys."""

    transport = serializers.CharField(default="http", help_text="How the server speaks MCP.")
    command = serializers.CharField(help_text="Empty for a server that runs elsewhere: that has a url.")
    args = serializers.ListField(child=serializers.CharField())
    env = serializers.SerializerMethodField(help_text="Names only.")
    url = serializers.CharField(default="")
    headers = serializers.DictField(
        child=serializers.CharField(), default=dict, help_text="With references in the place of secrets."
    )
    enabled = serializers.BooleanField()
    start_timeout = serializers.FloatField(help_text="Seconds.")
    timeout = serializers.FloatField(help_text="Seconds a tool call may take.")
    tool_timeouts = serializers.DictField(child=serializers.FloatField(), help_text="Seconds, by tool.")
    restart = serializers.ChoiceField(choices=["on-failure", "never"])
    max_concurrency = serializers.IntegerField(help_text="Calls that run in it at the same time.")

    def get_env(self, manifest: dict[str, Any]) -> list[str]:
        return sorted(manifest.get("env", {}))


class MemberDetailSerializer(MemberSerializer):
    """Everything an operator needs: what the folder says, what is wished, what is seen."""

    manifest = serializers.SerializerMethodField()
    tools_url = serializers.SerializerMethodField()
    logs_url = serializers.SerializerMethodField()
    status_changes_url = serializers.SerializerMethodField()

    class Meta(MemberSerializer.Meta):
        fields = [
            *MemberSerializer.Meta.fields,
            "directory",
            "manifest",
            "manifest_error",
            "restart_requested_at",
            "refresh_requested_at",
            "last_error",
            "exit_code",
            "pid",
            "last_port",
            "started_at",
            "protocol_version",
            "server_info",
            "capabilities",
            "instructions",
            "restarts",
            "restarts_total",
            "next_restart_at",
            "tools_url",
            "logs_url",
            "status_changes_url",
        ]

    @extend_schema_field(ManifestSerializer(allow_null=True))
    def get_manifest(self, row: GuildMember) -> dict[str, Any] | None:
        return dict(ManifestSerializer(row.manifest).data) if row.manifest else None

    def get_tools_url(self, row: GuildMember) -> str:
        return reverse("member-tools", args=[row.name])

    def get_logs_url(self, row: GuildMember) -> str:
        return reverse("member-logs", args=[row.name])

    def get_status_changes_url(self, row: GuildMember) -> str:
        return reverse("member-status-changes", args=[row.name])


class MembersSerializer(serializers.Serializer[Any]):
    runtime = RuntimeSerializer()
    members = MemberSerializer(many=True)


# The roster: every member with its tools, asked for often ---------------------------------------------------------


class RosterToolSerializer(serializers.Serializer[Any]):
    name = serializers.CharField()
    title = serializers.CharField()
    description = serializers.CharField()


class RosterMemberSerializer(MemberSerializer):
    tools = RosterToolSerializer(many=True)

    class Meta(MemberSerializer.Meta):
        fields = [*MemberSerializer.Meta.fields, "tools"]


class RosterSerializer(serializers.Serializer[Any]):
    runtime = RuntimeSerializer()
    members = RosterMemberSerializer(many=True)


# The database takes these out of `definition`: decoding it whole, for thousands of tools, takes four times as long.
ROSTER_TOOL_COLUMNS = (
    "name",
    KT("definition__title"),
    KT("definition__annotations__title"),
    KT("definition__description"),
)


def roster_tool(name: str, title: Any, annotated_title: Any, description: Any) -> dict[str, str]:
    """One tool as RosterToolSerializer documents it, of ROSTER_TOOL_COLUMNS."""
    return {"name": name, "title": _text(title) or _text(annotated_title), "description": _text(description)}


def _text(value: Any) -> str:
    # SQLite gives the word "null" for JSON's null.
    return "" if value in (None, "null") else str(value)


# Tools ------------------------------------------------------------------------------------------------------------


class ToolSerializer(serializers.ModelSerializer[Tool]):
    """A tool as callers need it; needs `member` at hand."""

    title = serializers.CharField()
    description = serializers.CharField()
    input_schema = serializers.DictField()
    output_schema = serializers.DictField(allow_null=True)
    timeout = serializers.SerializerMethodField(help_text="Seconds a call may take in total.")
    url = serializers.SerializerMethodField()
    invoke_url = serializers.SerializerMethodField()

    class Meta:
        model = Tool
        fields = [
            "name",
            "title",
            "description",
            "enabled",
            "input_schema",
            "output_schema",
            "schema_error",
            "timeout",
            "url",
            "invoke_url",
        ]

    def get_timeout(self, tool: Tool) -> float:
        return tool.member.timeout_of(tool.name)

    def get_url(self, tool: Tool) -> str:
        return reverse("tool", args=[tool.member.name, tool.name])

    def get_invoke_url(self, tool: Tool) -> str:
        return reverse("tool-invoke", args=[tool.member.name, tool.name])


class ToolDetailSerializer(ToolSerializer):
    definition = serializers.DictField(help_text="Word for word as the member sent it.")

    class Meta(ToolSerializer.Meta):
        fields = [*ToolSerializer.Meta.fields, "definition"]


class ToolsSerializer(serializers.Serializer[Any]):
    tools = ToolSerializer(many=True)


class ToolFilters(serializers.Serializer[Any]):
    switched_off = serializers.BooleanField(default=False, help_text="Show the tools that are switched off, too.")


# Invocations ------------------------------------------------------------------------------------------------------


class VerbOptions(serializers.Serializer[Any]):
    force = serializers.BooleanField(
        required=False, default=False, help_text="Stop, restart or disable even what an agent's session needs."
    )


class CallSerializer(serializers.Serializer[Any]):
    """The body of an invoke."""

    arguments = serializers.DictField(required=False, help_text="As the tool's input_schema says; {} when left out.")


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
    door = serializers.ChoiceField(choices=Invocation.Door.choices)
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
        return control.shown_arguments(invocation)

    @extend_schema_field(InvocationErrorSerializer(allow_null=True))
    def get_error(self, invocation: Invocation) -> dict[str, Any] | None:
        error = super().get_error(invocation)
        return {**error, "data": invocation.error_data} if error else None


class InvocationFilters(serializers.Serializer[Any]):
    """What narrows the list of calls."""

    status = serializers.MultipleChoiceField(choices=Invocation.Status.choices, required=False)
    member = serializers.CharField(required=False)
    tool = serializers.CharField(required=False)
    door = serializers.MultipleChoiceField(choices=Invocation.Door.choices, required=False)
    error_kind = serializers.MultipleChoiceField(choices=Invocation.ErrorKind.choices, required=False)
    requested_by = serializers.CharField(required=False, help_text="A user's name.")
    since = serializers.DateTimeField(required=False, help_text="Queued then or later.")
    until = serializers.DateTimeField(required=False, help_text="Queued before then.")

    def validate(self, values: dict[str, Any]) -> dict[str, Any]:
        """Refuses a misspelt filter: passed over, it would widen the list unseen."""
        if unknown := set(self.initial_data) - set(self.fields) - PAGING:
            known = ", ".join(self.fields)
            raise serializers.ValidationError(
                {name: [f"No filter has this name; there are {known}."] for name in unknown}
            )
        return values


# Tokens -----------------------------------------------------------------------------------------------------------


class NewTokenSerializer(serializers.Serializer[Any]):
    """The body that makes a token. Neither members nor tools: all that who asks may."""

    name = serializers.CharField(required=False, default="", max_length=tokens.MAX_NAME, allow_blank=True)
    members = serializers.ListField(child=serializers.CharField(), required=False, default=list, help_text="Names.")
    tools = serializers.ListField(
        child=serializers.CharField(), required=False, default=list, help_text="Each as MEMBER/TOOL."
    )
    expires_at = serializers.DateTimeField(required=False, allow_null=True, default=None, help_text="null: never.")
    calls_per_minute = serializers.IntegerField(
        required=False, allow_null=True, default=None, min_value=0, max_value=1_000_000, help_text="0: no limit."
    )
    max_in_flight = serializers.IntegerField(
        required=False, allow_null=True, default=None, min_value=1, max_value=100_000
    )

    def validate_tools(self, texts: list[str]) -> list[tuple[str, str]]:
        try:
            return [tokens.parse_tool(text) for text in texts]
        except ValueError as error:
            raise serializers.ValidationError(str(error)) from error

    def validate(self, values: dict[str, Any]) -> dict[str, Any]:
        """Refuses a misspelt key, which would make a token that opens more than was meant."""
        return _known_keys_alone(self, values)


def _known_keys_alone(serializer: serializers.Serializer[Any], values: dict[str, Any]) -> dict[str, Any]:
    if unknown := set(serializer.initial_data) - set(serializer.fields):
        known = ", ".join(serializer.fields)
        raise serializers.ValidationError(
            {repr(name): [f"This key is unknown; there are {known}."] for name in unknown}
        )
    return values


class TokenSerializer(serializers.ModelSerializer[ApiToken]):
    """A token without itself; needs its members and tools at hand."""

    state = serializers.ChoiceField(choices=["good", "expired", "revoked"])
    members = serializers.SerializerMethodField(help_text="Where the scope is some members.")
    tools = serializers.SerializerMethodField(help_text="Where the scope is some tools: each as MEMBER/TOOL.")
    url = serializers.SerializerMethodField()

    class Meta:
        model = ApiToken
        fields = [
            "id",
            "name",
            "hint",
            "state",
            "created_at",
            "expires_at",
            "revoked_at",
            "last_used_at",
            "scope",
            "members",
            "tools",
            "calls_per_minute",
            "max_in_flight",
            "url",
        ]

    def get_members(self, token: ApiToken) -> list[str]:
        return sorted(member.name for member in token.members.all())

    def get_tools(self, token: ApiToken) -> list[str]:
        return sorted(f"{tool.member.name}/{tool.name}" for tool in token.tools.all())

    def get_url(self, token: ApiToken) -> str:
        return reverse("token", args=[token.pk])


class MadeTokenSerializer(TokenSerializer):
    token = serializers.CharField(help_text="The token itself. It is not shown again.")

    class Meta(TokenSerializer.Meta):
        fields = [*TokenSerializer.Meta.fields, "token"]


# What agents' clients want written down ---------------------------------------------------------------------------


class AgentConfigFilters(serializers.Serializer[Any]):
    """`for` is a word of Python, so the field is put in below."""

    members = serializers.CharField(required=False, default="", help_text="Names, separated by commas; none: all.")
    direct = serializers.BooleanField(required=False, default=False, help_text="Each member's own endpoint.")

    def get_fields(self) -> dict[str, Any]:
        return {"for": _for_field(), **super().get_fields()}

    def validate_members(self, text: str) -> list[str]:
        return [name.strip() for name in text.split(",") if name.strip()]


class AgentConfigWish(serializers.Serializer[Any]):
    """The body that makes a token and the configuration with it."""

    members = serializers.ListField(child=serializers.CharField(), required=False, default=list)
    direct = serializers.BooleanField(required=False, default=False)
    expires_at = serializers.DateTimeField(required=False, allow_null=True, default=None)

    def get_fields(self) -> dict[str, Any]:
        return {"for": _for_field(), **super().get_fields()}

    def validate(self, values: dict[str, Any]) -> dict[str, Any]:
        return _known_keys_alone(self, values)


def _for_field() -> serializers.ChoiceField:
    return serializers.ChoiceField(choices=list(agent_config.FORMATS), help_text="The client.")


class CostSerializer(serializers.Serializer[Any]):
    tools = serializers.IntegerField()
    characters = serializers.IntegerField(help_text="Of their definitions as JSON.")
    tokens = serializers.IntegerField(help_text="An estimate: characters divided by 4.")


class AgentConfigSerializer(serializers.Serializer[Any]):
    place = serializers.CharField(help_text="Which file of the client it belongs into.")
    config = serializers.CharField(help_text="What to write there, word for word.")
    token = TokenSerializer(allow_null=True, help_text="The token that was made for it, and stands in `config`.")
    cost = CostSerializer(help_text="What the definitions of all the tools take of an agent's context.")
    cost_by_member = serializers.DictField(child=CostSerializer())


# What happened ----------------------------------------------------------------------------------------------------


class StatusChangeSerializer(serializers.ModelSerializer[StatusChange]):
    signal = serializers.CharField(
        source="signal_name", help_text="SIGKILL for exit code -9; empty when there was none."
    )

    class Meta:
        model = StatusChange
        fields = ["id", "old", "new", "cause", "message", "exit_code", "signal", "log_tail", "created_at"]


class LogFilters(serializers.Serializer[Any]):
    lines = serializers.IntegerField(default=200, min_value=1, max_value=MAX_LINES, help_text="Of the end.")


class LogSerializer(serializers.Serializer[Any]):
    lines = serializers.ListField(child=serializers.CharField(), help_text="Oldest first.")


class ErrorSerializer(serializers.Serializer[Any]):
    """The body of every refusal."""

    error = serializers.CharField(help_text="A sentence for people.")
    code = serializers.CharField(help_text="A word for programs.")
    path = serializers.CharField(required=False, help_text="Refused arguments: the place.")
    reason = serializers.CharField(required=False, help_text="Refused arguments: what is wrong there.")
    faults = serializers.DictField(
        child=serializers.ListField(child=serializers.CharField()),
        required=False,
        help_text="Refused fields: sentences.",
    )
