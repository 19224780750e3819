"""Members and their tools: their desired state, and the roster as readers see it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.contrib.auth.models import Group
from django.db.models import Q, QuerySet, TextField
from django.db.models.functions import Cast
from django.utils import timezone

from mcp_runtime.control.nodes import read_liveness
from mcp_runtime.control.notify import notify_runtime
from mcp_runtime.protocol.errors import MemberDisabledError, RequestRefusedError, UnknownMemberError, UnknownToolError
from mcp_runtime.rows import json_rows, lease
from mcp_runtime.rows.database import short_transaction
from roster.models import AuditEntry, GuildMember, Hall, Node, Role, Tool

if TYPE_CHECKING:
    from mcp_runtime.members import discovery

Kind = AuditEntry.Kind


def find_member(name: str) -> GuildMember:
    """The member with that name. Raises UnknownMemberError."""
    row = GuildMember.objects.filter(name=name, removed_at=None).first()
    if row is None:
        raise UnknownMemberError(f"no member {name!r} is in the roster")
    return row


# Desired state ----------------------------------------------------------------------------------------------------


def start_member(row: GuildMember) -> None:
    """Request that the member runs. In status `error` it is tried at once, and its restart counter is reset."""
    require_startable(row)
    retry = {"restart_requested_at": timezone.now()} if row.status == GuildMember.Status.ERROR else {}
    _change_desired_state(row, Kind.MEMBER_STARTED, desired_state=GuildMember.DesiredState.RUNNING, **retry)


def stop_member(row: GuildMember, *, force: bool = False) -> None:
    """Request that the member stops, until somebody starts it or a call needs it.

    Raises MemberInUseError while an agent needs it, unless `force`. Restart and disable do the same.
    """
    if not force:
        require_unneeded(row)
    stopped = GuildMember.DesiredState.STOPPED
    _change_desired_state(row, Kind.MEMBER_STOPPED, desired_state=stopped, restart_requested_at=None)


def restart_member(row: GuildMember, *, force: bool = False) -> None:
    """Request a new process with the current manifest."""
    require_enabled(row)
    if not force:
        require_unneeded(row)
    if row.manifest_error:
        raise RequestRefusedError(f"member {row.name!r} cannot start: {row.manifest_error}")
    running = GuildMember.DesiredState.RUNNING
    _change_desired_state(row, Kind.MEMBER_RESTARTED, desired_state=running, restart_requested_at=timezone.now())


def refresh_member(row: GuildMember) -> None:
    """Request that the member's tools are listed again. Only a connected member can list its tools."""
    if row.status != GuildMember.Status.CONNECTED:
        raise RequestRefusedError(f"member {row.name!r} is {row.status}: its tools are listed when it is connected")
    _change_desired_state(row, Kind.MEMBER_REFRESHED, refresh_requested_at=timezone.now())


def enable_member(row: GuildMember) -> None:
    with short_transaction():
        Hall.note_access_change()
        running = GuildMember.DesiredState.RUNNING
        _change_desired_state(row, Kind.MEMBER_ENABLED, enabled=True, desired_state=running)


def disable_member(row: GuildMember, *, force: bool = False) -> None:
    """Stop the member, and refuse calls to it until it is enabled."""
    if not force:
        require_unneeded(row)
    with short_transaction():
        Hall.note_access_change()
        _change_desired_state(row, Kind.MEMBER_DISABLED, enabled=False)


def reserve_member(row: GuildMember, groups: Iterable[Group]) -> None:
    """Reserve the member for the users of these groups. Without groups it is for everybody who may call tools.

    Raises RequestRefusedError for a group that is a role. A change of somebody's role must not change which members
    exist for them.
    """
    groups = list(groups)
    if names := ", ".join(repr(role.name) for role in Role.objects.filter(group__in=groups)):
        raise RequestRefusedError(f"members are reserved for groups that are not roles, and {names} is a role")
    with short_transaction():
        Hall.note_access_change()
        before = sorted(row.groups.values_list("name", flat=True))
        row.groups.set(groups)
        after = sorted(group.name for group in groups)
        record_of_member(row, Kind.MEMBER_RESERVED, before={"groups": before}, after={"groups": after})


MEMBER_VERBS: dict[str, Callable[..., None]] = {
    "start": start_member,
    "stop": stop_member,
    "restart": restart_member,
    "refresh": refresh_member,
    "enable": enable_member,
    "disable": disable_member,
}
# Verbs that are refused while an agent needs the member. They accept `force`.
FORCIBLE_VERBS = ("stop", "restart", "disable")
SHOWN_NODES = 5  # names in a sentence


def require_startable(row: GuildMember) -> None:
    require_enabled(row)
    if row.manifest_error:
        raise RequestRefusedError(f"member {row.name!r} cannot start: {row.manifest_error}")


def require_enabled(row: GuildMember) -> None:
    if not row.enabled:
        raise MemberDisabledError(f"member {row.name!r} is disabled; enable it first")


def _change_desired_state(row: GuildMember, kind: AuditEntry.Kind, **columns: Any) -> None:
    """Change the desired state because somebody asked for it, with an entry in the audit log."""
    with short_transaction():
        old: Any = GuildMember.objects.filter(pk=row.pk).values("enabled", "desired_state").first() or {}
        names = [name for name in old if name in columns and columns[name] != old[name]]
        set_desired_state(row, **columns)
        before, after = ({name: side[name] for name in names} or None for side in (old, columns))
        record_of_member(row, kind, before=before, after=after)


def record_of_member(
    row: GuildMember,
    kind: AuditEntry.Kind,
    *,
    tool: str = "",
    before: dict[str, Any] | None = None,
    after: dict[str, Any] | None = None,
) -> None:
    """Add an entry about a member, or about one of its tools, to the audit log."""
    target = f"tool {row.name}/{tool}" if tool else f"member {row.name}"
    AuditEntry.record(kind, target, member=row.name, before=before, after=after)


def set_desired_state(row: GuildMember, **columns: Any) -> None:
    GuildMember.objects.filter(pk=row.pk).update(**columns)
    for field, value in columns.items():
        setattr(row, field, value)
    notify_runtime(members=True)


def require_unneeded(row: GuildMember) -> None:
    """Raises MemberInUseError while an agent needs the member."""
    # Imported late, because the commands that only read must start fast.
    from mcp_runtime.agents import transitions

    transitions.require_unneeded(row)


def sync_roster() -> discovery.SyncReport:
    """Make the rows match the members folder now. The runtime acts on the changes."""
    from mcp_runtime.members import discovery  # late, as in `require_unneeded`

    report = discovery.sync(settings.GUILD_HALL_MEMBERS_DIR)
    notify_runtime(members=True)
    return report


def folders_of_names() -> dict[str, str]:
    """The folder to which each name belongs, in case several folders have the same name."""
    from mcp_runtime.members import discovery  # late, as in `require_unneeded`

    return discovery.owners()


# Tools ------------------------------------------------------------------------------------------------------------


def set_tool_enabled(tool: Tool, enabled: bool) -> None:
    """Enable or disable a tool. A disabled tool is in no list, and calls from every source are refused."""
    with short_transaction():
        Hall.note_access_change()
        Tool.objects.filter(pk=tool.pk).update(enabled=enabled)
        record_of_member(tool.member, Kind.TOOL_ENABLED if enabled else Kind.TOOL_DISABLED, tool=tool.name)
    tool.enabled = enabled


def find_tool(member_name: str, tool_name: str) -> Tool:
    """The tool, enabled or not. Raises UnknownMemberError, UnknownToolError."""
    row = find_member(member_name)
    tool = with_text(Tool.objects.filter(member=row, name=tool_name, listed=True)).select_related("member").first()
    if tool is None:
        raise UnknownToolError(f"member {member_name!r} lists no tool {tool_name!r}")
    return tool


def with_text(tools: QuerySet[Tool]) -> QuerySet[Tool]:
    """Add the definitions as JSON (`Tool.text`). They are parsed only on use.

    Parsing a large definition blocks all other threads of the process for 10 ms or more.
    """
    return tools.defer("definition").annotate(definition_text=Cast("definition", TextField()))


def visible_tools() -> Q:
    """A condition for the tools that lists show. The member lists them, and they are enabled and not held."""
    return Q(listed=True, enabled=True, is_held=False)


def tools_version() -> str:
    """A text that changes with each tool of the hall and its state. It reads no definitions, and no rows one by one."""
    columns = ("id", "member_id", "position", "version", "listed", "enabled", "is_held")
    return str(next(iter(json_rows.as_value(Tool.objects.all(), *columns))))


# The roster as readers see it -------------------------------------------------------------------------------------


def live_runtime() -> lease.Holder | None:
    """A runtime that is alive, or None if no node is alive."""
    return read_liveness().holder


def own_live_runtime() -> lease.Holder | None:
    """The runtime of this machine's node, or None if it is not alive.

    A machine that runs only the web has no node. Then it is a runtime of any node.
    """
    holder = lease.live_holder()
    if holder is None and not Node.objects.filter(name=settings.GUILD_HALL_NODE).exists():
        return live_runtime()
    return holder


def await_heartbeat(say: Callable[[str], None]) -> lease.Holder | None:
    """Wait for a heartbeat, and return the runtime that is alive. See `lease.await_heartbeat`."""
    return lease.await_heartbeat(say)


def true_status(row: GuildMember, *, live_ids: Collection[int]) -> str:
    """The true status. `live_ids` are the ids of the live nodes."""
    return row.true_status(live_ids)


def true_row(row: GuildMember, *, live_ids: Collection[int]) -> GuildMember:
    """The row as it is true now. Never save it. Its data about the process end with the runtime of its node."""
    row.status = true_status(row, live_ids=live_ids)
    if row.node_id not in live_ids:
        row.warnings = []
        row.needs_sign_in = False
        row.pid = row.started_at = row.next_restart_at = row.no_answer_since = None
    return row


def folder_notes(row: GuildMember) -> list[str]:
    """Sentences about the living nodes that lack the member's folder or have other files of it.

    Empty in a hall with one node. Nodes without the member's labels do not need its folder.
    """
    nodes = list(Node.objects.all())
    if not lease.is_shared(nodes):
        return []
    owner = next((node for node in nodes if node.pk == row.node_id), None)
    living = [node for node in nodes if node.lease_id is not None]
    names: dict[str, list[str]] = {}
    for node in living:
        if (node == owner or row.node_labels <= set(node.labels)) and (note := _folder_note(row, node, owner)):
            names.setdefault(note, []).append(repr(node.name))
    return [note.format(nodes=_node_list(nodes), name=repr(row.name)) for note, nodes in names.items()]


def _node_list(names: list[str]) -> str:
    """`node 'a'`, or `nodes 'a', 'b' and 12 others`."""
    if len(names) == 1:
        return f"node {names[0]}"
    if len(names) > SHOWN_NODES + 1:
        names = [*names[:SHOWN_NODES], f"{len(names) - SHOWN_NODES} others"]
    return f"nodes {', '.join(names[:-1])} and {names[-1]}"


def _folder_note(row: GuildMember, node: Node, owner: Node | None) -> str:
    """A sentence with places for `nodes` and the `name` of the member. Empty if the node can run the member."""
    digest = node.folders.get(row.name)
    if digest is None:
        return "The folder of {name} is missing on {nodes}."
    if node == owner or owner is None or not row.digest or digest == row.digest:
        return ""
    if not digest:
        return "The folder of {name} on {nodes} is too large or has a faulty manifest."
    return (
        f"The files of {{name}} on {{nodes}} differ from those on its node {owner.name!r}. "
        "The member cannot move there until the files are equal."
    )


def members_of_roster() -> QuerySet[GuildMember]:
    """All members that have a folder."""
    return GuildMember.objects.filter(removed_at=None)
