"""Choices that grow with the hall: a form has a few of them, and a search finds the rest."""

from __future__ import annotations

import re

import pytest
from django.contrib.auth.models import Group, User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from roster.admin.choosing import GONE, MAX_FOUND, MAX_OTHERS
from roster.models import Agent, GuildMember, Secret, Token, Tool
from tests.support.admin import ADD_TOKEN, EVIL, allow, html, make_member, make_tool

pytestmark = pytest.mark.django_db

NEW_AGENT = "admin:roster_agent_new"


def make_tools(count: int) -> GuildMember:
    member = make_member("many")
    names = [f"tool-{number:04}" for number in range(count)]
    Tool.objects.bulk_create(
        Tool(member=member, name=name, position=place, definition={"name": name, "description": "Counts sheep."})
        for place, name in enumerate(names)
    )
    return member


def found(client: Client, offer: str, query: str = "") -> dict[str, str]:
    """The values of what the search finds, by their labels, in order."""
    text = html(client.get(reverse("admin:choices", args=[offer]), {"q": query}))
    return {label: value for value, label in re.findall(r'value="([^"]*)"> (.*?)</label>', text)}


def boxes(text: str, field: str) -> list[tuple[str, bool]]:
    """The values of the checkboxes of a field, each with whether it is checked."""
    pairs = re.findall(rf'<input type="checkbox" name="{field}" value="([^"]*)"( checked)?>', text)
    return [(value, bool(checked)) for value, checked in pairs]


def test_the_form_of_a_token_has_only_the_first_tools_of_many(page: Client) -> None:
    make_tools(MAX_OTHERS + 30)
    text = html(page.get(reverse(ADD_TOKEN)))
    assert len(boxes(text, "tools")) == len(boxes(text, "pinned_tools")) == MAX_OTHERS
    assert f"These are the first {MAX_OTHERS} tools. Type to find others." in text


def test_the_form_of_a_token_costs_the_same_queries_for_ten_tools_and_for_a_thousand(page: Client) -> None:
    def count() -> int:
        with CaptureQueriesContext(connection) as queries:
            page.get(reverse(ADD_TOKEN))
        return len(queries)

    make_tools(10)
    count()
    few = count()
    GuildMember.objects.all().delete()
    make_tools(1000)
    assert count() == few


def test_a_search_finds_a_tool_behind_the_first_ones_the_best_match_first(page: Client) -> None:
    member = make_tools(200)
    make_tool(member, "sheep")
    assert "many/tool-0150" in found(page, "token-tools", "0150")
    assert next(iter(found(page, "token-tools", "sheep"))) == "many/sheep"
    assert len(found(page, "token-tools", "sheep")) == MAX_FOUND
    assert found(page, "token-tools", "sheep nothing") == {}
    assert len(found(page, "token-tools")) == MAX_FOUND


def test_what_was_chosen_is_in_the_form_again_after_a_fault(page: Client, alice: User) -> None:
    member = make_tools(100)
    last = member.tools.get(name="tool-0099")
    form = {"user": alice.pk, "scope": "members", "tools": [last.pk]}
    text = html(page.post(reverse(ADD_TOKEN), form))
    assert boxes(text, "tools")[0] == (str(last.pk), True)
    assert page.post(reverse(ADD_TOKEN), {**form, "scope": "tools"}).status_code == 302
    assert list(Token.objects.get().tools.all()) == [last]


@pytest.mark.parametrize("value", ["999999999", "no number", "9" * 30, "a\0b"])
def test_a_tool_that_is_gone_is_told_and_removed_from_the_choice(
    page: Client, alice: User, echo: Tool, value: str
) -> None:
    form = {"user": alice.pk, "scope": "tools", "tools": [echo.pk, value]}
    text = html(page.post(reverse(ADD_TOKEN), form))
    assert not Token.objects.exists()
    assert GONE in text
    assert [box for box in boxes(text, "tools") if box[1]] == [(str(echo.pk), True)]


def test_nobody_finds_or_chooses_what_is_reserved_for_others(client: Client, bob: User, echo: Tool) -> None:
    allow(bob, "add_token", "view_token", "invoke_tool", "add_secret")
    hidden = make_member("hidden")
    hidden.groups.add(Group.objects.create(name="circle"))
    secret_tool = make_tool(hidden, "whisper")
    client.force_login(bob)

    for offer in ("token-members", "agent-members", "secret-members"):
        assert list(found(client, offer)) == ["example"]
        assert found(client, offer, "hidden") == {}
    assert found(client, "token-tools", "whisper") == {}
    assert list(found(client, "token-tools")) == ["example/echo"]
    form = {"user": bob.pk, "scope": "tools", "tools": [secret_tool.pk]}
    text = html(client.post(reverse(ADD_TOKEN), form))
    assert GONE in text
    assert "whisper" not in text
    assert not Token.objects.exists()


def test_a_reserved_tool_and_one_that_does_not_exist_get_the_same_answer(client: Client, bob: User, echo: Tool) -> None:
    allow(bob, "add_token")
    echo.member.groups.add(Group.objects.create(name="circle"))
    client.force_login(bob)

    def refusal(value: int) -> str:
        text = html(client.post(reverse(ADD_TOKEN), {"user": bob.pk, "scope": "tools", "tools": [value]}))
        return re.sub(r'name="csrfmiddlewaretoken" value="[^"]*"', "", text)

    assert refusal(echo.pk) == refusal(echo.pk + 1000)


@pytest.mark.parametrize(
    ("offer", "permission"),
    [
        ("token-members", "add_token"),
        ("token-tools", "add_token"),
        ("agent-members", "invoke_tool"),
        ("secret-members", "add_secret"),
        ("secret-members", "change_secret"),
        ("tool-set-entries", "add_toolset"),
        ("tool-set-entries", "change_toolset"),
    ],
)
@pytest.mark.usefixtures("echo")
def test_a_search_needs_the_right_of_its_form(client: Client, bob: User, offer: str, permission: str) -> None:
    address = reverse("admin:choices", args=[offer])
    assert client.get(address).status_code == 302
    client.force_login(bob)
    assert client.get(address).status_code == 403
    allow(bob, permission)
    assert len(found(client, offer)) in (1, 2)


def test_no_form_offers_an_unknown_choice(page: Client) -> None:
    assert page.get(reverse("admin:choices", args=["nothing"])).status_code == 404


@pytest.mark.parametrize("query", ["%", "'", "\0", "x" * 5000, "\\", EVIL])
def test_odd_searches_find_nothing_and_do_no_harm(page: Client, echo: Tool, query: str) -> None:
    for offer in ("token-members", "token-tools", "tool-set-entries"):
        found(page, offer, query)


def test_names_are_escaped(page: Client) -> None:
    make_tool(make_member("odd", description=EVIL), EVIL)
    for address in (reverse(NEW_AGENT), reverse(ADD_TOKEN), reverse("admin:choices", args=["token-tools"])):
        text = html(page.get(address))
        assert EVIL not in text
        assert "&lt;script&gt;" in text


def test_an_agent_gets_a_member_that_a_search_found(page: Client) -> None:
    GuildMember.objects.bulk_create(
        GuildMember(name=f"member-{number:03}", directory=f"member-{number:03}") for number in range(60)
    )
    text = html(page.get(reverse(NEW_AGENT)))
    assert len(boxes(text, "members")) == MAX_OTHERS
    assert found(page, "agent-members", "member-059") == {"member-059": "member-059"}
    assert page.post(reverse(NEW_AGENT), {"members": ["member-059"], "way": "gateway"}).status_code == 302
    assert [member.name for member in Agent.objects.get().members.all()] == ["member-059"]


def test_an_agent_cannot_have_a_disabled_member(page: Client) -> None:
    make_member("off", enabled=False)
    assert found(page, "agent-members") == {}
    text = html(page.get(reverse(NEW_AGENT)))
    assert "There are no members to choose." in text
    assert GONE in html(page.post(reverse(NEW_AGENT), {"members": ["off"], "way": "gateway"}))


def test_the_form_of_a_secret_begins_with_the_members_that_may_use_it(page: Client, example: GuildMember) -> None:
    GuildMember.objects.bulk_create(
        GuildMember(name=f"a-{number:03}", directory=f"a-{number:03}") for number in range(40)
    )
    values = {"name": "KEY", "value": "something", "members": [example.pk]}
    assert page.post(reverse("admin:roster_secret_add"), values).status_code == 302
    secret = Secret.objects.get()
    text = html(page.get(reverse("admin:roster_secret_change", args=[secret.pk])))
    assert boxes(text, "members")[0] == (str(example.pk), True)
    assert len(boxes(text, "members")) == MAX_OTHERS + 1


def test_a_tool_set_finds_members_and_tools_by_parts_of_both_names(page: Client, echo: Tool) -> None:
    make_tools(80)
    assert set(found(page, "tool-set-entries", "example")) == {"example", "example/echo"}
    assert list(found(page, "tool-set-entries", "many/tool-0077")) == ["many/tool-0077"]
    text = html(page.get(reverse("admin:roster_toolset_add")))
    assert 0 < text.count('<option value="many/') <= MAX_FOUND
