"""Where the members of a large hall go, when nodes die. Needs no hall and no database."""

from __future__ import annotations

import random
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from bench.figures import Figure
from mcp_runtime.nodes.placement import MemberFacts, NodeFacts, place

MEMBERS, NODES = 10_000, 200
DEAD = NODES // 20


def placement(rounds: int) -> list[Figure]:
    """Other nodes die in each round. The figures are the median of the seconds, and the worst of the others."""
    names = [f"member-{number}" for number in range(MEMBERS)]
    nodes = [NodeFacts(f"node-{number}", folders=frozenset(names)) for number in range(NODES)]
    members = [MemberFacts(name) for name in names]
    began = time.process_time()
    first = place(members, nodes)
    first_seconds = time.process_time() - began
    owned = [replace(member, node=first[member.name]) for member in members]
    deaths = [_death(owned, nodes, random.Random(number)) for number in range(rounds)]
    seconds = statistics.median(death.seconds for death in deaths)
    return [
        Figure(f"placement of {MEMBERS:,} new members on {NODES} nodes, CPU", first_seconds, "s"),
        Figure("  highest load / mean", _highest_load(first) * NODES / MEMBERS, "x", 1.25),
        Figure(f"placement when {DEAD} of the nodes die, CPU", seconds, "s"),
        Figure("  members that the dead nodes had", max(death.orphans for death in deaths), ""),
        Figure("  members that move", max(death.moves for death in deaths), ""),
        Figure("  ratio of the two", max(death.moves / death.orphans for death in deaths), "x", 1.2),
        Figure("  highest load / mean", max(death.highest_load for death in deaths), "x", 1.25),
    ]


@dataclass(frozen=True)
class Death:
    seconds: float
    orphans: int
    moves: int
    highest_load: float  # as a multiple of the mean


def _death(members: Sequence[MemberFacts], nodes: Sequence[NodeFacts], dice: random.Random) -> Death:
    dead = {node.name for node in dice.sample(nodes, DEAD)}
    loads = Counter(member.node for member in members)
    living = [replace(node, load=loads[node.name]) for node in nodes if node.name not in dead]
    began = time.process_time()
    placement = place(members, living)
    seconds = time.process_time() - began
    after = {member.name: placement.get(member.name, str(member.node)) for member in members}
    return Death(
        seconds,
        orphans=sum(loads[name] for name in dead),
        moves=sum(after[member.name] != member.node for member in members),
        highest_load=_highest_load(after) * len(living) / len(members),
    )


def _highest_load(placement: dict[str, str]) -> int:
    return max(Counter(placement.values()).values())
