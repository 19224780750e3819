"""The verbs that say which node owns which member. They request. The runtimes act on it."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from mcp_runtime.control.nodes import (
    MOVES_AT_A_TIME,
    Move,
    drain,
    find_node,
    move_member,
    rebalance,
    remove_node,
    undrain,
)
from mcp_runtime.nodes import placement
from mcp_runtime.nodes.placement import MemberFacts, NodeFacts, place
from mcp_runtime.protocol.errors import RequestRefusedError, UnknownNodeError
from mcp_runtime.rows import lease
from roster.models import GuildMember, Node
from tests.rows.mcp_runtime.control.conftest import Broker
from tests.support.leases import add_node, own_node

pytestmark = pytest.mark.django_db


def add_member(name: str, node: Node | None, **columns: Any) -> GuildMember:
    """A member that may move, unless its manifest says otherwise."""
    values = {"directory": name, "manifest": {"node": {"state": "none"}}, "status": "connected", **columns}
    return GuildMember.objects.create(name=name, node=node, **values)


def requested_node_of(member: GuildMember) -> Node | None:
    return GuildMember.objects.get(pk=member.pk).requested_node


def test_an_unknown_node_is_refused() -> None:
    assert find_node(own_node().name) == own_node()
    with pytest.raises(UnknownNodeError, match="no node 'b' has ever run this hall"):
        find_node("b")


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("several_nodes")
def test_drain_and_undrain_are_written_to_the_row_and_the_runtime_is_notified(broker: Broker) -> None:
    node = add_node("b")
    drain(node)
    assert (find_node("b").is_draining, node.is_draining) == (True, True)
    undrain(node)
    assert (find_node("b").is_draining, node.is_draining) == (False, False)
    assert broker.members == [True, True]


# Move -------------------------------------------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
def test_a_move_is_requested_and_the_runtime_is_notified(broker: Broker) -> None:
    target = add_node("b", folders={"anna": "digest"})
    member = add_member("anna", own_node())
    move_member(member, target)
    assert member.requested_node == requested_node_of(member) == target
    assert GuildMember.objects.get().node == own_node()  # only the owner gives it away
    assert broker.members == [True]


@pytest.mark.parametrize(
    ("node", "member", "reason"),
    [
        ({"is_alive": False}, {}, "the runtime of that node is not alive"),
        ({"is_draining": True}, {}, "that node is draining"),
        ({"folders": {"bert": "digest"}}, {}, "that node does not have its folder"),
        (
            {"labels": ["eu"]},
            {"manifest": {"node": {"labels": ["gpu", "eu", "big"], "state": "none"}}},
            "that node does not have the labels that its manifest requires: big, gpu",
        ),
        ({}, {"manifest": {}}, "it keeps local state in its folder"),
        ({}, {"manifest": {"node": {"state": "local"}}, "server_url": "https://a.example/mcp"}, "it keeps local state"),
    ],
)
def test_a_node_that_cannot_own_the_member_is_refused(
    node: dict[str, Any], member: dict[str, Any], reason: str
) -> None:
    target = add_node("b", **{"folders": {"anna": "digest"}, **node})
    row = add_member("anna", own_node(), **member)
    with pytest.raises(RequestRefusedError, match=f"member 'anna' cannot move to node 'b': {reason}"):
        move_member(row, target)
    assert requested_node_of(row) is None


def test_a_member_does_not_move_to_the_node_that_owns_it() -> None:
    lease.take()
    row = add_member("anna", own_node())
    with pytest.raises(RequestRefusedError, match="it is there already"):
        move_member(row, own_node(), force=True)


@pytest.mark.parametrize(
    "columns",
    [
        {"manifest": {"node": {"state": "shared"}}},
        {"manifest": {"node": {"labels": ["gpu"], "state": "none"}}},
        {"manifest": {}, "server_url": "https://a.example/mcp"},
    ],
)
def test_a_member_without_local_state_moves_to_a_node_with_its_labels(columns: dict[str, Any]) -> None:
    target = add_node("b", folders={"anna": "digest"}, labels=["gpu"])
    row = add_member("anna", own_node(), **columns)
    move_member(row, target)
    assert requested_node_of(row) == target


def test_only_local_state_can_be_overridden_by_force() -> None:
    target, other = add_node("b", folders={"anna": "digest"}), add_node("c")
    row = add_member("anna", own_node(), manifest={})
    with pytest.raises(RequestRefusedError, match="does not have its folder"):
        move_member(row, other, force=True)
    move_member(row, target, force=True)
    assert requested_node_of(row) == target


# Removal ----------------------------------------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
def test_the_members_of_a_removed_node_have_no_owner_and_the_runtime_is_notified(broker: Broker) -> None:
    node = add_node("b", is_alive=False, lease_id=uuid.uuid4(), host="gone.invalid")
    Node.objects.filter(pk=node.pk).update(heartbeat_at=timezone.now() - timedelta(days=1))
    member = add_member("anna", node, lease_id=node.lease_id)
    gone, moving = add_member("bert", node, removed_at=timezone.now()), add_member("carl", None, requested_node=node)
    assert remove_node(node) == 1
    assert not Node.objects.filter(name="b").exists()
    row = GuildMember.objects.get(pk=member.pk)
    assert (row.node, row.lease_id, row.status, row.epoch) == (None, None, "disconnected", member.epoch + 1)
    assert GuildMember.objects.get(pk=gone.pk).node is None
    assert requested_node_of(moving) is None
    assert broker.members == [True]


def test_a_node_whose_runtime_is_alive_cannot_be_removed() -> None:
    node = add_node("b")
    member = add_member("anna", node)
    with pytest.raises(RequestRefusedError, match="node 'b' cannot be removed: its runtime is alive"):
        remove_node(node, force=True)
    assert GuildMember.objects.get(pk=member.pk).node == node


def test_a_node_with_local_state_is_removed_only_by_force() -> None:
    node = add_node("b", is_alive=False)
    for name in ("anna", "bert"):
        add_member(name, node, manifest={})
    with pytest.raises(RequestRefusedError, match=r"members with local state belong to it \(2\)\. Their data stays"):
        remove_node(node)
    assert GuildMember.objects.filter(node=node).count() == 2
    assert remove_node(node, force=True) == 2


def test_a_node_is_removed_once() -> None:
    node = add_node("b", is_alive=False)
    remove_node(find_node("b"))
    with pytest.raises(UnknownNodeError, match="node 'b' has been removed already"):
        remove_node(node)


def test_after_the_removal_other_files_of_a_member_may_run_only_if_nobody_else_has_its_files() -> None:
    node = add_node("b", is_alive=False)
    add_node("c", folders={"anna": "one", "bert": "other"})
    for name in ("anna", "bert"):
        add_member(name, node, digest="one")
    remove_node(node)
    assert dict(GuildMember.objects.values_list("name", "digest")) == {"anna": "one", "bert": ""}


# Rebalance --------------------------------------------------------------------------------------------------------

NAMES = [f"m{number:02}" for number in range(40)]


@pytest.fixture
def new_node() -> Node:
    """A second node that has just joined. The first one owns 40 members, which may all move."""
    folders = dict.fromkeys(NAMES, "digest")
    lease.take()
    Node.objects.update(folders=folders)
    for name in NAMES:
        add_member(name, own_node(), digest="digest")
    return add_node("b", folders=folders)


def move_as_requested() -> None:
    """What the runtimes do."""
    for row in GuildMember.objects.exclude(requested_node=None):
        GuildMember.objects.filter(pk=row.pk).update(node=row.requested_node, requested_node=None)


def test_a_rebalance_requests_a_few_moves_at_a_time_until_all_members_are_placed(new_node: Node) -> None:
    moves = rebalance()
    assert len(moves) == MOVES_AT_A_TIME
    assert {(move.from_node, move.to_node) for move in moves} == {("main", "b")}
    requests = GuildMember.objects.exclude(requested_node=None)
    assert sorted(row.name for row in requests) == sorted(move.member for move in moves)
    for _ in range(10):
        move_as_requested()
        if not rebalance():
            break
    facts = [NodeFacts(name, folders=NAMES) for name in ("b", "main")]
    placement = place([MemberFacts(name) for name in NAMES], facts)
    assert {row.name: row.node.name for row in GuildMember.objects.select_related("node") if row.node} == placement
    assert set(placement.values()) == {"b", "main"}


def test_the_limit_of_a_rebalance_bounds_its_moves(new_node: Node) -> None:
    assert len(rebalance(3)) == 3
    assert GuildMember.objects.filter(requested_node=new_node).count() == 3


@pytest.mark.django_db(transaction=True)
def test_the_runtime_is_notified_once_for_all_moves_and_not_at_all_without_any(broker: Broker, new_node: Node) -> None:
    rebalance(5)
    assert broker.members == [True]
    GuildMember.objects.update(manifest={})
    assert rebalance() == []
    assert broker.members == [True]


def test_a_rebalance_moves_no_member_with_local_state(new_node: Node) -> None:
    GuildMember.objects.update(manifest={"node": {"state": "local"}})
    assert rebalance() == []


def test_a_rebalance_keeps_earlier_requests(new_node: Node) -> None:
    GuildMember.objects.update(requested_node=new_node)
    assert rebalance() == []


@pytest.mark.parametrize(
    "columns",
    [
        {"lease_id": None},
        {"is_draining": True},
        *({"folders": folders} for folders in ({}, dict.fromkeys(NAMES, ""), dict.fromkeys(NAMES, "other files"))),
    ],
)
def test_a_rebalance_moves_no_member_to_a_node_that_cannot_own_it(new_node: Node, columns: dict[str, Any]) -> None:
    Node.objects.filter(pk=new_node.pk).update(**columns)
    assert rebalance() == []


def test_a_rebalance_leaves_the_members_of_draining_and_dead_nodes_to_their_owners(new_node: Node) -> None:
    own_id = own_node().pk
    Node.objects.filter(pk=own_id).update(is_draining=True)
    assert rebalance() == []
    Node.objects.filter(pk=own_id).update(is_draining=False, lease_id=None)
    assert rebalance() == []


def test_a_rebalance_does_not_move_a_member_whose_owner_has_changed_meanwhile(
    new_node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_place = placement.place

    def give_all_away(*values: Any) -> dict[str, str]:
        GuildMember.objects.update(node=new_node)
        return real_place(*values)

    monkeypatch.setattr(placement, "place", give_all_away)
    assert rebalance() == []


def test_a_move_names_the_member_and_both_nodes() -> None:
    lease.take()
    add_node("b", folders={NAMES[1]: "digest"})
    add_member(NAMES[1], own_node(), digest="digest")
    assert rebalance() == [Move(NAMES[1], "main", "b")]
