from __future__ import annotations

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from roster.models import GuildMember, Node
from tests.support.admin import act, allow, html, list_of, make_member, messages_of, page_of
from tests.support.leases import add_node

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("runtime")]


def move_page(member: GuildMember) -> str:
    return reverse("admin:roster_guildmember_move", args=[member.pk])


@pytest.mark.usefixtures("several_nodes")
def test_nodes_are_drained_and_undrained_by_actions(page: Client) -> None:
    node = add_node("b")
    assert messages_of(act(page, "node", "drain_nodes", node)) == ["Drain requested (1): b."]
    assert Node.objects.get(name="b").is_draining
    assert messages_of(act(page, "node", "undrain_nodes", node)) == ["Undrained (1): b."]
    assert not Node.objects.get(name="b").is_draining
    assert [entry.change_message for entry in LogEntry.objects.order_by("pk")] == ["Drain requested.", "Undrained."]


def test_the_only_node_of_a_hall_is_not_drained(page: Client) -> None:
    node = Node.objects.first() or add_node("main")
    (refusal,) = messages_of(act(page, "node", "drain_nodes", node))
    assert refusal == "Not changed (1): node 'main' cannot be drained: the hall has no other node."
    assert not Node.objects.get().is_draining


def test_nodes_are_removed_by_actions(page: Client) -> None:
    node = add_node("b", is_alive=False)
    member = make_member("notes", node=node)
    (refusal,) = messages_of(act(page, "node", "remove_nodes", node))
    assert refusal.startswith("Not changed (1): node 'b' cannot be removed: members with local state belong to it (1).")
    assert messages_of(act(page, "node", "force_remove_nodes", node)) == ["Removed (1): b."]
    assert GuildMember.objects.get(pk=member.pk).node is None
    assert LogEntry.objects.get().change_message == "Removed."


def test_a_user_without_the_permission_to_control_members_has_no_actions_on_nodes(client: Client, bob: User) -> None:
    allow(bob, "view_node")
    client.force_login(bob)
    node = add_node("b")
    assert "drain_nodes" not in html(client.get(list_of("node")))
    act(client, "node", "drain_nodes", node)
    assert not Node.objects.get(name="b").is_draining


def test_with_one_node_the_page_of_a_member_names_no_node(page: Client, example: GuildMember) -> None:
    text = html(page.get(page_of(example)))
    assert "<dt>Node</dt>" not in text
    assert move_page(example) not in text


@pytest.mark.usefixtures("several_nodes")
def test_with_several_nodes_the_page_of_a_member_names_its_owner_and_where_it_moves(
    page: Client, example: GuildMember
) -> None:
    node = add_node("b")
    text = html(page.get(page_of(example)))
    assert "<dt>Node</dt><dd>main</dd>" in text
    assert move_page(example) in text
    GuildMember.objects.update(requested_node=node)
    assert "<dt>Node</dt><dd>main, move to b requested</dd>" in html(page.get(page_of(example)))


def test_the_page_of_a_member_says_that_its_node_does_not_answer(page: Client) -> None:
    member = make_member("far", status="connected", node=add_node("b", is_alive=False))
    assert "The node &#x27;b&#x27; that owns this member does not answer. Start" in html(page.get(page_of(member)))


def test_a_member_is_moved_to_the_chosen_node(page: Client) -> None:
    node = add_node("b", folders={"notes": "digest"})
    member = make_member("notes")
    assert "Node main owns this member." in html(page.get(move_page(member)))
    refusal = html(page.post(move_page(member), {"node": node.pk}))
    assert "it keeps local state in its folder" in refusal
    response = page.post(move_page(member), {"node": node.pk, "force": "on"}, follow=True)
    assert messages_of(response) == ["notes. Move to node b requested."]
    assert GuildMember.objects.get().requested_node == node


def test_the_node_that_owns_the_member_is_no_choice(page: Client) -> None:
    member = make_member("notes")
    assert "The hall has no other node." in html(page.get(move_page(member)))
    assert "Select a valid choice" in html(page.post(move_page(member), {"node": member.node_id}))
