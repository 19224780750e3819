"""Members where each user has an own sign-in: whose token a request has, and who may change it, with real servers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core import serializers
from django.test import Client

from mcp_runtime.client.exchanges import Exchange
from mcp_runtime.control import sign_ins, ways_in
from mcp_runtime.control.secrets import KEY_STEPS, rotate_key
from mcp_runtime.members import credentials, own_sign_ins
from mcp_runtime.members.live import LiveMember
from mcp_runtime.members.manifest.parser import parse
from mcp_runtime.protocol.errors import GrantOverError, OAuthError, OwnSignIn, RequestRefusedError, SignInNeededError
from roster.models import AuditEntry, GuildMember, MemberSignIn, UserSignIn, UserSignInAttempt
from tests.support.lifecycle_stage import RemoteStage, row
from tests.support.oauth_server import OAuthWorld, oauth_world

pytestmark = pytest.mark.django_db(transaction=True)

WEB = "http://localhost:8000"
BY_USER = {"oauth": {"credentials": "user"}}


@pytest.fixture
def world() -> Iterator[OAuthWorld]:
    with oauth_world(echoes=True) as world:
        yield world


@pytest.fixture
def olga() -> User:
    return User.objects.create_superuser("olga", password="x")


@pytest.fixture
def bert() -> User:
    return User.objects.create_superuser("bert", password="x")


def sign_in(world: OAuthWorld, member: GuildMember, user: User, *, own: bool, account: str = "") -> None:
    world.account = account or (user.username if own else "lists")
    begun = sign_ins.begin(row(member), user, web=WEB, own=own)
    sign_ins.finish(world.approve(begun.address), user, "")


def connected(stage: RemoteStage, world: OAuthWorld, lister: User, **manifest: Any) -> tuple[GuildMember, LiveMember]:
    member = stage.add_remote(world.url, **{**BY_USER, **manifest})
    stage.lifecycle.start(member.pk)
    if row(member).needs_sign_in:
        sign_in(world, member, lister, own=False)
        stage.lifecycle.start(member.pk)
    live_member = stage.lifecycle.connected_member(member.pk)
    assert live_member is not None, row(member).last_error
    return row(member), live_member


def account_of_call(world: OAuthWorld, live_member: LiveMember, user: User | None) -> str:
    assert live_member.users is not None
    client = live_member.users.connected_client(user.pk if user else None, 5.0, Exchange(), "")
    return world.accounts[client.invoke_tool("look", {})["content"][0]["text"]]


def test_the_sign_in_for_lists_is_for_no_call_not_even_of_its_own_person(
    stage: RemoteStage, world: OAuthWorld, olga: User
) -> None:
    member, live_member = connected(stage, world, olga)
    with pytest.raises(SignInNeededError, match=f"/members/{member.pk}/own-sign-in/"):
        account_of_call(world, live_member, olga)
    with pytest.raises(SignInNeededError, match="of no user"):
        account_of_call(world, live_member, None)
    assert "tools/call" not in world.hashes_by_method()
    sign_in(world, member, olga, own=True)
    assert account_of_call(world, live_member, olga) == "olga"
    assert {world.accounts[each] for each in world.hashes_by_method()["tools/call"]} == {"olga"}


def test_a_member_that_shows_its_lists_needs_no_sign_in_for_them(
    stage: RemoteStage, world: OAuthWorld, bert: User
) -> None:
    world.lists_openly = True
    member, live_member = connected(stage, world, bert)
    assert not UserSignIn.objects.exists()
    with pytest.raises(SignInNeededError):
        account_of_call(world, live_member, bert)
    sign_in(world, member, bert, own=True)
    assert account_of_call(world, live_member, bert) == "bert"


def test_who_signs_in_as_somebody_else_changes_only_the_own_row(
    stage: RemoteStage, world: OAuthWorld, olga: User, bert: User
) -> None:
    member, live_member = connected(stage, world, olga)
    sign_in(world, member, olga, own=True)
    sign_in(world, member, bert, own=True, account="olga-at-the-provider")
    assert account_of_call(world, live_member, olga) == "olga"
    assert account_of_call(world, live_member, bert) == "olga-at-the-provider"
    sign_in(world, member, bert, own=True)  # with another account, and at once
    assert account_of_call(world, live_member, bert) == "bert"


def test_after_a_sign_out_and_a_sign_in_no_old_token_is_used(
    stage: RemoteStage, world: OAuthWorld, olga: User, bert: User
) -> None:
    member, live_member = connected(stage, world, olga)
    sign_in(world, member, bert, own=True, account="first")
    assert account_of_call(world, live_member, bert) == "first"
    assert sign_ins.sign_out(row(member), bert)
    with pytest.raises(SignInNeededError):
        account_of_call(world, live_member, bert)
    sign_in(world, member, bert, own=True, account="second")  # a new row, which begins with the same version
    assert account_of_call(world, live_member, bert) == "second"
    assert [entry.kind for entry in AuditEntry.objects.order_by("pk") if "sign" in entry.kind] != []


@pytest.mark.parametrize("thief", ["another user", "another browser"])
def test_only_who_began_an_own_sign_in_finishes_it_and_once(
    stage: RemoteStage, world: OAuthWorld, olga: User, bert: User, thief: str
) -> None:
    member, _ = connected(stage, world, olga)
    begun = sign_ins.begin(row(member), bert, web=WEB, own=True, session="berts")
    answer = world.approve(begun.address)
    user, session = (olga, "berts") if thief == "another user" else (bert, "other")
    with pytest.raises(RequestRefusedError, match="is over"):
        sign_ins.finish(answer, user, session)
    assert not UserSignIn.objects.exclude(user=None).exists()
    sign_ins.finish(answer, bert, "berts")
    with pytest.raises(RequestRefusedError, match="is over"):
        sign_ins.finish(answer, bert, "berts")
    assert UserSignIn.objects.exclude(user=None).get().user == bert


def test_many_tries_of_one_user_do_not_push_out_the_try_of_another(
    stage: RemoteStage, world: OAuthWorld, olga: User, bert: User
) -> None:
    member, _ = connected(stage, world, olga)
    answer = world.approve(sign_ins.begin(row(member), olga, web=WEB, own=True).address)
    for _ in range(UserSignInAttempt.MAX_OPEN + 2):
        sign_ins.begin(row(member), bert, web=WEB, own=True)
    assert UserSignInAttempt.objects.filter(user=bert).count() == UserSignInAttempt.MAX_OPEN
    sign_ins.finish(answer, olga, "")


@pytest.mark.parametrize("own", [False, True])
def test_a_sign_in_ends_if_the_manifest_changes_whose_it_would_be(
    stage: RemoteStage, world: OAuthWorld, olga: User, own: bool
) -> None:
    member, _ = connected(stage, world, olga)
    answer = world.approve(sign_ins.begin(row(member), olga, web=WEB, own=own).address)
    stage.add_remote(world.url)
    with pytest.raises(RequestRefusedError, match="is over"):
        sign_ins.finish(answer, olga, "")
    assert not MemberSignIn.objects.exists()


def test_a_change_to_one_account_uses_no_token_that_was_for_lists_or_a_user(
    stage: RemoteStage, world: OAuthWorld, olga: User
) -> None:
    member, _ = connected(stage, world, olga)
    sign_in(world, member, olga, own=True)
    stage.add_remote(world.url)
    stage.lifecycle.stop(member.pk)
    stage.lifecycle.start(member.pk)
    assert row(member).needs_sign_in
    with pytest.raises(RequestRefusedError, match="no sign-in of their own"):
        sign_ins.begin(row(member), olga, web=WEB, own=True)


def test_the_sign_in_for_lists_forgets_the_account_for_everybody(
    stage: RemoteStage, world: OAuthWorld, olga: User
) -> None:
    connected(stage, world, olga, oauth={})
    assert MemberSignIn.objects.exists()
    member = stage.add_remote(world.url, **BY_USER)
    sign_in(world, member, olga, own=False)
    assert not MemberSignIn.objects.exists()
    assert UserSignIn.objects.get().user is None


@pytest.mark.parametrize("is_lister", [False, True])
def test_the_tokens_of_a_user_who_is_not_active_are_never_renewed_and_then_forgotten(
    stage: RemoteStage, world: OAuthWorld, olga: User, bert: User, is_lister: bool
) -> None:
    member, live_member = connected(stage, world, olga)
    sign_in(world, member, bert, own=True)
    user = olga if is_lister else bert
    holder = credentials.LISTS if is_lister else credentials.of_user(bert.pk)
    signed_in = holder.rows(member.pk).get()
    User.objects.filter(pk=user.pk).update(is_active=False)
    ask: Any = lambda held: pytest.fail("the authorization server was asked")  # noqa: E731
    with pytest.raises(GrantOverError, match="not active"):
        credentials.renew(member.pk, world.url, signed_in.version, ask, holder)
    if not is_lister:
        with pytest.raises(SignInNeededError):
            account_of_call(world, live_member, bert)
    credentials.prune()
    assert not UserSignIn.objects.filter(pk=signed_in.pk).exists()
    assert UserSignIn.objects.count() == 1
    User.objects.all().delete()
    assert not UserSignIn.objects.exists()


def test_a_refusal_of_one_users_token_is_about_this_user_alone(
    stage: RemoteStage, world: OAuthWorld, olga: User, bert: User
) -> None:
    member, live_member = connected(stage, world, olga)
    for user in (olga, bert):
        sign_in(world, member, user, own=True)
    account_of_call(world, live_member, bert)
    world.needs = {"look": "more"}
    for token, (end, scopes) in list(world.access.items()):
        if world.accounts[next(each for each in world.accounts if each and _is(each, token))] == "olga":
            world.access[token] = (end, f"{scopes} more")
    with pytest.raises(SignInNeededError, match="more scopes"):
        account_of_call(world, live_member, bert)
    assert account_of_call(world, live_member, olga) == "olga"
    assert (row(member).status, row(member).needs_sign_in) == ("connected", False)
    reports = [ways_in.own_report_of(row(member), user) for user in (olga, bert)]
    assert [report.state for report in reports if report] == ["signed in", "more scopes needed"]


def _is(token_hash: str, token: str) -> bool:
    from tests.support.oauth_server import hash_of

    return hash_of(token) == token_hash


def test_no_row_has_a_token_in_clear_and_a_new_key_keeps_the_sign_ins(
    stage: RemoteStage, world: OAuthWorld, olga: User, bert: User
) -> None:
    member, live_member = connected(stage, world, olga)
    sign_in(world, member, bert, own=True)
    written = serializers.serialize("json", [*UserSignIn.objects.all(), *AuditEntry.objects.all()])
    assert [token for token in (*world.access, *world.refresh) if token in written] == []
    before = set(UserSignIn.objects.values_list("encrypted", flat=True))
    rotate_key(KEY_STEPS)
    assert before.isdisjoint(UserSignIn.objects.values_list("encrypted", flat=True))
    UserSignIn.objects.update(version=100)  # so that it is read again
    assert account_of_call(world, live_member, bert) == "bert"


def test_only_a_url_with_sign_ins_of_persons_can_have_one_for_each_user() -> None:
    base = {"name": "a", "version": "1", "transport": "http"}
    for values in (
        {"command": "x", "oauth": {"credentials": "user"}},
        {"url": "https://a.example/", "oauth": {"credentials": "user"}, "headers": {"Authorization": "${env:A}"}},
        {"url": "https://a.example/", "oauth": {"credentials": "all"}},
        {
            "url": "https://a.example/",
            "oauth": {
                "credentials": "user",
                "grant": "client_credentials",
                "client_id": "a",
                "client_secret": "${secret:a}",
            },
        },
    ):
        with pytest.raises(Exception, match="oauth"):
            parse({**base, **values})


def test_the_page_shows_the_viewers_state_and_signs_only_the_viewer_in(
    stage: RemoteStage, world: OAuthWorld, olga: User, bert: User
) -> None:
    member, _ = connected(stage, world, olga)
    sign_in(world, member, olga, own=True)
    client = Client()
    client.force_login(bert)
    short = client.get(f"/members/{member.pk}/own-sign-in/")
    page = str(short["Location"])
    shown = client.get(page).content.decode()
    assert "You are not signed in" in shown
    assert "own-sign-out" not in shown
    begun = client.post(page).content.decode()
    address = begun.partition('id="continue" href="')[2].partition('"')[0].replace("&amp;", "&")
    world.account = "bert"
    answer = {name: values[0] for name, values in world.approve(address).items()}
    thief = Client()
    thief.force_login(olga)
    thief.get("/members/sign-in/", answer)
    assert not UserSignIn.objects.filter(user=bert).exists()
    client.get("/members/sign-in/", answer)
    assert UserSignIn.objects.get(user=bert).signed_in_by == bert
    shown = client.get(page).content.decode()
    assert "You are signed in at" in shown
    head = client.get(f"/admin/roster/guildmember/{member.pk}/change/").content.decode()
    assert 'id="own-sign-in">Change</a>' in head
    client.post(page.replace("sign-in", "sign-out"))
    assert set(UserSignIn.objects.values_list("user__username", flat=True)) == {None, "olga"}
    nobody = Client().get(page)
    assert nobody.status_code == 302


# What clients wait for --------------------------------------------------------------------------------------------


def need_of_call(live_member: LiveMember, user: User, tool: str = "look") -> OwnSignIn:
    """What the user has to do, according to a call that failed."""
    assert live_member.users is not None
    with pytest.raises(SignInNeededError) as need:
        live_member.users.connected_client(user.pk, 5.0, Exchange(), "").invoke_tool(tool, {})
    assert need.value.own is not None
    return need.value.own


def test_a_sign_in_is_awaited_until_this_user_has_signed_in(
    stage: RemoteStage, world: OAuthWorld, olga: User, bert: User
) -> None:
    member, live_member = connected(stage, world, olga)
    of_olga, of_bert = need_of_call(live_member, olga), need_of_call(live_member, bert)
    assert own_sign_ins.done({of_olga, of_bert}) == set()
    sign_in(world, member, bert, own=True)
    assert own_sign_ins.done({of_olga, of_bert}) == {of_bert}
    sign_ins.sign_out(member, bert)
    assert own_sign_ins.done({need_of_call(live_member, bert)}) == set()


def test_a_sign_in_that_the_authorization_server_ended_is_awaited_again(
    stage: RemoteStage, world: OAuthWorld, olga: User
) -> None:
    member, live_member = connected(stage, world, olga)
    sign_in(world, member, olga, own=True)
    assert account_of_call(world, live_member, olga) == "olga"
    world.access.clear()
    world.refresh.clear()
    need = need_of_call(live_member, olga)
    assert own_sign_ins.done({need}) == set()
    sign_in(world, member, olga, own=True)
    assert own_sign_ins.done({need}) == {need}


def test_a_sign_in_for_more_scopes_is_awaited_although_there_is_a_token(
    stage: RemoteStage, world: OAuthWorld, olga: User
) -> None:
    world.needs = {"write": "write"}
    member, live_member = connected(stage, world, olga)
    sign_in(world, member, olga, own=True)
    need = need_of_call(live_member, olga, "write")
    assert own_sign_ins.done({need}) == set()
    assert account_of_call(world, live_member, olga) == "olga"  # without the scope
    assert own_sign_ins.done({need}) == set()
    sign_in(world, member, olga, own=True)
    assert own_sign_ins.done({need}) == {need}


def test_a_user_who_is_not_active_any_more_has_done_nothing(stage: RemoteStage, world: OAuthWorld, olga: User) -> None:
    member, live_member = connected(stage, world, olga)
    need = need_of_call(live_member, olga)
    sign_in(world, member, olga, own=True)
    User.objects.filter(pk=olga.pk).update(is_active=False)
    assert own_sign_ins.done({need}) == set()


def test_the_secret_of_a_client_stays_at_the_server_where_the_first_user_signed_in(
    stage: RemoteStage, world: OAuthWorld, olga: User, bert: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GUILD_HALL_MEMBER_CLIENT", "s3cret-of-the-hall")
    world.lists_openly, world.auth_methods = True, ("client_secret_post",)
    world.clients["the-hall"] = "s3cret-of-the-hall"
    client = {"client_id": "the-hall", "client_secret": "${env:GUILD_HALL_MEMBER_CLIENT}"}
    member, _ = connected(stage, world, olga, oauth={"credentials": "user", **client})
    sign_in(world, member, olga, own=True)
    with oauth_world(auth_methods=("client_secret_post",)) as thief:
        thief.clients["the-hall"] = "s3cret-of-the-hall"
        world.resource["authorization_servers"] = [thief.base]
        with pytest.raises(OAuthError, match=r"was .* and is .* now; name the right one as oauth.issuer in"):
            sign_in(thief, member, bert, own=True)
        with pytest.raises(OAuthError, match=r"oauth\.issuer"):
            sign_in(thief, member, olga, own=True)
        assert not [seen for seen in thief.seen if b"s3cret-of-the-hall" in seen.body]


@pytest.mark.parametrize("signs_out", [False, True])
def test_another_account_does_not_go_on_in_the_session_of_the_account_before(
    stage: RemoteStage, world: OAuthWorld, olga: User, bert: User, signs_out: bool
) -> None:
    world.has_sessions = True
    member, live_member = connected(stage, world, olga)
    sign_in(world, member, bert, own=True, account="first")
    assert account_of_call(world, live_member, bert) == "first"
    if signs_out:
        sign_ins.sign_out(row(member), bert)
    sign_in(world, member, bert, own=True, account="second")
    assert account_of_call(world, live_member, bert) == "second"
    world.expire()  # the same sign-in goes on, and so does its session
    begun = len(world.sessions)
    assert account_of_call(world, live_member, bert) == "second"
    assert (world.mixed_up(), len(world.sessions)) == ([], begun)


def test_a_call_is_cancelled_in_the_session_in_which_it_was_sent(
    stage: RemoteStage, world: OAuthWorld, olga: User, bert: User
) -> None:
    world.has_sessions = True
    member, live_member = connected(stage, world, olga)
    assert live_member.users is not None
    sign_in(world, member, bert, own=True)
    exchange = Exchange()
    live_member.users.connected_client(bert.pk, 5.0, exchange, "").invoke_tool("look", {}, 5.0, exchange)
    sign_in(world, member, bert, own=True, account="second")
    account_of_call(world, live_member, bert)
    live_member.users.client(bert.pk).cancel(exchange, "nobody waits any more")
    cancelled = [each for each in world.seen if b"notifications/cancelled" in each.body]
    assert [each.headers["mcp-session-id"] for each in cancelled] == [exchange.session.id]
