"""How long an access lasts that somebody vouches for, and who ends it. All servers are real."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from mcp_runtime.client import outside
from mcp_runtime.client.exchanges import Exchange
from mcp_runtime.members import credentials, kept_id_tokens
from mcp_runtime.members.access_tokens import AccessToken
from mcp_runtime.members.live import LiveMember
from mcp_runtime.oauth import providers
from mcp_runtime.oauth.grants import ASSERTED_SECONDS
from mcp_runtime.protocol.errors import ClientError, SignInNeededError
from roster.models import GuildMember, Identity, MemberSignIn, UserSignIn
from tests.support.lifecycle_stage import RemoteStage, row
from tests.support.oauth_server import Answer, OAuthWorld, Seen, oauth_world

pytestmark = pytest.mark.django_db(transaction=True)

REFUSALS = {
    "the person": (400, {}, b'{"error": "invalid_grant"}'),
    "by policy": (403, {}, b'{"error": "access_denied"}'),
    "as RFC 8693 has it": (400, {}, b'{"error": "invalid_request"}'),
    "the hall": (401, {}, b'{"error": "invalid_client"}'),
    "without an assertion": (200, {}, b'{"access_token": "x", "token_type": "Bearer"}'),
}
AWAY = {
    "HTTP 503": (503, {}, b""),
    "busy": (429, {}, b'{"error": "temporarily_unavailable"}'),
    "a page": (200, {}, b"<html>"),
    "nothing there": (404, {}, b"<html>"),
}

ABOUT_PROVIDER = "/.well-known/oauth-authorization-server/idp"


@pytest.fixture
def world() -> Iterator[OAuthWorld]:
    with oauth_world(echoes=True) as world:
        yield world


@pytest.fixture
def oauth(world: OAuthWorld, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Of a member for which the company's identity provider vouches for a service."""
    monkeypatch.setenv("GUILD_HALL_MEMBER_ID_TOKEN", world.id_token("reports"))
    return {
        "grant": "enterprise_managed",
        "client_id": "the-hall",
        "issuer": world.base,
        "subject_token": "${env:GUILD_HALL_MEMBER_ID_TOKEN}",
        "idp_issuer": world.provider,
        "idp_client_id": "hall-at-idp",
    }


def live(stage: RemoteStage, world: OAuthWorld, oauth: dict[str, Any]) -> LiveMember:
    member = stage.add_remote(world.url, oauth=oauth)
    stage.lifecycle.start(member.pk)
    live_member = stage.lifecycle.connected_member(member.pk)
    assert live_member is not None, row(member).last_error
    return live_member


def token_of(live_member: LiveMember) -> AccessToken:
    assert live_member.token is not None
    return live_member.token


def pass_time(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Let the clocks of the hall be later. Those of the servers are not."""
    later = SimpleNamespace(monotonic=lambda: time.monotonic() + seconds)
    monkeypatch.setattr("mcp_runtime.members.access_tokens.time", later)
    monkeypatch.setattr("mcp_runtime.rows.clock.now", lambda: timezone.now() + timedelta(seconds=seconds))


# The end of a token that has none ---------------------------------------------------------------------------------


@pytest.mark.parametrize("lifetime", [None, 10 * 365 * 86_400.0])
def test_a_token_without_an_end_or_with_a_late_one_needs_the_next_assertion_within_an_hour(
    stage: RemoteStage, world: OAuthWorld, oauth: dict[str, Any], monkeypatch: pytest.MonkeyPatch, lifetime: float
) -> None:
    world.lifetime = lifetime
    token = token_of(live(stage, world, oauth))
    assert not token.is_due
    pass_time(monkeypatch, ASSERTED_SECONDS)
    assert token.is_due
    used = token.token
    token.renew_early()
    assert token.token not in ("", used)
    assert world.paths().count("/idp/token") == 2


def test_a_workload_shows_its_statement_again_too(
    stage: RemoteStage, world: OAuthWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.lifetime = None
    monkeypatch.setenv("GUILD_HALL_MEMBER_JWT", world.signed(sub="pod", aud=world.base))
    oauth = {"grant": "workload_identity", "issuer": world.base, "assertion": "${env:GUILD_HALL_MEMBER_JWT}"}
    token = token_of(live(stage, world, oauth))
    pass_time(monkeypatch, ASSERTED_SECONDS)
    assert token.is_due
    token.renew_early()
    assert world.paths().count("/token") == 2


def test_a_row_of_an_earlier_version_without_an_end_gets_one(
    stage: RemoteStage, world: OAuthWorld, oauth: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    world.lifetime = None
    live_member = live(stage, world, oauth)
    MemberSignIn.objects.update(expires_at=None)
    stage.lifecycle.stop(live_member.member_id)
    stage.lifecycle.start(live_member.member_id)
    again = stage.lifecycle.connected_member(live_member.member_id)
    assert again is not None
    assert world.paths().count("/idp/token") == 1
    pass_time(monkeypatch, ASSERTED_SECONDS)
    assert token_of(again).is_due


def test_while_the_provider_is_away_the_token_is_used_to_the_end_of_its_life_and_not_longer(
    stage: RemoteStage, world: OAuthWorld, oauth: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    world.lifetime = None
    token = token_of(live(stage, world, oauth))
    world.answers["/idp/token"] = lambda seen: AWAY["HTTP 503"]
    pass_time(monkeypatch, ASSERTED_SECONDS - 30)
    assert token.is_due
    token.renew_early()
    assert token.token
    pass_time(monkeypatch, ASSERTED_SECONDS + 10)
    token.renew_early()
    assert token.token == ""


# Slow servers -----------------------------------------------------------------------------------------------------


def test_all_requests_for_one_renewal_end_before_another_process_may_ask() -> None:
    assert outside.TIMEOUT < credentials.ASK_SECONDS < credentials.WAIT_SECONDS < credentials.LEASE_SECONDS


def test_slow_answers_do_not_add_up_to_more_than_the_total_of_a_renewal(
    stage: RemoteStage, world: OAuthWorld, oauth: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(credentials, "ASK_SECONDS", 1.0)

    def slowly(seen: Seen) -> Answer:
        time.sleep(0.7)
        if seen.path == "/idp/token":
            return world.exchange(seen)
        return 200, {}, json.dumps(world.as_metadata()).encode()

    for path in ("/.well-known/oauth-authorization-server", "/idp/token"):
        world.answers[path] = slowly
    member = stage.add_remote(world.url, oauth=oauth)
    stage.lifecycle.start(member.pk)
    assert row(member).status == "error"
    assert "/token" not in world.paths()
    signed_in = MemberSignIn.objects.get()
    assert (signed_in.refresh_lease, signed_in.refresh_failures) == (None, 1)


def test_the_identity_provider_is_asked_about_itself_once_for_all_users_and_again_after_an_hour(
    stage: RemoteStage, world: OAuthWorld, by_user: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    live_member = live(stage, world, by_user)
    for name in ("olga", "bert"):
        assert call(world, live_member, logged_in(world, name)) == name
    assert (world.paths().count(ABOUT_PROVIDER), world.paths().count("/idp/token")) == (1, 2)
    later = SimpleNamespace(monotonic=lambda: time.monotonic() + providers.KEEP_SECONDS)
    monkeypatch.setattr("mcp_runtime.oauth.providers.time", later)
    assert call(world, live_member, logged_in(world, "zoe")) == "zoe"
    assert world.paths().count(ABOUT_PROVIDER) == 2


def test_a_provider_that_moved_is_found_by_the_next_try(
    stage: RemoteStage, world: OAuthWorld, oauth: dict[str, Any]
) -> None:
    token = token_of(live(stage, world, oauth))
    world.answers["/idp/token"] = lambda seen: AWAY["nothing there"]
    world.answers["/idp/new"] = world.exchange
    world.provider_metadata = {"token_endpoint": f"{world.provider}/new"}
    used = token.token
    token.renew_early()
    assert token.token == used
    MemberSignIn.objects.update(next_refresh_at=None)
    token.renew_early()
    assert token.token not in ("", used)


@pytest.mark.parametrize("path", [ABOUT_PROVIDER, "/idp/token"])
def test_a_provider_without_an_answer_is_asked_for_one_of_many_users(
    stage: RemoteStage, world: OAuthWorld, by_user: dict[str, Any], monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    live_member = live(stage, world, by_user)
    world.answers[path] = lambda seen: AWAY["HTTP 503"]
    users = [logged_in(world, name) for name in ("olga", "bert", "zoe")]
    for user in users:
        with pytest.raises(SignInNeededError, match="HTTP 503"):
            call(world, live_member, user)
    assert world.paths().count(path) == 1
    del world.answers[path]
    UserSignIn.objects.update(next_refresh_at=None)
    later = SimpleNamespace(monotonic=lambda: time.monotonic() + providers.AWAY_SECONDS)
    monkeypatch.setattr("mcp_runtime.oauth.providers.time", later)
    assert call(world, live_member, users[2]) == "zoe"


# A refusal --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("refusal", REFUSALS)
def test_a_refusal_of_the_identity_provider_ends_the_access_at_once_in_all_processes(
    stage: RemoteStage, world: OAuthWorld, oauth: dict[str, Any], refusal: str
) -> None:
    live_member = live(stage, world, oauth)
    token, member = token_of(live_member), GuildMember.objects.get()
    world.answers["/idp/token"] = lambda seen: REFUSALS[refusal]
    token.renew_early()
    assert token.token == ""
    signed_in = MemberSignIn.objects.get()
    assert (signed_in.has_tokens, signed_in.client_id, signed_in.refresh_failures) == (False, "the-hall", 1)
    before = len(world.seen)
    with pytest.raises(ClientError, match="its token cannot be renewed now: the identity provider"):
        live_member.client.invoke_tool("look", {})
    calls = [each for each in world.seen[before:] if each.path == "/mcp"]
    assert not any(used in each.headers.get("authorization", "") for each in calls for used in world.access)
    assert not row(member).needs_sign_in


@pytest.mark.parametrize("answer", AWAY)
def test_an_identity_provider_that_gives_no_answer_ends_nothing(
    stage: RemoteStage, world: OAuthWorld, oauth: dict[str, Any], answer: str
) -> None:
    live_member = live(stage, world, oauth)
    world.answers["/idp/token"] = lambda seen: AWAY[answer]
    token_of(live_member).renew_early()
    assert live_member.client.invoke_tool("look", {})["content"]
    assert MemberSignIn.objects.get().has_tokens


def test_a_refusal_of_the_authorization_server_ends_the_access_too(
    stage: RemoteStage, world: OAuthWorld, oauth: dict[str, Any]
) -> None:
    token = token_of(live(stage, world, oauth))
    world.answers["/token"] = lambda seen: (400, {}, b'{"error": "invalid_grant"}')
    token.renew_early()
    assert (token.token, MemberSignIn.objects.get().has_tokens) == ("", False)


def test_after_a_refusal_the_access_comes_back_when_the_identity_provider_vouches_again(
    stage: RemoteStage, world: OAuthWorld, oauth: dict[str, Any]
) -> None:
    live_member = live(stage, world, oauth)
    world.answers["/idp/token"] = lambda seen: REFUSALS["by policy"]
    token_of(live_member).renew_early()
    del world.answers["/idp/token"]
    asked = world.paths().count("/idp/token")
    with pytest.raises(ClientError, match="access_denied"):
        live_member.client.invoke_tool("look", {})
    assert world.paths().count("/idp/token") == asked  # there is a pause after a refusal
    MemberSignIn.objects.update(next_refresh_at=None)
    assert live_member.client.invoke_tool("look", {})["content"]


def test_a_start_after_a_refusal_uses_nothing_of_before(
    stage: RemoteStage, world: OAuthWorld, oauth: dict[str, Any]
) -> None:
    world.lifetime = 1.0  # so that the start renews it
    live_member = live(stage, world, oauth)
    stage.lifecycle.stop(live_member.member_id)
    MemberSignIn.objects.update(expires_at=timezone.now() + timedelta(seconds=0))
    world.answers["/idp/token"] = lambda seen: REFUSALS["by policy"]
    before = len(world.seen)
    stage.lifecycle.start(live_member.member_id)
    member = GuildMember.objects.get()
    assert (member.status, member.needs_sign_in) == ("error", False)
    assert "access_denied" in member.last_error
    assert "/mcp" not in [each.path for each in world.seen[before:]]


# The access of users ----------------------------------------------------------------------------------------------


@pytest.fixture
def by_user(world: OAuthWorld, settings: Any) -> dict[str, Any]:
    world.lists_openly = True
    settings.GUILD_HALL_OIDC_ISSUER = world.provider
    settings.GUILD_HALL_OIDC_CLIENT_ID = "hall-at-idp"
    settings.GUILD_HALL_OIDC_CLIENT_SECRET = ""
    return {"grant": "enterprise_managed", "credentials": "user", "client_id": "the-hall", "issuer": world.base}


def logged_in(world: OAuthWorld, name: str) -> User:
    user = User.objects.create_superuser(name)
    now = timezone.now()
    Identity.objects.create(user=user, issuer=world.provider, subject=name, created_at=now, last_login_at=now)
    kept_id_tokens.keep(user.pk, world.id_token(name), now + timedelta(seconds=300))
    return user


def call(world: OAuthWorld, live_member: LiveMember, user: User) -> str:
    assert live_member.users is not None
    client = live_member.users.connected_client(user.pk, 5.0, Exchange(), "")
    return world.accounts[client.invoke_tool("look", {})["content"][0]["text"]]


def test_a_refused_user_has_no_access_any_more_and_another_user_has(
    stage: RemoteStage, world: OAuthWorld, by_user: dict[str, Any]
) -> None:
    live_member = live(stage, world, by_user)
    olga, bert = logged_in(world, "olga"), logged_in(world, "bert")
    for user in (olga, bert):
        assert call(world, live_member, user) == user.username
    assert live_member.users is not None
    token = live_member.users.look(olga.pk)
    world.answers["/idp/token"] = lambda seen: REFUSALS["by policy"]
    token.renew_early()
    for _ in range(2):
        with pytest.raises(SignInNeededError, match="access_denied"):
            call(world, live_member, olga)
    assert call(world, live_member, bert) == "bert"
    assert UserSignIn.objects.get(user=bert).has_tokens
    assert not UserSignIn.objects.get(user=olga).has_tokens


def test_a_login_that_merely_ended_keeps_the_access_to_its_end(
    stage: RemoteStage, world: OAuthWorld, by_user: dict[str, Any]
) -> None:
    live_member = live(stage, world, by_user)
    olga = logged_in(world, "olga")
    assert call(world, live_member, olga) == "olga"
    assert live_member.users is not None
    Identity.objects.update(id_token_ends_at=timezone.now())
    live_member.users.look(olga.pk).renew_early()
    assert call(world, live_member, olga) == "olga"
