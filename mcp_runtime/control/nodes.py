"""The nodes of the hall: which are alive, their reports, and the verbs that say which members they own."""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any

from django.db.models import BooleanField, Count, IntegerField, OuterRef, QuerySet, Subquery, Value
from django.db.models.functions import Now

from mcp_runtime.control.notify import notify_runtime
from mcp_runtime.protocol.errors import RequestRefusedError, UnknownNodeError
from mcp_runtime.rows import json_rows, key_fingerprint, lease, ownership
from mcp_runtime.rows.database import short_transaction
from mcp_runtime.secrets import values
from roster.models import AuditEntry, Call, GuildMember, Node

if TYPE_CHECKING:
    from mcp_runtime.nodes.placement import NodeFacts

Kind = AuditEntry.Kind

MOVES_AT_A_TIME = 10

# Which nodes are alive --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Liveness:
    """The nodes of the hall by id, and the ids of those whose runtime is alive. Read once for a page or a response.

    `stuck_ids` are the ids of the dead nodes that hold their lease because their fence was off.
    """

    nodes: dict[int, Node]
    live_ids: frozenset[int]
    stuck_ids: frozenset[int]

    @property
    def has_several_nodes(self) -> bool:
        return lease.is_shared(self.nodes)

    @cached_property
    def holder(self) -> lease.Holder | None:
        """A runtime that is alive, or None if no node is alive."""
        return next((lease.Holder.of(node) for node in self.nodes.values() if node.pk in self.live_ids), None)

    def owner_of(self, row: GuildMember) -> str:
        """The name of the node that owns the member. Empty if it has no owner."""
        return self.nodes[row.node_id].name if row.node_id in self.nodes else ""

    def requested_node_of(self, row: GuildMember) -> str:
        """The name of the node that the member moves to. Empty if it does not move."""
        return self.nodes[row.requested_node_id].name if row.requested_node_id in self.nodes else ""

    def dead_owner_of(self, row: GuildMember) -> str:
        """The name of the member's node if its runtime is not alive, but that of another node is. Otherwise empty."""
        return self.owner_of(row) if self.live_ids and row.node_id not in self.live_ids else ""


_COLUMNS = ("id", "name", "lease_id", "host", "pid", "identity", "fence_is_on", "url")


def read_liveness() -> Liveness:
    """One query."""
    return _liveness_of(lease.with_heartbeats(Node.objects.only(*_COLUMNS).order_by("name")))


def _liveness_of(rows: Iterable[Node]) -> Liveness:
    nodes = {node.pk: node for node in rows}
    live_ids = frozenset(node.pk for node in nodes.values() if lease.is_alive(node))
    dead = [node for node in nodes.values() if node.pk not in live_ids]
    return Liveness(nodes, live_ids, frozenset(node.pk for node in dead if lease.is_irrevocable(node)))


def nodes_as_value() -> Subquery:
    """What `liveness_of_value` needs, as a column of a query about other rows. So the two need one query."""
    return Subquery(json_rows.as_value(lease.with_heartbeats(Node.objects.all()), *_COLUMNS, "beats"))


def liveness_of_value(value: str | None) -> Liveness:
    """The same as `read_liveness`, from the column of `nodes_as_value`."""
    return _liveness_of(sorted(map(_node_of_value, json.loads(value or "[]")), key=lambda node: node.name))


def _node_of_value(values: list[Any]) -> Node:
    columns = dict(zip((*_COLUMNS, "beats"), values, strict=True))
    beats = bool(columns.pop("beats"))  # SQLite has numbers
    lease_id = columns["lease_id"] and uuid.UUID(columns["lease_id"])
    node = Node(**{**columns, "lease_id": lease_id, "fence_is_on": bool(columns["fence_is_on"])})
    vars(node)["beats"] = beats  # as the annotation of `lease.with_heartbeats`
    return node


def live_node_ids() -> frozenset[int]:
    """The ids of the nodes whose runtime is alive."""
    return read_liveness().live_ids


def require_same_key() -> None:
    """Raise SecretKeyError if the hall has another node, and another secret key than this machine."""
    key_fingerprint.require_same()
    values.require_same_keys()


# Reports ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NodeReport:
    """A node. `pid`, `members` and the values after it are None while no runtime is alive on it, or unmeasured."""

    name: str
    is_alive: bool
    since: datetime | None  # the start of its runtime, or its last heartbeat if it is not alive
    host: str
    pid: int | None
    version: str
    url: str
    capacity: int | None  # calls that can run at the same time
    labels: list[str]
    is_draining: bool
    holds_lease: bool  # it is not alive, and still holds its lease, because its fence was off
    sandbox_gaps: dict[str, str] | None  # why it cannot enforce a protection of a sandbox. None if it is unknown
    members: int | None  # connected ones
    calls_per_minute: int | None  # calls that ended in the last minute
    cpu_percent: float | None  # of one core
    memory_bytes: int | None


def all_nodes() -> list[NodeReport]:
    return [report(node) for node in with_counts(Node.objects.all())]


def with_counts(nodes: QuerySet[Node]) -> QuerySet[Any]:
    """Add what `report` needs: `member_count`, `call_count` and `is_alone`."""
    is_alone = not lease.is_shared(Node.objects.values_list("pk"))
    members = GuildMember.objects.filter(status=GuildMember.Status.CONNECTED)
    calls = Call.objects.filter(finished_at__gt=Now() - timedelta(minutes=1))
    if not is_alone:  # a single node has all members and runs all calls, also those of its last runtime
        members = members.filter(node=OuterRef("pk"))
        calls = calls.filter(lease_id=OuterRef("lease_id"))
    counts = {"member_count": _count(members), "call_count": _count(calls)}
    annotated: QuerySet[Any] = nodes.defer("folders").annotate(
        **counts, is_alone=Value(is_alone, output_field=BooleanField())
    )
    return annotated


def _count(rows: QuerySet[Any]) -> Subquery:
    groups = rows.order_by().annotate(one=Value(1)).values("one")
    return Subquery(groups.annotate(count=Count("pk")).values("count"), output_field=IntegerField())


def report(node: Any) -> NodeReport:
    """The report of a node of `with_counts`."""
    is_alive = lease.is_alive(node)
    return NodeReport(
        name=node.name,
        is_alive=is_alive,
        since=node.started_at if is_alive else node.heartbeat_at,
        host=node.host,
        pid=node.pid if is_alive else None,
        version=node.version,
        url=node.url,
        capacity=node.capacity,
        labels=list(node.labels),
        sandbox_gaps=node.sandbox_gaps,
        is_draining=node.is_draining,
        holds_lease=not is_alive and not node.is_alone and lease.is_irrevocable(node),
        members=(node.member_count or 0) if is_alive else None,
        calls_per_minute=(node.call_count or 0) if is_alive else None,
        cpu_percent=node.cpu_percent if is_alive else None,
        memory_bytes=node.memory_bytes if is_alive else None,
    )


# Verbs ------------------------------------------------------------------------------------------------------------


def find_node(name: str) -> Node:
    """The node with that name. Raises UnknownNodeError."""
    node = Node.objects.filter(name=name).first()
    if node is None:
        raise UnknownNodeError(f"no node {name!r} has ever run this hall")
    return node


def drain(node: Node) -> None:
    """Request that the node gives all its members away, and gets no others until `undrain`."""
    _set_draining(node, True)


def undrain(node: Node) -> None:
    """Let the node get members again. Those that it gave away stay where they are."""
    _set_draining(node, False)


def _set_draining(node: Node, is_draining: bool) -> None:
    if is_draining and not lease.is_shared(Node.objects.values_list("pk")):
        raise RequestRefusedError(f"node {node.name!r} cannot be drained: the hall has no other node")
    with short_transaction():
        Node.objects.filter(pk=node.pk).update(is_draining=is_draining)
        AuditEntry.record(Kind.NODE_DRAINED if is_draining else Kind.NODE_UNDRAINED, f"node {node.name}")
    node.is_draining = is_draining
    notify_runtime(members=True)


NODE_VERBS = {"drain": drain, "undrain": undrain}


def remove_node(node: Node, *, force: bool = False) -> int:
    """Delete a node that is gone for ever. Its members have no node then, and start on others. Returns how many.

    Raises RequestRefusedError while its runtime is alive, and without `force` if members with local state belong to it.
    Its lease ends too. No other node may take the lease of a node that died before its fence was on, so this is the
    way to get its members back.
    """
    with short_transaction():
        row = Node.objects.select_for_update().filter(pk=node.pk).first()  # a runtime that wakes up now must wait
        if row is None:
            raise UnknownNodeError(f"node {node.name!r} has been removed already")
        members = GuildMember.objects.filter(node=row)
        if obstacle := _obstacle_to_removal(row, members, force=force):
            raise RequestRefusedError(f"node {row.name!r} cannot be removed: {obstacle}")
        _forget_lost_files(members, Node.objects.exclude(pk=row.pk))
        count = members.filter(removed_at=None).count()
        ownership.remove_owner(members, "node removed")
        row.delete()
        AuditEntry.record(Kind.NODE_REMOVED, f"node {row.name}", before={"members_without_node": count})
    notify_runtime(members=True)
    return count


def _obstacle_to_removal(node: Node, members: QuerySet[GuildMember], *, force: bool) -> str:
    """Why the node cannot be removed. Empty if it can."""
    if lease.is_alive(node):
        return "its runtime is alive; drain it, and stop it first"
    count = sum(row.state == "local" for row in members.filter(removed_at=None))
    if count and not force:  # without their names, because some may be reserved for groups of others
        return (
            f"members with local state belong to it ({count}). Their data stays on that machine, and they start "
            "elsewhere without it; force the removal if they need none of it"
        )
    return ""


def _forget_lost_files(members: QuerySet[GuildMember], others: QuerySet[Node]) -> None:
    """Clear the digests of files that only the removed node had, so that nodes with other files run these members."""
    folders = [node.folders for node in others]
    rows = members.exclude(digest="").only("name", "digest")
    lost = [row.pk for row in rows if all(names.get(row.name) != row.digest for names in folders)]
    members.filter(pk__in=lost).update(digest="")


def move_member(row: GuildMember, node: Node, *, force: bool = False) -> None:
    """Request that the member's owner gives it to `node`.

    Raises RequestRefusedError if the node cannot own it. With `force` a member moves without its local state.
    """
    if obstacle := _obstacle(row, node, force=force):
        raise RequestRefusedError(f"member {row.name!r} cannot move to node {node.name!r}: {obstacle}")
    with short_transaction():
        GuildMember.objects.filter(pk=row.pk).update(requested_node=node)
        _record_move(row, node)
    row.requested_node = node
    notify_runtime(members=True)


def _record_move(row: GuildMember, node: Node) -> None:
    before = {"node": row.node.name} if row.node else None
    AuditEntry.record(
        Kind.MEMBER_MOVED, f"member {row.name}", member=row.name, before=before, after={"node": node.name}
    )


def _obstacle(row: GuildMember, node: Node, *, force: bool) -> str:
    """Why the node cannot own the member. Empty if it can."""
    if row.node_id == node.pk:
        return "it is there already"
    if not lease.is_alive(node):
        return "the runtime of that node is not alive"
    if node.is_draining:
        return "that node is draining; undrain it first"
    digest = node.folders.get(row.name)
    if digest is None:
        return "that node does not have its folder"
    if not digest:
        return "its folder on that node has a faulty manifest, or is too large to be compared"
    if row.digest and digest != row.digest and not force:
        return "its folder on that node has other files; force the move if they are the right ones"
    if missing := row.node_labels - set(node.labels):
        return f"that node does not have the labels that its manifest requires: {', '.join(sorted(missing))}"
    if row.state == "local" and not force:
        return "it keeps local state in its folder, which would stay behind; force the move if it needs none of it"
    return ""


# Rebalance --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Move:
    """A request that a member goes to another node. The nodes by name."""

    member: str
    from_node: str
    to_node: str


def rebalance(limit: int = MOVES_AT_A_TIME) -> list[Move]:
    """Request moves of members to the nodes where a hall that starts now would place them, at most `limit`.

    A move ends the member's process and starts it again, so a hall with many members needs several calls.
    """
    nodes = {node.pk: node for node in Node.objects.exclude(lease_id=None) if lease.is_alive(node)}
    moves: list[Move] = []
    for row, target in _misplaced(nodes):
        if len(moves) == limit:
            break
        # Unless the owner has changed meanwhile, or somebody else has requested another node.
        current = GuildMember.objects.filter(pk=row.pk, node=row.node_id, requested_node=None)
        with short_transaction():
            if row.node_id is None or not current.update(requested_node=target):
                continue
            _record_move(row, target)
        moves.append(Move(row.name, nodes[row.node_id].name, target.name))
    if moves:
        notify_runtime(members=True)
    return moves


def _misplaced(nodes: dict[int, Node]) -> Iterator[tuple[GuildMember, Node]]:
    """The members that belong to another one of the living nodes, with that node, by name.

    A draining node gives its members away itself. Members with local state and members that somebody moves stay.
    """
    from mcp_runtime.members.handover import placeable  # late, because commands that only read must start fast
    from mcp_runtime.nodes.placement import MemberFacts, place

    loads: Counter[int | None] = Counter()
    movable = []
    for row in placeable(GuildMember.objects.filter(node__in=nodes)):
        if row.requested_node_id is None and row.state != "local":
            movable.append(row)
        else:
            loads[row.requested_node_id or row.node_id] += 1
    members = [MemberFacts(row.name, row.node_labels) for row in movable]
    placement = place(members, [_facts(node, movable, loads[node.pk]) for node in nodes.values()])
    by_name = {node.name: node for node in nodes.values()}
    for row in movable:
        target = by_name.get(placement.get(row.name, ""))
        if target and row.node_id not in (None, target.pk) and not nodes[row.node_id].is_draining:
            yield row, target


def _facts(node: Node, movable: list[GuildMember], load: int) -> NodeFacts:
    from mcp_runtime.members.handover import has_folder  # late, as in `_misplaced`
    from mcp_runtime.nodes.placement import NodeFacts

    folders = {row.name for row in movable if has_folder(node, row)}
    return NodeFacts(node.name, frozenset(node.labels), folders, load, node.is_draining)
