"""Members over REST: the roster, one member and its verbs.

No response has secrets or the environment of a member. Each row passes `visible_row` first. It omits values that a
dead runtime left, and values that the principal may not see.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from typing import Any, cast

from django.db.models.fields.json import KT
from django.urls import reverse
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers, status
from rest_framework.parsers import MultiPartParser
from rest_framework.permissions import IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response

from mcp_runtime.control.members import (
    FORCIBLE_VERBS,
    MEMBER_VERBS,
    folder_notes,
    members_of_roster,
    true_row,
    visible_tools,
)
from mcp_runtime.control.nodes import Liveness, read_liveness
from mcp_runtime.control.packages import package_report
from mcp_runtime.control.sandboxes import sandbox_report
from mcp_runtime.control.ways_in import report_of
from mcp_runtime.security.access import Principal
from roster.api.base import REFUSED, HallView, query_of
from roster.api.described import extend_schema
from roster.api.edits import EDIT, edit_member
from roster.api.permissions import (
    MayApproveMembers,
    MayControl,
    MayEditMembers,
    controlled_member,
    principal_of,
    reachable_member,
)
from roster.api.proposals import PROPOSE, propose
from roster.api.trash import REMOVE, remove
from roster.diagnosis import Diagnosis
from roster.diagnosis.rows import diagnosis_of_row, manifest_words
from roster.models import GuildMember, Tool

# Members ----------------------------------------------------------------------------------------------------------


class RuntimeSerializer(serializers.Serializer[Any]):
    alive = serializers.BooleanField(help_text="Whether the runtime of any node is alive.")
    holder = serializers.CharField(
        allow_null=True, help_text="The process and its host. If several nodes are alive, that of one of them."
    )


def visible_row(row: GuildMember, principal: Principal, live_ids: Collection[int]) -> GuildMember:
    """The row as `principal` may see it. Do not save it."""
    if not principal.may_read_log(row.name):
        row.last_error, row.progress = row.last_reason, ""
    if not principal.views_members:
        row.manifest = {}  # people write secret keys into its arguments
        vars(row).update(dict.fromkeys(manifest_words(), ""))
    return true_row(row, live_ids=live_ids)


class DiagnosisSerializer(serializers.Serializer[Diagnosis]):
    """Why a member does not run, and what to do. Each text is one line."""

    cause = serializers.CharField()
    remedy = serializers.CharField(help_text="What to do. Commands and code are between backquotes.")
    last_words = serializers.CharField(
        help_text="The line of its output that says most. Empty if there is none, or if you may not read its log."
    )
    key = serializers.CharField(
        help_text="The key of the manifest that a person can change to fix it, or `secrets`. Empty if there is none."
    )


class MemberSerializer(serializers.ModelSerializer[GuildMember]):
    """A member in lists. Its context has the `liveness`."""

    title = serializers.CharField()
    error = serializers.CharField(help_text="Why it does not run. If you may read its log, also its last lines.")
    diagnosis = serializers.SerializerMethodField(help_text="Null if there is nothing to explain.")
    progress = serializers.CharField(
        source="start_progress",
        help_text="The time since its start began, and its last output. Empty if it is not starting.",
    )
    warnings = serializers.ListField(child=serializers.CharField(), source="all_warnings")
    port = serializers.SerializerMethodField()
    endpoint = serializers.SerializerMethodField(help_text="The MCP endpoint of the member, also of a remote server.")
    url = serializers.SerializerMethodField()

    class Meta:
        model = GuildMember
        fields = [
            "name",
            "title",
            "version",
            "description",
            "enabled",
            "desired_state",
            "status",
            "status_changed_at",
            "error",
            "diagnosis",
            "progress",
            "no_answer_since",
            "needs_sign_in",
            "warnings",
            "port",
            "endpoint",
            "url",
        ]

    @extend_schema_field(DiagnosisSerializer(allow_null=True))
    def get_diagnosis(self, row: GuildMember) -> dict[str, Any] | None:
        diagnosis = diagnosis_of_row(row, self._liveness)
        return dict(DiagnosisSerializer(diagnosis).data) if diagnosis else None

    @property
    def _liveness(self) -> Liveness:
        return cast(Liveness, self.context["liveness"])

    def get_port(self, row: GuildMember) -> int | None:
        # Only while a process can have it. The port of a dead runtime is not an address.
        return row.port if row.endpoint else None

    def get_endpoint(self, row: GuildMember) -> str | None:
        return row.endpoint

    def get_url(self, row: GuildMember) -> str:
        return reverse("member", args=[row.name])


class ManifestSerializer(serializers.Serializer[dict[str, Any]]):
    """The last valid content of guild-member.json. Of the environment only the names, because values may be keys."""

    transport = serializers.CharField(default="http", help_text="The transport of the server.")
    command = serializers.CharField(help_text="Empty for a remote server, which has a url.")
    args = serializers.ListField(child=serializers.CharField())
    env = serializers.SerializerMethodField(help_text="Only the names.")
    url = serializers.CharField(default="")
    headers = serializers.DictField(child=serializers.CharField(), default=dict, help_text="Secrets are references.")
    enabled = serializers.BooleanField()
    start_timeout = serializers.FloatField(allow_null=True, help_text="Seconds. If null, the default.")
    timeout = serializers.FloatField(help_text="The maximum duration of a call in seconds.")
    tool_timeouts = serializers.DictField(
        child=serializers.FloatField(), help_text="The maximum duration of a call in seconds, by tool."
    )
    restart = serializers.ChoiceField(choices=["on-failure", "never"])
    unresponsive = serializers.ChoiceField(choices=["show", "restart"], default="show")
    contracts = serializers.ChoiceField(
        choices=["record", "hold"], default=None, allow_null=True, help_text="If null, by the kind of the member."
    )
    max_concurrency = serializers.IntegerField(help_text="The maximum number of concurrent calls.")
    protocol_version = serializers.CharField(default="", help_text="The version of a server without a handshake.")
    sandbox = serializers.ChoiceField(choices=["off", "on", "require"], default="off")
    packages = serializers.ChoiceField(
        choices=["fetched", "locked", "locked-with-scripts"],
        default="fetched",
        help_text="Whether npx or uvx fetch the packages, or the hall installs them once from a lock.",
    )
    limits = serializers.DictField(default=dict, help_text="What its processes may use. If null, the default.")
    node = serializers.DictField(default=dict, help_text="Which nodes may run it: labels, state and files.")
    oauth = serializers.DictField(default=dict, help_text="How the hall signs in at its authorization server.")

    def get_env(self, manifest: dict[str, Any]) -> list[str]:
        return sorted(manifest.get("env", {}))


class SandboxSerializer(serializers.Serializer[Any]):
    mode = serializers.CharField(help_text="The value of sandbox in its manifest: off, on or require.")
    protections = serializers.DictField(
        child=serializers.CharField(), help_text="What holds for its process, by the name of the protection."
    )
    gaps = serializers.DictField(
        child=serializers.CharField(),
        help_text="Why its machine cannot enforce a protection, by the name of the protection.",
    )


class PackagesSerializer(serializers.Serializer[Any]):
    specification = serializers.CharField(help_text="The packages that its manifest names.")
    runs_scripts = serializers.BooleanField(help_text="Whether install scripts may run.")
    version = serializers.CharField(help_text="The exact version of the first package. Empty without a lock.")
    count = serializers.IntegerField(help_text="The number of packages in the lock.")
    sha256 = serializers.CharField(help_text="The SHA-256 of the lock.")
    scripts = serializers.ListField(
        child=serializers.CharField(), help_text="Packages with install scripts, if the lock says so."
    )
    made_at = serializers.DateTimeField(allow_null=True, help_text="When the lock was made. Null without a lock.")
    node = serializers.CharField(help_text="The node that made the lock.")


class SignInSerializer(serializers.Serializer[Any]):
    grant = serializers.CharField(help_text="In which way the hall gets the tokens, as in the manifest.")
    explanation = serializers.CharField(help_text="A sentence about the grant, if no person signs in.")
    state = serializers.CharField(help_text="none, needed, signed in, or more scopes needed.")
    issuer = serializers.CharField(help_text="The authorization server. Empty before the first sign-in.")
    client_id = serializers.CharField(help_text="The hall's client id there.")
    scopes = serializers.ListField(child=serializers.CharField())
    wanted_scopes = serializers.ListField(child=serializers.CharField(), help_text="Scopes that calls lacked.")
    signed_in_at = serializers.DateTimeField(allow_null=True)
    signed_in_by = serializers.CharField(help_text="The name of the user.")
    expires_at = serializers.DateTimeField(allow_null=True, help_text="When the access token is renewed at the latest.")


class MemberDetailSerializer(MemberSerializer):
    """Everything an operator needs: what the folder says, the desired state, the status."""

    manifest = serializers.SerializerMethodField()
    folder_notes = serializers.SerializerMethodField(
        help_text="Nodes that lack its folder or have other files of it. Empty if you may not see its manifest."
    )
    node = serializers.SerializerMethodField(help_text="The node that owns it. Null until a runtime has seen it.")
    requested_node = serializers.SerializerMethodField(help_text="The node that it moves to. Null if it does not move.")
    sandbox = serializers.SerializerMethodField(
        help_text="Its protections. Null for a remote server, or if you may not see its manifest."
    )
    packages = serializers.SerializerMethodField(
        help_text="The lock of its packages. Null if it has none by its manifest, or if you may not see its manifest."
    )
    sign_in = serializers.SerializerMethodField(
        help_text="Its sign-in, without tokens. Null for a member with a process, or if you may not see its manifest."
    )
    tools_url = serializers.SerializerMethodField()
    logs_url = serializers.SerializerMethodField()
    status_changes_url = serializers.SerializerMethodField()

    class Meta(MemberSerializer.Meta):
        fields = [
            *MemberSerializer.Meta.fields,
            "directory",
            "manifest",
            "manifest_error",
            "folder_notes",
            "node",
            "requested_node",
            "sandbox",
            "packages",
            "sign_in",
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

    def get_folder_notes(self, row: GuildMember) -> list[str]:
        return folder_notes(row) if row.manifest else []

    def get_node(self, row: GuildMember) -> str | None:
        return self._liveness.owner_of(row) or None

    def get_requested_node(self, row: GuildMember) -> str | None:
        return self._liveness.requested_node_of(row) or None

    @extend_schema_field(SandboxSerializer(allow_null=True))
    def get_sandbox(self, row: GuildMember) -> dict[str, Any] | None:
        report = sandbox_report(row) if row.manifest else None
        return dict(SandboxSerializer(report).data) if report else None

    @extend_schema_field(PackagesSerializer(allow_null=True))
    def get_packages(self, row: GuildMember) -> dict[str, Any] | None:
        report = package_report(row)
        return dict(PackagesSerializer(report).data) if report else None

    @extend_schema_field(SignInSerializer(allow_null=True))
    def get_sign_in(self, row: GuildMember) -> dict[str, Any] | None:
        report = report_of(row) if row.manifest else None
        return dict(SignInSerializer(report).data) if report else None

    def get_tools_url(self, row: GuildMember) -> str:
        return reverse("member-tools", args=[row.name])

    def get_logs_url(self, row: GuildMember) -> str:
        return reverse("member-logs", args=[row.name])

    def get_status_changes_url(self, row: GuildMember) -> str:
        return reverse("member-status-changes", args=[row.name])


class MembersSerializer(serializers.Serializer[Any]):
    runtime = RuntimeSerializer()
    members = MemberSerializer(many=True)


def _runtime(liveness: Liveness) -> dict[str, Any]:
    holder = liveness.holder
    return {"alive": holder is not None, "holder": str(holder) if holder else None}


def _members(principal: Principal, live_ids: Collection[int]) -> list[GuildMember]:
    rows = members_of_roster().select_related("port_allocation")
    # Lists do not show these columns. Decoding them for hundreds of members takes longer than everything else.
    rows = rows.defer("manifest", "server_info", "capabilities", "instructions").annotate(**manifest_words())
    return [visible_row(row, principal, live_ids) for row in rows if principal.reaches(row.name)]


def member_detail(row: GuildMember, principal: Principal) -> dict[str, Any]:
    liveness = read_liveness()
    visible = visible_row(row, principal, liveness.live_ids)
    return dict(MemberDetailSerializer(visible, context={"liveness": liveness}).data)


class MembersView(HallView):
    parser_classes = (*HallView.parser_classes, MultiPartParser)  # a bundle is a file in a form

    def get_permissions(self) -> list[Any]:
        return [*super().get_permissions(), *([MayApproveMembers()] if self.request.method == "POST" else [])]

    @extend_schema(operation_id="members_list", responses=MembersSerializer)
    def get(self, request: Request) -> Response:
        """Every member that is there for you, without its tools."""
        liveness = read_liveness()
        rows = _members(principal_of(request), liveness.live_ids)
        members = MemberSerializer(rows, many=True, context={"liveness": liveness}).data
        return Response({"runtime": _runtime(liveness), "members": members})

    @PROPOSE
    def post(self, request: Request) -> Response:
        """Propose members. Nothing of them runs before somebody approves it."""
        return propose(request)


class MemberView(HallView):
    def get_permissions(self) -> list[Any]:
        needed: dict[str | None, list[Any]] = {"PATCH": [MayEditMembers()], "DELETE": [MayApproveMembers()]}
        return [*super().get_permissions(), *needed.get(self.request.method, [])]

    @extend_schema(responses={200: MemberDetailSerializer, 404: REFUSED})
    def get(self, request: Request, name: str) -> Response:
        """Everything the hall knows of one member: its manifest, its desired state, its status."""
        return Response(member_detail(reachable_member(request, name), principal_of(request)))

    @EDIT
    def patch(self, request: Request, name: str) -> Response:
        """Propose to change values of its manifest. The runtime changes the file when somebody approves that."""
        return edit_member(request, name)

    @REMOVE
    def delete(self, request: Request, name: str) -> Response:
        """Move the folder of the member to the trash. The runtime does it, and then the member leaves the roster."""
        return remove(request, name)


class VerbOptions(serializers.Serializer[Any]):
    force = serializers.BooleanField(
        required=False, default=False, help_text="Stop, restart or disable the member even if an agent needs it."
    )


class MemberVerbView(HallView):
    """Change the desired state of the member. The runtime acts on it a moment later, and then the status changes."""

    verb = ""
    permission_classes = (IsAuthenticated, MayControl)

    @extend_schema(
        parameters=[VerbOptions],
        request=None,
        responses={202: MemberDetailSerializer, 403: REFUSED, 404: REFUSED, 409: REFUSED},
    )
    def post(self, request: Request, name: str) -> Response:
        row = controlled_member(request, name)
        force = {"force": True} if query_of(VerbOptions, request)["force"] and self.verb in FORCIBLE_VERBS else {}
        MEMBER_VERBS[self.verb](row, **force)
        return Response(member_detail(row, principal_of(request)), status=status.HTTP_202_ACCEPTED)


# The roster: every member with its tools, requested often ---------------------------------------------------------


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


# The database extracts these from `definition`. Decoding all of it for thousands of tools takes four times as long.
ROSTER_TOOL_COLUMNS = (
    "name",
    KT("definition__title"),
    KT("definition__annotations__title"),
    KT("definition__description"),
)


def roster_tool(name: str, title: Any, annotated_title: Any, description: Any) -> dict[str, str]:
    """One tool as in RosterToolSerializer, from ROSTER_TOOL_COLUMNS."""
    return {"name": name, "title": _text(title) or _text(annotated_title), "description": _text(description)}


def _text(value: Any) -> str:
    # SQLite returns the text "null" for JSON's null.
    return "" if value in (None, "null") else str(value)


class RosterView(HallView):
    @extend_schema(responses=RosterSerializer)
    def get(self, request: Request) -> Response:
        """Every member that is there for you with its status, its error and the tools that you may call.

        In a constant number of queries.
        """
        liveness, principal = read_liveness(), principal_of(request)
        rows = _members(principal, liveness.live_ids)
        names = {row.pk: row.name for row in rows}
        tools: dict[int, list[dict[str, str]]] = defaultdict(list)
        visible = Tool.objects.filter(visible_tools(), member__removed_at=None).order_by("position")
        for member_id, *columns in visible.values_list("member_id", *ROSTER_TOOL_COLUMNS):
            if member_id in names and principal.may_list(names[member_id], columns[0]):
                tools[member_id].append(roster_tool(*columns))
        serializer = MemberSerializer(rows, many=True, context={"liveness": liveness})
        members = [{**values, "tools": tools[row.pk]} for row, values in zip(rows, serializer.data, strict=True)]
        return Response({"runtime": _runtime(liveness), "members": members})
