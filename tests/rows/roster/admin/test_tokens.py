"""Tokens in the admin: they are created, shown once, and revoked."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.auth.models import Group, User
from django.contrib.staticfiles import finders
from django.test import Client, RequestFactory
from django.urls import reverse

from mcp_runtime.calls.transitions import Requester
from mcp_runtime.control.calls import queue_call
from mcp_runtime.security import principals
from roster.admin.tokens.screens import TokenAdmin
from roster.models import Call, GuildMember, Token, Tool
from tests.support.admin import ADD_TOKEN, act, allow, html, list_of, page_of

pytestmark = pytest.mark.django_db


def test_a_new_token_is_shown_only_once(page: Client, alice: User) -> None:
    response = page.post(reverse(ADD_TOKEN), {"user": alice.pk, "name": "laptop", "scope": "all"}, follow=True)

    (token,) = re.findall(r"gh_[\w-]{43}", html(response))
    row = Token.objects.get()
    assert row.digest == Token.digest_of(token)
    assert row.name == "laptop"
    for address in [list_of("token"), page_of(row), reverse("admin:index")]:
        text = html(page.get(address))
        assert token not in text
        assert row.digest not in text


def test_the_list_says_of_a_token_that_it_never_ends_and_was_never_used(page: Client, alice: User) -> None:
    Token.make(user=alice, name="laptop")

    text = html(page.get(list_of("token")))

    assert re.search(r'class="field-expires[^"]*">never<', text)
    assert re.search(r'class="field-last_used[^"]*">never<', text)


def test_the_form_names_the_zone_of_the_end(page: Client, alice: User) -> None:
    assert "Expires at (UTC):" in html(page.get(reverse(ADD_TOKEN)))


def test_a_token_is_created_with_scope_end_and_limits(page: Client, alice: User, echo: Tool) -> None:
    values = {"expires_at_0": "2099-01-31", "expires_at_1": "12:00:00", "calls_per_minute": "7", "max_in_flight": "2"}
    form = {"user": alice.pk, "name": "narrow", "scope": "tools", "tools": [echo.pk], **values}
    assert "example/echo" in html(page.get(reverse(ADD_TOKEN)))
    assert page.post(reverse(ADD_TOKEN), form).status_code == 302
    row = Token.objects.get()
    assert (row.scope, list(row.tools.all()), list(row.members.all())) == ("tools", [echo], [])
    assert (row.calls_per_minute, row.max_in_flight) == (7, 2)
    assert row.expires_at is not None
    assert row.expires_at.isoformat() == "2099-01-31T12:00:00+00:00"
    text = html(page.get(page_of(row)))
    for part in ("example/echo", "2099-01-31 12:00:00", "calls per minute: 7; concurrent calls: 2", "good"):
        assert part in text


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"scope": "members"}, "The scope is “Some members”. Choose at least one."),
        ({"scope": "tools"}, "The scope is “Some tools”. Choose at least one."),
        (
            {"scope": "all", "members": "chosen"},
            "This scope does not use members. Remove the chosen members, or change the scope.",
        ),
        (
            {"scope": "all", "expires_at_0": "2001-01-31", "expires_at_1": "12:00:00"},
            "This time is in the past. Choose a later time.",
        ),
        ({"scope": "all", "max_in_flight": "0"}, "greater than or equal to 1"),
    ],
)
def test_an_inconsistent_token_is_not_created(
    page: Client, alice: User, example: GuildMember, values: dict[str, Any], text: str
) -> None:
    values = {key: example.pk if value == "chosen" else value for key, value in values.items()}
    assert text in html(page.post(reverse(ADD_TOKEN), {"user": alice.pk, **values}))
    assert not Token.objects.exists()


def test_users_create_see_and_revoke_only_their_own_tokens(client: Client, alice: User, bob: User) -> None:
    token_of_alice, _ = Token.make(user=alice)
    allow(bob, "add_token", "view_token", "delete_token")
    client.force_login(bob)

    values = {"user": alice.pk, "scope": "all"}
    assert "Select a valid choice" in html(client.post(reverse(ADD_TOKEN), values))
    assert client.post(reverse(ADD_TOKEN), {**values, "user": bob.pk}).status_code == 302
    token_of_bob = Token.objects.get(user=bob)
    assert list(client.get(list_of("token")).context["cl"].result_list) == [token_of_bob]
    act(client, "token", "revoke", token_of_alice, token_of_bob)
    assert client.post(reverse("admin:roster_token_revoke", args=[token_of_alice.pk])).status_code == 403
    assert set(Token.objects.exclude(revoked_at=None)) == {token_of_bob}
    client.post(reverse("admin:roster_token_delete", args=[token_of_alice.pk]), {"post": "yes"})
    client.post(reverse("admin:roster_token_delete", args=[token_of_bob.pk]), {"post": "yes"})
    assert Token.objects.get() == token_of_alice


@pytest.mark.parametrize("screen", ["its page", "the list"])
def test_the_deletion_of_a_token_cancels_its_queued_calls(page: Client, alice: User, echo: Tool, screen: str) -> None:
    row, _ = Token.make(user=alice)
    requester = Requester(Call.Source.REST, alice, principals.principal_of_row(row))
    call, _ = queue_call("example", "echo", {"text": "later"}, requester=requester)

    if screen == "its page":
        page.post(reverse("admin:roster_token_delete", args=[row.pk]), {"post": "yes"})
    else:
        page.post(list_of("token"), {"action": "delete_selected", "_selected_action": [row.pk], "post": "yes"})

    call.refresh_from_db()
    assert (call.status, call.token_id, Token.objects.exists()) == ("cancelled", None, False)


def test_the_button_revokes_at_once_and_then_disappears(page: Client, alice: User) -> None:
    row, token = Token.make(user=alice, name="laptop")
    button = reverse("admin:roster_token_revoke", args=[row.pk])
    assert button in html(page.get(page_of(row)))
    assert page.get(button).status_code == 405
    text = html(page.post(button, follow=True))
    assert "Revoked (1)" in text
    assert button not in text
    assert Client(headers={"Authorization": f"Bearer {token}"}).get("/api/roster/").status_code == 401
    assert "it is already revoked" in html(act(page, "token", "revoke", row))


@pytest.mark.parametrize("state", Token.STATES)
def test_every_state_of_a_token_has_a_colour(state: str) -> None:
    path = finders.find("roster/admin.css")
    assert isinstance(path, str)
    assert Path(path).read_text().count(f".status-{state}") == 3


def test_a_token_in_search_mode_is_created_with_pinned_tools(page: Client, alice: User, echo: Tool) -> None:
    form = {"user": alice.pk, "name": "small", "scope": "all", "pinned_tools": [echo.pk]}
    text = html(page.post(reverse(ADD_TOKEN), form))
    assert "Only a token in search mode has pinned tools." in text
    assert not Token.objects.exists()
    assert page.post(reverse(ADD_TOKEN), {**form, "search_mode": "on"}).status_code == 302
    row = Token.objects.get()
    assert (row.search_mode, row.pinned_tools) == (True, ["example/echo"])
    text = html(page.get(page_of(row)))
    assert "search mode: three tools that find and call all others, and example/echo" in text
    assert "<strong>4 tools</strong>" in text
    assert "the tools that search" in text


def test_a_token_of_the_admin_has_at_most_20_pinned_tools(page: Client, alice: User, example: GuildMember) -> None:
    names = [f"t{number}" for number in range(21)]
    tools = [Tool.objects.create(member=example, name=name, definition={"name": name}) for name in names]
    form = {"user": alice.pk, "scope": "all", "search_mode": "on", "pinned_tools": [tool.pk for tool in tools]}
    assert "Choose at most 20 tools, not 21." in html(page.post(reverse(ADD_TOKEN), form))
    assert not Token.objects.exists()


def test_the_form_offers_no_pinned_tool_of_a_member_that_is_reserved_for_others(
    page: Client, alice: User, echo: Tool
) -> None:
    bob = User.objects.create_user("bob", is_staff=True)
    allow(bob, "add_token", "view_token")
    echo.member.groups.add(Group.objects.create(name="circle"))
    page.force_login(bob)
    assert "example/echo" not in html(page.get(reverse(ADD_TOKEN)))
    form = {"user": bob.pk, "scope": "all", "search_mode": "on", "pinned_tools": [echo.pk]}
    assert page.post(reverse(ADD_TOKEN), form).status_code == 200
    assert not Token.objects.exists()


def test_the_form_of_a_request_has_no_pinned_tools_of_a_request_that_runs_beside_it(
    alice: User, bob: User, example: GuildMember, echo: Tool, rf: RequestFactory
) -> None:
    example.groups.add(Group.objects.create(name="others"))
    screen, forms = TokenAdmin(Token, admin.site), []
    for user in (bob, alice):  # alice may use all members
        request = rf.get("/")
        request.user = user
        forms.append(screen.get_form(request))
    offered = [list(form.base_fields["pinned_tools"].queryset) for form in forms]  # type: ignore[attr-defined]
    assert offered == [[], [echo]]
