"""Access control: snapshots, their decisions, when they are renewed, and the texts of refusals."""

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
from mcp_runtime.control.tool_sets import Entry, Values, change_tool_set, create_tool_set, delete_tool_set
from mcp_runtime.members import discovery
from mcp_runtime.protocol.errors import AccessError, NotAllowedError, TokenError
from mcp_runtime.rows import lease
from mcp_runtime.security import access, principals
from mcp_runtime.security.access import OPERATOR, Principal
from mcp_runtime.security.limits import TokenLimits
from roster.models import GuildMember, Hall, MemberGroup, Token, Tool, ToolSet, ToolSetEntry, ToolSetGroup

pytestmark = pytest.mark.django_db
Scope = Token.Scope


@pytest.fixture(autouse=True)
def hall() -> Hall:
    return lease.hall()


def permission(codename: str) -> Permission:
    return Permission.objects.get(codename=codename, content_type__app_label="roster")


@pytest.fixture
def bob() -> User:
    """A user who may call and control."""
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


def tool_set_of(*entries: Entry, **values: Any) -> ToolSet:
    return create_tool_set(Values("writing", entries=entries, **values), OPERATOR, None)


def principal_with_token(user: User, **values: Any) -> Principal:
    return principals.principal_of_token(Token.make(user=user, **values)[1])


# Permissions and groups -------------------------------------------------------------------------------------------


def test_the_operator_may_do_everything() -> None:
    assert OPERATOR.may_invoke("any", "thing")
    assert OPERATOR.may_see("any")
    assert OPERATOR.may_use_all("any")
    assert OPERATOR.may_control("any")


def test_without_the_permission_no_tool_may_be_called() -> None:
    principal = principals.principal_of_user(User.objects.create_user("charlie"))
    assert not principal.may_invoke("notes", "add")
    assert not principal.may_see("notes")
    assert not principal.may_control("notes")
    assert principal.reaches("notes")


def test_each_permission_allows_only_its_own_actions() -> None:
    calling_user, controlling_user = User.objects.create_user("requester"), User.objects.create_user("controller")
    calling_user.user_permissions.add(permission("invoke_tool"))
    controlling_user.user_permissions.add(permission("control_member"))
    calling_principal, controlling_principal = (
        principals.principal_of_user(calling_user),
        principals.principal_of_user(controlling_user),
    )
    assert (calling_principal.may_invoke("notes", "add"), calling_principal.may_control("notes")) == (True, False)
    assert (controlling_principal.may_invoke("notes", "add"), controlling_principal.may_control("notes")) == (
        False,
        True,
    )
    assert calling_principal.may_list("notes", "add")
    assert controlling_principal.may_list("notes", "add")


def test_a_reserved_member_is_for_users_of_its_groups_and_for_superusers(
    bob: User, notes: GuildMember, writers: Group
) -> None:
    notes.groups.add(writers)
    principal = principals.principal_of_user(bob)
    assert not principal.may_invoke("notes", "add")
    assert not principal.may_see("notes")
    assert not principal.may_control("notes")
    assert principal.may_invoke("other", "add")
    assert principals.principal_of_user(User.objects.create_superuser("alice")).may_invoke("notes", "add")
    bob.groups.add(writers)
    assert principals.principal_of_user(bob).may_invoke("notes", "add")


def test_one_of_several_groups_is_enough(bob: User, notes: GuildMember, writers: Group) -> None:
    notes.groups.set([Group.objects.create(name="readers"), writers])
    bob.groups.set([Group.objects.create(name="others"), writers])
    assert principals.principal_of_user(bob).may_invoke("notes", "add")


def test_a_group_of_a_reserved_member_cannot_be_deleted(notes: GuildMember, writers: Group) -> None:
    notes.groups.add(writers)
    with pytest.raises(ProtectedError):
        writers.delete()


def test_a_member_that_is_newer_than_the_snapshot_is_not_reserved(bob: User) -> None:
    principal = principals.principal_of_user(bob)
    add_member("newcomer", "x")
    assert principal.may_invoke("newcomer", "x")


def test_an_inactive_user_is_refused(bob: User) -> None:
    principals.principal_of_user(bob)
    bob.is_active = False
    bob.save()
    with pytest.raises(AccessError, match="'bob' is not active"):
        principals.principal_of_user(bob)


def test_a_user_who_is_disabled_without_a_signal_is_refused_at_once(bob: User) -> None:
    principals.principal_of_user(bob)
    User.objects.filter(pk=bob.pk).update(is_active=False)
    with pytest.raises(AccessError, match="'bob' is not active"):
        principals.principal_of_user(bob)


def test_a_snapshot_is_stored_only_for_a_short_time(bob: User, monkeypatch: pytest.MonkeyPatch) -> None:
    token = Token.make(user=bob)[1]
    assert principals.principal_of_token(token).invokes
    assert principals.principal_of_user(bob).invokes
    User.user_permissions.through.objects.all().delete()
    monkeypatch.setattr(principals, "CACHE_SECONDS", -1.0)
    assert not principals.principal_of_token(token).invokes
    assert not principals.principal_of_user(bob).invokes


# Tokens -----------------------------------------------------------------------------------------------------------


def test_a_token_for_everything_has_all_permissions_of_its_user(bob: User, notes: GuildMember) -> None:
    principal = principal_with_token(bob)
    assert principal.may_invoke("notes", "add")
    assert principal.may_control("notes")
    assert principal.may_use_all("notes")
    assert not principal.is_narrowed
    assert not principal_with_token(User.objects.create_user("charlie")).may_invoke("notes", "add")


def test_a_token_for_some_members_opens_only_those_members(bob: User, notes: GuildMember) -> None:
    principal = principal_with_token(bob, scope=Scope.MEMBERS, members=[notes])
    assert principal.may_invoke("notes", "whatever is new")
    assert principal.may_control("notes")
    assert principal.may_use_all("notes")
    for member in ("other", "note", "notes2"):
        assert not principal.may_invoke(member, "add")
        assert not principal.may_see(member)
        assert not principal.may_control(member)


def test_a_token_for_some_tools_opens_only_those_tools(bob: User, notes: GuildMember) -> None:
    principal = principal_with_token(bob, scope=Scope.TOOLS, tools=[notes.tools.get(name="add")])
    assert principal.may_invoke("notes", "add")
    assert principal.may_see("notes")
    assert not principal.may_invoke("notes", "list")
    assert not principal.may_invoke("other", "add")
    assert not principal.may_see("other")
    assert not principal.may_use_all("notes")
    assert not principal.may_control("notes")


def test_a_token_for_a_tool_set_opens_only_what_is_in_it(bob: User, notes: GuildMember) -> None:
    add_member("files", "add", "list")
    row = tool_set_of(Entry("notes"), Entry("files", "add", "save"))
    principal = principal_with_token(bob, scope=Scope.TOOLS, tool_set=row)
    assert principal.may_invoke("notes", "anything")
    assert principal.may_use_all("notes")
    assert principal.may_invoke("files", "add")
    assert principal.may_see("files")
    assert not principal.may_invoke("files", "list")
    assert not principal.may_use_all("files")
    assert not principal.may_see("other")
    assert principal.is_narrowed
    assert not any(principal.may_control(member) or principal.may_read_log(member) for member in ("notes", "files"))
    assert principal.may_use_set("writing")
    assert not principal.may_use_set("another")
    with pytest.raises(NotAllowedError, match="is for the tool set 'writing' alone"):
        access.require_invoke(principal, "files", "list")


def test_a_token_for_a_tool_set_opens_nothing_without_the_set(bob: User, notes: GuildMember, writers: Group) -> None:
    row = tool_set_of(Entry("notes"))
    token = Token.make(user=bob, scope=Scope.TOOLS, tool_set=row)[1]
    access.require_anything(principals.principal_of_token(token))
    change_tool_set(row, Values("writing", groups=[writers], entries=[Entry("notes")]), OPERATOR)
    reserved = principals.principal_of_token(token)
    assert not reserved.may_invoke("notes", "add")
    assert not reserved.may_use_set("writing")
    with pytest.raises(NotAllowedError, match="'writing', which is empty or reserved for others"):
        access.require_anything(reserved)
    delete_tool_set(row)
    deleted = principals.principal_of_token(token)
    assert deleted.is_narrowed
    assert not deleted.may_see("notes")
    with pytest.raises(NotAllowedError, match="have all left the hall"):
        access.require_anything(deleted)


def test_a_scope_whose_last_member_is_deleted_opens_nothing(bob: User, notes: GuildMember) -> None:
    token = Token.make(user=bob, scope=Scope.MEMBERS, members=[notes])[1]
    principals.principal_of_token(token)
    notes.delete()
    principal = principals.principal_of_token(token)
    assert principal.members == frozenset()
    assert not principal.may_invoke("notes", "add")
    assert not principal.may_invoke("other", "add")
    with pytest.raises(NotAllowedError, match="none that is left"):
        access.require_invoke(principal, "other", "add")


def test_a_scope_gives_no_permissions_that_the_user_does_not_have(
    bob: User, notes: GuildMember, writers: Group
) -> None:
    notes.groups.add(writers)
    assert not principal_with_token(bob, scope=Scope.MEMBERS, members=[notes]).may_invoke("notes", "add")
    assert not principal_with_token(bob, scope=Scope.TOOLS, tools=list(notes.tools.all())).may_invoke("notes", "add")


def test_limits_are_those_of_the_token_or_of_the_settings(bob: User, settings: Any) -> None:
    settings.GUILD_HALL_CALLS_PER_MINUTE, settings.GUILD_HALL_MAX_IN_FLIGHT = 60, 7
    principal = principal_with_token(bob)
    assert (principal.limits.calls_per_minute, principal.limits.max_in_flight) == (60, 7)
    principal_with_limits = principal_with_token(bob, calls_per_minute=0, max_in_flight=3)
    assert (principal_with_limits.limits.calls_per_minute, principal_with_limits.limits.max_in_flight) == (0, 3)
    session = principals.principal_of_user(bob)
    assert session.limits == TokenLimits()


def test_an_unknown_token_is_refused() -> None:
    with pytest.raises(TokenError, match="not known"):
        principals.principal_of_token("gh_nobody")


@pytest.mark.parametrize("text", ["", "\ud800", "gh_", "\0"])
def test_any_text_can_be_checked_as_a_token(text: str) -> None:
    with pytest.raises(TokenError):
        principals.principal_of_token(text)


def test_a_revoked_token_is_refused_from_then_on(bob: User) -> None:
    row, token = Token.make(user=bob)
    assert principals.principal_of_token(token).token_id == row.pk
    row.revoke()
    with pytest.raises(TokenError, match="was revoked"):
        principals.principal_of_token(token)


def test_a_token_is_refused_after_it_expires(bob: User) -> None:
    row, token = Token.make(user=bob, expires_at=timezone.now() + timedelta(hours=1))
    principal = principals.principal_of_token(token)
    assert not principal.is_expired
    Token.objects.filter(pk=row.pk).update(expires_at=timezone.now() - timedelta(seconds=1))
    with pytest.raises(TokenError, match="expired at"):
        principals.principal_of_token(token)
    row.refresh_from_db()
    assert row.state == "expired"


def test_a_snapshot_knows_when_its_token_expires() -> None:
    past, future = timezone.now() - timedelta(seconds=1), timezone.now() + timedelta(hours=1)
    assert Principal(1, "bob", expires_at=past).is_expired
    assert not Principal(1, "bob", expires_at=future).is_expired


def test_the_token_of_an_inactive_user_is_refused(bob: User) -> None:
    token = Token.make(user=bob)[1]
    principals.principal_of_token(token)
    User.objects.filter(pk=bob.pk).update(is_active=False)
    with pytest.raises(TokenError, match="not active"):
        principals.principal_of_token(token)


def test_changes_of_the_user_object_of_one_request_reach_no_other_request(bob: User) -> None:
    token = Token.make(user=bob)[1]
    principals.holder_of(token)
    first, second = principals.holder_of(token)[0], principals.holder_of(token)[0]
    assert first == second == bob
    first.username = "somebody else"
    first.has_perm("roster.add_token")  # Django stores the result on the object
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


def test_a_decision_needs_no_query(
    bob: User, notes: GuildMember, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    principal = principal_with_token(bob, scope=Scope.MEMBERS, members=[notes])
    with django_assert_num_queries(0):
        assert sum(principal.may_invoke("notes", f"tool-{number}") for number in range(1000)) == 1000
        principal.may_see("notes")
        principal.may_control("notes")


def test_a_snapshot_is_reused_until_a_change(bob: User, django_assert_num_queries: DjangoAssertNumQueries) -> None:
    token = Token.make(user=bob)[1]
    first = principals.principal_of_token(token)
    with django_assert_num_queries(1):
        assert principals.principal_of_token(token) is first
    principals.principal_of_user(bob)
    with django_assert_num_queries(1):
        principals.principal_of_user(bob)


CHANGES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a token is created": lambda objects: Token.make(user=objects["bob"]),
    "a token is revoked": lambda objects: objects["token"].revoke(),
    "a token is deleted": lambda objects: objects["token"].delete(),
    "a scope is changed": lambda objects: objects["token"].members.add(objects["notes"]),
    "a scope of tools is changed": lambda objects: objects["token"].tools.add(objects["tool"]),
    "a user is disabled": lambda objects: objects["bob"].save(update_fields=["is_active"]),
    "a user is saved": lambda objects: objects["bob"].save(),
    "a user is deleted": lambda objects: objects["bob"].delete(),
    "a user gets a permission": lambda objects: objects["bob"].user_permissions.add(permission("view_call")),
    "a user loses their permissions": lambda objects: objects["bob"].user_permissions.clear(),
    "a user joins a group": lambda objects: objects["bob"].groups.add(objects["writers"]),
    "a group gets a user": lambda objects: objects["writers"].user_set.add(objects["bob"]),
    "a group gets a permission": lambda objects: objects["writers"].permissions.add(permission("invoke_tool")),
    "a group is deleted": lambda objects: objects["writers"].delete(),
    "a member is reserved": lambda objects: reserve_member(objects["notes"], [objects["writers"]]),
    "a group gets a member": lambda objects: objects["writers"].guild_members.add(objects["notes"]),
    "a tool is disabled": lambda objects: set_tool_enabled(objects["tool"], False),
    "a member is disabled": lambda objects: disable_member(objects["notes"]),
    "a member is enabled": lambda objects: enable_member(objects["notes"]),
    "a member is deleted": lambda objects: objects["notes"].delete(),
    "a tool set is created": lambda objects: create_tool_set(Values("reading"), OPERATOR, None),
    "a tool set is reserved": lambda objects: objects["tool_set"].groups.set([objects["writers"]]),
    "a tool set is changed": lambda objects: change_tool_set(
        objects["tool_set"], Values("writing", entries=[Entry("notes")]), OPERATOR
    ),
    "a tool set is deleted": lambda objects: delete_tool_set(objects["tool_set"]),
}


def change_without_signal(model: Any, **columns: Any) -> Callable[[dict[str, Any]], Any]:
    """A change of these columns that sends no signal."""
    return lambda objects: model.objects.update(**columns)


def sql(statement: str) -> Callable[[dict[str, Any]], Any]:
    def run(objects: dict[str, Any]) -> None:
        with connection.cursor() as cursor:
            cursor.execute(statement)

    return run


PAST = timezone.now() - timedelta(days=1)
CHANGES_WITHOUT_SIGNAL: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a user is disabled": change_without_signal(User, is_active=False),
    "a user is disabled in SQL": sql("UPDATE auth_user SET is_active = '0'"),
    "a user becomes a superuser": change_without_signal(User, is_superuser=True),
    "a user is renamed": change_without_signal(User, username="robert"),
    "a token is revoked": change_without_signal(Token, revoked_at=PAST),
    "a token expires": change_without_signal(Token, expires_at=PAST),
    "a token is narrowed": change_without_signal(Token, scope=Scope.MEMBERS),
    "a token is limited": change_without_signal(Token, calls_per_minute=1),
    "a token is deleted": lambda objects: sql(f"DELETE FROM roster_token WHERE id = {objects['token'].pk}")(objects),
    "a user loses a permission": lambda objects: User.user_permissions.through.objects.all().delete(),
    "a user leaves a group": lambda objects: User.groups.through.objects.all().delete(),
    "a group loses a permission": lambda objects: Group.permissions.through.objects.all().delete(),
    "a member is reserved": lambda objects: MemberGroup.objects.bulk_create(
        [MemberGroup(member=objects["notes"], group=objects["empty"])]
    ),
    "a scope loses a member": lambda objects: Token.members.through.objects.all().delete(),
    "a scope loses a tool": lambda objects: Token.tools.through.objects.all().delete(),
    "a tool set gets a member": lambda objects: ToolSetEntry.objects.update(tool_name=""),
    "a tool set loses a tool": lambda objects: ToolSetEntry.objects.all().delete(),
    "a tool set is reserved": lambda objects: ToolSetGroup.objects.bulk_create(
        [ToolSetGroup(tool_set=ToolSet.objects.get(), group=objects["empty"])]
    ),
    "a tool set is renamed": change_without_signal(ToolSet, name="another"),
}


@pytest.mark.parametrize("change", CHANGES_WITHOUT_SIGNAL.values(), ids=CHANGES_WITHOUT_SIGNAL.keys())
def test_a_change_without_a_signal_outdates_the_snapshots_that_it_affects(
    bob: User, notes: GuildMember, writers: Group, change: Callable[[dict[str, Any]], Any]
) -> None:
    """Without a signal the version stays the same, so only the rows show the change."""
    bob.user_permissions.clear()
    bob.user_permissions.add(permission("invoke_tool"))
    writers.permissions.add(permission("view_call"))
    bob.groups.add(writers)
    add_member("reserved").groups.add(writers)
    row, token = Token.make(user=bob)
    in_scope = [
        principal_with_token(bob, scope=Scope.MEMBERS, members=[notes]),
        principal_with_token(bob, scope=Scope.TOOLS, tools=[notes.tools.get(name="add")]),
        principal_with_token(bob, scope=Scope.TOOLS, tool_set=tool_set_of(Entry("notes", "add"))),
    ]
    snapshots = [principals.principal_of_token(token), *in_scope]
    before = principals.version()
    assert not principals.are_outdated(snapshots)
    change({"notes": notes, "token": row, "empty": Group.objects.create(name="empty")})
    assert principals.version() == before
    assert principals.are_outdated(snapshots)


def test_snapshots_without_changes_are_not_outdated(
    bob: User, notes: GuildMember, writers: Group, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    notes.groups.add(writers)
    alice = User.objects.create_superuser("alice")
    charlie = User.objects.create_user("charlie")
    charlie.groups.add(writers)
    writers.permissions.add(permission("control_member"))
    snapshots = [principal_with_token(user) for user in (alice, bob, charlie)]
    snapshots += [
        principal_with_token(bob, scope=Scope.MEMBERS, members=[notes]),
        principal_with_token(bob, calls_per_minute=0),
    ]
    snapshots += [
        principal_with_token(user, scope=Scope.TOOLS, tools=list(notes.tools.all())) for user in (alice, charlie)
    ]
    # An expired snapshot is read again when it is used.
    snapshots.append(Principal(1, "past", token_id=1, expires_at=PAST))
    with django_assert_num_queries(8):
        assert not principals.are_outdated(snapshots)
    assert not principals.are_outdated([])


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_change_with_a_signal_changes_the_version(
    bob: User, notes: GuildMember, writers: Group, change: Callable[[dict[str, Any]], Any]
) -> None:
    token, tool_set = Token.make(user=bob)[0], tool_set_of()
    before = principals.version()
    objects = {"bob": bob, "notes": notes, "writers": writers, "token": token, "tool": notes.tools.get(name="add")}
    change({**objects, "tool_set": tool_set})
    assert principals.version() != before


def test_a_login_and_the_use_of_a_token_do_not_change_the_version(bob: User) -> None:
    token = Token.make(user=bob)[1]
    before = principals.version()
    bob.save(update_fields=["last_login"])
    principals.principal_of_token(token)
    assert principals.version() == before


def test_a_sync_changes_the_version_when_members_are_added_removed_or_disabled(tmp_path: Any) -> None:
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


def test_a_hall_without_a_row_has_no_version_and_stores_no_snapshots(
    bob: User, writers: Group, notes: GuildMember
) -> None:
    Hall.objects.all().delete()
    assert principals.version() is None
    assert principals.principal_of_user(bob).may_invoke("notes", "add")
    notes.groups.add(writers)
    assert not principals.principal_of_user(bob).may_invoke("notes", "add")


# Texts ------------------------------------------------------------------------------------------------------------


def test_a_refusal_names_all_missing_permissions(notes: GuildMember, writers: Group) -> None:
    notes.groups.add(writers)
    charlie = User.objects.create_user("charlie")
    principal = principal_with_token(charlie, name="laptop", scope=Scope.MEMBERS, members=[add_member("other")])
    with pytest.raises(NotAllowedError) as refusal:
        access.require_invoke(principal, "notes", "add")
    text = str(refusal.value)
    assert "roster.invoke_tool, which user 'charlie' does not have." in text
    assert "Member 'notes' is reserved for groups, and user 'charlie' is in none of them." in text
    assert f"The token {principal.token_hint}… (laptop) is for these members alone: other." in text
    with pytest.raises(NotAllowedError, match=r"roster\.control_member"):
        access.require_control(principal, "notes")


def test_a_refusal_does_not_tell_whether_the_tool_exists(bob: User, notes: GuildMember) -> None:
    principal = principal_with_token(bob, scope=Scope.TOOLS, tools=[notes.tools.get(name="add")])
    texts = []
    for tool in ("list", "nothing"):
        with pytest.raises(NotAllowedError) as refusal:
            access.require_invoke(principal, "notes", tool)
        texts.append(str(refusal.value))
    assert texts[0] == texts[1]
    assert "is for these tools alone: notes/add" in texts[0]


def test_an_explanation_of_allowed_names_the_source_of_each_permission(
    bob: User, notes: GuildMember, writers: Group
) -> None:
    notes.groups.add(writers)
    bob.groups.add(writers)
    bob.user_permissions.clear()
    writers.permissions.add(permission("invoke_tool"))
    principal = principal_with_token(bob, name="laptop", scope=Scope.MEMBERS, members=[notes])
    decision = access.explain(principal, "notes", "add")
    assert decision.allowed
    assert decision.reasons == [
        "user 'bob' has the permission roster.invoke_tool by group writers",
        "member 'notes' is reserved for groups, and the user is in writers",
        f"the scope of the token {principal.token_hint}… (laptop) includes it",
        "tool 'add' of member 'notes' is enabled",
    ]


def test_an_explanation_of_not_allowed_gives_every_reason(bob: User, notes: GuildMember) -> None:
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
def test_an_unknown_member_or_tool_is_explained(notes: GuildMember, member: str, tool: str, reason: str) -> None:
    decision = access.explain(OPERATOR, member, tool)
    assert (decision.allowed, decision.reasons) == (False, [reason])


def test_the_permissions_of_the_operator_and_of_superusers_are_explained(notes: GuildMember, writers: Group) -> None:
    notes.groups.add(writers)
    assert "operator" in access.explain(OPERATOR, "notes", "add").reasons[0]
    alice = principals.principal_of_user(User.objects.create_superuser("alice"))
    reasons = access.explain(alice, "notes", "add").reasons
    assert reasons[0] == "user 'alice' is a superuser"
    assert "superusers need not be in" in reasons[1]
