"""The owner of a member: the runtime whose lease the member's row has. It alone runs the member and writes its status.

When the owner changes the row, the WHERE contains the id of its lease. The id is a column of the same row. So after the
database waited for another transaction, it checks the id again. A runtime that lost the member changes nothing, however
late its write comes.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from django.db import connection
from django.db.models import F, Q, QuerySet

from mcp_runtime.rows import clock
from mcp_runtime.rows.database import short_transaction
from roster.models import GuildMember, Node, PortAllocation, StatusChange

Status = GuildMember.Status


def take_over_own(node: Node) -> None:
    """Take over the members of this node. If it is the only node, also those without a node. With SQLite, all.

    `lease.take` calls it in its transaction, so nobody sees old rows under a new lease. If there are other nodes,
    placement decides which of them gets a member without a node.
    """
    members = GuildMember.objects.all()
    if connection.vendor != "sqlite":
        is_alone = not Node.objects.exclude(pk=node.pk).exists()
        members = members.filter(Q(node=node) | Q(node=None)) if is_alone else members.filter(node=node)
    take_over(members, node, "runtime start")


def claim_new(lease_id: uuid.UUID) -> None:
    """Take over the members that have no node, for the only runtime of the hall, if it still has its lease."""
    new_members = GuildMember.objects.filter(node=None).exclude(lease_id=lease_id)
    if new_members.exists():
        with short_transaction():
            for node in _keep_leases(Node.objects.filter(lease_id=lease_id)):
                take_over(new_members, node, "new")


def claim(members: Sequence[GuildMember], lease_id: uuid.UUID) -> list[str]:
    """Take over members, for the runtime with this lease. Returns the names of those that it got.

    A row that has changed since it was read stays as it is, and so does one that somebody else changes now. The node of
    a member, if it has one, must have no lease. That is checked again here.
    """
    seen = {member.pk: (member.node_id, member.epoch) for member in members}
    node_ids = {member.node_id for member in members if member.node_id is not None}
    with short_transaction():
        nodes = _keep_leases(Node.objects.filter(Q(lease_id=lease_id) | Q(pk__in=node_ids)))
        own = next((node for node in nodes if node.lease_id == lease_id), None)
        if own is None:
            return []
        free_ids = {None, *(node.pk for node in nodes if node.lease_id is None)}
        rows = GuildMember.objects.select_for_update(skip_locked=True).filter(pk__in=seen).order_by("pk")
        unchanged = [row for row in rows.only("name", "node", "epoch") if (row.node_id, row.epoch) == seen[row.pk]]
        claimed = [row for row in unchanged if row.node_id in free_ids]
        for cause, is_new in (("new", True), ("node is gone", False)):
            ids = [row.pk for row in claimed if (row.node_id is None) is is_new]
            take_over(GuildMember.objects.filter(pk__in=ids), own, cause)
    return [row.name for row in claimed]


def give_away(member: GuildMember, lease_id: uuid.UUID, target: Node) -> bool:
    """Make another node the owner of a member that does not run, unless one of the rows has changed since it was read.

    The caller has ended the process. It starts the member again only with a new epoch, so this change, however late it
    comes, never gives away a running member.
    """
    with short_transaction():
        if not _keep_leases(Node.objects.filter(pk=target.pk, lease_id=target.lease_id)):
            return False
        rows = GuildMember.objects.filter(pk=member.pk, lease_id=lease_id, epoch=member.epoch)
        return take_over(rows, target, "moved") == 1


def _keep_leases(nodes: QuerySet[Node]) -> list[Node]:
    """Read these rows, and let nobody change their leases until the end of the transaction.

    Heartbeats go on, because FOR KEY SHARE excludes only changes of columns with a unique index, as the lease has.
    Django's stronger locks would delay them, and the guard of that node would end its members.
    """
    text, values = nodes.order_by("pk").query.sql_with_params()
    lock = " FOR KEY SHARE" if connection.vendor == "postgresql" else ""
    return list(Node.objects.raw(text + lock, values))


def take_over(members: QuerySet[GuildMember], node: Node, cause: str) -> int:
    """Make the runtime of `node` the owner of these members, and return how many there were. Call it in a transaction.

    After that, no row has a process id or a port. It ends no process. A member that was not disconnected, or had a
    planned restart, gets a StatusChange with `cause`.
    """
    return _settle(members, cause).update(node=node, lease_id=node.lease_id, epoch=F("epoch") + 1, requested_node=None)


def remove_owner(members: QuerySet[GuildMember], cause: str) -> int:
    """Like `take_over`, but the members then have no owner. A runtime that has their folder can claim them."""
    return _settle(members, cause).update(node=None, lease_id=None, epoch=F("epoch") + 1, requested_node=None)


def _settle(members: QuerySet[GuildMember], cause: str) -> QuerySet[GuildMember]:
    """Lock the rows, and write that no process runs."""
    # Not `no_key`: a claim of a call (FOR KEY SHARE) must wait for this transaction, and check the owner after it.
    rows = list(members.select_for_update(of=("self",)).only("status", "next_restart_at"))
    ids = [row.pk for row in rows]
    now = clock.now()
    PortAllocation.objects.filter(member_id__in=ids).delete()
    unsettled = [row for row in rows if row.status != Status.DISCONNECTED or row.next_restart_at is not None]
    StatusChange.objects.bulk_create(
        StatusChange(member_id=row.pk, old=row.status, new=Status.DISCONNECTED, cause=cause, created_at=now)
        for row in unsettled
    )
    GuildMember.objects.filter(pk__in=[row.pk for row in unsettled]).update(
        status=Status.DISCONNECTED,
        status_changed_at=now,
        progress="",
        no_answer_since=None,
        pid=None,
        restarts=0,
        next_restart_at=None,
        warnings=[],
    )
    return GuildMember.objects.filter(pk__in=ids)
