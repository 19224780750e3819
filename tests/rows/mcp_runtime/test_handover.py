"""Which members a node takes from nodes that are gone."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from django.db import connection
from django.db.models import F

from mcp_runtime.members import handover
from mcp_runtime.members.handover import Handover
from mcp_runtime.nodes.watch import GONE_SECONDS
from mcp_runtime.rows import lease
from roster.models import GuildMember, Node
from tests.support.leases import add_node, own_node

pytestmark = [
    pytest.mark.django_db,
    pytest.mark.skipif(connection.vendor == "sqlite", reason="a hall on SQLite has one node"),
]


@pytest.fixture
def own_lease_id() -> uuid.UUID:
    lease_id = lease.take()
    Node.objects.update(folders={"anna": "one"})
    return lease_id


def add_member(node: Node, **columns: Any) -> GuildMember:
    return GuildMember.objects.create(name="anna", directory="anna", node=node, digest="one", **columns)


def names_taken(lease_id: uuid.UUID, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The members that the node takes after it has watched the others for GONE_SECONDS."""
    clock = [1000.0]
    monkeypatch.setattr(handover.time, "monotonic", lambda: clock[0])
    own_handover, names = Handover(lease_id, lambda: None), []
    while clock[0] <= 1000 + GONE_SECONDS:
        Node.objects.exclude(lease_id=None).update(beat=F("beat") + 1)  # those that are alive
        names += own_handover.turn()
        clock[0] += 1
    return names


def test_local_state_stays_with_its_node_until_an_operator_moves_it(
    own_lease_id: uuid.UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    member = add_member(add_node("b", is_alive=False))
    assert names_taken(own_lease_id, monkeypatch) == []
    GuildMember.objects.update(requested_node=own_node())
    assert names_taken(own_lease_id, monkeypatch) == ["anna"]
    assert GuildMember.objects.get(pk=member.pk).node == own_node()


def test_a_member_of_a_dead_node_goes_where_an_operator_moves_it(
    own_lease_id: uuid.UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = add_node("c", folders={"anna": "one"})
    add_member(add_node("b", is_alive=False), manifest={"node": {"state": "none"}}, requested_node=other)
    assert names_taken(own_lease_id, monkeypatch) == []
    assert GuildMember.objects.get().requested_node == other


def test_the_members_of_a_removed_node_are_taken_at_once(own_lease_id: uuid.UUID) -> None:
    add_node("c")
    GuildMember.objects.create(name="anna", directory="anna")  # as remove_node leaves it
    assert Handover(own_lease_id, lambda: None).turn() == ["anna"]


def test_a_requested_move_waits_until_the_other_node_was_seen_alive(own_lease_id: uuid.UUID) -> None:
    other = add_node("b", folders={"anna": "one"}, fence_is_on=True)
    member = add_member(own_node(), lease_id=own_lease_id, requested_node=other)
    own_handover = Handover(own_lease_id, lambda: None)
    own_handover.turn()
    assert own_handover.departures() == []
    assert GuildMember.objects.get(pk=member.pk).requested_node == other
    Node.objects.filter(pk=other.pk).update(beat=F("beat") + 1)
    own_handover.turn()
    assert own_handover.departures() == [(member, other)]


@pytest.mark.parametrize("columns", [{"is_draining": True}, {"lease_id": None}, {"folders": {"anna": ""}}])
def test_a_move_to_a_node_that_cannot_have_the_member_is_dropped(
    own_lease_id: uuid.UUID, columns: dict[str, Any]
) -> None:
    other = add_node("b", **{"folders": {"anna": "one"}, "fence_is_on": True, **columns})
    member = add_member(own_node(), lease_id=own_lease_id, requested_node=other)
    own_handover = Handover(own_lease_id, lambda: None)
    own_handover.turn()
    assert own_handover.departures() == []
    assert GuildMember.objects.get(pk=member.pk).requested_node is None
