"""Sign-ins of persons at members whose manifest names another authorization server later. All servers are real."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User

from mcp_runtime.client.exchanges import Exchange
from mcp_runtime.control import sign_ins, ways_in
from mcp_runtime.members import credentials
from mcp_runtime.members.live import LiveMember
from mcp_runtime.protocol.errors import RequestRefusedError, SignInNeededError
from roster.models import GuildMember, MemberSignIn, UserSignIn
from tests.rows.mcp_runtime.test_sign_ins import begin, connected, sign_in
from tests.support.lifecycle_stage import RemoteStage, row
from tests.support.oauth_server import OAuthWorld, oauth_world

pytestmark = pytest.mark.django_db(transaction=True)

WEB = "http://localhost:8000"


@pytest.fixture
def world() -> Iterator[OAuthWorld]:
    with oauth_world() as world:
        yield world


@pytest.fixture
def other() -> Iterator[OAuthWorld]:
    """The authorization server that the manifest names later."""
    with oauth_world() as other:
        yield other


@pytest.fixture
def olga() -> User:
    return User.objects.create_superuser("olga", password="x")


def name_issuer(stage: RemoteStage, world: OAuthWorld, issuer: str, **oauth: Any) -> None:
    """Change the manifest, and nothing else."""
    stage.add_remote(world.url, oauth={"issuer": issuer, **oauth})


def restart(stage: RemoteStage, member: GuildMember) -> LiveMember | None:
    stage.lifecycle.stop(member.pk)
    stage.lifecycle.start(member.pk)
    return stage.lifecycle.connected_member(member.pk)


def with_own_sign_in(stage: RemoteStage, world: OAuthWorld, user: User) -> tuple[GuildMember, LiveMember]:
    world.lists_openly = True
    member = stage.add_remote(world.url, oauth={"credentials": "user"})
    stage.lifecycle.start(member.pk)
    live_member = stage.lifecycle.connected_member(member.pk)
    assert live_member is not None, row(member).last_error
    begun = sign_ins.begin(row(member), user, web=WEB, own=True)
    sign_ins.finish(world.approve(begun.address), user, "")
    return row(member), live_member


def call_of(live_member: LiveMember, user: User) -> Any:
    assert live_member.users is not None
    return live_member.users.connected_client(user.pk, 5.0, Exchange(), "").invoke_tool("look", {})["content"]


def test_after_a_change_of_the_issuer_the_old_one_is_not_asked_and_a_person_signs_in_again(
    stage: RemoteStage, world: OAuthWorld, other: OAuthWorld, olga: User
) -> None:
    member, _ = connected(stage, world, olga)
    name_issuer(stage, world, other.base)
    asked = len([path for path in world.paths() if path != "/mcp"])
    assert restart(stage, member) is None
    failed = row(member)
    assert failed.needs_sign_in
    assert f"names the authorization server '{other.base}'" in failed.last_error
    assert f"the last sign-in was at '{world.base}'" in failed.last_error
    report = ways_in.report_of(failed)
    assert report is not None
    assert report.state == "needed"
    paths = [path for path in world.paths() if path != "/mcp"][asked:]
    assert ("/token" in paths, "/revoke" in paths, world.refreshes, other.seen) == (False, False, 0, [])
    world.resource["authorization_servers"] = [other.base]
    other.access = world.access
    other.resource["resource"] = world.url
    sign_in(other, failed, olga)
    assert restart(stage, member) is not None, row(member).last_error
    assert MemberSignIn.objects.get().issuer == other.base


def test_a_connection_of_before_the_change_does_not_refresh_at_the_old_issuer(
    stage: RemoteStage, world: OAuthWorld, other: OAuthWorld, olga: User
) -> None:
    _, live_member = connected(stage, world, olga)
    name_issuer(stage, world, other.base)
    world.expire()
    with pytest.raises(SignInNeededError, match="its manifest names the authorization server"):
        live_member.client.invoke_tool("look", {})
    assert (world.refreshes, other.seen) == (0, [])
    kept = credentials.read(MemberSignIn.objects.get())
    assert (kept.access, kept.refresh) == ("", "")


def test_each_user_is_asked_to_sign_in_again_and_told_why_each_time(
    stage: RemoteStage, world: OAuthWorld, other: OAuthWorld, olga: User
) -> None:
    member, live_member = with_own_sign_in(stage, world, olga)
    assert call_of(live_member, olga)
    name_issuer(stage, world, other.base, credentials="user")
    report = ways_in.own_report_of(row(member), olga)
    assert report is not None
    assert report.state == "needed"
    again = restart(stage, member)
    assert again is not None, row(member).last_error
    calls = len([seen for seen in world.seen if b"tools/call" in seen.body])
    for _ in range(2):
        with pytest.raises(SignInNeededError, match=f"own-sign-in/ .its manifest names .*'{other.base}'"):
            call_of(again, olga)
    assert len([seen for seen in world.seen if b"tools/call" in seen.body]) == calls
    assert (world.refreshes, other.seen) == (0, [])
    assert not UserSignIn.objects.get().has_tokens


@pytest.mark.parametrize("issuer", ["", "the same"])
def test_a_manifest_that_names_no_issuer_or_the_same_keeps_the_sign_in(
    stage: RemoteStage, world: OAuthWorld, olga: User, issuer: str
) -> None:
    member, _ = connected(stage, world, olga)
    oauth = {"issuer": world.base} if issuer else {"scopes": ["read"]}
    stage.add_remote(world.url, oauth=oauth)
    live_member = restart(stage, member)
    assert live_member is not None, row(member).last_error
    world.expire()
    assert live_member.client.invoke_tool("look", {})["content"]
    assert world.refreshes == 1


def test_a_sign_in_that_began_at_the_old_issuer_is_over(
    stage: RemoteStage, world: OAuthWorld, other: OAuthWorld, olga: User
) -> None:
    member = stage.add_remote(world.url)
    answer = world.approve(begin(member, olga).address)
    name_issuer(stage, world, other.base)
    with pytest.raises(RequestRefusedError, match="is over"):
        sign_ins.finish(answer, olga, "")
    assert "/token" not in world.paths()
    assert not MemberSignIn.objects.filter(has_tokens=True).exists()


def test_a_connection_of_before_the_change_does_not_end_a_sign_in_at_the_new_issuer(
    stage: RemoteStage, world: OAuthWorld, other: OAuthWorld, olga: User
) -> None:
    member, _ = with_own_sign_in(stage, world, olga)
    name_issuer(stage, world, world.base, credentials="user")
    old = restart(stage, member)
    assert old is not None, row(member).last_error
    name_issuer(stage, world, other.base, credentials="user")
    world.resource["authorization_servers"] = [other.base]
    begun = sign_ins.begin(row(member), olga, web=WEB, own=True)
    sign_ins.finish(other.approve(begun.address), olga, "")
    world.access = other.access  # the member accepts what the new issuer gives
    assert call_of(old, olga)
