"""New tokens: what may be asked for, and that none is wider than who makes it."""

from __future__ import annotations

from dataclasses import fields
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.utils import timezone

from mcp_runtime.agents import transitions
from mcp_runtime.calls import statements
from mcp_runtime.calls.transitions import Caller
from mcp_runtime.control.agents import create_agent, queue_message
from mcp_runtime.control.calls import queue_call
from mcp_runtime.control.members import find_member, reserve_member
from mcp_runtime.control.tokens import NewToken, make_token, revoke_token
from mcp_runtime.protocol.errors import NotAllowedError, RequestRefusedError, UnknownMemberError, UnknownToolError
from mcp_runtime.rows import lease
from mcp_runtime.security import principals
from mcp_runtime.security.access import OPERATOR, Principal
from mcp_runtime.security.limits import Limits
from roster.models import Call, GuildMember, Token, Tool

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


def make(user: User, maker: Principal = OPERATOR, **values: Any) -> Token:
    return make_token(user, NewToken(**values), maker=maker)[0]


def maker(user: User, **values: Any) -> Principal:
    return principals.principal_of_row(make(user, **values))


def opened(row: Token) -> set[str]:
    """What it is for, as words."""
    return {
        str(row.scope),
        *row.members.values_list("name", flat=True),
        *(f"{tool.member.name}/{tool.name}" for tool in row.tools.select_related("member")),
    }


def test_a_token_is_for_everything_some_members_or_some_tools(alice: User) -> None:
    assert opened(make(alice)) == {"all"}
    assert opened(make(alice, members=["notes", "notes"])) == {"members", "notes"}
    assert opened(make(alice, tools=[("notes", "add")])) == {"tools", "notes/add"}


@pytest.mark.parametrize(
    ("values", "error", "said"),
    [
        ({"members": ["notes"], "tools": [("notes", "add")]}, RequestRefusedError, "give one of them"),
        ({"members": ["nobody"]}, UnknownMemberError, "nobody"),
        ({"tools": [("notes", "fly")]}, UnknownToolError, "fly"),
        ({"name": "x" * 101}, RequestRefusedError, "100 characters"),
        ({"expires_at": timezone.now() - timedelta(seconds=1)}, RequestRefusedError, "would expire"),
        ({"limits": {"max_in_flight": 0}}, RequestRefusedError, "1 or more"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_is_made(
    alice: User, values: dict[str, Any], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        make(alice, **values)
    assert not Token.objects.exists()


@pytest.mark.parametrize(
    ("own", "values"),
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
def test_a_token_makes_none_that_is_wider_than_itself(alice: User, own: dict[str, Any], values: dict[str, Any]) -> None:
    who = maker(alice, **own)
    with pytest.raises(NotAllowedError):
        make(alice, who, **values)
    assert Token.objects.count() == 1


@pytest.mark.parametrize(
    ("own", "values", "expected"),
    [
        ({"members": ["notes"]}, {}, {"members", "notes"}),
        ({"members": ["notes", "example"]}, {"members": ["notes"]}, {"members", "notes"}),
        ({"members": ["notes"]}, {"tools": [("notes", "add")]}, {"tools", "notes/add"}),
        ({"tools": [("notes", "add")]}, {}, {"tools", "notes/add"}),
        ({}, {}, {"all"}),
    ],
)
def test_a_token_makes_what_is_as_wide_as_itself_or_narrower(
    alice: User, own: dict[str, Any], values: dict[str, Any], expected: set[str]
) -> None:
    assert opened(make(alice, maker(alice, **own), **values)) == expected


def test_a_token_hands_on_its_end_and_its_limits(alice: User) -> None:
    end = timezone.now() + timedelta(days=1)
    row = make(alice, maker(alice, expires_at=end, limits={"calls_per_minute": 10, "max_in_flight": 2}))
    assert (row.expires_at, row.calls_per_minute, row.max_in_flight) == (end, 10, 2)
    sooner = make(alice, maker(alice, expires_at=end), expires_at=end - timedelta(hours=1))
    assert sooner.expires_at == end - timedelta(hours=1)


def test_limits_that_are_those_of_all_are_not_written_down(alice: User) -> None:
    row = make(alice, maker(alice))
    assert (row.calls_per_minute, row.max_in_flight) == (None, None)


def test_what_is_counted_of_a_token_has_a_column_and_a_setting() -> None:
    assert [limit.name for limit in Token.LIMITS] == [field.name for field in fields(Limits)]
    assert all(limit.default >= limit.minimum for limit in Token.LIMITS)


def test_what_is_reserved_for_others_is_unknown_to_who_makes_a_token(alice: User) -> None:
    reserve_member(find_member("notes"), [Group.objects.create(name="writers")])
    bob = User.objects.create_user("bob")
    with pytest.raises(UnknownMemberError):
        make(bob, principals.principal_of_user(bob), members=["notes"])
    with pytest.raises(UnknownMemberError):
        make(bob, principals.principal_of_user(bob), tools=[("notes", "add")])


def test_a_token_that_was_made_with_another_ends_with_it(alice: User) -> None:
    first = make(alice)
    second = make(alice, principals.principal_of_row(first), members=["notes"])
    third = make(alice, principals.principal_of_row(second))
    other = make(alice)

    revoke_token(first)

    for row in (first, second, third, other):
        row.refresh_from_db()
    assert [row.state for row in (first, second, third, other)] == ["revoked", "revoked", "revoked", "good"]


def test_a_token_that_was_made_with_one_that_is_deleted_goes_with_it(alice: User) -> None:
    first = make(alice)
    make(alice, principals.principal_of_row(first))
    first.delete()
    assert not Token.objects.exists()


def test_revoking_again_keeps_when_it_was_revoked(alice: User) -> None:
    first = make(alice)
    second = make(alice, principals.principal_of_row(first))
    revoke_token(second)
    earlier = second.revoked_at
    revoke_token(first)
    second.refresh_from_db()
    assert second.revoked_at == earlier


def test_calls_that_were_queued_with_a_token_are_cancelled_with_it(alice: User) -> None:
    lease_id = lease.take()
    schema = {"type": "object", "properties": {"key": {"type": "string", "format": "password"}}}
    Tool.objects.filter(name="add").update(definition={"name": "add", "inputSchema": schema})
    first, other = make(alice), make(alice)
    second = make(alice, principals.principal_of_row(first))
    rows = []
    for token in (second, first, second, other, None):
        who = principals.principal_of_row(token) if token else None
        caller = Caller(Call.Source.REST, alice, who)
        tool, arguments = ("add", {"key": "hush"}) if token is first else ("list", {})
        rows.append(queue_call("notes", tool, arguments, caller=caller)[0])
    assert statements.claim([rows[0].pk], lease_id) == 1

    revoke_token(first)

    for row in rows:
        row.refresh_from_db()
    assert [row.status for row in rows] == ["running", "cancelled", "cancelled", "queued", "queued"]
    assert all(row.finished_at and "revoked" in row.error_message for row in rows[1:3])
    assert "hush" not in str(rows[1].arguments)
    lease.release(lease_id)


def test_an_agent_that_was_asked_with_a_token_ends_with_it(alice: User) -> None:
    lease_id = lease.take()
    first, other = make(alice), make(alice)
    second = make(alice, principals.principal_of_row(first))
    talk = create_agent(["notes"], caller=Caller(Call.Source.REST, alice))
    rows = []
    for token in (second, first, other, None):
        who = principals.principal_of_row(token) if token else None
        rows.append(queue_message(talk, "look", caller=Caller(Call.Source.REST, alice, who)))
    assert transitions.claim(rows[0], lease_id)

    revoke_token(first)

    for row in rows:
        row.refresh_from_db()
    assert [row.status for row in rows] == ["running", "cancelled", "queued", "queued"]
    assert list(transitions.stop_requests(lease_id)) == [rows[0]]
    lease.release(lease_id)
