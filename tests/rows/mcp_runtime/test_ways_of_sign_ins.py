"""Members behind OAuth whose manifest changes the way in which the hall gets their tokens. All servers are real."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User

from mcp_runtime.control import sign_ins, ways_in
from mcp_runtime.members import credentials
from mcp_runtime.protocol.errors import GrantOverError, RequestRefusedError
from roster.models import GuildMember, MemberSignIn, UserSignIn
from tests.support.lifecycle_stage import RemoteStage, row
from tests.support.oauth_server import OAuthWorld, oauth_world

pytestmark = pytest.mark.django_db(transaction=True)

WEB = "http://localhost:8000"
BY_USER = {"credentials": "user"}


@pytest.fixture
def world() -> Iterator[OAuthWorld]:
    with oauth_world(echoes=True) as world:
        yield world


@pytest.fixture
def olga() -> User:
    return User.objects.create_superuser("olga", password="x")


@pytest.fixture
def workload(world: OAuthWorld, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    for name in ("first", "second"):
        monkeypatch.setenv(f"GUILD_HALL_MEMBER_{name.upper()}", world.signed(sub=name, aud=world.base))
    return {"grant": "workload_identity", "issuer": world.base, "assertion": "${env:GUILD_HALL_MEMBER_FIRST}"}


def started(stage: RemoteStage, world: OAuthWorld, oauth: dict[str, Any]) -> GuildMember:
    """The member after a start with this `oauth` in its manifest."""
    member = stage.add_remote(world.url, oauth=oauth)
    stage.lifecycle.stop(member.pk)
    stage.lifecycle.start(member.pk)
    return row(member)


def sign_in(world: OAuthWorld, member: GuildMember, user: User, *, own: bool = False) -> None:
    world.account = user.username
    sign_ins.finish(world.approve(sign_ins.begin(row(member), user, web=WEB, own=own).address), user, "")


def account(stage: RemoteStage, world: OAuthWorld, member: GuildMember) -> str:
    live_member = stage.lifecycle.connected_member(member.pk)
    assert live_member is not None, row(member).last_error
    return world.accounts[live_member.client.invoke_tool("look", {})["content"][0]["text"]]


def test_a_grant_without_a_person_uses_no_token_of_the_person_who_signed_in_before(
    stage: RemoteStage, world: OAuthWorld, olga: User, workload: dict[str, Any]
) -> None:
    sign_in(world, started(stage, world, {}), olga)
    assert account(stage, world, started(stage, world, {})) == "olga"
    member = started(stage, world, workload)
    assert account(stage, world, member) == "first"
    report = ways_in.report_of(member)
    assert report is not None
    assert (report.grant, report.signed_in_by) == ("workload_identity", "")


def test_a_sign_in_of_a_person_uses_no_token_of_the_service_before(
    stage: RemoteStage, world: OAuthWorld, workload: dict[str, Any]
) -> None:
    member = started(stage, world, workload)
    assert account(stage, world, member) == "first"
    assert started(stage, world, {}).needs_sign_in
    assert not MemberSignIn.objects.filter(has_tokens=True).exists()


def test_another_service_in_the_manifest_has_the_access_at_once(
    stage: RemoteStage, world: OAuthWorld, workload: dict[str, Any]
) -> None:
    assert account(stage, world, started(stage, world, workload)) == "first"
    other = {**workload, "assertion": "${env:GUILD_HALL_MEMBER_SECOND}"}
    assert account(stage, world, started(stage, world, other)) == "second"


def test_a_change_of_whose_account_it_is_forgets_what_was_there_also_if_it_is_changed_back(
    stage: RemoteStage, world: OAuthWorld, olga: User
) -> None:
    member = started(stage, world, {})
    sign_in(world, member, olga)
    started(stage, world, BY_USER)
    assert not MemberSignIn.objects.exists()
    sign_in(world, member, olga)
    sign_in(world, member, olga, own=True)
    assert UserSignIn.objects.filter(has_tokens=True).count() == 2
    assert started(stage, world, {}).needs_sign_in
    assert not UserSignIn.objects.exists()


def test_the_same_manifest_keeps_every_sign_in(
    stage: RemoteStage, world: OAuthWorld, olga: User, workload: dict[str, Any]
) -> None:
    member = started(stage, world, BY_USER)
    sign_in(world, member, olga)
    sign_in(world, member, olga, own=True)
    started(stage, world, {**BY_USER, "scopes": ["read"]})
    assert UserSignIn.objects.filter(has_tokens=True).count() == 2
    started(stage, world, workload)
    started(stage, world, {**workload, "scopes": ["read"]})
    assert world.paths().count("/token") == 3


@pytest.mark.parametrize("is_of_person", [True, False])
def test_what_an_earlier_version_wrote_stays_if_it_can_be_of_the_same_way(
    stage: RemoteStage, world: OAuthWorld, olga: User, workload: dict[str, Any], is_of_person: bool
) -> None:
    oauth = {} if is_of_person else workload
    member = started(stage, world, oauth)
    if is_of_person:
        sign_in(world, member, olga)
    signed_in = MemberSignIn.objects.get()
    server = {key: value for key, value in signed_in.server.items() if key != "way"}
    MemberSignIn.objects.update(server=server)
    assert account(stage, world, started(stage, world, oauth)) == ("olga" if is_of_person else "first")
    assert world.paths().count("/token") == 1
    started(stage, world, workload if is_of_person else {})
    assert not MemberSignIn.objects.filter(encrypted=signed_in.encrypted).exists()


def test_a_sign_in_that_began_before_the_grant_changed_is_over(
    stage: RemoteStage, world: OAuthWorld, olga: User, workload: dict[str, Any]
) -> None:
    member = started(stage, world, {})
    answer = world.approve(sign_ins.begin(member, olga, web=WEB).address)
    stage.add_remote(world.url, oauth=workload)
    with pytest.raises(RequestRefusedError, match="is over"):
        sign_ins.finish(answer, olga, "")
    assert "/token" not in world.paths()


def test_a_connection_of_before_the_change_gets_no_token_of_the_new_grant(
    stage: RemoteStage, world: OAuthWorld, olga: User, workload: dict[str, Any]
) -> None:
    member = started(stage, world, workload)
    version = MemberSignIn.objects.get().version
    ask: Any = lambda held: pytest.fail("the authorization server was asked")  # noqa: E731
    with pytest.raises(GrantOverError, match="another grant"):
        credentials.renew(member.pk, world.url, version - 1, ask)
