"""Which node a member goes to: how even the loads are, who moves, and who never does."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from mcp_runtime.nodes.placement import MemberFacts, NodeFacts, place

MEMBERS, NODES = 10_000, 200
NAMES = frozenset(f"member-{number}" for number in range(MEMBERS))


def many_members() -> list[MemberFacts]:
    return [MemberFacts(name, state="shared") for name in sorted(NAMES)]


def many_nodes() -> list[NodeFacts]:
    return [NodeFacts(f"node-{number}", folders=NAMES) for number in range(NODES)]


def owned(members: Sequence[MemberFacts], placement: dict[str, str]) -> list[MemberFacts]:
    return [replace(member, node=placement.get(member.name, member.node)) for member in members]


def loaded(nodes: Sequence[NodeFacts], members: Sequence[MemberFacts]) -> list[NodeFacts]:
    loads = Counter(member.node for member in members)
    return [replace(node, load=loads[node.name]) for node in nodes]


def test_ten_thousand_members_spread_over_two_hundred_nodes() -> None:
    placement = place(many_members(), many_nodes())
    assert len(placement) == MEMBERS
    loads = Counter(placement.values())
    assert len(loads) == NODES
    assert max(loads.values()) <= 1.25 * MEMBERS / NODES


def test_the_death_of_a_twentieth_of_the_nodes_moves_only_their_members_and_loads_stay_even() -> None:
    nodes = many_nodes()
    members = owned(many_members(), place(many_members(), nodes))
    dead = {node.name for node in random.Random(1).sample(nodes, NODES // 20)}
    orphans = {member.name for member in members if member.node in dead}
    survivors = loaded([node for node in nodes if node.name not in dead], members)

    moves = place(members, survivors)
    assert set(moves) == orphans
    assert len(moves) <= 1.2 * len(orphans)
    loads = Counter(member.node for member in owned(members, moves))
    assert set(loads) == {node.name for node in survivors}
    assert max(loads.values()) <= 1.25 * MEMBERS / len(survivors)


def test_a_new_member_moves_no_other() -> None:
    nodes = [NodeFacts(name, folders={"new", *NAMES}) for name in ("a", "b", "c")]
    members = owned(many_members()[:100], place(many_members()[:100], nodes))
    assert set(place([*members, MemberFacts("new")], loaded(nodes, members))) == {"new"}


def test_a_new_node_moves_no_member() -> None:
    nodes = many_nodes()[:3]
    members = owned(many_members()[:100], place(many_members()[:100], nodes))
    assert place(members, loaded([*nodes, NodeFacts("new", folders=NAMES)], members)) == {}


def test_few_members_of_a_dead_node_spread_over_the_other_nodes() -> None:
    nodes = many_nodes()[:5]
    members = owned(many_members()[:100], place(many_members()[:100], nodes))
    moves = place(members, loaded(nodes[1:], members))
    assert set(moves.values()) == {node.name for node in nodes[1:]}


labels = st.frozensets(st.sampled_from(["gpu", "eu"]))
states = st.sampled_from(["local", "shared", "none"])
owners = st.sampled_from([None, "n0", "n1", "n2", "gone"])
folders = st.frozensets(st.sampled_from([f"m{number}" for number in range(12)]))
some_members = st.lists(st.builds(MemberFacts, st.just(""), labels, states, owners), max_size=12).map(
    lambda members: [replace(member, name=f"m{number}") for number, member in enumerate(members)]
)
some_nodes = st.lists(
    st.builds(NodeFacts, st.just(""), labels, folders, st.integers(0, 8), st.booleans()), max_size=5
).map(lambda nodes: [replace(node, name=f"n{number}") for number, node in enumerate(nodes)])


def is_eligible(node: NodeFacts, member: MemberFacts) -> bool:
    return not node.is_draining and member.name in node.folders and member.labels <= node.labels


@given(some_members, some_nodes)
def test_exactly_the_members_that_need_a_node_and_have_an_eligible_one_get_one(
    members: list[MemberFacts], nodes: list[NodeFacts]
) -> None:
    names = {node.name for node in nodes}
    expected = {
        member.name
        for member in members
        if member.node is None or (member.node not in names and member.state != "local")
        if any(is_eligible(node, member) for node in nodes)
    }
    placement = place(members, nodes)
    assert set(placement) == expected
    by_name = {node.name: node for node in nodes}
    assert all(is_eligible(by_name[placement[name]], member) for member in members if (name := member.name) in expected)


@given(some_members, some_nodes, st.randoms(use_true_random=False))
def test_the_order_of_members_and_nodes_does_not_matter(
    members: list[MemberFacts], nodes: list[NodeFacts], generator: random.Random
) -> None:
    placement = place(members, nodes)
    generator.shuffle(members)
    generator.shuffle(nodes)
    assert place(members, nodes) == placement


def test_the_result_is_the_same_in_every_version() -> None:
    """Nodes with different versions of the hall must agree."""
    nodes = [NodeFacts(name, folders=NAMES) for name in ("a", "b", "c")]
    assert list(place(many_members()[:6], nodes).items()) == [
        ("member-0", "b"),
        ("member-1", "a"),
        ("member-10", "b"),
        ("member-100", "a"),
        ("member-1000", "c"),
        ("member-1001", "a"),
    ]


def test_a_member_without_an_eligible_node_gets_none_and_does_not_keep_others_from_theirs() -> None:
    members = [MemberFacts("anna", frozenset({"gpu"})), MemberFacts("bert")]
    assert place(members, [NodeFacts("a", folders={"anna", "bert"})]) == {"bert": "a"}
    assert place(members, []) == {}


def test_an_eligible_node_takes_a_member_even_at_the_bound_and_the_least_loaded_one_does() -> None:
    nodes = [
        NodeFacts("a", frozenset({"gpu"}), {"anna"}, load=100),
        NodeFacts("b", frozenset({"gpu"}), {"anna"}, load=99),
        NodeFacts("c", folders={"anna"}, load=0),
    ]
    assert place([MemberFacts("anna", frozenset({"gpu"}))], nodes) == {"anna": "b"}


def test_a_draining_node_keeps_its_members_and_takes_none() -> None:
    draining = NodeFacts("a", folders={"anna", "bert"}, load=1, is_draining=True)
    members = [MemberFacts("anna", node="a"), MemberFacts("bert")]
    assert place(members, [draining, NodeFacts("b", folders={"anna", "bert"})]) == {"bert": "b"}
    assert place(members, [draining]) == {}


def test_a_member_with_local_state_stays_with_its_node_even_if_the_node_is_gone() -> None:
    node = NodeFacts("a", folders={"anna", "bert"})
    members = [MemberFacts("anna", state="local", node="gone"), MemberFacts("bert", state="local")]
    assert place(members, [node]) == {"bert": "a"}
