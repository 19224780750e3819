"""Members whose tokens are bound to a key of the hall (DPoP). Their servers check each proof."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core import serializers

from mcp_runtime.control import sign_ins
from mcp_runtime.control.secrets import KEY_STEPS, rotate_key
from mcp_runtime.members.live import LiveMember
from mcp_runtime.oauth.proof_keys import ProofKey
from roster.models import GuildMember, MemberSignIn
from tests.support.lifecycle_stage import RemoteStage, row
from tests.support.oauth_server import OAuthWorld, oauth_world

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(params=["", "nonce-1"], ids=["without a nonce", "with a nonce"])
def world(request: pytest.FixtureRequest) -> Iterator[OAuthWorld]:
    with oauth_world(binds=True) as world:
        world.proofs.nonce = world.proofs_of_member.nonce = request.param
        yield world


def connected(stage: RemoteStage, world: OAuthWorld, **manifest: Any) -> tuple[GuildMember, LiveMember]:
    member = stage.add_remote(world.url, **manifest)
    stage.lifecycle.start(member.pk)
    if "oauth" not in manifest:
        olga = User.objects.create_user("olga")
        begun = sign_ins.begin(row(member), olga, web="http://localhost:8000")
        sign_ins.finish(world.approve(begun.address), olga, "")
        stage.lifecycle.start(member.pk)
    live_member = stage.lifecycle.connected_member(member.pk)
    assert live_member is not None, row(member).last_error
    return row(member), live_member


def test_a_member_is_called_with_bound_tokens_also_after_a_refresh(stage: RemoteStage, world: OAuthWorld) -> None:
    member, live_member = connected(stage, world)
    (thumbprint,) = set(world.bound.values())
    world.expire()
    assert live_member.client.invoke_tool("look", {})["content"]
    assert world.refreshes == (2 if world.proofs.nonce else 1)  # the nonce costs a request
    assert set(world.bound.values()) == {thumbprint}
    assert [each for each in world.seen if each.headers.get("authorization", "").startswith("Bearer")] == []
    stage.lifecycle.stop(member.pk)
    stage.lifecycle.start(member.pk)
    again = stage.lifecycle.connected_member(member.pk)
    assert again is not None, row(member).last_error
    assert again.client.invoke_tool("look", {})["content"]  # the key was kept with the tokens


def test_each_request_has_the_last_nonce_of_the_member(stage: RemoteStage, world: OAuthWorld) -> None:
    _, live_member = connected(stage, world)
    for nonce in ("nonce-2", "nonce-3"):
        world.proofs_of_member.nonce = nonce
        before = len(world.seen)
        assert live_member.client.invoke_tool("look", {})["content"]
        assert live_member.client.invoke_tool("look", {})["content"]
        assert len(world.seen) == before + 3  # one refusal gives the nonce, which is kept
    world.proofs_of_member.nonce = "nonce-4"
    world.expire()  # a new nonce and a new token in one call
    assert live_member.client.invoke_tool("look", {})["content"]


def test_calls_at_the_same_time_succeed_at_a_member_that_accepts_each_nonce_once(
    stage: RemoteStage, world: OAuthWorld
) -> None:
    _, live_member = connected(stage, world)
    world.proofs_of_member.is_strict = True
    calls, together = 24, threading.Barrier(8)

    def call(number: int) -> Any:
        together.wait(60)
        return live_member.client.invoke_tool("look", {}, 60.0)["content"]

    before = len(world.seen)
    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(call, range(calls)))
    assert len(world.seen) <= before + 2 * calls  # each call is refused once at most


def test_the_hall_itself_has_bound_tokens_without_a_person(stage: RemoteStage, world: OAuthWorld) -> None:
    world.clients["the-hall"] = ""
    oauth = {"grant": "client_credentials", "client_id": "the-hall", "client_secret": "${env:GUILD_HALL_MEMBER_S}"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GUILD_HALL_MEMBER_S", "s3cret-of-the-hall")
        world.clients["the-hall"] = "s3cret-of-the-hall"
        world.auth_methods = ("client_secret_basic",)
        _, live_member = connected(stage, world, oauth=oauth)
        world.expire()
        assert live_member.client.invoke_tool("look", {})["content"]
    assert len(set(world.bound.values())) == 1
    assert len(world.bound) == 2


def test_the_key_is_encrypted_and_goes_over_to_a_new_key_of_the_hall(stage: RemoteStage, world: OAuthWorld) -> None:
    _, live_member = connected(stage, world)
    assert live_member.token is not None
    assert isinstance(live_member.token.key, ProofKey)
    secret = live_member.token.key.secret
    assert secret not in serializers.serialize("json", MemberSignIn.objects.all())
    for step in KEY_STEPS:
        rotate_key(step)
    assert secret not in serializers.serialize("json", MemberSignIn.objects.all())
    live_member.token.look()
    world.expire()
    assert live_member.client.invoke_tool("look", {})["content"]
    assert len(set(world.bound.values())) == 1


def test_a_new_sign_in_has_a_new_key(stage: RemoteStage, world: OAuthWorld) -> None:
    member, _ = connected(stage, world)
    olga = User.objects.get()
    begun = sign_ins.begin(member, olga, web="http://localhost:8000")
    sign_ins.finish(world.approve(begun.address), olga, "")
    assert len(set(world.bound.values())) == 2
