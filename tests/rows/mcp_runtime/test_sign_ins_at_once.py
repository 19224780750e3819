"""Members behind OAuth when two things happen at once, or something breaks in between. Both servers are real."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from mcp_runtime.control import sign_ins
from mcp_runtime.members import credentials
from mcp_runtime.members.supervisor import MAX_RENEWALS, RENEWAL, Supervisor
from mcp_runtime.protocol.errors import ClientError, HttpStatusError, RequestRefusedError, SignInNeededError
from mcp_runtime.rows.database import unit_of_work
from mcp_runtime.secrets import values
from roster.models import GuildMember, MemberSignIn
from tests.conftest import eventually
from tests.rows.mcp_runtime.test_sign_ins import begin, connected, sign_in
from tests.support.lifecycle_stage import RemoteStage, row
from tests.support.oauth_server import Answer, OAuthWorld, Seen, oauth_world

pytestmark = pytest.mark.django_db(transaction=True)

Status = GuildMember.Status


@pytest.fixture
def world() -> Iterator[OAuthWorld]:
    with oauth_world() as world:
        yield world


@pytest.fixture
def olga() -> User:
    return User.objects.create_user("olga", password="x")


def restart(stage: RemoteStage, member: GuildMember) -> None:
    stage.lifecycle.stop(member.pk)
    stage.lifecycle.start(member.pk)


# Two at once ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_refused", [False, True])
def test_a_sign_in_during_a_refresh_keeps_its_tokens_and_its_connection(
    stage: RemoteStage, world: OAuthWorld, olga: User, is_refused: bool
) -> None:
    member, old = connected(stage, world, olga)
    assert old.token is not None
    world.token_delay = 0.7
    refresh = threading.Thread(target=unit_of_work, args=(old.token.renew_early,))
    refresh.start()
    eventually(lambda: world.refreshes == 1)
    world.token_delay = 0.0
    if is_refused:
        world.refresh.clear()
    sign_in(world, member, olga)
    restart(stage, member)
    refresh.join()
    assert (row(member).status, row(member).needs_sign_in) == (Status.CONNECTED, False)
    newest = stage.lifecycle.connected_member(member.pk)
    assert newest is not None
    assert newest.client.invoke_tool("look", {})["content"]
    assert credentials.read(MemberSignIn.objects.get()).access in world.access


def test_a_sign_out_during_a_refresh_does_not_end_the_connection_of_the_next_sign_in(
    stage: RemoteStage, world: OAuthWorld, olga: User
) -> None:
    member, old = connected(stage, world, olga)
    assert old.token is not None
    sign_ins.sign_out(row(member))
    sign_in(world, member, olga)
    restart(stage, member)
    MemberSignIn.objects.update(url="https://elsewhere.example/mcp")  # so that the old token is over
    old.token.renew_early()
    assert (row(member).status, row(member).needs_sign_in) == (Status.CONNECTED, False)


def test_a_connection_to_the_old_url_gets_no_token_of_the_new_one(
    stage: RemoteStage, world: OAuthWorld, olga: User
) -> None:
    member, old = connected(stage, world, olga)
    with oauth_world() as other:
        stage.add_remote(other.url)
        sign_in(other, member, olga)
        world.expire()
        with pytest.raises(SignInNeededError, match="the member has another url now"):
            old.client.invoke_tool("look", {})
        sent = {seen.headers.get("authorization", "").removeprefix("Bearer ") for seen in world.seen}
        assert (sent & set(other.access), other.refreshes) == (set(), 0)
        assert MemberSignIn.objects.get().has_tokens


@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_member_that_goes_during_a_sign_in_is_refused(
    stage: RemoteStage, world: OAuthWorld, olga: User, is_deleted: bool
) -> None:
    member = stage.add_remote(world.url)
    answer = world.approve(begin(member, olga).address)

    def go(member: GuildMember, is_own: bool) -> bool:
        if is_deleted:
            GuildMember.objects.filter(pk=member.pk).delete()
        else:
            stage.add_remote(world.url + "/other")
        return True

    with pytest.raises(RequestRefusedError, match="is over"):
        sign_ins.finish(answer, olga, "", go)
    assert not MemberSignIn.objects.filter(has_tokens=True).exists()


def test_silent_authorization_servers_keep_few_threads_of_the_supervisor(
    stage: RemoteStage, world: OAuthWorld, olga: User, tmp_path: Path
) -> None:
    _, live_member = connected(stage, world, olga)
    supervisor = Supervisor(lifecycle=stage.lifecycle, members_dir=tmp_path, start_concurrency=4)
    is_over = threading.Event()
    for number in range(MAX_RENEWALS):
        assert supervisor._verbs.run(-number - 1, "another", RENEWAL, is_over.wait)  # type: ignore[arg-type]
    assert not supervisor._renew_token(live_member, is_over.set)
    is_over.set()
    eventually(lambda: supervisor._renew_token(live_member, is_over.set))


# Broken in between ------------------------------------------------------------------------------------------------


def test_a_start_while_the_authorization_server_is_away_is_tried_again(
    stage: RemoteStage, world: OAuthWorld, olga: User
) -> None:
    member, _ = connected(stage, world, olga)
    stage.lifecycle.stop(member.pk)
    world.expire()
    world.is_away = True
    stage.lifecycle.start(member.pk)
    failed = row(member)
    assert (failed.status, failed.needs_sign_in) == (Status.ERROR, False)
    assert failed.next_restart_at is not None
    assert "its token cannot be renewed now" in failed.last_error
    assert MemberSignIn.objects.get().challenge_scopes == ["read"]


def test_a_client_that_the_server_forgot_is_not_used_for_the_next_sign_in(
    stage: RemoteStage, world: OAuthWorld, olga: User
) -> None:
    member, live_member = connected(stage, world, olga)
    world.expire()
    world.clients = dict.fromkeys(world.clients, "of another")
    with pytest.raises(SignInNeededError, match="invalid_client"):
        live_member.client.invoke_tool("look", {})
    sign_in(world, member, olga)
    assert (world.paths().count("/register"), MemberSignIn.objects.get().has_tokens) == (2, True)


def test_without_its_key_file_the_hall_fails_calls_and_renews_later(
    stage: RemoteStage, world: OAuthWorld, olga: User
) -> None:
    _, live_member = connected(stage, world, olga)
    assert live_member.token is not None
    path = values.key_file().path
    copy = path.rename(path.with_name("copy"))
    try:
        live_member.token.renew_early()
        assert live_member.client.invoke_tool("look", {})["content"]
        world.expire()
        with pytest.raises(HttpStatusError, match="its token cannot be renewed now"):
            live_member.client.invoke_tool("look", {})
    finally:
        copy.rename(path)
    MemberSignIn.objects.update(next_refresh_at=None)
    assert live_member.client.invoke_tool("look", {})["content"]


def test_after_weeks_without_the_authorization_server_a_try_fails_as_the_first_did(
    stage: RemoteStage, world: OAuthWorld, olga: User
) -> None:
    _, live_member = connected(stage, world, olga)
    assert live_member.token is not None
    MemberSignIn.objects.update(refresh_failures=5000)
    world.is_away = True
    live_member.token.renew_early()
    after = MemberSignIn.objects.get()
    assert (after.refresh_failures, after.refresh_lease) == (5001, None)


@pytest.mark.parametrize("column", ["refresh_until", "next_refresh_at"])
def test_a_clock_that_is_set_back_keeps_no_refresh_away(
    stage: RemoteStage, world: OAuthWorld, olga: User, column: str
) -> None:
    _, live_member = connected(stage, world, olga)
    assert live_member.token is not None
    lease = {"refresh_lease": uuid.uuid4()} if column == "refresh_until" else {}
    MemberSignIn.objects.update(**{column: timezone.now() + timedelta(hours=1)}, **lease)
    live_member.token.renew_early()
    assert (world.refreshes, live_member.token.token in world.access) == (1, True)


def test_a_member_that_refuses_each_new_token_causes_one_refresh(
    stage: RemoteStage, world: OAuthWorld, olga: User
) -> None:
    _, live_member = connected(stage, world, olga)
    world.answers["/mcp"] = lambda seen: (401, world.challenge(""), b"no")
    for _ in range(5):
        with pytest.raises(ClientError):
            live_member.client.invoke_tool("look", {})
    assert world.refreshes == 1


def test_a_renewal_without_a_person_asks_for_the_scopes_that_the_member_named(
    stage: RemoteStage, world: OAuthWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GUILD_HALL_MEMBER_CLIENT", "s3cret-of-the-hall")
    world.auth_methods = ("client_secret_basic",)
    world.clients["the-hall"] = "s3cret-of-the-hall"
    secret = "${env:GUILD_HALL_MEMBER_CLIENT}"
    oauth = {"grant": "client_credentials", "client_id": "the-hall", "client_secret": secret}
    member = stage.add_remote(world.url, oauth=oauth)
    stage.lifecycle.start(member.pk)
    live_member = stage.lifecycle.connected_member(member.pk)
    assert live_member is not None
    assert live_member.token is not None
    live_member.token.renew_early()
    assert [seen.form.get("scope") for seen in world.seen if seen.path == "/token"] == ["read", "read"]


def test_a_new_issuer_in_the_manifest_is_the_one_that_is_asked_without_a_person(
    stage: RemoteStage, world: OAuthWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GUILD_HALL_MEMBER_CLIENT", "s3cret-of-the-hall")
    secret = "${env:GUILD_HALL_MEMBER_CLIENT}"
    oauth = {"grant": "client_credentials", "client_id": "the-hall", "client_secret": secret}
    member = stage.add_remote(world.url, oauth=oauth)
    stage.lifecycle.start(member.pk)
    assert row(member).status == Status.CONNECTED
    with oauth_world() as other:
        world.resource["authorization_servers"] = [other.base]
        world.expire()
        other.access = world.access
        stage.add_remote(world.url, oauth={**oauth, "issuer": other.base})
        restart(stage, member)
        assert row(member).status == Status.CONNECTED, row(member).last_error
        assert (world.paths().count("/token"), other.paths().count("/token")) == (1, 1)


def test_all_calls_that_need_the_third_step_up_ask_for_it(stage: RemoteStage, world: OAuthWorld, olga: User) -> None:
    member, _ = connected(stage, world, olga)
    for number in range(MemberSignIn.MAX_STEP_UPS - 1):
        assert credentials.note_step_up(member.pk, [f"more-{number}"])
        sign_in(world, member, olga)
    assert [credentials.note_step_up(member.pk, ["last"]) for _ in range(3)] == [True] * 3


def test_an_error_has_no_token_that_was_renewed_meanwhile(stage: RemoteStage, world: OAuthWorld, olga: User) -> None:
    _, live_member = connected(stage, world, olga)
    token = live_member.token
    assert token is not None

    def quote(seen: Seen) -> Answer:
        token.renew_early()
        error = {"code": -1, "message": f"you sent {seen.headers['authorization']}"}
        body = json.dumps({"jsonrpc": "2.0", "id": json.loads(seen.body)["id"], "error": error})
        return 200, {"Content-Type": "application/json"}, body.encode()

    world.answers["/mcp"] = quote
    with pytest.raises(ClientError, match="you sent Bearer") as raised:
        live_member.client.invoke_tool("look", {})
    assert [secret for secret in world.access if secret in str(raised.value)] == []
