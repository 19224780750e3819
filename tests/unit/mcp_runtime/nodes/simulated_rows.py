"""The rows of a hall with several nodes, in memory, and the statements of the protocol that change them.

Each method is one statement or one transaction. It evaluates its conditions when it commits, not when it was sent, as
PostgreSQL does after it has waited for a lock of a row.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID


@dataclass(frozen=True)
class Protocol:
    """The protocol, and what a test leaves out of it."""

    has_fence: bool = True
    has_claim_condition: bool = True  # CLAIM compares the member's owner, and that the old owner has no lease
    has_versions: bool = True  # TAKE, CLAIM, START and GIVE AWAY count, and the last three compare the member's version
    has_target_condition: bool = True  # GIVE AWAY compares the target's lease
    has_fence_in_row: bool = True  # REVOKE only if the node has noted in its row that its fence is on


class NodeRow(NamedTuple):
    lease: UUID | None
    beat: int
    draining: bool = False
    fence_is_on: bool = False


class MemberRow(NamedTuple):
    node: str | None = None
    lease: UUID | None = None
    version: int = 0


class View(NamedTuple):
    """The rows as one read saw them."""

    nodes: dict[str, NodeRow]
    members: dict[str, MemberRow]


@dataclass
class CallRow:
    member: str
    status: str = "queued"
    lease: UUID | None = None
    outcome: str = ""


class Rows:
    def __init__(self, protocol: Protocol, members: Set[str]) -> None:
        self.protocol = protocol
        self.nodes: dict[str, NodeRow] = {}
        self.members = {member: MemberRow() for member in sorted(members)}
        self.calls: list[CallRow] = []
        self.heartbeats: dict[str, float] = {}  # of the wall clock, for people. Nothing reads them

    def read(self) -> View:
        return View(self.nodes.copy(), self.members.copy())

    def take(self, node: str, lease: UUID, seen: NodeRow | None, fence_is_on: bool) -> bool:
        """Rule 1, with the lease and the beat that the runtime read."""
        row = self.nodes.get(node)
        if (row and row[:2]) != (seen and seen[:2]):
            return False
        beat, draining = (row.beat, row.draining) if row else (0, False)
        self.nodes[node] = NodeRow(lease, beat + 1, draining, fence_is_on)
        for name, member in self.members.items():
            if member.node == node:
                self.members[name] = MemberRow(node, lease, member.version + 1)
        return True

    def renew(self, node: str, lease: UUID, fence_is_on: bool, wall_clock: float) -> bool:
        """Rule 2."""
        row = self.nodes[node]
        if row.lease != lease:
            return False
        self.nodes[node] = NodeRow(lease, row.beat + 1, row.draining, row.fence_is_on or fence_is_on)
        self.heartbeats[node] = wall_clock
        return True

    def release(self, node: str, lease: UUID) -> bool:
        """The end of a drain, unless an operator has cancelled it. It adds a beat, so that it is no revocation."""
        row = self.nodes[node]
        if row.lease != lease or not row.draining:
            return False
        self.nodes[node] = row._replace(lease=None, beat=row.beat + 1)
        return True

    def revoke(self, node: str, seen: NodeRow) -> bool:
        """Rule 4."""
        row = self.nodes[node]
        if row[:2] != seen[:2] or (self.protocol.has_fence_in_row and not row.fence_is_on):
            return False
        self.nodes[node] = row._replace(lease=None)
        return True

    def claim(self, node: str, lease: UUID, seen: dict[str, MemberRow], locked: Set[str]) -> list[str]:
        """Rule 5, for a batch. `locked` are the members whose rows other transactions have locked, which it skips."""
        if self.nodes[node].lease != lease:
            return []
        claimed = [member for member, row in seen.items() if member not in locked and self._can_be_claimed(member, row)]
        for member in claimed:
            self.members[member] = MemberRow(node, lease, self.members[member].version + 1)
        return claimed

    def _can_be_claimed(self, member: str, seen: MemberRow) -> bool:
        row = self.members[member]
        if not self.protocol.has_claim_condition:
            return True
        if row[:2] != seen[:2] or (row.node is not None and self.nodes[row.node].lease is not None):
            return False
        return not self.protocol.has_versions or row.version == seen.version

    def start(self, member: str, lease: UUID, version: int) -> bool:
        """The addition to rule 7: a process starts only after this has committed."""
        row = self.members[member]
        if row.lease != lease or row.version != version:
            return False
        self.members[member] = MemberRow(row.node, lease, version + 1)
        return True

    def give_away(self, member: str, lease: UUID, version: int, target: str | None, target_lease: UUID | None) -> bool:
        """Rule 6."""
        row = self.members[member]
        if row.lease != lease or (self.protocol.has_versions and row.version != version):
            return False
        if target is not None and self.protocol.has_target_condition and self.nodes[target].lease != target_lease:
            return False
        self.members[member] = MemberRow(target, target_lease, row.version + 1)
        return True

    def claim_call(self, member: str, lease: UUID) -> int:
        """Rule 8. Returns the number of the call, or -1 if there is none."""
        if self.members[member].lease == lease:
            for number, call in enumerate(self.calls):
                if call.status == "queued" and call.member == member:
                    call.status, call.lease = "running", lease
                    return number
        return -1

    def running_calls(self, lease: UUID) -> set[int]:
        return {number for number, call in enumerate(self.calls) if call.status == "running" and call.lease == lease}

    def end_calls(self, numbers: Set[int], lease: UUID, outcome: str) -> bool:
        for number in numbers & self.running_calls(lease):
            self.calls[number].status, self.calls[number].outcome = "ended", outcome
        return True

    def lose_calls(self) -> bool:
        """Rule 9."""
        leases = {row.lease for row in self.nodes.values()}
        for call in self.calls:
            if call.status == "running" and call.lease not in leases:
                call.status, call.outcome = "ended", "lost"
        return True
