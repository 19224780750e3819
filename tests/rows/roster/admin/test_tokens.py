"""Tokens in the admin: made, shown once, revoked."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.contrib.staticfiles import finders
from django.test import Client
from django.urls import reverse

from mcp_runtime.calls.transitions import Caller
from mcp_runtime.control.calls import queue_call
from mcp_runtime.security import principals
from roster.models import Call, GuildMember, Token, Tool
from tests.support.admin import ADD_TOKEN, act, allow, html, list_of, page_of

pytestmark = pytest.mark.django_db


def test_a_new_token_is_shown_once_and_never_again(page: Client, alice: User) -> None:
    response = page.post(reverse(ADD_TOKEN), {"user": alice.pk, "name": "laptop", "scope": "all"}, follow=True)

    (token,) = re.findall(r"gh_[\w-]{43}", html(response))
    row = Token.objects.get()
    assert row.digest == Token.digest_of(token)
    assert row.name == "laptop"
    for address in [list_of("token"), page_of(row), reverse("admin:index")]:
        text = html(page.get(address))
        assert token not in text
        assert row.digest not in text


def test_a_token_is_made_with_scope_end_and_limits(page: Client, alice: User, echo: Tool) -> None:
    values = {"expires_at_0": "2099-01-31", "expires_at_1": "12:00:00", "calls_per_minute": "7", "max_in_flight": "2"}
    form = {"user": alice.pk, "name": "narrow", "scope": "tools", "tools": [echo.pk], **values}
    assert "example/echo" in html(page.get(reverse(ADD_TOKEN)))
    assert page.post(reverse(ADD_TOKEN), form).status_code == 302
    row = Token.objects.get()
    assert (row.scope, list(row.tools.all()), list(row.members.all())) == ("tools", [echo], [])
    assert (row.calls_per_minute, row.max_in_flight) == (7, 2)
    assert row.expires_at is not None
    assert row.expires_at.isoformat() == "2099-01-31T12:00:00+00:00"
    shown = html(page.get(page_of(row)))
    for said in ("example/echo", "2099-01-31 12:00:00", "calls per minute: 7; concurrent calls: 2", "good"):
        assert said in shown


@pytest.mark.parametrize(
    ("values", "said"),
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
def test_a_token_that_would_not_be_what_was_meant_is_not_made(
    page: Client, alice: User, example: GuildMember, values: dict[str, Any], said: str
) -> None:
    values = {key: example.pk if value == "chosen" else value for key, value in values.items()}
    assert said in html(page.post(reverse(ADD_TOKEN), {"user": alice.pk, **values}))
    assert not Token.objects.exists()


def test_others_make_see_and_revoke_only_their_own_tokens(client: Client, alice: User, bob: User) -> None:
    hers, _ = Token.make(user=alice)
    allow(bob, "add_token", "view_token", "delete_token")
    client.force_login(bob)

    values = {"user": alice.pk, "scope": "all"}
    assert "Select a valid choice" in html(client.post(reverse(ADD_TOKEN), values))
    assert client.post(reverse(ADD_TOKEN), {**values, "user": bob.pk}).status_code == 302
    his = Token.objects.get(user=bob)
    assert list(client.get(list_of("token")).context["cl"].result_list) == [his]
    act(client, "token", "revoke", hers, his)
    assert client.post(reverse("admin:roster_token_revoke", args=[hers.pk])).status_code == 403
    assert set(Token.objects.exclude(revoked_at=None)) == {his}
    client.post(reverse("admin:roster_token_delete", args=[hers.pk]), {"post": "yes"})
    client.post(reverse("admin:roster_token_delete", args=[his.pk]), {"post": "yes"})
    assert Token.objects.get() == hers


@pytest.mark.parametrize("by", ["its page", "the list"])
def test_a_token_that_is_deleted_takes_its_queued_calls_along(page: Client, alice: User, echo: Tool, by: str) -> None:
    row, _ = Token.make(user=alice)
    caller = Caller(Call.Source.REST, alice, principals.principal_of_row(row))
    call, _ = queue_call("example", "echo", {"text": "later"}, caller=caller)

    if by == "its page":
        page.post(reverse("admin:roster_token_delete", args=[row.pk]), {"post": "yes"})
    else:
        page.post(list_of("token"), {"action": "delete_selected", "_selected_action": [row.pk], "post": "yes"})

    call.refresh_from_db()
    assert (call.status, call.token_id, Token.objects.exists()) == ("cancelled", None, False)


def test_the_button_revokes_at_once_and_is_gone_afterwards(page: Client, alice: User) -> None:
    row, token = Token.make(user=alice, name="laptop")
    button = reverse("admin:roster_token_revoke", args=[row.pk])
    assert button in html(page.get(page_of(row)))
    assert page.get(button).status_code == 405
    shown = html(page.post(button, follow=True))
    assert "Revoked (1)" in shown
    assert button not in shown
    assert Client(headers={"Authorization": f"Bearer {token}"}).get("/api/roster/").status_code == 401
    assert "it is already revoked" in html(act(page, "token", "revoke", row))


@pytest.mark.parametrize("state", ["good", "expired", "revoked"])
def test_every_state_of_a_token_has_a_colour(state: str) -> None:
    found = finders.find("roster/admin.css")
    assert isinstance(found, str)
    assert Path(found).read_text().count(f".status-{state}") == 3
