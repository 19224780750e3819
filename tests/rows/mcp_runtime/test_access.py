"""Who may do what: snapshots, what they decide, when they are made anew, and what is said of a refusal."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Group, Permission, User
from django.db import connection
from django.db.models import ProtectedError
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries

from mcp_runtime.control.members import disable_member, enable_member, reserve_member, set_tool_enabled
from mcp_runtime.members import discovery
from mcp_runtime.protocol.errors import AccessError, NotAllowedError, TokenError
from mcp_runtime.rows import lease
from mcp_runtime.security import access, principals
from mcp_runtime.security.access import OPERATOR, Principal
from mcp_runtime.security.limits import Limits
from roster.models import GuildMember, Hall, MemberGroup, Token, Tool

pytestmark = pytest.mark.django_db
Scope = Token.Scope


@pytest.fixture(autouse=True)
def hall() -> Hall:
    return lease.hall()


def permission(codename: str) -> Permission:
    return Permission.objects.get(codename=codename, content_type__app_label="roster")


@pytest.fixture
def bob() -> User:
    """May call and control."""
    user = User.objects.create_user("bob")
    user.user_permissions.add(permission("invoke_tool"), permission("control_member"))
    return user


def add_member(name: str, *tools: str) -> GuildMember:
    member = GuildMember.objects.create(name=name, directory=name)
    for tool in tools:
        Tool.objects.create(member=member, name=tool, definition={"name": tool})
    return member


@pytest.fixture
def notes() -> GuildMember:
    return add_member("notes", "add", "list")


@pytest.fixture
def writers() -> Group:
    return Group.objects.create(name="writers")


def with_token(user: User, **values: Any) -> Principal:
    return principals.principal_of_token(Token.make(user=user, **values)[1])


# Permissions and groups -------------------------------------------------------------------------------------------


def test_the_operator_may_do_everything() -> None:
    assert OPERATOR.may_invoke("any", "thing")
    assert OPERATOR.may_see("any")
    assert OPERATOR.may_use_all("any")
    assert OPERATOR.may_control("any")


def test_without_the_permission_nothing_may_be_called() -> None:
    who = principals.principal_of_user(User.objects.create_user("charlie"))
    assert not who.may_invoke("notes", "add")
    assert not who.may_see("notes")
    assert not who.may_control("notes")
    assert who.reaches("notes")


def test_each_permission_opens_its_own() -> None:
    caller, controller = User.objects.create_user("caller"), User.objects.create_user("controller")
    caller.user_permissions.add(permission("invoke_tool"))
    controller.user_permissions.add(permission("control_member"))
    calls, controls = principals.principal_of_user(caller), principals.principal_of_user(controller)
    assert (calls.may_invoke("notes", "add"), calls.may_control("notes")) == (True, False)
    assert (controls.may_invoke("notes", "add"), controls.may_control("notes")) == (False, True)
    assert calls.may_list("notes", "add")
    assert controls.may_list("notes", "add")


def test_a_member_with_groups_is_for_their_users_and_for_superusers(
    bob: User, notes: GuildMember, writers: Group
) -> None:
    notes.groups.add(writers)
    who = principals.principal_of_user(bob)
    assert not who.may_invoke("notes", "add")
    assert not who.may_see("notes")
    assert not who.may_control("notes")
    assert who.may_invoke("other", "add")
    assert principals.principal_of_user(User.objects.create_superuser("alice")).may_invoke("notes", "add")
    bob.groups.add(writers)
    assert principals.principal_of_user(bob).may_invoke("notes", "add")


def test_one_of_several_groups_is_enough(bob: User, notes: GuildMember, writers: Group) -> None:
    notes.groups.set([Group.objects.create(name="readers"), writers])
    bob.groups.set([Group.objects.create(name="others"), writers])
    assert principals.principal_of_user(bob).may_invoke("notes", "add")


def test_a_group_that_a_member_is_reserved_for_cannot_be_deleted_and_so_open_it(
    notes: GuildMember, writers: Group
) -> None:
    notes.groups.add(writers)
    with pytest.raises(ProtectedError):
        writers.delete()


def test_a_member_that_came_after_the_snapshot_is_open_to_everybody_allowed(bob: User) -> None:
    who = principals.principal_of_user(bob)
    add_member("newcomer", "x")
    assert who.may_invoke("newcomer", "x")


def test_a_user_who_is_not_active_is_nobody(bob: User) -> None:
    principals.principal_of_user(bob)
    bob.is_active = False
    bob.save()
    with pytest.raises(AccessError, match="'bob' is not active"):
        principals.principal_of_user(bob)


def test_a_user_disabled_without_a_signal_is_nobody_at_once(bob: User) -> None:
    principals.principal_of_user(bob)
    User.objects.filter(pk=bob.pk).update(is_active=False)
    with pytest.raises(AccessError, match="'bob' is not active"):
        principals.principal_of_user(bob)


def test_a_snapshot_is_not_kept_for_long(bob: User, monkeypatch: pytest.MonkeyPatch) -> None:
    token = Token.make(user=bob)[1]
    assert principals.principal_of_token(token).invokes
    assert principals.principal_of_user(bob).invokes
    User.user_permissions.through.objects.all().delete()
    monkeypatch.setattr(principals, "CACHE_SECONDS", -1.0)
    assert not principals.principal_of_token(token).invokes
    assert not principals.principal_of_user(bob).invokes


# Tokens -----------------------------------------------------------------------------------------------------------


def test_a_token_for_everything_opens_what_its_user_may(bob: User, notes: GuildMember) -> None:
    who = with_token(bob)
    assert who.may_invoke("notes", "add")
    assert who.may_control("notes")
    assert who.may_use_all("notes")
    assert not who.is_narrowed
    assert not with_token(User.objects.create_user("charlie")).may_invoke("notes", "add")


def test_a_token_for_some_members_opens_those_alone(bob: User, notes: GuildMember) -> None:
    who = with_token(bob, scope=Scope.MEMBERS, members=[notes])
    assert who.may_invoke("notes", "whatever is new")
    assert who.may_control("notes")
    assert who.may_use_all("notes")
    for member in ("other", "note", "notes2"):
        assert not who.may_invoke(member, "add")
        assert not who.may_see(member)
        assert not who.may_control(member)


def test_a_token_for_some_tools_opens_those_alone(bob: User, notes: GuildMember) -> None:
    who = with_token(bob, scope=Scope.TOOLS, tools=[notes.tools.get(name="add")])
    assert who.may_invoke("notes", "add")
    assert who.may_see("notes")
    assert not who.may_invoke("notes", "list")
    assert not who.may_invoke("other", "add")
    assert not who.may_see("other")
    assert not who.may_use_all("notes")
    assert not who.may_control("notes")


def test_a_scope_whose_last_member_is_gone_opens_nothing(bob: User, notes: GuildMember) -> None:
    token = Token.make(user=bob, scope=Scope.MEMBERS, members=[notes])[1]
    principals.principal_of_token(token)
    notes.delete()
    who = principals.principal_of_token(token)
    assert who.members == frozenset()
    assert not who.may_invoke("notes", "add")
    assert not who.may_invoke("other", "add")
    with pytest.raises(NotAllowedError, match="none that is left"):
        access.require_invoke(who, "other", "add")


def test_a_scope_never_opens_what_the_user_may_not(bob: User, notes: GuildMember, writers: Group) -> None:
    notes.groups.add(writers)
    assert not with_token(bob, scope=Scope.MEMBERS, members=[notes]).may_invoke("notes", "add")
    assert not with_token(bob, scope=Scope.TOOLS, tools=list(notes.tools.all())).may_invoke("notes", "add")


def test_limits_are_the_tokens_own_or_those_of_the_settings(bob: User, settings: Any) -> None:
    settings.GUILD_HALL_CALLS_PER_MINUTE, settings.GUILD_HALL_MAX_IN_FLIGHT = 60, 7
    who = with_token(bob)
    assert (who.limits.calls_per_minute, who.limits.max_in_flight) == (60, 7)
    own = with_token(bob, calls_per_minute=0, max_in_flight=3)
    assert (own.limits.calls_per_minute, own.limits.max_in_flight) == (0, 3)
    session = principals.principal_of_user(bob)
    assert session.limits == Limits()


def test_an_unknown_token_is_refused_with_what_makes_one() -> None:
    with pytest.raises(TokenError, match="not known"):
        principals.principal_of_token("gh_nobody")


@pytest.mark.parametrize("text", ["", "\ud800", "gh_", "\0"])
def test_any_text_can_be_asked_for_as_a_token(text: str) -> None:
    with pytest.raises(TokenError):
        principals.principal_of_token(text)


def test_a_revoked_token_opens_nothing_from_then_on(bob: User) -> None:
    row, token = Token.make(user=bob)
    assert principals.principal_of_token(token).token_id == row.pk
    row.revoke()
    with pytest.raises(TokenError, match="was revoked"):
        principals.principal_of_token(token)


def test_a_token_ends_when_it_expires_though_nothing_changed(bob: User) -> None:
    row, token = Token.make(user=bob, expires_at=timezone.now() + timedelta(hours=1))
    who = principals.principal_of_token(token)
    assert not who.is_expired
    Token.objects.filter(pk=row.pk).update(expires_at=timezone.now() - timedelta(seconds=1))
    with pytest.raises(TokenError, match="expired at"):
        principals.principal_of_token(token)
    row.refresh_from_db()
    assert row.state == "expired"


def test_a_snapshot_knows_when_its_token_ends() -> None:
    past, future = timezone.now() - timedelta(seconds=1), timezone.now() + timedelta(hours=1)
    assert Principal(1, "bob", expires_at=past).is_expired
    assert not Principal(1, "bob", expires_at=future).is_expired


def test_the_token_of_a_user_who_is_not_active_opens_nothing(bob: User) -> None:
    token = Token.make(user=bob)[1]
    principals.principal_of_token(token)
    User.objects.filter(pk=bob.pk).update(is_active=False)
    with pytest.raises(TokenError, match="not active"):
        principals.principal_of_token(token)


def test_what_one_request_does_to_its_user_no_other_request_sees(bob: User) -> None:
    token = Token.make(user=bob)[1]
    principals.holder_of(token)
    first, second = principals.holder_of(token)[0], principals.holder_of(token)[0]
    assert first == second == bob
    first.username = "somebody else"
    first.has_perm("roster.add_token")  # which Django remembers on the object
    assert (second.username, principals.holder_of(token)[0].username) == ("bob", "bob")
    assert not [name for name in principals.holder_of(token)[0].__dict__ if "perm" in name]


def test_the_last_use_is_written_at_most_once_a_minute(
    bob: User, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    row, token = Token.make(user=bob)
    principals.principal_of_token(token)
    row.refresh_from_db()
    first = row.last_used_at
    assert first is not None
    with django_assert_num_queries(1):
        principals.principal_of_token(token)
    principals.touch(row.pk)
    row.refresh_from_db()
    assert row.last_used_at == first
    Token.objects.update(last_used_at=timezone.now() - timedelta(seconds=61))
    principals.principal_of_token(token)
    row.refresh_from_db()
    assert row.last_used_at is not None
    assert row.last_used_at >= first


# Snapshots --------------------------------------------------------------------------------------------------------


def test_deciding_asks_the_database_nothing(
    bob: User, notes: GuildMember, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    who = with_token(bob, scope=Scope.MEMBERS, members=[notes])
    with django_assert_num_queries(0):
        assert sum(who.may_invoke("notes", f"tool-{number}") for number in range(1000)) == 1000
        who.may_see("notes")
        who.may_control("notes")


def test_a_snapshot_is_kept_while_nothing_changed(bob: User, django_assert_num_queries: DjangoAssertNumQueries) -> None:
    token = Token.make(user=bob)[1]
    first = principals.principal_of_token(token)
    with django_assert_num_queries(1):
        assert principals.principal_of_token(token) is first
    principals.principal_of_user(bob)
    with django_assert_num_queries(1):
        principals.principal_of_user(bob)


CHANGES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a token is made": lambda it: Token.make(user=it["bob"]),
    "a token is revoked": lambda it: it["token"].revoke(),
    "a token is deleted": lambda it: it["token"].delete(),
    "a scope is changed": lambda it: it["token"].members.add(it["notes"]),
    "a scope of tools is changed": lambda it: it["token"].tools.add(it["tool"]),
    "a user is disabled": lambda it: it["bob"].save(update_fields=["is_active"]),
    "a user is saved": lambda it: it["bob"].save(),
    "a user is deleted": lambda it: it["bob"].delete(),
    "a user gets a permission": lambda it: it["bob"].user_permissions.add(permission("view_call")),
    "a user loses their permissions": lambda it: it["bob"].user_permissions.clear(),
    "a user joins a group": lambda it: it["bob"].groups.add(it["writers"]),
    "a group takes users in": lambda it: it["writers"].user_set.add(it["bob"]),
    "a group gets a permission": lambda it: it["writers"].permissions.add(permission("invoke_tool")),
    "a group is deleted": lambda it: it["writers"].delete(),
    "a member is reserved": lambda it: reserve_member(it["notes"], [it["writers"]]),
    "a group takes a member": lambda it: it["writers"].guild_members.add(it["notes"]),
    "a tool is switched": lambda it: set_tool_enabled(it["tool"], False),
    "a member is disabled": lambda it: disable_member(it["notes"]),
    "a member is enabled": lambda it: enable_member(it["notes"]),
    "a member is deleted": lambda it: it["notes"].delete(),
}


def unseen(model: Any, **columns: Any) -> Callable[[dict[str, Any]], Any]:
    """A change of these columns that sends no signal."""
    return lambda it: model.objects.update(**columns)


def sql(statement: str) -> Callable[[dict[str, Any]], Any]:
    def run(it: dict[str, Any]) -> None:
        with connection.cursor() as cursor:
            cursor.execute(statement)

    return run


PAST = timezone.now() - timedelta(days=1)
UNSEEN_CHANGES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a user is disabled": unseen(User, is_active=False),
    "a user is disabled in SQL": sql("UPDATE auth_user SET is_active = '0'"),
    "a user becomes a superuser": unseen(User, is_superuser=True),
    "a user is renamed": unseen(User, username="robert"),
    "a token is revoked": unseen(Token, revoked_at=PAST),
    "a token expires": unseen(Token, expires_at=PAST),
    "a token is narrowed": unseen(Token, scope=Scope.MEMBERS),
    "a token is limited": unseen(Token, calls_per_minute=1),
    "a token is deleted": lambda it: sql(f"DELETE FROM roster_token WHERE id = {it['token'].pk}")(it),
    "a user loses a permission": lambda it: User.user_permissions.through.objects.all().delete(),
    "a user leaves a group": lambda it: User.groups.through.objects.all().delete(),
    "a group loses a permission": lambda it: Group.permissions.through.objects.all().delete(),
    "a member is reserved": lambda it: MemberGroup.objects.bulk_create(
        [MemberGroup(member=it["notes"], group=it["empty"])]
    ),
    "a scope loses a member": lambda it: Token.members.through.objects.all().delete(),
    "a scope loses a tool": lambda it: Token.tools.through.objects.all().delete(),
}


@pytest.mark.parametrize("change", UNSEEN_CHANGES.values(), ids=UNSEEN_CHANGES.keys())
def test_whatever_decides_outdates_the_snapshots_that_it_changes(
    bob: User, notes: GuildMember, writers: Group, change: Callable[[dict[str, Any]], Any]
) -> None:
    """Also where no signal told of it. The version is the same, so only the rows can tell."""
    bob.user_permissions.clear()
    bob.user_permissions.add(permission("invoke_tool"))
    writers.permissions.add(permission("view_call"))
    bob.groups.add(writers)
    add_member("reserved").groups.add(writers)
    row, token = Token.make(user=bob)
    in_scope = [
        with_token(bob, scope=Scope.MEMBERS, members=[notes]),
        with_token(bob, scope=Scope.TOOLS, tools=[notes.tools.get(name="add")]),
    ]
    kept = [principals.principal_of_token(token), *in_scope]
    before = principals.version()
    assert not principals.are_outdated(kept)
    change({"notes": notes, "token": row, "empty": Group.objects.create(name="empty")})
    assert principals.version() == before
    assert principals.are_outdated(kept)


def test_snapshots_that_nobody_changed_are_not_outdated(
    bob: User, notes: GuildMember, writers: Group, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    notes.groups.add(writers)
    alice = User.objects.create_superuser("alice")
    charlie = User.objects.create_user("charlie")
    charlie.groups.add(writers)
    writers.permissions.add(permission("control_member"))
    kept = [with_token(user) for user in (alice, bob, charlie)]
    kept += [with_token(bob, scope=Scope.MEMBERS, members=[notes]), with_token(bob, calls_per_minute=0)]
    kept += [with_token(user, scope=Scope.TOOLS, tools=list(notes.tools.all())) for user in (alice, charlie)]
    kept.append(Principal(1, "past", token_id=1, expires_at=PAST))  # it is looked up again when it is asked for
    with django_assert_num_queries(7):
        assert not principals.are_outdated(kept)
    assert not principals.are_outdated([])


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_whatever_decides_changes_the_version(
    bob: User, notes: GuildMember, writers: Group, change: Callable[[dict[str, Any]], Any]
) -> None:
    token = Token.make(user=bob)[0]
    before = principals.version()
    change({"bob": bob, "notes": notes, "writers": writers, "token": token, "tool": notes.tools.get(name="add")})
    assert principals.version() != before


def test_a_login_and_the_use_of_a_token_change_no_version(bob: User) -> None:
    token = Token.make(user=bob)[1]
    before = principals.version()
    bob.save(update_fields=["last_login"])
    principals.principal_of_token(token)
    assert principals.version() == before


def test_the_folder_changes_the_version_when_members_come_go_or_are_switched(tmp_path: Any) -> None:
    def write(**values: Any) -> None:
        folder = tmp_path / "echo"
        folder.mkdir(exist_ok=True)
        manifest = {
            "name": "echo",
            "version": "1.0.0",
            "transport": "http",
            "command": "python3",
            "args": ["${PORT}"],
            **values,
        }
        (folder / "guild-member.json").write_text(json.dumps(manifest))

    versions = [principals.version()]

    def sync() -> bool:
        discovery.sync(tmp_path)
        versions.append(principals.version())
        return versions[-1] != versions[-2]

    write()
    assert sync()
    assert not sync()
    write(description="new words")
    assert not sync()
    write(enabled=False)
    assert sync()
    (tmp_path / "echo" / "guild-member.json").unlink()
    assert sync()


def test_a_hall_without_a_row_has_no_version_and_keeps_no_snapshots(
    bob: User, writers: Group, notes: GuildMember
) -> None:
    Hall.objects.all().delete()
    assert principals.version() is None
    assert principals.principal_of_user(bob).may_invoke("notes", "add")
    notes.groups.add(writers)
    assert not principals.principal_of_user(bob).may_invoke("notes", "add")


# Words ------------------------------------------------------------------------------------------------------------


def test_a_refusal_names_everything_that_is_missing(notes: GuildMember, writers: Group) -> None:
    notes.groups.add(writers)
    charlie = User.objects.create_user("charlie")
    who = with_token(charlie, name="laptop", scope=Scope.MEMBERS, members=[add_member("other")])
    with pytest.raises(NotAllowedError) as refusal:
        access.require_invoke(who, "notes", "add")
    text = str(refusal.value)
    assert "roster.invoke_tool, which user 'charlie' does not have." in text
    assert "Member 'notes' is reserved for groups, and user 'charlie' is in none of them." in text
    assert f"The token {who.token_hint}… (laptop) is for these members alone: other." in text
    with pytest.raises(NotAllowedError, match=r"roster\.control_member"):
        access.require_control(who, "notes")


def test_a_refusal_does_not_tell_whether_there_is_such_a_tool(bob: User, notes: GuildMember) -> None:
    who = with_token(bob, scope=Scope.TOOLS, tools=[notes.tools.get(name="add")])
    sentences = []
    for tool in ("list", "nothing"):
        with pytest.raises(NotAllowedError) as refusal:
            access.require_invoke(who, "notes", tool)
        sentences.append(str(refusal.value))
    assert sentences[0] == sentences[1]
    assert "is for these tools alone: notes/add" in sentences[0]


def test_an_explanation_of_a_yes_says_where_each_right_comes_from(
    bob: User, notes: GuildMember, writers: Group
) -> None:
    notes.groups.add(writers)
    bob.groups.add(writers)
    bob.user_permissions.clear()
    writers.permissions.add(permission("invoke_tool"))
    who = with_token(bob, name="laptop", scope=Scope.MEMBERS, members=[notes])
    decision = access.explain(who, "notes", "add")
    assert decision.allowed
    assert decision.reasons == [
        "user 'bob' has the permission roster.invoke_tool by group writers",
        "member 'notes' is reserved for groups, and the user is in writers",
        f"the scope of the token {who.token_hint}… (laptop) includes it",
        "tool 'add' of member 'notes' is enabled",
    ]


def test_an_explanation_of_a_no_gives_every_reason(bob: User, notes: GuildMember) -> None:
    bob.user_permissions.clear()
    disable_member(notes)
    set_tool_enabled(notes.tools.get(name="add"), False)
    decision = access.explain(principals.principal_of_user(bob), "notes", "add")
    assert not decision.allowed
    assert decision.reasons == [
        "this needs the permission roster.invoke_tool, which user 'bob' does not have",
        "member 'notes' is disabled",
        "tool 'add' of member 'notes' is disabled",
    ]


@pytest.mark.parametrize(
    ("member", "tool", "reason"),
    [("nobody", "add", "no member 'nobody' is in the roster"), ("notes", "fly", "member 'notes' lists no tool 'fly'")],
)
def test_what_is_not_there_is_explained_too(notes: GuildMember, member: str, tool: str, reason: str) -> None:
    decision = access.explain(OPERATOR, member, tool)
    assert (decision.allowed, decision.reasons) == (False, [reason])


def test_the_operator_and_superusers_are_explained(notes: GuildMember, writers: Group) -> None:
    notes.groups.add(writers)
    assert "operator" in access.explain(OPERATOR, "notes", "add").reasons[0]
    alice = principals.principal_of_user(User.objects.create_superuser("alice"))
    reasons = access.explain(alice, "notes", "add").reasons
    assert reasons[0] == "user 'alice' is a superuser"
    assert "superusers need not be in" in reasons[1]
