"""Members behind OAuth: a person signs one in, and the runtime uses and renews its token. Both servers are real."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from django.contrib.auth.models import User
from django.core import serializers
from django.utils import timezone

from mcp_runtime.client.outside import Guard
from mcp_runtime.control import sign_ins, ways_in
from mcp_runtime.control.secrets import KEY_STEPS, rotate_key
from mcp_runtime.members import credentials
from mcp_runtime.members.live import LiveMember
from mcp_runtime.protocol.errors import (
    ClientIdNeededError,
    GrantOverError,
    KeyFileError,
    McpRuntimeError,
    OAuthError,
    RequestRefusedError,
    SignInNeededError,
)
from mcp_runtime.rows.database import unit_of_work
from roster.models import AuditEntry, GuildMember, MemberSignIn, MemberSignInAttempt, StatusChange
from tests.conftest import eventually
from tests.support.lifecycle_stage import RemoteStage, history, row
from tests.support.oauth_server import Answer, OAuthWorld, Seen, oauth_world

pytestmark = pytest.mark.django_db(transaction=True)

Status = GuildMember.Status
WEB = "http://localhost:8000"
SERVER, OPENID = "/.well-known/oauth-authorization-server", "/.well-known/openid-configuration"


@pytest.fixture
def world() -> Iterator[OAuthWorld]:
    with oauth_world() as world:
        yield world


@pytest.fixture
def olga() -> User:
    return User.objects.create_user("olga", password="x")


def begin(member: GuildMember, user: User, **more: Any) -> sign_ins.Begun:
    return sign_ins.begin(row(member), user, web=WEB, **more)


def sign_in(world: OAuthWorld, member: GuildMember, user: User, **more: Any) -> None:
    begun = begin(member, user, **more)
    sign_ins.finish(world.approve(begun.address), user, more.get("session", ""))


def connected(stage: RemoteStage, world: OAuthWorld, user: User, **manifest: Any) -> tuple[GuildMember, LiveMember]:
    member = stage.add_remote(world.url, **manifest)
    stage.lifecycle.start(member.pk)
    sign_in(world, member, user)
    stage.lifecycle.start(member.pk)
    live_member = stage.lifecycle.connected_member(member.pk)
    assert live_member is not None, row(member).last_error
    return row(member), live_member


# The state --------------------------------------------------------------------------------------------------------


def test_a_member_that_asks_for_a_token_needs_a_sign_in_and_is_not_tried_again(
    stage: RemoteStage, world: OAuthWorld
) -> None:
    member = stage.add_remote(world.url)
    stage.lifecycle.start(member.pk)
    failed = row(member)
    assert (failed.status, failed.needs_sign_in, failed.restarts) == (Status.ERROR, True, 0)
    assert failed.next_restart_at is None
    assert failed.last_error.startswith("member 'anna' needs a sign-in: sign in on its page")
    assert history(member) == ["disconnected -> starting: start", "starting -> error: sign-in needed"]
    report = ways_in.report_of(failed)
    assert report is not None
    assert report.state == "needed"


def test_a_401_without_metadata_is_an_ordinary_error(stage: RemoteStage, world: OAuthWorld) -> None:
    world.answers["/mcp"] = lambda seen: (401, {"WWW-Authenticate": 'Basic realm="x"'}, b"who are you?")
    for path in ("/.well-known/oauth-protected-resource/mcp", "/.well-known/oauth-authorization-server"):
        world.answers[path] = lambda seen: (404, {}, b"")
    member = stage.add_remote(world.url)
    stage.lifecycle.start(member.pk)
    failed = row(member)
    assert (failed.status, failed.needs_sign_in) == (Status.ERROR, False)
    assert failed.next_restart_at is not None
    assert "HTTP status 401: 'who are you?'" in failed.last_error


def test_a_key_of_the_manifest_that_is_refused_is_an_ordinary_error(
    stage: RemoteStage, world: OAuthWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GUILD_HALL_MEMBER_KEY", "old-key-of-anna")
    member = stage.add_remote(world.url, headers={"Authorization": "Bearer ${env:GUILD_HALL_MEMBER_KEY}"})
    stage.lifecycle.start(member.pk)
    assert (row(member).status, row(member).needs_sign_in) == (Status.ERROR, False)


# Signing in -------------------------------------------------------------------------------------------------------


def test_after_a_sign_in_the_member_connects_with_its_token(stage: RemoteStage, world: OAuthWorld, olga: User) -> None:
    member, live_member = connected(stage, world, olga)
    assert (member.needs_sign_in, member.tools.count()) == (False, 2)
    assert live_member.client.invoke_tool("look", {})["content"]
    report = ways_in.report_of(member)
    assert report is not None
    assert (report.state, report.issuer, report.scopes) == ("signed in", world.base, ("read",))
    assert report.signed_in_by == "olga"
    entry = AuditEntry.objects.get(kind="member_signed_in")
    assert (entry.member, entry.after["issuer"]) == ("anna", world.base)


def test_no_row_log_or_audit_entry_has_a_token_a_code_or_a_secret(
    stage: RemoteStage, world: OAuthWorld, olga: User, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    world.auth_methods = ("client_secret_basic",)
    member = stage.add_remote(world.url)
    stage.lifecycle.start(member.pk)
    begun = begin(member, olga)
    attempt = serializers.serialize("json", MemberSignInAttempt.objects.all())
    answer = world.approve(begun.address)
    sign_ins.finish(answer, olga, "")
    stage.lifecycle.start(member.pk)
    models = (MemberSignIn, AuditEntry, StatusChange, GuildMember)
    written = "".join(serializers.serialize("json", model.objects.all()) for model in models) + attempt + caplog.text
    verifiers = [each.form["code_verifier"] for each in world.seen if "code_verifier" in each.body.decode()]
    secrets = [*world.access, *world.refresh, *world.clients.values(), *answer["code"], *answer["state"], *verifiers]
    assert len(secrets) == 6
    assert [secret for secret in secrets if secret in written] == []


@pytest.mark.parametrize("method", ["none", "client_secret_basic", "client_secret_post"])
def test_the_hall_proves_itself_as_the_server_wants(
    stage: RemoteStage, world: OAuthWorld, olga: User, method: str
) -> None:
    world.auth_methods = (method,)
    member, _ = connected(stage, world, olga)
    assert MemberSignIn.objects.get(pk=member.pk).client_method == method


def test_a_client_of_the_manifest_is_used_and_its_secret_is_a_secret_of_the_hall(
    stage: RemoteStage, world: OAuthWorld, olga: User
) -> None:
    world.registers, world.auth_methods = False, ("client_secret_post",)
    world.clients["the-hall"] = ""
    member, _ = connected(stage, world, olga, oauth={"client_id": "the-hall", "scopes": ["write"]})
    sign_in_row = MemberSignIn.objects.get(pk=member.pk)
    assert (sign_in_row.client_id, sign_in_row.client_source) == ("the-hall", "manifest")
    assert sign_in_row.scopes == ["write"]


def test_without_a_registration_the_person_enters_the_client_id(
    stage: RemoteStage, world: OAuthWorld, olga: User
) -> None:
    world.registers = False
    world.clients["by-hand"] = "s3cret-of-the-hall"
    member = stage.add_remote(world.url)
    stage.lifecycle.start(member.pk)
    with pytest.raises(ClientIdNeededError, match="/members/sign-in/"):
        begin(member, olga)
    sign_in(world, member, olga, client_id="by-hand", client_secret="s3cret-of-the-hall")
    assert MemberSignIn.objects.get(pk=member.pk).has_tokens
    sign_in(world, member, olga)  # the next time the hall knows it


def test_a_hall_with_a_public_address_is_its_document(stage: RemoteStage, world: OAuthWorld, olga: User) -> None:
    world.metadata["client_id_metadata_document_supported"] = True
    member = stage.add_remote(world.url)
    begun = sign_ins.begin(row(member), olga, web="https://hall.example.com")
    assert begun.client_id == "https://hall.example.com/members/sign-in/client.json"
    assert "/register" not in world.paths()
    assert begin(member, olga).client_source == "registered"  # nobody can read a document on this machine


def test_the_same_client_is_used_again_and_another_issuer_gets_a_new_one(
    stage: RemoteStage, world: OAuthWorld, olga: User
) -> None:
    member, _ = connected(stage, world, olga)
    sign_in(world, member, olga)
    assert world.paths().count("/register") == 1
    with oauth_world() as other:
        world.resource["authorization_servers"] = [other.base]
        begun = begin(member, olga)
        assert (begun.issuer, begun.client_id in other.clients) == (other.base, True)


def test_a_client_that_the_server_does_not_know_any_more_is_another_one_in_the_next_try(
    stage: RemoteStage, world: OAuthWorld, olga: User
) -> None:
    world.auth_methods = ("client_secret_post",)
    member, _ = connected(stage, world, olga)
    world.clients = dict.fromkeys(world.clients, "another secret")
    with pytest.raises(OAuthError, match="invalid_client"):
        sign_in(world, member, olga)
    sign_in(world, member, olga)
    assert world.paths().count("/register") == 2


def test_all_requests_before_a_person_is_asked_have_one_deadline(
    stage: RemoteStage, world: OAuthWorld, olga: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slowly(seen: Seen) -> Answer:
        time.sleep(0.5)
        return 404, {}, b""

    monkeypatch.setattr(credentials, "ASK_SECONDS", 0.6)
    member = stage.add_remote(world.url)
    world.answers = dict.fromkeys(("/.well-known/oauth-protected-resource/mcp", SERVER, OPENID), slowly)
    with pytest.raises(OAuthError):
        begin(member, olga)
    assert OPENID not in world.paths()  # for which no time was left


# Only the person who began it -------------------------------------------------------------------------------------


def test_only_the_person_who_began_it_finishes_a_sign_in_once_and_in_the_same_session(
    stage: RemoteStage, world: OAuthWorld, olga: User
) -> None:
    mallory = User.objects.create_user("mallory", password="x")
    member = stage.add_remote(world.url)
    begun = begin(member, olga, session="olgas")
    answer = world.approve(begun.address)
    for user, session in ((mallory, "olgas"), (olga, "another"), (olga, "")):
        with pytest.raises(RequestRefusedError, match="somebody else began it"):
            sign_ins.finish(answer, user, session)
    assert not any(path == "/token" for path in world.paths())
    sign_ins.finish(answer, olga, "olgas")
    with pytest.raises(RequestRefusedError, match="is over"):
        sign_ins.finish(answer, olga, "olgas")


def test_a_late_answer_and_one_for_another_url_are_refused(stage: RemoteStage, world: OAuthWorld, olga: User) -> None:
    member = stage.add_remote(world.url)
    answer = world.approve(begin(member, olga).address)
    MemberSignInAttempt.objects.update(created_at=timezone.now() - timedelta(minutes=11))
    with pytest.raises(RequestRefusedError, match="is over"):
        sign_ins.finish(answer, olga, "")
    answer = world.approve(begin(member, olga).address)
    stage.add_remote(world.url + "/other")
    with pytest.raises(RequestRefusedError, match="is over"):
        sign_ins.finish(answer, olga, "")


# The end of the tokens --------------------------------------------------------------------------------------------


def test_a_refused_token_is_renewed_and_the_call_is_sent_once_more(
    stage: RemoteStage, world: OAuthWorld, olga: User
) -> None:
    _, live_member = connected(stage, world, olga)
    world.expire()
    assert live_member.client.invoke_tool("look", {})["content"]
    assert world.refreshes == 1


def test_a_hundred_calls_at_the_end_of_a_token_cause_one_refresh(
    stage: RemoteStage, world: OAuthWorld, olga: User
) -> None:
    _, live_member = connected(stage, world, olga)
    world.expire()
    world.token_delay = 0.1
    with ThreadPoolExecutor(20) as pool:
        results = list(pool.map(lambda _: live_member.client.invoke_tool("look", {}, 20), range(100)))
    assert len(results) == 100
    assert (world.refreshes, world.reuses) == (1, 0)


def test_two_runtimes_that_renew_at_the_same_moment_cause_one_refresh(
    stage: RemoteStage, world: OAuthWorld, olga: User
) -> None:
    member, _ = connected(stage, world, olga)
    version = MemberSignIn.objects.get(pk=member.pk).version
    world.token_delay = 0.2
    barrier = threading.Barrier(8)

    def renew(_: int) -> str:
        barrier.wait()
        guard = Guard.near(world.url)
        ask = credentials.refresh_of(guard)
        return unit_of_work(lambda: credentials.renew(member.pk, world.url, version, ask)).access

    with ThreadPoolExecutor(8) as pool:
        tokens = set(pool.map(renew, range(8)))
    assert (len(tokens), world.refreshes, world.reuses) == (1, 1, 0)


def test_the_token_is_renewed_before_its_end(stage: RemoteStage, world: OAuthWorld, olga: User) -> None:
    world.lifetime = 0.4
    member, live_member = connected(stage, world, olga)
    token = live_member.token
    assert token is not None
    eventually(lambda: token.is_due)
    world.lifetime = 3600.0
    stage.lifecycle.renew_tokens(lambda _, renew: renew())
    assert (world.refreshes, token.is_due) == (1, False)
    expires_at = MemberSignIn.objects.get(pk=member.pk).expires_at
    assert expires_at is not None
    assert expires_at > timezone.now() + timedelta(minutes=50)


def test_a_sign_in_that_the_server_ended_is_needed_again(stage: RemoteStage, world: OAuthWorld, olga: User) -> None:
    member, live_member = connected(stage, world, olga)
    world.expire()
    world.refresh.clear()
    with pytest.raises(SignInNeededError):
        live_member.client.invoke_tool("look", {})
    ended = row(member)
    assert (ended.status, ended.needs_sign_in, ended.next_restart_at) == (Status.ERROR, True, None)
    assert history(member)[-1] == "connected -> error: sign-in needed"
    sign_in(world, member, olga)
    stage.lifecycle.start(member.pk)
    assert row(member).status == Status.CONNECTED


def test_while_the_server_is_away_the_old_token_goes_on_and_tries_have_pauses(
    stage: RemoteStage, world: OAuthWorld, olga: User
) -> None:
    member, live_member = connected(stage, world, olga)
    token = live_member.token
    assert token is not None
    world.is_away = True
    for _ in range(3):
        token.renew_early()
    assert world.refreshes == 1
    assert live_member.client.invoke_tool("look", {})["content"]
    sign_in_row = MemberSignIn.objects.get(pk=member.pk)
    assert (sign_in_row.refresh_failures, sign_in_row.has_tokens) == (1, True)
    world.is_away = False
    MemberSignIn.objects.update(next_refresh_at=timezone.now())
    token.renew_early()
    assert (world.refreshes, MemberSignIn.objects.get(pk=member.pk).refresh_failures) == (2, 0)


def test_a_refresh_whose_process_died_is_taken_over(stage: RemoteStage, world: OAuthWorld, olga: User) -> None:
    member, _ = connected(stage, world, olga)
    now = timezone.now()
    MemberSignIn.objects.update(refresh_lease="0" * 32, refresh_until=now - timedelta(seconds=1))
    guard = Guard.near(world.url)
    version = MemberSignIn.objects.get(pk=member.pk).version
    assert credentials.renew(member.pk, world.url, version, credentials.refresh_of(guard)).access in world.access


def test_a_new_url_forgets_the_tokens(stage: RemoteStage, world: OAuthWorld, olga: User) -> None:
    member, _ = connected(stage, world, olga)
    with oauth_world() as other:
        stage.add_remote(other.url)
        stage.lifecycle.stop(member.pk)
        stage.lifecycle.start(member.pk)
        assert row(member).needs_sign_in
        assert [each.headers["authorization"] for each in other.seen if "authorization" in each.headers] == []
    assert not MemberSignIn.objects.exclude(encrypted="").exists()


def test_a_sign_out_forgets_and_revokes_the_tokens(stage: RemoteStage, world: OAuthWorld, olga: User) -> None:
    member, _ = connected(stage, world, olga)
    assert sign_ins.sign_out(member)
    assert (world.refresh, MemberSignIn.objects.count()) == ({}, 0)
    assert row(member).restart_requested_at is not None
    assert AuditEntry.objects.filter(kind="member_signed_out", member="anna").exists()
    with pytest.raises(RequestRefusedError, match="not signed in"):
        sign_ins.sign_out(member)
    with pytest.raises(GrantOverError):
        credentials.renew(member.pk, world.url, 1, credentials.refresh_of(Guard.near(world.url)))


def test_a_new_key_encrypts_the_tokens_too(stage: RemoteStage, world: OAuthWorld, olga: User) -> None:
    member, _ = connected(stage, world, olga)
    before = MemberSignIn.objects.get(pk=member.pk)
    rotate_key(KEY_STEPS)
    after = MemberSignIn.objects.get(pk=member.pk)
    assert after.encrypted != before.encrypted
    assert credentials.read(after).access in world.access  # the old key is dropped
    with pytest.raises(KeyFileError, match="the tokens of the member were encrypted with a key that is not in"):
        credentials.read(before)


# More scopes ------------------------------------------------------------------------------------------------------


def test_a_call_that_needs_more_scopes_asks_for_them_and_the_member_stays_connected(
    stage: RemoteStage, world: OAuthWorld, olga: User
) -> None:
    world.needs["write"] = "admin"
    member, live_member = connected(stage, world, olga)
    with pytest.raises(SignInNeededError, match=r"for more scopes \(admin\)"):
        live_member.client.invoke_tool("write", {})
    member = row(member)
    assert (member.status, member.needs_sign_in) == (Status.CONNECTED, True)
    report = ways_in.report_of(member)
    assert report is not None
    assert (report.state, report.wanted_scopes) == ("more scopes needed", ("admin",))
    assert live_member.client.invoke_tool("look", {})["content"]
    assert begin(member, olga).scopes == ("read", "admin")
    sign_in(world, member, olga)
    stage.lifecycle.stop(member.pk)
    stage.lifecycle.start(member.pk)
    renewed = stage.lifecycle.connected_member(member.pk)
    assert renewed is not None
    assert renewed.client.invoke_tool("write", {})["content"]
    assert not row(member).needs_sign_in


def test_a_member_that_always_asks_for_more_is_asked_three_times_at_most(
    stage: RemoteStage, world: OAuthWorld, olga: User
) -> None:
    member, _ = connected(stage, world, olga)
    for number in range(MemberSignIn.MAX_STEP_UPS):
        assert credentials.note_step_up(member.pk, [f"more-{number}"])
        sign_in(world, member, olga)
    assert not credentials.note_step_up(member.pk, ["more-and-more"])
    assert not row(member).needs_sign_in


# Without a person -------------------------------------------------------------------------------------------------


def test_the_hall_signs_in_by_itself_with_client_credentials(
    stage: RemoteStage, world: OAuthWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GUILD_HALL_MEMBER_CLIENT", "s3cret-of-the-hall")
    world.auth_methods = ("client_secret_basic",)
    world.clients["the-hall"] = "s3cret-of-the-hall"
    oauth = {
        "grant": "client_credentials",
        "client_id": "the-hall",
        "client_secret": "${env:GUILD_HALL_MEMBER_CLIENT}",
    }
    member = stage.add_remote(world.url, oauth=oauth)
    stage.lifecycle.start(member.pk)
    assert row(member).status == Status.CONNECTED, row(member).last_error
    live_member = stage.lifecycle.connected_member(member.pk)
    assert live_member is not None
    world.expire()
    assert live_member.client.invoke_tool("look", {})["content"]
    assert len(world.access) == 2


def test_the_hall_proves_with_a_private_key_who_it_is_and_sends_another_proof_each_time(
    stage: RemoteStage, world: OAuthWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    monkeypatch.setenv("GUILD_HALL_MEMBER_KEY", pem)
    world.auth_methods, oauth = (
        ("private_key_jwt",),
        {"grant": "client_credentials", "client_id": "the-hall", "private_key": "${env:GUILD_HALL_MEMBER_KEY}"},
    )
    member = stage.add_remote(world.url, oauth=oauth)
    stage.lifecycle.start(member.pk)
    assert row(member).status == Status.CONNECTED, row(member).last_error
    live_member = stage.lifecycle.connected_member(member.pk)
    assert live_member is not None
    world.expire()
    assert live_member.client.invoke_tool("look", {})["content"]

    proofs = [each.form["client_assertion"] for each in world.seen if each.path == "/token"]
    claims = [jwt.decode(proof, key.public_key(), algorithms=["ES256"], audience=world.base) for proof in proofs]
    assert [each["sub"] for each in claims] == ["the-hall", "the-hall"]
    assert len({each["jti"] for each in claims}) == 2
    assert not [each for each in world.seen if b"PRIVATE" in each.body]
    assert "PRIVATE" not in serializers.serialize("json", MemberSignIn.objects.all())


def test_a_private_key_that_the_authorization_server_cannot_check_is_an_error_that_names_both(
    stage: RemoteStage, world: OAuthWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    monkeypatch.setenv("GUILD_HALL_MEMBER_KEY", pem)
    world.auth_methods = ("client_secret_basic",)
    oauth = {"grant": "client_credentials", "client_id": "the-hall", "private_key": "${env:GUILD_HALL_MEMBER_KEY}"}
    member = stage.add_remote(world.url, oauth=oauth)
    with suppress(McpRuntimeError):
        stage.lifecycle.start(member.pk)
    assert "oauth.private_key is a key for ES256" in row(member).last_error
    assert "PRIVATE" not in row(member).last_error
    assert "/token" not in world.paths()


def test_the_secret_of_a_client_is_sent_to_no_other_issuer(
    stage: RemoteStage, world: OAuthWorld, monkeypatch: pytest.MonkeyPatch, olga: User
) -> None:
    monkeypatch.setenv("GUILD_HALL_MEMBER_CLIENT", "s3cret-of-the-hall")
    world.clients["the-hall"] = "s3cret-of-the-hall"
    world.auth_methods = ("client_secret_post",)
    oauth = {"client_id": "the-hall", "client_secret": "${env:GUILD_HALL_MEMBER_CLIENT}"}
    member, _ = connected(stage, world, olga, oauth=oauth)
    with oauth_world() as other:
        world.resource["authorization_servers"] = [other.base]
        with pytest.raises(OAuthError, match="sign the member out"):
            begin(member, olga)
        assert "/token" not in other.paths()
