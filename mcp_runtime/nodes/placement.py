"""Decides which node a member without an owner goes to. Every node computes the same result from the same rows.

Rendezvous hashing: each pair of a member and a node has a score, and the member goes to the node with the highest one.
If a node is gone, only its own members move, except those with local state. They spread over all other eligible nodes.
A bound on the load of each node corrects the uneven spread of the scores.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Literal

# A node gets at most 6/5 of the mean, rounded up, unless all eligible nodes have that many. Integers, because all nodes
# must compute the same bound.
BOUND_NUMERATOR, BOUND_DENOMINATOR = 6, 5
SCORE_BYTES = 8

State = Literal["local", "shared", "none"]


@dataclass(frozen=True)
class NodeFacts:
    """A living node. A draining node gets no members. It gives its members away itself, not by `place`."""

    name: str
    labels: frozenset[str] = frozenset()
    folders: Collection[str] = frozenset()  # a set if there are many: the members whose folder is on this node's disk
    load: int = 0  # members that it owns now
    is_draining: bool = False


@dataclass(frozen=True)
class MemberFacts:
    """A member. `node` is where it belongs, or None if it belongs to no node."""

    name: str
    labels: frozenset[str] = frozenset()
    state: State = "none"
    node: str | None = None


def place(members: Iterable[MemberFacts], nodes: Sequence[NodeFacts]) -> dict[str, str]:
    """Return a node for each member that needs one and has an eligible node, by the names of both.

    `nodes` are the living nodes. A member of one of them stays there. A member with local state stays with its node
    even if that node is gone, because its data is there.
    """
    owners = {node.name for node in nodes}
    orphans = sorted((member for member in members if _needs_node(member, owners)), key=lambda member: member.name)
    candidates = [_Candidate(node) for node in nodes if not node.is_draining]
    if not candidates:
        return {}
    bound = _bound(len(orphans) + sum(candidate.load for candidate in candidates), len(candidates))
    placement = {}
    for member in orphans:
        eligible = [candidate for candidate in candidates if candidate.is_eligible(member)]
        if not eligible:
            continue
        below_bound = [candidate for candidate in eligible if candidate.load < bound]
        candidate = _highest_score(member.name, below_bound or _least_loaded(eligible))
        candidate.load += 1
        placement[member.name] = candidate.name
    return placement


def _needs_node(member: MemberFacts, owners: set[str]) -> bool:
    if member.node is None:
        return True
    return member.node not in owners and member.state != "local"


def _bound(members: int, nodes: int) -> int:
    """The highest load of a node: 1.2 times the mean, rounded up."""
    return -(-BOUND_NUMERATOR * members // (BOUND_DENOMINATOR * nodes))


class _Candidate:
    """A node that can take members, with its load so far."""

    __slots__ = ("folders", "key", "labels", "load", "name")

    def __init__(self, node: NodeFacts) -> None:
        self.name = node.name
        self.key = node.name.encode()
        self.labels = node.labels
        self.folders = node.folders
        self.load = node.load

    def is_eligible(self, member: MemberFacts) -> bool:
        """Whether it has the member's labels and its folder. A remote server has a folder too, for its manifest."""
        return member.name in self.folders and member.labels <= self.labels


def _least_loaded(candidates: Sequence[_Candidate]) -> list[_Candidate]:
    lowest = min(candidate.load for candidate in candidates)
    return [candidate for candidate in candidates if candidate.load == lowest]


def _highest_score(member: str, candidates: Sequence[_Candidate]) -> _Candidate:
    """The node with the highest score. If two scores are equal, the name decides."""
    return max(zip(_scores(member, candidates), candidates, strict=True), key=lambda pair: (pair[0], pair[1].key))[1]


def _scores(member: str, candidates: Sequence[_Candidate]) -> Iterator[bytes]:
    # The copy of a hash that has read the member's name costs half as much as a new hash.
    copy_of_prefix = blake2b(member.encode() + b"\0", digest_size=SCORE_BYTES).copy
    for candidate in candidates:
        score = copy_of_prefix()
        score.update(candidate.key)
        yield score.digest()
