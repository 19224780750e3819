"""The verbs for a member as buttons and actions, and the facts that decide which of them apply."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypedDict

from django.db.models import (
    BooleanField,
    Case,
    CharField,
    Count,
    Expression,
    F,
    IntegerField,
    OuterRef,
    Q,
    QuerySet,
    Subquery,
    Value,
    When,
)
from django.db.models.functions import Coalesce

from mcp_runtime.control.contracts import held_contracts
from mcp_runtime.control.members import true_row, true_status, visible_tools
from mcp_runtime.control.nodes import Liveness
from roster.diagnosis import Diagnosis, Facts, diagnose
from roster.diagnosis.rows import manifest_words
from roster.models import GuildMember, ManifestEdit, Tool

if TYPE_CHECKING:
    from django_stubs_ext import WithAnnotations

    class _Annotations(TypedDict):
        runtime_is_alive: bool  # the runtime of its node
        dead_node: str  # the name of its node if that is not alive and another node is. Otherwise empty
        dead_node_holds_lease: bool
        has_local_state: bool  # only if `dead_node` is not empty
        manifest_command: str  # like the transport, only of a member in error
        manifest_transport: str
        manifest_sandbox: str
        tool_count: int

    Member = WithAnnotations[GuildMember, _Annotations]

Status = GuildMember.Status


@dataclass(frozen=True)
class Verb:
    """One of control.MEMBER_VERBS as a button and an action."""

    name: str
    label: str
    past_tense: str


VERBS = [
    Verb("start", "Start", "Start requested"),
    Verb("stop", "Stop", "Stop requested"),
    Verb("restart", "Restart", "Restart requested"),
    Verb("refresh", "Refresh tools", "New list of tools requested"),
    Verb("enable", "Enable", "Enabled"),
    Verb("disable", "Disable", "Disabled"),
]


# Of a member in one of these a start is a restart.
ACTIVE = (Status.STARTING, Status.CONNECTED, Status.ERROR)


def annotations_of(liveness: Liveness) -> dict[str, Expression]:
    """What the rows of members get, so that these functions know which of them have a live runtime."""
    has_live_node = Q(node__in=liveness.live_ids)
    dead_node = When(~has_live_node & Q(node__isnull=False), then=F("node__name"))
    some_are_dead = liveness.live_ids and len(liveness.live_ids) < len(liveness.nodes)
    # The key may be missing, or have JSON's null, for which isnull is false.
    has_no_state = Q(manifest__node__state__isnull=True) | Q(manifest__node__state=None)
    state_is_local = Q(manifest__node__state="local") | (has_no_state & Q(server_url=""))
    local = When(~has_live_node & Q(node__isnull=False) & state_is_local, then=True)
    return {
        "runtime_is_alive": Case(When(has_live_node, then=True), default=False, output_field=BooleanField()),
        "dead_node": Case(*([dead_node] if some_are_dead else []), default=Value(""), output_field=CharField()),
        "dead_node_holds_lease": Case(
            When(node__in=liveness.stuck_ids, then=True), default=False, output_field=BooleanField()
        ),
        "has_local_state": Case(*([local] if some_are_dead else []), default=False, output_field=BooleanField()),
        **manifest_words(),
    }


def tool_count() -> Expression:
    """The number of tools that the member offers."""
    return _count_of(Tool.objects.filter(visible_tools()))


def waiting_counts() -> dict[str, Expression]:
    """How many changes of a member wait for an approval: held ones of what it offers, and proposed edits of it."""
    return {
        "held_count": _count_of(held_contracts()),
        "edit_count": _count_of(ManifestEdit.objects.filter(approved_at=None)),
    }


def _count_of(rows: QuerySet[Any]) -> Expression:
    """The number of these rows that are of the member."""
    of_member = rows.filter(member=OuterRef("pk")).order_by().values("member").annotate(count=Count("pk"))
    return Coalesce(Subquery(of_member.values("count"), output_field=IntegerField()), 0)


def visible_status(member: Member) -> str:
    return true_status(member, live_ids=_live_ids(member))


def _live_ids(member: Member) -> list[int]:
    return [member.node_id] if member.runtime_is_alive and member.node_id is not None else []


def current_row(member: Member) -> GuildMember:
    """The member's row with its current, true state. The stored status decides which verbs apply."""
    return true_row(copy(member), live_ids=_live_ids(member))


def word_of(row: GuildMember) -> str:
    """The status for people. A member that only waits for a person is in no error. `row` is the visible one."""
    return "sign-in needed" if row.needs_sign_in and row.status == Status.ERROR else row.status


def visible_since(member: Member) -> datetime | None:
    """When it got the shown status, if that is known. The age of a faulty manifest is not."""
    is_its_own = member.runtime_is_alive and visible_status(member) == member.status
    return member.status_changed_at if is_its_own else None


def visible_progress(member: Member) -> str:
    return current_row(member).start_progress


def obstacle(verb: str, member: Member) -> str:
    """Why the verb does not apply to this member now. Empty if it applies."""
    status = visible_status(member)
    if member.removed_at:
        return "its folder is gone"
    if verb == "enable":
        return "it is already enabled" if member.enabled else ""
    if not member.enabled:
        return "it is disabled"
    if verb in ("start", "restart") and member.manifest_error:
        return "its guild-member.json has an error"
    should_run = member.desired_state == GuildMember.DesiredState.RUNNING
    if verb == "start" and should_run and status in (Status.STARTING, Status.CONNECTED):
        return f"it is already {status}"
    if verb == "stop" and not should_run and status == Status.DISCONNECTED:
        return "it is already stopped"
    if verb == "refresh" and status != Status.CONNECTED:
        return f"it is {status}"
    return ""


def verbs_now(member: Member) -> list[Verb]:
    """The verbs with a button on the card: those that make sense now, and either a start or a restart."""
    names = {"stop", "restart" if visible_status(member) in ACTIVE else "start"} if member.enabled else {"enable"}
    if not member.runtime_is_alive and member.desired_state == GuildMember.DesiredState.RUNNING:
        names -= {"start"}  # it should run already, but no runtime can start it
    if member.manifest_error and member.status == Status.DISCONNECTED:
        names = set()  # nothing runs, and nothing can be started
    return [verb for verb in VERBS if verb.name in names and not obstacle(verb.name, member)]


def diagnosis_of(member: Member) -> Diagnosis | None:
    """Why it does not run and what to do. None if there is nothing to explain."""
    facts = Facts(
        name=member.name,
        directory=member.directory,
        status=visible_status(member),
        enabled=member.enabled,
        should_run=member.desired_state == GuildMember.DesiredState.RUNNING,
        runtime_is_alive=member.runtime_is_alive,
        dead_node=member.dead_node,
        dead_node_holds_lease=member.dead_node_holds_lease,
        has_local_state=member.has_local_state,
        manifest_error=member.manifest_error,
        manifest_error_key=member.manifest_error_key,
        last_error=member.last_error,
        next_restart_at=member.next_restart_at,
        command=member.manifest_command,
        transport=member.manifest_transport,
        url=member.server_url,
        sandbox=member.manifest_sandbox,
    )
    return diagnose(facts)
