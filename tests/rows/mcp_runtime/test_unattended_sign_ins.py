"""Members whose tokens come without a person who signs in there: workload identities, and the identity provider of a
company. All servers are real."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core import serializers
from django.core.management import CommandError, call_command
from django.test import Client
from django.utils import timezone

from mcp_runtime.client.exchanges import Exchange
from mcp_runtime.control import sign_ins, ways_in
from mcp_runtime.control.secrets import KEY_STEPS, rotate_key
from mcp_runtime.members import kept_id_tokens, own_sign_ins
from mcp_runtime.members.live import LiveMember
from mcp_runtime.members.manifest.parser import parse
from mcp_runtime.protocol.errors import (
    KeyFileError,
    ManifestError,
    OwnSignIn,
    RequestRefusedError,
    SignInNeededError,
)
from mcp_runtime.rows import lease
from roster.models import AuditEntry, GuildMember, Identity, MemberSignIn, UserSignIn
from tests.support.lifecycle_stage import RemoteStage, row
from tests.support.oauth_server import LEFT_OUT, Answer, OAuthWorld, Seen, oauth_world

pytestmark = pytest.mark.django_db(transaction=True)

Status = GuildMember.Status
WEB = "http://localhost:8000"
SECRET = "s3cret-of-the-hall-at-idp"


@pytest.fixture
def world() -> Iterator[OAuthWorld]:
    with oauth_world(echoes=True) as world:
        world.clients["hall-at-idp"] = SECRET
        yield world


@pytest.fixture
def company(world: OAuthWorld, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The `oauth` of a member that takes the statement of the company's identity provider about a service."""
    monkeypatch.setenv("GUILD_HALL_MEMBER_ID_TOKEN", world.id_token("reports"))
    monkeypatch.setenv("GUILD_HALL_MEMBER_IDP_SECRET", SECRET)
    return {
        "grant": "enterprise_managed",
        "client_id": "the-hall",
        "issuer": world.base,
        "subject_token": "${env:GUILD_HALL_MEMBER_ID_TOKEN}",
        "idp_issuer": world.provider,
        "idp_client_id": "hall-at-idp",
        "idp_client_secret": "${env:GUILD_HALL_MEMBER_IDP_SECRET}",
    }


def started(stage: RemoteStage, world: OAuthWorld, oauth: dict[str, Any]) -> GuildMember:
    member = stage.add_remote(world.url, oauth=oauth)
    stage.lifecycle.start(member.pk)
    return row(member)


def connected(stage: RemoteStage, world: OAuthWorld, oauth: dict[str, Any]) -> tuple[GuildMember, LiveMember]:
    member = started(stage, world, oauth)
    live_member = stage.lifecycle.connected_member(member.pk)
    assert live_member is not None, member.last_error
    return member, live_member


def account_of_call(world: OAuthWorld, live_member: LiveMember) -> str:
    return world.accounts[live_member.client.invoke_tool("look", {})["content"][0]["text"]]


# The identity provider of a company, for a service ----------------------------------------------------------------


def test_the_identity_provider_vouches_for_a_service_and_again_when_the_token_ends(
    stage: RemoteStage, world: OAuthWorld, company: dict[str, Any]
) -> None:
    member, live_member = connected(stage, world, company)
    assert account_of_call(world, live_member) == "reports"
    world.expire()
    assert account_of_call(world, live_member) == "reports"
    exchanges = [each.form for each in world.seen if each.path == "/idp/token"]
    assert [(each["audience"], each["resource"]) for each in exchanges] == [(world.base, world.url)] * 2
    assert len(world.used_assertions) == 2
    report = ways_in.report_of(row(member))
    assert report is not None
    assert (report.grant, report.state, report.issuer) == ("enterprise_managed", "signed in", world.base)
    assert report.explanation == "The identity provider of the company vouches for a service."


def test_calls_that_come_together_cause_one_exchange_in_two_runtimes(
    stage: RemoteStage, world: OAuthWorld, company: dict[str, Any], tmp_path: Path
) -> None:
    _, live_member = connected(stage, world, company)
    token = live_member.token
    assert token is not None
    other = _same_token(token)
    before = world.paths().count("/idp/token")
    world.token_delay = 0.3
    world.expire()
    with ThreadPoolExecutor(20) as pool:
        used = token.token
        renewals = [pool.submit(each._renew, used, _no_challenge()) for each in (token, other) for _ in range(10)]
        for renewal in renewals:
            renewal.result()
    assert world.paths().count("/idp/token") == before + 1
    assert token.token == other.token != used


def _same_token(token: Any) -> Any:
    """The token as another runtime has it."""
    from mcp_runtime.members.access_tokens import AccessToken

    other = AccessToken(token.member_id, token.manifest, plain_http_hosts=(), own=token.own)
    other.load()
    assert other.token == token.token
    return other


def _no_challenge() -> Any:
    from mcp_runtime.oauth.challenges import Challenge

    return Challenge()


def _with(**changes: Any) -> Callable[[OAuthWorld], None]:
    def change(world: OAuthWorld) -> None:
        for name, value in changes.items():
            setattr(world, name, value)

    return change


def _answers(path: str, answer: Answer) -> Callable[[OAuthWorld], None]:
    def change(world: OAuthWorld) -> None:
        world.answers[path] = lambda seen: answer

    return change


IDP_WRONG: dict[str, tuple[Callable[[OAuthWorld], None], str]] = {
    "another audience": (
        _with(assertion_claims={"aud": "https://other.example.com"}),
        "it is for another audience: 'https://other.example.com'",
    ),
    "another resource": (_with(assertion_claims={"resource": "https://other.example.com/mcp"}), "for another server"),
    "another issuer": (_with(assertion_claims={"iss": "https://other.example.com"}), "of another issuer"),
    "expired": (_with(assertion_claims={"exp": 1_000_000}), "it has expired"),
    "without an end": (_with(assertion_claims={"exp": None}), "it has no end"),
    "another type of token": (_with(issued_type="urn:ietf:params:oauth:token-type:access_token"), "gave no identity"),
    "no assertion but an ordinary JWT": (_with(assertion_header={"typ": "JWT"}), "unusable identity assertion"),
    "refused": (_answers("/idp/token", (403, {}, b'{"error": "access_denied"}')), "HTTP 403: access_denied"),
    "no JSON": (_answers("/idp/token", (200, {}, b"<html>")), "did not answer with JSON"),
    "a huge answer": (_answers("/idp/token", (200, {}, b"x" * 300_000)), "larger than 256,000 bytes"),
    "a redirect": (_answers("/idp/token", (307, {"Location": "http://127.0.0.1:9/"}, b"")), "HTTP 307"),
    "away": (_answers("/idp/token", (503, {}, b"")), "HTTP 503"),
    "the wrong issuer": (_with(provider_metadata={"issuer": "https://other.example.com"}), "calls itself"),
    "an address in the cloud": (
        _with(provider_metadata={"token_endpoint": "http://169.254.169.254/token"}),
        "may not be used",
    ),
    "the hall is no client there": (_with(id_token_audience="somebody else"), "HTTP 401: invalid_client"),
}


@pytest.mark.parametrize("wrong", IDP_WRONG)
def test_what_the_identity_provider_does_wrong_goes_no_further_and_is_the_error_of_the_member(
    stage: RemoteStage, world: OAuthWorld, company: dict[str, Any], wrong: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    change, text = IDP_WRONG[wrong]
    change(world)
    member = started(stage, world, company)
    assert (member.status, member.needs_sign_in) == (Status.ERROR, False)
    assert text in member.last_error
    assert "/token" not in world.paths()
    assert "eyJ" not in member.last_error + caplog.text
    assert member.next_restart_at is not None


def test_an_id_token_that_has_ended_is_an_error_that_names_it_and_a_new_one_is_read_at_the_next_try(
    stage: RemoteStage, world: OAuthWorld, company: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GUILD_HALL_MEMBER_ID_TOKEN", world.id_token("reports", exp=int(time.time()) - 100))
    member = started(stage, world, company)
    assert "the identity provider does not accept the ID token" in member.last_error
    assert "HTTP 400: invalid_grant" in member.last_error
    monkeypatch.setenv("GUILD_HALL_MEMBER_ID_TOKEN", world.id_token("reports"))
    MemberSignIn.objects.update(next_refresh_at=None)
    stage.lifecycle.start(member.pk)
    assert row(member).status == Status.CONNECTED, row(member).last_error


def test_the_assertion_and_the_secrets_go_to_no_other_authorization_server(
    stage: RemoteStage, world: OAuthWorld, company: dict[str, Any]
) -> None:
    with oauth_world() as other:
        world.resource["authorization_servers"] = [other.base]
        member = started(stage, world, company)
        assert f"names the authorization server {other.base!r}" in member.last_error
        assert "/token" not in other.paths()
    assert "/idp/token" not in world.paths()


def test_no_row_log_or_audit_entry_has_what_vouches_for_somebody(
    stage: RemoteStage, world: OAuthWorld, company: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    connected(stage, world, company)
    models = (MemberSignIn, UserSignIn, GuildMember, AuditEntry)
    text = caplog.text + "".join(serializers.serialize("json", model.objects.all()) for model in models)
    secrets = [form for each in world.seen if each.path.endswith("/token") for form in each.form.values()]
    for secret in (*world.access, SECRET, *(value for value in secrets if value.startswith("eyJ"))):
        assert secret not in text


# A workload -------------------------------------------------------------------------------------------------------


def workload(stage: RemoteStage, world: OAuthWorld, token: str) -> dict[str, Any]:
    folder = stage.members_dir / "anna"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "token").write_text(token)
    return {"grant": "workload_identity", "issuer": world.base, "assertion": "${file:token}"}


def test_the_token_of_the_platform_is_read_again_for_each_request(stage: RemoteStage, world: OAuthWorld) -> None:
    oauth = workload(stage, world, world.signed(sub="first", aud=world.base))
    member, live_member = connected(stage, world, oauth)
    assert account_of_call(world, live_member) == "first"
    workload(stage, world, world.signed(sub="second", aud=world.base))
    world.expire()
    assert account_of_call(world, live_member) == "second"
    report = ways_in.report_of(row(member))
    assert report is not None
    assert (report.grant, report.state) == ("workload_identity", "signed in")


@pytest.mark.parametrize(
    ("claims", "text"),
    [
        ({"aud": "https://other.example.com"}, "it is for another audience: 'https://other.example.com'"),
        ({"exp": 1_000_000}, "it has expired"),
        ({"aud": None}, "for another audience"),
    ],
)
def test_a_token_that_is_of_no_use_there_is_not_sent(
    stage: RemoteStage, world: OAuthWorld, claims: dict[str, Any], text: str
) -> None:
    member = started(stage, world, workload(stage, world, world.signed(**{"sub": "x", "aud": world.base, **claims})))
    assert (member.status, member.needs_sign_in) == (Status.ERROR, False)
    assert text in member.last_error
    assert "/token" not in world.paths()


def test_a_refusal_is_not_tried_again_at_once_and_no_other_grant_is_tried(
    stage: RemoteStage, world: OAuthWorld
) -> None:
    world.answers["/token"] = lambda seen: (400, {}, b'{"error": "unauthorized_client"}')
    member = started(stage, world, workload(stage, world, world.signed(sub="x", aud=world.base)))
    assert "HTTP 400: unauthorized_client" in member.last_error
    assert world.paths().count("/token") == 1
    assert "/register" not in world.paths()


def test_a_text_that_is_no_jwt_is_not_sent(stage: RemoteStage, world: OAuthWorld) -> None:
    member = started(stage, world, workload(stage, world, "hello.world"))
    assert "the assertion is no signed token (JWT)" in member.last_error
    assert "hello.world" not in member.last_error
    assert "/token" not in world.paths()


def test_a_sign_in_of_a_person_that_ended_before_does_not_stand_in_the_way(
    stage: RemoteStage, world: OAuthWorld
) -> None:
    oauth = workload(stage, world, world.signed(sub="first", aud=world.base))
    member = stage.add_remote(world.url, oauth=oauth)
    MemberSignIn.objects.create(member=member, url=world.url, version=3)
    stage.lifecycle.start(member.pk)
    assert row(member).status == Status.CONNECTED, row(member).last_error


# The login of each user -------------------------------------------------------------------------------------------


@pytest.fixture
def by_user(world: OAuthWorld, settings: Any) -> dict[str, Any]:
    """The `oauth` of a member that takes the login of each user. The provider of single sign-on is that of `world`."""
    world.lists_openly = True
    settings.GUILD_HALL_OIDC_ISSUER = world.provider
    settings.GUILD_HALL_OIDC_NAME = "Example Ltd"
    settings.GUILD_HALL_OIDC_CLIENT_ID = "hall-at-idp"
    settings.GUILD_HALL_OIDC_CLIENT_SECRET = SECRET
    return {"grant": "enterprise_managed", "credentials": "user", "client_id": "the-hall", "issuer": world.base}


def person(world: OAuthWorld, name: str) -> User:
    user = User.objects.create_superuser(name)
    now = timezone.now()
    Identity.objects.create(user=user, issuer=world.provider, subject=name, created_at=now, last_login_at=now)
    return user


def log_in(world: OAuthWorld, user: User, seconds: int = 300) -> str:
    """What a login at single sign-on keeps."""
    ends_at = timezone.now() + timedelta(seconds=seconds)
    token = world.id_token(user.username, exp=int(ends_at.timestamp()))
    kept_id_tokens.keep(user.pk, token, ends_at)
    return token


def account_of_user(world: OAuthWorld, live_member: LiveMember, user: User | None) -> str:
    assert live_member.users is not None
    client = live_member.users.connected_client(user.pk if user else None, 5.0, Exchange(), "")
    return world.accounts[client.invoke_tool("look", {})["content"][0]["text"]]


def test_each_user_has_the_access_of_the_own_login_and_of_no_other(
    stage: RemoteStage, world: OAuthWorld, by_user: dict[str, Any]
) -> None:
    olga, bert = person(world, "olga"), person(world, "bert")
    member, live_member = connected(stage, world, by_user)
    log_in(world, olga)
    log_in(world, bert)
    assert account_of_user(world, live_member, olga) == "olga"
    assert account_of_user(world, live_member, bert) == "bert"
    world.expire()
    assert account_of_user(world, live_member, bert) == "bert"
    with pytest.raises(SignInNeededError, match="of no user"):
        account_of_user(world, live_member, None)
    assert set(UserSignIn.objects.values_list("user__username", flat=True)) == {"olga", "bert"}
    report = ways_in.own_report_of(member, olga)
    assert report is not None
    assert (report.state, report.explanation) == (
        "signed in",
        "The login of each user at Example Ltd gives the access.",
    )


def test_without_a_login_a_call_says_where_to_log_in_and_the_next_login_is_enough(
    stage: RemoteStage, world: OAuthWorld, by_user: dict[str, Any]
) -> None:
    olga, local = person(world, "olga"), User.objects.create_superuser("local")
    member, live_member = connected(stage, world, by_user)
    for user, text in ((olga, "log in to the hall with Example Ltd again"), (local, "log in to the hall with Example")):
        with pytest.raises(SignInNeededError, match=text) as need:
            account_of_user(world, live_member, user)
        assert need.value.page.endswith(f"/members/{member.pk}/own-sign-in/")
    assert not [each for each in world.seen if each.path == "/idp/token"]
    log_in(world, olga)
    assert account_of_user(world, live_member, olga) == "olga"


def test_a_login_that_has_ended_gives_no_new_access_and_a_kept_one_goes_on_to_its_end(
    stage: RemoteStage, world: OAuthWorld, by_user: dict[str, Any]
) -> None:
    olga = person(world, "olga")
    _, live_member = connected(stage, world, by_user)
    log_in(world, olga)
    assert account_of_user(world, live_member, olga) == "olga"
    Identity.objects.update(id_token_ends_at=timezone.now() - timedelta(seconds=1))
    assert account_of_user(world, live_member, olga) == "olga"
    world.expire()
    with pytest.raises(SignInNeededError, match="log in to the hall with Example Ltd again") as need:
        account_of_user(world, live_member, olga)
    assert need.value.page.endswith("/own-sign-in/")
    kept_id_tokens.prune()
    assert Identity.objects.get().id_token == ""


def test_a_user_who_is_not_active_or_of_another_issuer_gets_nothing(
    stage: RemoteStage, world: OAuthWorld, by_user: dict[str, Any], settings: Any
) -> None:
    olga = person(world, "olga")
    _, live_member = connected(stage, world, by_user)
    log_in(world, olga)
    User.objects.filter(pk=olga.pk).update(is_active=False)
    with pytest.raises(SignInNeededError, match="log in to the hall"):
        account_of_user(world, live_member, olga)
    User.objects.filter(pk=olga.pk).update(is_active=True)
    settings.GUILD_HALL_OIDC_ISSUER = "https://other.example.com"
    with pytest.raises(SignInNeededError, match="log in to the hall"):
        account_of_user(world, live_member, olga)
    assert "/idp/token" not in world.paths()


def test_the_access_of_a_user_who_is_not_active_any_more_is_not_used(
    stage: RemoteStage, world: OAuthWorld, by_user: dict[str, Any]
) -> None:
    olga = person(world, "olga")
    _, live_member = connected(stage, world, by_user)
    log_in(world, olga)
    assert account_of_user(world, live_member, olga) == "olga"
    User.objects.filter(pk=olga.pk).update(is_active=False)
    with pytest.raises(SignInNeededError, match="log in to the hall"):
        account_of_user(world, live_member, olga)


def test_a_node_without_the_key_of_the_kept_logins_makes_no_other_key(
    stage: RemoteStage,
    world: OAuthWorld,
    by_user: dict[str, Any],
    settings: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    olga, bert = person(world, "olga"), person(world, "bert")
    connected(stage, world, by_user)
    log_in(world, olga)
    monkeypatch.setattr(lease, "has_other_nodes", lambda: True)
    settings.GUILD_HALL_SECRETS_KEY_FILE = tmp_path / "key-of-another-node"
    with pytest.raises(KeyFileError, match="has no key file"):
        log_in(world, bert)
    assert not settings.GUILD_HALL_SECRETS_KEY_FILE.exists()


def test_after_the_login_nobody_is_asked_to_log_in_while_the_identity_provider_is_away(
    stage: RemoteStage, world: OAuthWorld, by_user: dict[str, Any]
) -> None:
    olga = person(world, "olga")
    _, live_member = connected(stage, world, by_user)
    with pytest.raises(SignInNeededError, match="log in to the hall") as need:
        account_of_user(world, live_member, olga)
    assert need.value.page
    log_in(world, olga)
    world.answers["/idp/token"] = lambda seen: (503, {}, b"")
    for _ in range(2):  # the second one waits after the failure
        with pytest.raises(SignInNeededError, match="HTTP 503") as need:
            account_of_user(world, live_member, olga)
        assert need.value.page == ""


def test_an_assertion_about_a_user_that_names_no_server_goes_no_further(
    stage: RemoteStage, world: OAuthWorld, by_user: dict[str, Any]
) -> None:
    olga = person(world, "olga")
    _, live_member = connected(stage, world, by_user)
    log_in(world, olga)
    world.assertion_claims = {"resource": LEFT_OUT}
    with pytest.raises(SignInNeededError, match="names no server"):
        account_of_user(world, live_member, olga)
    assert "/token" not in world.paths()


def test_a_new_login_is_tried_at_once_after_the_one_before_was_refused(
    stage: RemoteStage, world: OAuthWorld, by_user: dict[str, Any]
) -> None:
    olga = person(world, "olga")
    member, live_member = connected(stage, world, by_user)
    log_in(world, olga)
    world.answers["/idp/token"] = lambda seen: (400, {}, b'{"error": "invalid_grant"}')
    page = f"/members/{member.pk}/own-sign-in/"
    with pytest.raises(SignInNeededError, match=f"invalid_grant; log in to the hall again at .*{page}$"):
        account_of_user(world, live_member, olga)
    assert (report := ways_in.own_report_of(member, olga)) is not None
    assert report.last_try_failed
    del world.answers["/idp/token"]
    with pytest.raises(SignInNeededError):  # without a login it waits
        account_of_user(world, live_member, olga)
    log_in(world, olga)
    assert (report := ways_in.own_report_of(member, olga)) is not None
    assert not report.last_try_failed
    assert account_of_user(world, live_member, olga) == "olga"


def test_a_login_is_awaited_until_there_is_another_one_than_the_refused_one(
    stage: RemoteStage, world: OAuthWorld, by_user: dict[str, Any]
) -> None:
    olga = person(world, "olga")
    _, live_member = connected(stage, world, by_user)

    def need() -> OwnSignIn:
        with pytest.raises(SignInNeededError) as need:
            account_of_user(world, live_member, olga)
        assert need.value.own is not None
        return need.value.own

    without_login = need()
    assert own_sign_ins.done({without_login}) == set()
    log_in(world, olga)
    assert own_sign_ins.done({without_login}) == {without_login}
    world.answers["/idp/token"] = lambda seen: (400, {}, b'{"error": "invalid_grant"}')
    after_refusal = need()
    assert own_sign_ins.done({after_refusal}) == set()  # although its ID token is not over
    log_in(world, olga)
    assert own_sign_ins.done({after_refusal}) == {after_refusal}
    Identity.objects.update(id_token_ends_at=timezone.now() - timedelta(seconds=1))
    assert own_sign_ins.done({after_refusal}) == set()


def test_a_refused_person_is_told_so_and_nobody_else_is(
    stage: RemoteStage, world: OAuthWorld, by_user: dict[str, Any]
) -> None:
    olga, bert = person(world, "olga"), person(world, "bert")
    member, live_member = connected(stage, world, by_user)
    log_in(world, olga)
    log_in(world, bert)

    def exchange(seen: Seen) -> Answer:
        import jwt

        subject = jwt.decode(seen.form["subject_token"], options={"verify_signature": False})["sub"]
        return (403, {}, b'{"error": "access_denied"}') if subject == "olga" else world.exchange(seen)

    world.answers["/idp/token"] = exchange
    for _ in range(2):  # the second one waits after the failure, and has the same reason
        with pytest.raises(SignInNeededError, match="HTTP 403: access_denied") as need:
            account_of_user(world, live_member, olga)
        assert need.value.page == ""  # another login would not help
    assert account_of_user(world, live_member, bert) == "bert"
    assert (row(member).status, row(member).needs_sign_in) == (Status.CONNECTED, False)


def test_an_id_token_is_kept_only_if_a_member_takes_it_encrypted_and_with_a_new_key(
    stage: RemoteStage, world: OAuthWorld, by_user: dict[str, Any]
) -> None:
    olga = person(world, "olga")
    log_in(world, olga)
    assert Identity.objects.get().id_token == ""
    _, live_member = connected(stage, world, by_user)
    token = log_in(world, olga)
    assert token not in serializers.serialize("json", Identity.objects.all())
    rotate_key(KEY_STEPS)
    assert kept_id_tokens.of_user(olga.pk) == (world.provider, token)
    assert account_of_user(world, live_member, olga) == "olga"
    GuildMember.objects.update(removed_at=timezone.now())
    kept_id_tokens.prune()
    assert Identity.objects.get().id_token == ""


# What people see --------------------------------------------------------------------------------------------------


def test_pages_rest_and_commands_say_which_way_is_used_and_what_to_do(
    stage: RemoteStage, world: OAuthWorld, by_user: dict[str, Any]
) -> None:
    olga = person(world, "olga")
    member, live_member = connected(stage, world, by_user)
    client = Client()
    client.force_login(olga)
    page = f"/admin/roster/guildmember/{member.pk}/own-sign-in/"
    text = client.get(page).content.decode()
    assert "The login of each user at Example Ltd gives the access." in text
    assert "Your calls fail now: it takes the login at Example Ltd" in text
    assert f'href="/single-sign-on/?next={page}"' in text
    assert 'id="begin"' not in text
    log_in(world, olga)
    assert "Your first call gets the access." in client.get(page).content.decode()
    account_of_user(world, live_member, olga)
    assert "The hall has access in your name." in client.get(page).content.decode()
    assert "The login of each user" in client.get(f"/admin/roster/guildmember/{member.pk}/change/").content.decode()
    answer = client.get(f"/api/members/{member.name}/own-sign-in/").json()
    assert (answer["grant"], answer["state"]) == ("enterprise_managed", "signed in")
    assert 'id="own-sign-out"' in client.get(page).content.decode()
    client.post(f"/admin/roster/guildmember/{member.pk}/own-sign-out/")
    assert not UserSignIn.objects.filter(user=olga).exists()
    assert account_of_user(world, live_member, olga) == "olga"  # while the login lasts
    with pytest.raises(RequestRefusedError, match="nobody signs in at member 'anna'"):
        sign_ins.begin(row(member), olga, web=WEB, own=True)
    with pytest.raises(CommandError, match=r"Nobody signs in at member 'anna'.* Log in to the hall with Example Ltd"):
        call_command("sign_in", member.name, "--own")


def test_the_page_of_a_member_with_a_service_says_who_vouches_for_it(
    stage: RemoteStage, world: OAuthWorld, company: dict[str, Any]
) -> None:
    olga = User.objects.create_superuser("olga")
    member, _ = connected(stage, world, company)
    client = Client()
    client.force_login(olga)
    text = client.get(f"/admin/roster/guildmember/{member.pk}/change/").content.decode()
    assert f"vouches for a service. The authorization server is <code>{world.base}</code>" in text
    report = client.get(f"/api/members/{member.name}/").json()["sign_in"]
    assert report["explanation"].startswith("The identity provider of the company")
    with pytest.raises(CommandError, match="then restart it"):
        call_command("sign_in", member.name)


# The manifest -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("oauth", "keys"),
    [
        ({"grant": "workload_identity"}, {"oauth.assertion", "oauth.issuer"}),
        ({"grant": "workload_identity", "assertion": "eyJ", "issuer": "https://a.example"}, {"oauth.assertion"}),
        (
            {"grant": "workload_identity", "credentials": "user"},
            {"oauth.assertion", "oauth.issuer", "oauth.credentials"},
        ),
        ({"assertion": "${file:token}"}, {"oauth.assertion"}),
        ({"idp_issuer": "https://a.example"}, {"oauth.idp_issuer"}),
        ({"grant": "enterprise_managed"}, {"oauth.client_id", "oauth.issuer", "oauth.subject_token"}),
        (
            {
                "grant": "enterprise_managed",
                "client_id": "a",
                "issuer": "https://a.example",
                "subject_token": "${file:t}",
            },
            {"oauth.idp_issuer", "oauth.idp_client_id"},
        ),
        (
            {
                "grant": "enterprise_managed",
                "credentials": "user",
                "client_id": "a",
                "issuer": "https://a.example",
                "idp_issuer": "https://stranger.example",
            },
            {"oauth.idp_issuer"},
        ),
    ],
)
def test_a_manifest_with_half_of_a_way_is_refused(oauth: dict[str, Any], keys: set[str]) -> None:
    manifest = {"name": "anna", "version": "1", "transport": "http", "url": "https://a.example/mcp", "oauth": oauth}
    with pytest.raises(ManifestError) as error:
        parse(manifest)
    assert {each.path for each in error.value.faults} == keys
