"""Which members a node takes, and which it gives away. Only a hall with several nodes needs this.

`nodes.watch` and `nodes.placement` decide which node owns which member, and `rows.ownership` writes it into the
rows. Each node decides for itself, from the same rows. If two nodes claim the same member, the first one
changes its row. The second one sees that the row has changed, and does not get the member.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, cast

from django.db import connection
from django.db.models import Count, F, Q, QuerySet

from mcp_runtime.nodes.placement import MemberFacts, NodeFacts, State, place
from mcp_runtime.nodes.watch import NodeWatch
from mcp_runtime.rows import lease, ownership
from roster.models import GuildMember, Node

logger = logging.getLogger("guildhall.runtime")

CLAIM_BATCH = 50
# A turn must not last so long that the watch forgets what it has seen (`watch.LONGEST_GAP`).
CLAIM_SECONDS = 0.5


class Handover:
    """Takes members for the runtime with `lease_id`. Call `turn` once a second.

    `on_other_node()` is called in each turn in which the hall has another node.
    """

    def __init__(self, lease_id: uuid.UUID, on_other_node: Callable[[], None]) -> None:
        self._lease_id = lease_id
        self._on_other_node = on_other_node
        self._watch = NodeWatch()
        self._own: Node | None = None
        self._living: list[Node] = []  # including this node
        self.is_alone = True

    def turn(self) -> list[str]:
        """Revoke the leases of nodes that are gone, and take members. Returns the names of those taken."""
        if connection.vendor == "sqlite":  # the hall has one runtime. Rows of earlier nodes have no meaning
            return []
        nodes = list(Node.objects.defer("folders"))  # `folders` is long, and most turns do not need it
        now = time.monotonic()
        self._own = next((node for node in nodes if node.lease_id == self._lease_id), None)
        self.is_alone = len(nodes) < 2
        if self.is_alone or self._own is None:
            return []
        self._on_other_node()
        others = [node for node in nodes if node is not self._own]
        draining = {node.name for node in others if node.is_draining}
        gone = self._watch.look({node.name: (node.lease_id, node.beat) for node in others}, now, draining)
        for node in others:
            if node.name in gone and node.lease_id is not None and lease.revoke(node):
                logger.warning("node %r does not renew its lease; its members without local state move", node.name)
                node.lease_id = None
        self._living = [self._own, *(node for node in others if node.lease_id is not None and node.name not in gone)]
        return self._take([node for node in others if node.name in gone and node.lease_id is None])

    def _take(self, gone: list[Node]) -> list[str]:
        rows = {row.name: row for row in placeable(GuildMember.objects.filter(Q(node=None) | Q(node__in=gone)))}
        targets = {node.name: node for node in self._living if not node.is_draining}
        requested = {name: self._requested_target(row, targets) for name, row in rows.items() if row.requested_node_id}
        # If an operator forces it, even a member with local state moves. Its local data stays on the old node.
        placement = {name: target.name for name, target in requested.items() if target is not None}
        others = [row for name, row in rows.items() if name not in placement]
        placement |= place(map(facts_of, others), self._node_facts(others))
        own_name = self._own.name if self._own is not None else ""
        return self._claim([rows[name] for name, node in placement.items() if node == own_name])

    def _claim(self, rows: list[GuildMember]) -> list[str]:
        """Claim the members in batches, as many as there is time for. The next turn claims the rest."""
        names: list[str] = []
        deadline = time.monotonic() + CLAIM_SECONDS
        for start in range(0, len(rows), CLAIM_BATCH):
            names += ownership.claim(rows[start : start + CLAIM_BATCH], self._lease_id)
            if time.monotonic() > deadline:
                break
        return names

    def _node_facts(self, rows: Iterable[GuildMember]) -> list[NodeFacts]:
        """The living nodes, with their loads, and which folders of these members they have."""
        rows = list(rows)
        if not rows:
            return []
        counts = GuildMember.objects.filter(removed_at=None).order_by().values("node_id").annotate(count=Count("pk"))
        loads = Counter({row["node_id"]: row["count"] for row in counts})
        return [
            NodeFacts(
                name=node.name,
                labels=frozenset(node.labels),
                folders={row.name for row in rows if has_folder(node, row)},
                load=loads[node.pk],
                is_draining=node.is_draining,
            )
            for node in self._living
        ]

    # Give away ----------------------------------------------------------------------------------------------------

    def departures(self) -> list[tuple[GuildMember, Node]]:
        """The members of this node that another node should have, each with that other node."""
        if self.is_alone or self._own is None:
            return []
        own_rows = GuildMember.objects.filter(lease_id=self._lease_id)
        rows = list(placeable(own_rows if self._own.is_draining else own_rows.exclude(requested_node=None)))
        others = {node.name: node for node in self._living if node is not self._own and not node.is_draining}
        targets = {name: node for name, node in others.items() if self._is_ready(node)}
        requested = [(row, self._requested_target(row, others)) for row in rows if row.requested_node_id is not None]
        departures = [(row, target) for row, target in requested if target is not None and target.name in targets]
        if self._own.is_draining:
            movable = {row.name: row for row in rows if row.requested_node_id is None and row.state != "local"}
            orphans = [MemberFacts(row.name, row.node_labels) for row in movable.values()]
            placement = place(orphans, [node for node in self._node_facts(movable.values()) if node.name in targets])
            departures += [(movable[name], targets[node]) for name, node in placement.items()]
        return departures

    def _is_ready(self, node: Node) -> bool:
        """Whether the node may get members now. If it dies a moment later, other nodes can take them."""
        return node.fence_is_on and self._watch.has_renewed(node.name)

    def _requested_target(self, row: GuildMember, targets: dict[str, Node]) -> Node | None:
        """The node that was requested for the member. If it cannot own it now, delete the request and return None."""
        target = next((node for node in targets.values() if node.pk == row.requested_node_id), None)
        if target is not None and row.node_labels <= set(target.labels) and target.folders.get(row.name):
            return target
        logger.warning("member %r does not move: the requested node is gone or draining, or cannot run it", row.name)
        GuildMember.objects.filter(pk=row.pk, requested_node=row.requested_node_id).update(requested_node=None)
        return None


def placeable(rows: QuerySet[GuildMember]) -> QuerySet[Any]:
    """Members with a folder, and the columns that decide where they run."""
    columns = ("name", "node", "epoch", "digest", "server_url", "requested_node", "manifest")
    return rows.filter(removed_at=None).only(*columns).annotate(node_name=F("node__name")).order_by("name")


def facts_of(row: Any) -> MemberFacts:
    return MemberFacts(row.name, row.node_labels, cast("State", row.state), row.node_name)


def has_folder(node: Node, row: GuildMember) -> bool:
    """Whether the node has the member's folder with the files of its last owner.

    If the member has no node and no digest, any files are right.
    """
    digest = node.folders.get(row.name)
    if row.node_id is None:
        return digest is not None and (not row.digest or digest == row.digest)
    return bool(digest) and digest == row.digest
