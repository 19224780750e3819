"""A member behind OAuth in a hall with two nodes: they share its tokens, and one of them refreshes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User

from mcp_runtime.control import sign_ins
from mcp_runtime.control.nodes import move_member
from roster.models import Call, GuildMember, MemberSignIn
from tests.conftest import eventually
from tests.support.agents import GatewayClient, make_token
from tests.support.hall import PATIENCE, member, queue, wait_for_status
from tests.support.nodes import Machine, on_postgresql, owner_of, wait_for_folders
from tests.support.oauth_server import OAuthWorld, oauth_world

pytestmark = [pytest.mark.services, on_postgresql]

CALLS = 100
CLIENTS = 10  # five at each gateway


@pytest.fixture
def world() -> Iterator[OAuthWorld]:
    with oauth_world() as world:
        yield world


@pytest.fixture
def nodes(make_node: Callable[[str], Machine], world: OAuthWorld, tmp_path: Path, settings: Any) -> list[Machine]:
    """Two nodes. The first one owns the member `vault`, which somebody has signed in."""
    settings.GUILD_HALL_SECRETS_KEY_FILE = tmp_path / "secrets-key"
    machines = [make_node("first"), make_node("second")]
    for machine in machines:
        machine.more_environment["GUILD_HALL_SECRETS_KEY_FILE"] = str(tmp_path / "secrets-key")
        folder = machine.members_dir / "vault"
        folder.mkdir(parents=True)
        manifest = {"name": "vault", "version": "1.0.0", "transport": "http", "url": world.url}
        (folder / "guild-member.json").write_text(json.dumps(manifest))
    machines[0].run()
    wait_for_status(machines[0], "vault", "error")
    olga = User.objects.create_user("olga")
    begun = sign_ins.begin(member("vault"), olga, web="http://localhost:8000")
    sign_ins.finish(world.approve(begun.address), olga, "")
    wait_for_status(machines[0], "vault", "connected")
    machines[1].run()
    wait_for_folders(*machines)
    assert owner_of("vault") == "first"
    return machines


def clients_of(machines: list[Machine]) -> list[GatewayClient]:
    """CLIENTS clients, the same number at each gateway."""
    token = make_token()
    clients = [GatewayClient(machines[number % 2], token).begin() for number in range(CLIENTS)]
    for client in clients:
        eventually(lambda client=client: "vault__look" in client.tools(), within=PATIENCE)
    return clients


def test_a_hundred_calls_at_two_gateways_and_in_the_queue_at_the_end_of_a_token_cause_one_refresh(
    nodes: list[Machine], world: OAuthWorld
) -> None:
    clients = clients_of(nodes)
    world.token_delay = 0.5
    world.expire()
    queued = [queue("vault", "look") for _ in range(CALLS // 2)]

    def call_often(client: GatewayClient) -> list[dict[str, Any]]:
        return [client.call("vault__look") for _ in range(CALLS // 2 // CLIENTS)]

    with ThreadPoolExecutor(CLIENTS) as pool:
        answers = [answer for answers in pool.map(call_often, clients) for answer in answers]
    assert [answer for answer in answers if "result" not in answer] == []
    ids = [each.pk for each in queued]
    eventually(lambda: not Call.objects.filter(pk__in=ids, status__in=("queued", "running")).exists(), within=PATIENCE)
    assert set(Call.objects.values_list("status", flat=True)) == {"succeeded"}
    assert (world.refreshes, world.reuses) == (1, 0)


def test_a_member_that_moves_while_its_token_is_refreshed_needs_no_new_sign_in(
    nodes: list[Machine], world: OAuthWorld
) -> None:
    clients = clients_of(nodes)
    world.token_delay = 0.5
    world.expire()
    with ThreadPoolExecutor(CLIENTS) as pool:
        calls = [pool.submit(client.call, "vault__look") for client in clients]
        eventually(lambda: world.refreshes > 0, within=PATIENCE)
        move_member(member("vault"), nodes[1].row)
        answers = [call.result(PATIENCE) for call in calls]
    assert len(answers) == CLIENTS
    eventually(lambda: owner_of("vault") == "second", within=PATIENCE)
    eventually(lambda: member("vault").status == GuildMember.Status.CONNECTED, within=PATIENCE)
    assert [client.call("vault__look").get("error") for client in clients] == [None] * CLIENTS
    assert (world.refreshes, world.reuses) == (1, 0)
    assert MemberSignIn.objects.count() == 1
