"""New tokens: which ones are valid, and that no token is wider than the token that creates it."""

from __future__ import annotations

from dataclasses import fields
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.utils import timezone

from mcp_runtime.agents import transitions
from mcp_runtime.calls import statements
from mcp_runtime.calls.transitions import Requester
from mcp_runtime.control.agents import create_agent, queue_message
from mcp_runtime.control.calls import queue_call
from mcp_runtime.control.members import find_member, reserve_member
from mcp_runtime.control.tokens import NewToken, make_token, revoke_token
from mcp_runtime.control.tool_sets import Entry, Values, create_tool_set
from mcp_runtime.protocol.errors import (
    NotAllowedError,
    RequestRefusedError,
    UnknownMemberError,
    UnknownToolError,
    UnknownToolSetError,
)
from mcp_runtime.rows import lease, ownership
from mcp_runtime.security import principals
from mcp_runtime.security.access import OPERATOR, Principal
from mcp_runtime.security.limits import TokenLimits
from roster.models import AuditEntry, Call, GuildMember, Token, Tool, ToolSet

pytestmark = pytest.mark.django_db


@pytest.fixture
def alice() -> User:
    return User.objects.create_superuser("alice")


@pytest.fixture(autouse=True)
def members() -> None:
    for name in ("notes", "example"):
        member = GuildMember.objects.create(name=name, directory=name)
        for tool in ("add", "list"):
            Tool.objects.create(member=member, name=tool, definition={"name": tool})


def make_row(user: User, creator: Principal = OPERATOR, **values: Any) -> Token:
    return make_token(user, NewToken(**values), maker=creator)[0]


def make_principal(user: User, **values: Any) -> Principal:
    return principals.principal_of_row(make_row(user, **values))


def scope_of(row: Token) -> set[str]:
    """The scope of the token as texts."""
    return {
        str(row.scope),
        *row.members.values_list("name", flat=True),
        *(f"{tool.member.name}/{tool.name}" for tool in row.tools.select_related("member")),
    }


def test_a_token_is_for_everything_some_members_or_some_tools(alice: User) -> None:
    assert scope_of(make_row(alice)) == {"all"}
    assert scope_of(make_row(alice, members=["notes", "notes"])) == {"members", "notes"}
    assert scope_of(make_row(alice, tools=[("notes", "add")])) == {"tools", "notes/add"}


@pytest.mark.parametrize(
    ("values", "error", "text"),
    [
        ({"members": ["notes"], "tools": [("notes", "add")]}, RequestRefusedError, "give one of them"),
        ({"members": ["nobody"]}, UnknownMemberError, "nobody"),
        ({"tools": [("notes", "fly")]}, UnknownToolError, "fly"),
        ({"name": "x" * 101}, RequestRefusedError, "100 characters"),
        ({"expires_at": timezone.now() - timedelta(seconds=1)}, RequestRefusedError, "would expire"),
        ({"limits": {"max_in_flight": 0}}, RequestRefusedError, "1 or more"),
    ],
)
def test_an_invalid_token_is_refused_and_not_created(
    alice: User, values: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        make_row(alice, **values)
    assert not Token.objects.exists()


@pytest.mark.parametrize(
    ("creator_values", "values"),
    [
        ({"members": ["notes"]}, {"members": ["example"]}),
        ({"members": ["notes"]}, {"members": ["notes", "example"]}),
        ({"members": ["notes"]}, {"tools": [("example", "add")]}),
        ({"tools": [("notes", "add")]}, {"members": ["notes"]}),
        ({"tools": [("notes", "add")]}, {"tools": [("notes", "list")]}),
        ({"expires_at": timezone.now() + timedelta(days=1)}, {"expires_at": timezone.now() + timedelta(days=2)}),
        ({"limits": {"calls_per_minute": 10}}, {"limits": {"calls_per_minute": 11}}),
        ({"limits": {"calls_per_minute": 10}}, {"limits": {"calls_per_minute": 0}}),
        ({"limits": {"max_in_flight": 2}}, {"limits": {"max_in_flight": 3}}),
    ],
)
def test_a_token_cannot_create_a_wider_token(
    alice: User, creator_values: dict[str, Any], values: dict[str, Any]
) -> None:
    creator = make_principal(alice, **creator_values)
    with pytest.raises(NotAllowedError):
        make_row(alice, creator, **values)
    assert Token.objects.count() == 1


@pytest.mark.parametrize(
    ("creator_values", "values", "expected"),
    [
        ({"members": ["notes"]}, {}, {"members", "notes"}),
        ({"members": ["notes", "example"]}, {"members": ["notes"]}, {"members", "notes"}),
        ({"members": ["notes"]}, {"tools": [("notes", "add")]}, {"tools", "notes/add"}),
        ({"tools": [("notes", "add")]}, {}, {"tools", "notes/add"}),
        ({}, {}, {"all"}),
    ],
)
def test_a_token_can_create_a_token_that_is_not_wider(
    alice: User, creator_values: dict[str, Any], values: dict[str, Any], expected: set[str]
) -> None:
    assert scope_of(make_row(alice, make_principal(alice, **creator_values), **values)) == expected


def test_a_new_token_has_the_end_and_the_limits_of_its_creator(alice: User) -> None:
    end = timezone.now() + timedelta(days=1)
    row = make_row(alice, make_principal(alice, expires_at=end, limits={"calls_per_minute": 10, "max_in_flight": 2}))
    assert (row.expires_at, row.calls_per_minute, row.max_in_flight) == (end, 10, 2)
    second_row = make_row(alice, make_principal(alice, expires_at=end), expires_at=end - timedelta(hours=1))
    assert second_row.expires_at == end - timedelta(hours=1)


def test_default_limits_are_not_stored_in_the_row(alice: User) -> None:
    row = make_row(alice, make_principal(alice))
    assert (row.calls_per_minute, row.max_in_flight) == (None, None)


def test_every_limit_has_a_column_and_a_setting() -> None:
    assert [limit.name for limit in Token.LIMITS] == [field.name for field in fields(TokenLimits)]
    assert all(limit.default >= limit.minimum for limit in Token.LIMITS)


def test_a_reserved_member_is_unknown_to_users_outside_its_groups(alice: User) -> None:
    reserve_member(find_member("notes"), [Group.objects.create(name="writers")])
    bob = User.objects.create_user("bob")
    with pytest.raises(UnknownMemberError):
        make_row(bob, principals.principal_of_user(bob), members=["notes"])
    with pytest.raises(UnknownMemberError):
        make_row(bob, principals.principal_of_user(bob), tools=[("notes", "add")])


def test_a_token_is_revoked_with_the_token_that_created_it(alice: User) -> None:
    first = make_row(alice)
    second = make_row(alice, principals.principal_of_row(first), members=["notes"])
    third = make_row(alice, principals.principal_of_row(second))
    other = make_row(alice)

    revoke_token(first)

    for row in (first, second, third, other):
        row.refresh_from_db()
    assert [row.state for row in (first, second, third, other)] == ["revoked", "revoked", "revoked", "good"]


def test_a_token_is_deleted_with_the_token_that_created_it(alice: User) -> None:
    first = make_row(alice)
    make_row(alice, principals.principal_of_row(first))
    first.delete()
    assert not Token.objects.exists()


def test_a_second_revocation_keeps_the_time_of_the_first(alice: User) -> None:
    first = make_row(alice)
    second = make_row(alice, principals.principal_of_row(first))
    revoke_token(second)
    first_time = second.revoked_at
    revoke_token(first)
    second.refresh_from_db()
    assert second.revoked_at == first_time


def test_queued_calls_of_a_token_are_cancelled_when_it_is_revoked(alice: User) -> None:
    lease_id = lease.take(ownership.take_over_own)
    schema = {"type": "object", "properties": {"key": {"type": "string", "format": "password"}}}
    Tool.objects.filter(name="add").update(definition={"name": "add", "inputSchema": schema})
    first, other = make_row(alice), make_row(alice)
    second = make_row(alice, principals.principal_of_row(first))
    rows = []
    for token in (second, first, second, other, None):
        principal = principals.principal_of_row(token) if token else None
        requester = Requester(Call.Source.REST, alice, principal)
        tool, arguments = ("add", {"key": "hush"}) if token is first else ("list", {})
        rows.append(queue_call("notes", tool, arguments, requester=requester)[0])
    assert statements.claim([rows[0].pk], lease_id) == 1

    revoke_token(first)

    for row in rows:
        row.refresh_from_db()
    assert [row.status for row in rows] == ["running", "cancelled", "cancelled", "queued", "queued"]
    assert all(row.finished_at and "revoked" in row.error_message for row in rows[1:3])
    assert "hush" not in str(rows[1].arguments)
    lease.release(lease_id)


def test_messages_of_a_token_are_cancelled_when_it_is_revoked(alice: User) -> None:
    lease_id = lease.take()
    first, other = make_row(alice), make_row(alice)
    second = make_row(alice, principals.principal_of_row(first))
    agent = create_agent(["notes"], requester=Requester(Call.Source.REST, alice))
    rows = []
    for token in (second, first, other, None):
        principal = principals.principal_of_row(token) if token else None
        rows.append(queue_message(agent, "look", requester=Requester(Call.Source.REST, alice, principal)))
    assert transitions.claim(rows[0], lease_id)

    revoke_token(first)

    for row in rows:
        row.refresh_from_db()
    assert [row.status for row in rows] == ["running", "cancelled", "queued", "queued"]
    assert list(transitions.stop_requests(lease_id)) == [rows[0]]
    lease.release(lease_id)


# Tool sets ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def writing() -> ToolSet:
    return create_tool_set(Values("writing", entries=[Entry("notes")]), OPERATOR, None)


def test_a_token_for_a_tool_set_creates_only_tokens_for_it(alice: User, writing: ToolSet) -> None:
    create_tool_set(Values("other"), OPERATOR, None)
    row = make_row(alice, tool_set="writing")
    assert (row.scope, row.tool_set) == ("tools", writing)
    creator = principals.principal_of_row(row)
    for values in ({}, {"tool_set": "writing"}):
        assert make_row(alice, creator, **values).tool_set == writing
    for values in ({"tool_set": "other"}, {"members": ["notes"]}, {"tools": [("notes", "add")]}):
        with pytest.raises(NotAllowedError, match="only create tokens for the same set"):
            make_row(alice, creator, **values)


def test_a_narrowed_token_creates_no_token_for_a_tool_set(alice: User, writing: ToolSet) -> None:
    for scope in ({"members": ["notes"]}, {"tools": [("notes", "add")]}):
        with pytest.raises(NotAllowedError, match="cannot create a token for a tool set"):
            make_row(alice, make_principal(alice, **scope), tool_set="writing")


def test_a_token_for_a_tool_set_has_no_other_scope_and_needs_the_set(alice: User, writing: ToolSet) -> None:
    with pytest.raises(RequestRefusedError, match="give one of them"):
        make_row(alice, tool_set="writing", members=["notes"])
    with pytest.raises(UnknownToolSetError):
        make_row(alice, tool_set="nobody")
    circle = Group.objects.create(name="circle")
    writing.groups.add(circle)
    with pytest.raises(UnknownToolSetError):
        make_row(alice, principals.principal_of_user(User.objects.create_user("bob")), tool_set="writing")


# Search mode ------------------------------------------------------------------------------------------------------


def test_a_token_in_search_mode_may_pin_tools(alice: User) -> None:
    principal = make_principal(alice)
    assert (principal.searches, principal.pinned) == (False, frozenset())
    pinned = [("notes", "add"), ("example", "list"), ("notes", "add")]
    row = make_row(alice, search_mode=True, pinned_tools=pinned)
    assert row.pinned_tools == ["notes/add", "example/list"]
    principal = principals.principal_of_row(row)
    assert (principal.searches, principal.pinned) == (True, {("notes", "add"), ("example", "list")})
    entry = AuditEntry.objects.latest("id")
    assert (entry.after["search_mode"], entry.after["pinned_tools"]) == (True, ["notes/add", "example/list"])


def test_pinned_tools_have_a_maximum_number_and_need_the_search_mode(alice: User) -> None:
    with pytest.raises(RequestRefusedError, match="only in search mode"):
        make_row(alice, pinned_tools=[("notes", "add")])
    member = GuildMember.objects.get(name="notes")
    names = [f"t{number}" for number in range(Token.MAX_PINNED + 1)]
    Tool.objects.bulk_create(Tool(member=member, name=name, definition={"name": name}) for name in names)
    with pytest.raises(RequestRefusedError, match="can have 20 pinned tools, not 21"):
        make_row(alice, search_mode=True, pinned_tools=[("notes", name) for name in names])
    row = make_row(alice, search_mode=True, pinned_tools=[("notes", name) for name in names[1:]])
    assert len(row.pinned_tools) == 20


@pytest.mark.parametrize(
    "scope", [{"members": ["example"]}, {"tools": [("notes", "list")]}, {"tool_set": "writing"}, {"tool_set": "empty"}]
)
def test_a_token_cannot_pin_a_tool_outside_of_its_scope(alice: User, scope: dict[str, Any]) -> None:
    create_tool_set(Values("writing", entries=(Entry("notes", "list"), Entry("example"))), OPERATOR, None)
    create_tool_set(Values("empty"), OPERATOR, None)
    with pytest.raises(RequestRefusedError, match="the token is not for tool 'add' of member 'notes'"):
        make_row(alice, search_mode=True, pinned_tools=[("notes", "add")], **scope)
    if scope in ({"members": ["example"]}, {"tool_set": "writing"}):
        assert make_row(alice, search_mode=True, pinned_tools=[("example", "add")], **scope).pinned_tools


def test_a_token_cannot_pin_what_its_creator_may_not_use(alice: User) -> None:
    creator = make_principal(alice, members=["example"])
    with pytest.raises(NotAllowedError):
        make_row(alice, creator, search_mode=True, pinned_tools=[("notes", "add")])
    with pytest.raises(UnknownToolError):
        make_row(alice, search_mode=True, pinned_tools=[("notes", "nothing")])


def test_a_token_does_not_inherit_the_mode_of_its_creator(alice: User) -> None:
    """It is no right."""
    creator = make_principal(alice, search_mode=True, pinned_tools=[("notes", "add")])
    row = make_row(alice, creator)
    assert (row.search_mode, row.pinned_tools) == (False, [])
