"""Members behind OAuth in a real hall. The test is a second process that renews the same token."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from django.contrib.auth.models import User

from mcp_runtime.client.outside import Guard
from mcp_runtime.control import sign_ins
from mcp_runtime.members import credentials
from mcp_runtime.rows.database import unit_of_work
from roster.models import MemberSignIn
from tests.conftest import eventually
from tests.support.agents import wait_for_roster
from tests.support.hall import Hall, call, member, queue, wait_for_status
from tests.support.leaks import tables
from tests.support.oauth_server import Answer, OAuthWorld, Seen, oauth_world

CALLS = 100


@pytest.fixture
def world() -> Iterator[OAuthWorld]:
    with oauth_world() as world:
        yield world


@pytest.fixture
def vault(hall: Hall, world: OAuthWorld, settings: Any) -> str:
    """A member that somebody has signed in."""
    settings.GUILD_HALL_SECRETS_KEY_FILE = hall.data_dir / "secrets-key"
    folder = hall.members_dir / "vault"
    folder.mkdir(parents=True)
    manifest = {"name": "vault", "version": "1.0.0", "transport": "http", "url": world.url}
    (folder / "guild-member.json").write_text(json.dumps(manifest))
    hall.start()
    assert wait_for_status(hall, "vault", "error").needs_sign_in
    olga = User.objects.create_user("olga")
    begun = sign_ins.begin(member("vault"), olga, web=hall.url)
    sign_ins.finish(world.approve(begun.address), olga, "")
    wait_for_status(hall, "vault", "connected")
    return "vault"


def test_a_hundred_calls_and_another_process_at_the_end_of_a_token_cause_one_refresh(
    hall: Hall, world: OAuthWorld, vault: str
) -> None:
    row = MemberSignIn.objects.get()
    world.token_delay = 0.5
    world.expire()
    calls = [queue(vault, "look") for _ in range(CALLS)]

    def renew(_: int) -> str:
        ask = credentials.refresh_of(Guard.near(world.url))
        return unit_of_work(lambda: credentials.renew(row.pk, row.url, row.version, ask)).access

    with ThreadPoolExecutor(4) as pool:
        renewed = set(pool.map(renew, range(4)))
    eventually(lambda: all(_status(each) not in ("queued", "running") for each in calls), within=60)
    assert [_status(each) for each in calls] == ["succeeded"] * CALLS, hall.output()
    assert (len(renewed), world.refreshes, world.reuses) == (1, 1, 0)
    secrets = [*world.access, *world.refresh, *world.used_refresh]
    written = "\n".join([str(tables()), hall.output()])
    assert [secret for secret in secrets if secret in written] == []


def test_agents_and_queued_calls_use_a_bound_token_while_its_nonce_and_the_token_change(
    hall: Hall, world: OAuthWorld, request: pytest.FixtureRequest
) -> None:
    world.binds = True
    world.proofs.nonce = world.proofs_of_member.nonce = "nonce-1"
    vault = request.getfixturevalue("vault")
    agent = wait_for_roster(hall, vault)
    (tool,) = (name for name in agent.tools() if "look" in name)
    assert agent.text(tool) == "open"
    world.proofs_of_member.nonce = "nonce-2"
    world.expire()  # the route of the agents meets both in one call
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(lambda _: agent.text(tool), range(40))) == {"open"}
    world.proofs_of_member.nonce = "nonce-3"
    assert call(vault, "look").status == "succeeded", hall.output()
    world.proofs_of_member.is_strict = True  # each nonce is accepted once
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(lambda _: agent.text(tool), range(40))) == {"open"}
    assert len(set(world.bound.values())) == 1
    assert [each for each in world.seen if each.headers.get("authorization", "").startswith("Bearer")] == []


def test_a_call_without_a_sign_in_ends_at_once_with_the_reason(hall: Hall, world: OAuthWorld, vault: str) -> None:
    world.expire()
    world.refresh.clear()
    assert call(vault, "look").status == "failed"
    wait_for_status(hall, vault, "error")
    failed = call(vault, "look", within=5.0)
    assert (failed.status, failed.error_kind) == ("failed", "unavailable")
    assert "needs a sign-in" in failed.error_message
    asked = len(world.seen)
    assert call(vault, "look", within=5.0).status == "failed"
    assert len(world.seen) == asked  # nothing is tried until a person signs in


def _status(row: Any) -> str:
    row.refresh_from_db()
    return str(row.status)


@pytest.mark.parametrize("kind", ["status", "error", "event"])
def test_no_agent_sees_a_token_in_an_error_that_quotes_it(hall: Hall, world: OAuthWorld, vault: str, kind: str) -> None:
    def quote(seen: Seen) -> Answer:
        message = json.loads(seen.body or b"{}")
        if message.get("method") != "tools/call":
            return world.respond(replace(seen, path="/elsewhere")) if seen.method != "POST" else world.mcp(seen)
        text = f"you sent {seen.headers['authorization']}"
        answer = json.dumps({"jsonrpc": "2.0", "id": message["id"], "error": {"code": -1, "message": text}})
        return {
            "status": (500, {"Content-Type": "text/plain"}, text.encode()),
            "error": (200, {"Content-Type": "application/json"}, answer.encode()),
            "event": (200, {"Content-Type": "text/event-stream"}, f"data: {answer}\n\n".encode()),
        }[kind]

    agent = wait_for_roster(hall, vault)
    (tool,) = (name for name in agent.tools() if "look" in name)
    world.answers["/mcp"] = quote
    error = agent.call(tool)["error"]["message"]
    assert "you sent Bearer ***" in error
    assert [token for token in world.access if token in error] == []


def test_an_agent_gets_the_access_of_a_service_until_the_authorization_server_refuses_it(
    hall: Hall, world: OAuthWorld, settings: Any
) -> None:
    settings.GUILD_HALL_SECRETS_KEY_FILE = hall.data_dir / "secrets-key"
    world.lists_openly = world.echoes = True
    folder = hall.members_dir / "vault"
    folder.mkdir(parents=True)
    (folder / "token").write_text(world.signed(sub="pod", aud=world.base))
    oauth = {"grant": "workload_identity", "issuer": world.base, "assertion": "${file:token}"}
    manifest = {"name": "vault", "version": "1.0.0", "transport": "http", "url": world.url, "oauth": oauth}
    (folder / "guild-member.json").write_text(json.dumps(manifest))
    hall.start()
    wait_for_status(hall, "vault", "connected")
    agent = wait_for_roster(hall, "vault")
    (tool,) = (name for name in agent.tools() if "look" in name)
    assert "/token" not in world.paths()
    text = agent.call(tool)["result"]["content"][0]["text"]
    assert world.account_of(text) == "pod"
    world.answers["/token"] = lambda seen: (400, {}, b'{"error": "invalid_grant"}')
    world.expire()
    error = agent.call(tool)["error"]["message"]
    assert "its token cannot be renewed now" in error
    assert "invalid_grant" in error
    assert not MemberSignIn.objects.get().has_tokens
