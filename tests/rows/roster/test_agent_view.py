"""What an agent sees, and trimming it. Through the pages of the admin."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from mcp_runtime.control.tokens import NewToken, make_token, narrow_token
from mcp_runtime.control.tool_sets import Entry, Values, create_tool_set
from mcp_runtime.protocol.errors import RequestRefusedError
from mcp_runtime.security import principals
from roster import agent_view
from roster.models import AuditEntry, Call, GuildMember, Token, Tool, ToolSet

pytestmark = pytest.mark.django_db


@pytest.fixture
def bob() -> User:
    bob = User.objects.create_user("bob", is_staff=True)
    words = ["invoke_tool", "view_token", "delete_token", "view_toolset", "change_toolset", "view_call"]
    bob.user_permissions.set(Permission.objects.filter(codename__in=words))
    return bob


@pytest.fixture
def as_bob(bob: User) -> Client:
    client = Client()
    client.force_login(bob)
    return client


@pytest.fixture(autouse=True)
def members() -> None:
    for name, tools in {"notes": ("add", "find"), "example": ("echo", "count")}.items():
        member = GuildMember.objects.create(name=name, directory=name)
        for tool in tools:
            definition = {
                "name": tool,
                "inputSchema": {"type": "object"},
                "description": "x" * (400 if tool == "find" else 4),
            }
            Tool.objects.create(member=member, name=tool, definition=definition)


def token_of(user: User, **values: Any) -> Token:
    return make_token(user, NewToken(**values), maker=principals.principal_of_user(user))[0]


def call(member: str, tool: str, *, days_ago: float = 0, **columns: Any) -> None:
    row = GuildMember.objects.get(name=member)
    moment = timezone.now() - timedelta(days=days_ago)
    Call.objects.create(member=row, tool_name=tool, arguments={}, timeout=10, queued_at=moment, **columns)


def page_of(row: Token | ToolSet) -> str:
    return reverse(f"admin:roster_{row._meta.model_name}_view", args=[row.pk])


def test_the_tools_that_cost_most_come_first_with_the_calls_of_the_last_days(bob: User) -> None:
    token, other = token_of(bob), token_of(bob)
    call("notes", "add", token=token)
    call("notes", "add", token=token, days_ago=29)
    call("example", "echo", token=token, days_ago=31)
    call("example", "count", token=other)
    view = agent_view.of_token(token)
    assert [(tool.key, calls) for tool, calls in view.most_expensive(4)] == [
        (("notes", "find"), 0),
        (("example", "count"), 0),
        (("example", "echo"), 0),
        (("notes", "add"), 2),
    ]
    (first, _), (second, _) = view.most_expensive(2)
    assert first.name == "notes__find"
    assert view.total.tokens > 100 + second.cost.tokens
    assert (view.unused.tools, view.counts, view.days) == (3, {("notes", "add"): 2}, 30)


def test_calls_are_counted_only_as_long_as_they_are_kept(bob: User, settings: Any) -> None:
    settings.GUILD_HALL_KEEP_CALLS_DAYS = 3
    token = token_of(bob)
    call("notes", "add", token=token, days_ago=4)
    view = agent_view.of_token(token)
    assert (view.days, view.counts) == (3, {})


def test_one_click_narrows_a_token_to_the_tools_that_it_called(bob: User, as_bob: Client) -> None:
    token = token_of(bob, search_mode=False)
    call("notes", "add", token=token)
    call("example", "echo", token=token)
    call("example", "gone", token=token)
    page = as_bob.get(page_of(token)).content.decode()
    assert "Keep only the 2 tools that were called" in page
    assert "example__count" in page
    page = as_bob.post(page_of(token), follow=True).content.decode()
    assert "now has the 2 tools that were called" in page
    assert "Keep only" not in page
    principal = principals.principal_of_row(Token.objects.get(pk=token.pk))
    assert principal.tools == {("notes", "add"), ("example", "echo")}
    entry = AuditEntry.objects.filter(kind=AuditEntry.Kind.TOKEN_CHANGED).get()
    assert (entry.before["scope"], sorted(entry.after["tools"])) == ("all", ["example/echo", "notes/add"])


def test_a_token_that_was_not_used_is_not_trimmed(bob: User, as_bob: Client) -> None:
    token = token_of(bob)
    assert "Keep only" not in as_bob.get(page_of(token)).content.decode()
    assert "Not trimmed" in as_bob.post(page_of(token), follow=True).content.decode()
    token.refresh_from_db()
    assert token.scope == Token.Scope.ALL


def test_a_token_in_search_mode_says_so_and_is_not_trimmed(bob: User, as_bob: Client) -> None:
    token = token_of(bob, search_mode=True, pinned_tools=[("notes", "add"), ("notes", "find")])
    call("notes", "add", token=token)
    page = as_bob.get(page_of(token)).content.decode()
    assert "search mode" in page
    assert ("notes__find" in page, "example__echo" in page, "Keep only" in page) == (True, False, False)


def test_a_revoked_token_sees_nothing(bob: User, as_bob: Client) -> None:
    token = token_of(bob)
    call("notes", "add", token=token)
    token.revoke()
    page = as_bob.get(page_of(token)).content.decode()
    assert "revoked" in page
    assert "notes__add" not in page
    assert "Not trimmed" in as_bob.post(page_of(token), follow=True).content.decode()
    assert Token.objects.get(pk=token.pk).scope == Token.Scope.ALL


def test_a_token_for_a_tool_set_sees_the_names_of_the_set_and_follows_the_set(bob: User, as_bob: Client) -> None:
    principal = principals.principal_of_user(bob)
    create_tool_set(Values("both", entries=[Entry("notes"), Entry("example", "echo", "say")]), principal, bob)
    token = token_of(bob, tool_set="both")
    call("example", "echo", token=token, tool_set="both")
    page = as_bob.get(page_of(token)).content.decode()
    assert ("say" in page, "Keep only" in page, "trim the tool set" in page) == (True, False, True)
    assert "Not trimmed" in as_bob.post(page_of(token), follow=True).content.decode()
    token = Token.objects.get(pk=token.pk)
    assert (token.tool_set is not None, token.tools.count()) == (True, 0)
    with pytest.raises(RequestRefusedError, match="tool set"):
        narrow_token(token, {("example", "echo")})


def test_a_tool_that_was_called_and_is_held_now_stays(bob: User, as_bob: Client) -> None:
    token = token_of(bob)
    both = create_tool_set(
        Values("both", entries=[Entry("notes"), Entry("example", "echo", "say")]),
        principals.principal_of_user(bob),
        bob,
    )
    for tool in ("add", "find"):
        call("notes", tool, token=token, tool_set="both")
    Tool.objects.filter(name="find").update(is_held=True)
    as_bob.post(page_of(token))
    assert principals.principal_of_row(Token.objects.get(pk=token.pk)).tools == {("notes", "add"), ("notes", "find")}
    as_bob.post(page_of(both))
    assert list(both.entries.values_list("tool_name", flat=True)) == [""]  # nothing of notes is unused
    Tool.objects.filter(name="find").update(is_held=False)
    Call.objects.filter(tool_name="find").delete()
    Tool.objects.filter(name="add").update(is_held=True)
    call("example", "echo", tool_set="both")
    both = create_tool_set(
        Values("more", entries=[Entry("notes"), Entry("example", "echo", "say")]),
        principals.principal_of_user(bob),
        bob,
    )
    Call.objects.update(tool_set="more")
    as_bob.post(page_of(both))
    assert list(both.entries.values_list("tool_name", "new_name")) == [("add", ""), ("echo", "say")]


def test_the_token_of_somebody_else_has_no_page(bob: User, as_bob: Client) -> None:
    eve = User.objects.create_user("eve")
    eve.user_permissions.set(bob.user_permissions.all())
    token = token_of(eve)
    assert as_bob.get(page_of(token)).status_code == 403
    assert as_bob.post(page_of(token)).status_code == 403


@pytest.fixture
def both(bob: User) -> ToolSet:
    entries = [Entry("notes"), Entry("example", "echo", "say"), Entry("example", "count")]
    return create_tool_set(Values("both", "Both", entries=entries), principals.principal_of_user(bob), bob)


def test_a_tool_set_keeps_the_tools_that_were_called_in_it(both: ToolSet, as_bob: Client) -> None:
    call("notes", "add", tool_set="both")
    call("example", "echo", tool_set="both")
    call("example", "count", tool_set="other")
    assert "Keep only the 2 tools that were called" in as_bob.get(page_of(both)).content.decode()
    as_bob.post(page_of(both))
    entries = both.entries.values_list("member__name", "tool_name", "new_name")
    assert list(entries) == [("notes", "add", ""), ("example", "echo", "say")]
    assert ToolSet.objects.get().title == "Both"


def test_who_sees_only_own_calls_cannot_trim_a_tool_set(both: ToolSet, bob: User, as_bob: Client) -> None:
    bob.user_permissions.remove(Permission.objects.get(codename="view_call"))
    call("notes", "add", tool_set="both")
    call("example", "echo", tool_set="both", requested_by=bob)
    page = as_bob.get(page_of(both)).content.decode()
    assert "only your own" in page
    assert "Keep only" not in page
    assert "Not trimmed" in as_bob.post(page_of(both), follow=True).content.decode()
    assert both.entries.count() == 3


def test_who_may_not_change_tool_sets_sees_the_page_without_the_button(
    both: ToolSet, bob: User, as_bob: Client
) -> None:
    bob.user_permissions.remove(Permission.objects.get(codename="change_toolset"))
    call("notes", "add", tool_set="both")
    assert "Keep only" not in as_bob.get(page_of(both)).content.decode()
    assert as_bob.post(page_of(both)).status_code == 403
    assert both.entries.count() == 3
