"""A member where each user signs in alone, in a hall with two nodes. One of them owns it, and both serve clients."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User

from mcp_runtime.calls.transitions import Requester
from mcp_runtime.control import sign_ins
from mcp_runtime.control.calls import queue_call
from mcp_runtime.control.nodes import move_member
from roster.models import Call
from tests.conftest import eventually
from tests.support.agents import GatewayClient, make_token
from tests.support.hall import PATIENCE, member, wait_for_status
from tests.support.nodes import Machine, on_postgresql, owner_of, wait_for_folders
from tests.support.oauth_server import OAuthWorld, hash_of, oauth_world

pytestmark = [pytest.mark.services, on_postgresql]

TOOL = "vault__look"
COMPLETE = "notifications/elicitation/complete"


@pytest.fixture
def world() -> Iterator[OAuthWorld]:
    with oauth_world(echoes=True, has_sessions=True) as world:
        yield world


@pytest.fixture
def nodes(make_node: Callable[[str], Machine], world: OAuthWorld, tmp_path: Path, settings: Any) -> list[Machine]:
    """Two nodes. The first one owns the member `vault`, which shows its lists to everybody."""
    world.lists_openly = True
    settings.GUILD_HALL_SECRETS_KEY_FILE = tmp_path / "secrets-key"
    machines = [make_node("first"), make_node("second")]
    for machine in machines:
        machine.more_environment["GUILD_HALL_SECRETS_KEY_FILE"] = str(tmp_path / "secrets-key")
        folder = machine.members_dir / "vault"
        folder.mkdir(parents=True)
        manifest = {"name": "vault", "version": "1.0.0", "transport": "http", "url": world.url}
        manifest |= {"oauth": {"credentials": "user"}}
        (folder / "guild-member.json").write_text(json.dumps(manifest))
    machines[0].run()
    wait_for_status(machines[0], "vault", "connected")
    machines[1].run()
    wait_for_folders(*machines)
    assert owner_of("vault") == "first"
    return machines


@pytest.fixture
def anna() -> User:
    return User.objects.create_superuser("anna")


@pytest.fixture
def bert() -> User:
    return User.objects.create_superuser("bert")


def sign_in(world: OAuthWorld, user: User) -> None:
    world.account = user.username
    begun = sign_ins.begin(member("vault"), user, web="http://localhost:8000", own=True)
    sign_ins.finish(world.approve(begun.address), user, "")


def clients_of(nodes: list[Machine], user: User) -> list[GatewayClient]:
    """A client at each node, which can open pages."""
    token = make_token(user)
    clients = [GatewayClient(node, token).begin("2025-11-25", elicitation={"url": {}}) for node in nodes]
    for client in clients:
        eventually(lambda client=client: TOOL in client.tools(), within=PATIENCE)
    return clients


def asked(client: GatewayClient) -> str:
    error = client.call(TOOL)["error"]
    assert error["code"] == -32042, error
    return str(error["data"]["elicitations"][0]["elicitationId"])


def test_a_sign_in_and_a_sign_out_have_an_effect_on_the_next_call_at_each_node(
    nodes: list[Machine], world: OAuthWorld, anna: User, bert: User
) -> None:
    of_anna, of_bert = clients_of(nodes, anna), clients_of(nodes, bert)
    sign_in(world, bert)
    for _ in range(3):
        for client in of_anna:
            asked(client)
        sign_in(world, anna)
        assert [world.accounts[client.text(TOOL)] for client in of_anna] == ["anna", "anna"]
        assert [world.accounts[client.text(TOOL)] for client in of_bert] == ["bert", "bert"]
        sign_ins.sign_out(member("vault"), anna)
    for client in of_anna:
        asked(client)
    assert world.mixed_up() == []


def test_calls_of_two_users_at_two_nodes_at_the_end_of_their_tokens_cause_one_refresh_each(
    nodes: list[Machine], world: OAuthWorld, anna: User, bert: User
) -> None:
    clients = [(user, client) for user in (anna, bert) for client in clients_of(nodes, user)]
    for user in (anna, bert):
        sign_in(world, user)
    world.token_delay = 0.5
    world.expire()
    rows = [
        (user, queue_call("vault", "look", {}, requester=Requester(Call.Source.REST, user))[0])
        for user in (anna, bert)
        for _ in range(5)
    ]
    with ThreadPoolExecutor(len(clients)) as pool:
        texts = list(pool.map(lambda each: [each[1].text(TOOL) for _ in range(5)], clients))
    for (user, _), seen in zip(clients, texts, strict=True):
        assert {world.accounts[text] for text in seen} == {user.username}
    for user, row in rows:
        eventually(lambda row=row: Call.objects.get(pk=row.pk).status == "succeeded", within=PATIENCE)
        row.refresh_from_db()
        assert world.accounts[row.result["content"][0]["text"]] == user.username
    refreshed = [each.form for each in world.seen if each.form.get("grant_type") == "refresh_token"]
    assert sorted(world.account_of(hash_of(form["refresh_token"])) for form in refreshed) == ["anna", "bert"]
    assert (world.reuses, world.mixed_up()) == (0, [])


def test_clients_at_both_nodes_are_told_once_that_their_user_signed_in(
    nodes: list[Machine], world: OAuthWorld, anna: User, bert: User
) -> None:
    clients = [*clients_of(nodes, anna), *clients_of(nodes, bert)]
    streams = [client.listen() for client in clients]
    ids = [asked(client) for client in clients]
    sign_in(world, anna)
    for client, stream, elicitation_id in zip(clients[:2], streams, ids, strict=False):
        assert stream.until(COMPLETE)["params"] == {"elicitationId": elicitation_id}
        assert world.accounts[client.text(TOOL)] == "anna"
    sign_in(world, bert)
    for stream, elicitation_id in zip(streams[2:], ids[2:], strict=True):
        assert stream.until(COMPLETE)["params"] == {"elicitationId": elicitation_id}
    told = [[each for each in stream.all_messages if each.get("method") == COMPLETE] for stream in streams]
    assert [len(each) for each in told] == [1, 1, 1, 1]
    for stream in streams:
        stream.close()


def test_a_user_stays_signed_in_when_the_member_moves_to_the_other_node(
    nodes: list[Machine], world: OAuthWorld, anna: User, bert: User
) -> None:
    of_anna, of_bert = clients_of(nodes, anna), clients_of(nodes, bert)
    sign_in(world, anna)
    assert [world.accounts[client.text(TOOL)] for client in of_anna] == ["anna", "anna"]
    move_member(member("vault"), nodes[1].row)
    eventually(lambda: owner_of("vault") == "second", within=PATIENCE)
    eventually(lambda: member("vault").status == "connected", within=PATIENCE)
    assert [world.accounts[client.text(TOOL)] for client in of_anna] == ["anna", "anna"]
    for client in of_bert:
        asked(client)
    assert (world.refreshes, world.mixed_up()) == (0, [])
