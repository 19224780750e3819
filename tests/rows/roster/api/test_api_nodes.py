from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client

from mcp_runtime.control.members import reserve_member
from roster.models import GuildMember, Node
from tests.support.api import MANIFEST, add_member, client_of
from tests.support.leases import add_node, own_node

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("live_runtime")]

MAY_MOVE = {**MANIFEST, "node": {"state": "none"}}


def post(client: Client, address: str, body: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
    response = client.post(address, body or {}, content_type="application/json")
    return response.status_code, response.json()


def test_the_list_of_nodes_shows_their_state_and_load(as_alice: Client) -> None:
    add_node("b", is_alive=False, labels=["gpu"], is_draining=True)
    other, own = as_alice.get("/api/nodes/").json()["nodes"]
    assert (other["name"], other["is_alive"], other["members"]) == ("b", False, None)
    assert (other["labels"], other["is_draining"]) == (["gpu"], True)
    assert (own["name"], own["is_alive"], own["members"], own["is_draining"]) == ("main", True, 0, False)


@pytest.mark.usefixtures("several_nodes")
def test_a_node_is_drained_and_undrained(as_bob: Client) -> None:
    add_node("b")
    assert post(as_bob, "/api/nodes/b/drain/") == (202, {"name": "b", "is_draining": True})
    assert Node.objects.get(name="b").is_draining
    assert post(as_bob, "/api/nodes/b/undrain/") == (202, {"name": "b", "is_draining": False})
    assert not Node.objects.get(name="b").is_draining


def test_a_node_with_local_state_is_removed_only_by_force(as_bob: Client) -> None:
    add_member("notes", node=add_node("b", is_alive=False))
    status, answer = post(as_bob, "/api/nodes/b/remove/")
    assert (status, answer["code"]) == (409, "refused")
    assert "members with local state belong to it (1)" in answer["detail"]
    assert post(as_bob, "/api/nodes/b/remove/", {"force": True}) == (200, {"name": "b", "members": 1})
    assert not Node.objects.filter(name="b").exists()
    assert post(as_bob, "/api/nodes/b/remove/")[0] == 404


def test_an_unknown_node_is_not_found(as_bob: Client, example: GuildMember) -> None:
    for address in ("/api/nodes/b/drain/", "/api/members/example/move/"):
        status, answer = post(as_bob, address, {"node": "b"})
        assert (status, answer["code"]) == (404, "unknown_node")


def test_a_narrowed_token_drains_no_node(bob: User, example: GuildMember) -> None:
    status, answer = post(client_of(bob, scope="members", members=[example]), "/api/nodes/main/drain/")
    assert status == 403
    assert "is for some of them alone" in answer["detail"]
    assert not own_node().is_draining


def test_a_member_is_moved_and_its_detail_names_both_nodes(as_bob: Client) -> None:
    add_node("b", folders={"notes": "digest"})
    add_member("notes", manifest=MAY_MOVE)
    status, answer = post(as_bob, "/api/members/notes/move/", {"node": "b"})
    assert (status, answer["node"], answer["requested_node"]) == (202, "main", "b")
    answer = as_bob.get("/api/members/notes/").json()
    assert (answer["node"], answer["requested_node"]) == ("main", "b")


def test_a_member_with_local_state_is_moved_only_by_force(as_bob: Client, example: GuildMember) -> None:
    add_node("b", folders={"example": "digest"})
    status, answer = post(as_bob, "/api/members/example/move/", {"node": "b"})
    assert (status, answer["code"]) == (409, "refused")
    assert "it keeps local state in its folder" in answer["detail"]
    assert post(as_bob, "/api/members/example/move/", {"node": "b", "force": True})[0] == 202


@pytest.mark.parametrize("body", [{}, {"node": "b", "forced": True}])
def test_a_move_with_a_wrong_body_is_refused(as_bob: Client, example: GuildMember, body: dict[str, Any]) -> None:
    assert post(as_bob, "/api/members/example/move/", body)[0] == 400


def test_a_rebalance_answers_with_its_moves_but_not_of_members_that_are_reserved_for_others(as_bob: Client) -> None:
    add_node("b", folders={"notes": "digest", "secret": "digest"})
    for name in ("notes", "secret"):
        add_member(name, manifest=MAY_MOVE, digest="digest")
    reserve_member(GuildMember.objects.get(name="secret"), [Group.objects.create(name="others")])
    move = {"member": "notes", "from_node": "main", "to_node": "b"}
    assert post(as_bob, "/api/nodes/rebalance/") == (202, {"moves": [move]})
    assert GuildMember.objects.exclude(requested_node=None).count() == 2


def test_a_rebalance_moves_at_most_as_many_members_as_requested(as_bob: Client) -> None:
    names = ["m1", "m2", "m3"]
    add_node("b", folders=dict.fromkeys(names, "digest"))
    for name in names:
        add_member(name, manifest=MAY_MOVE, digest="digest")
    assert len(post(as_bob, "/api/nodes/rebalance/", {"limit": 2})[1]["moves"]) == 2
    assert post(as_bob, "/api/nodes/rebalance/", {"limit": 0})[0] == 400
