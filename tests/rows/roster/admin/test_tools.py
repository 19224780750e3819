"""Tools in the admin: the list, the buttons to disable and enable, and the form that calls a tool without a script."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from roster import calls
from roster.models import Call, GuildMember, Tool
from tests.support.admin import (
    act,
    allow,
    call_form,
    html,
    list_of,
    make_call,
    make_member,
    make_tool,
    messages_of,
    page_of,
)

pytestmark = pytest.mark.django_db


# Tools ------------------------------------------------------------------------------------------------------------


def test_tools_of_removed_members_are_hidden_without_the_filter(page: Client) -> None:
    present_member, removed_member = make_member("here"), make_member("gone", removed_at=timezone.now())
    make_tool(present_member, "still")
    make_tool(removed_member, "past")

    def names(**query: Any) -> list[str]:
        return [row.name for row in page.get(list_of("tool"), query).context["cl"].result_list]

    assert names() == ["still"]
    assert names(folder="gone") == ["past"]
    assert names(member__id__exact=removed_member.pk) == ["past"]
    assert ">Call</a>" not in page.get(list_of("tool"), {"folder": "gone"}).content.decode()


def test_the_member_filter_has_the_members_of_listed_tools_and_the_chosen_member(page: Client) -> None:
    make_member("without tools")
    make_tool(make_member("gone", removed_at=timezone.now()), "t")
    make_tool(make_member("here"), "t")
    chosen_member = make_member("past", removed_at=timezone.now())
    make_tool(chosen_member, "t")
    make_tool(make_member("still"), "t")

    def filter_names(**query: Any) -> list[str]:
        filters = page.get(list_of("tool"), query).context["cl"].filter_specs
        return [name for spec in filters if spec.title == "member" for _, name in spec.lookup_choices]

    assert filter_names() == ["here", "still"]
    assert filter_names(folder="gone") == ["gone", "past"]
    assert filter_names(folder="any") == ["gone", "here", "past", "still"]
    assert filter_names(member__id__exact=chosen_member.pk) == ["here", "past", "still"]
    assert page.get(list_of("tool"), {"member__id__exact": "x"})["Location"].endswith("?e=1")


def test_the_only_present_member_can_be_used_as_a_filter(page: Client) -> None:
    present_member = make_member("here")
    make_tool(present_member, "still")
    make_tool(make_member("gone", removed_at=timezone.now()), "past")

    tools = page.get(list_of("tool"), {"member__id__exact": present_member.pk}).context["cl"].result_list

    assert [tool.name for tool in tools] == ["still"]


def test_a_filtered_list_has_a_link_to_show_all(page: Client, echo: Tool) -> None:
    assert "Show all" not in page.get(list_of("tool")).content.decode()
    assert "Show all" in page.get(list_of("tool"), {"q": "echo"}).content.decode()


def test_the_list_is_by_member_and_in_the_order_of_the_member(page: Client) -> None:
    second, first = make_member("zoe", status="connected"), make_member("anna", display_name="Anna's tools")
    for member, name, position in ((second, "b", 0), (first, "z", 0), (first, "a", 1)):
        make_tool(member, name, position=position)

    groups = page.get(list_of("tool")).context["groups"]

    assert [(group.member.name, [row.tool.name for row in group.rows]) for group in groups] == [
        ("anna", ["z", "a"]),
        ("zoe", ["b"]),
    ]
    assert "Anna&#x27;s tools" in page.get(list_of("tool")).content.decode()


def test_a_search_finds_words_of_all_texts_and_shows_the_best_match_first(page: Client, example: GuildMember) -> None:
    describe_tool(example, "archive", description="Shares a billing report.")
    describe_tool(example, "share_billing")
    describe_tool(example, "list_billing", title="All shares")
    describe_tool(example, "other")

    def names(query: str) -> list[str]:
        groups = page.get(list_of("tool"), {"q": query}).context["groups"]
        return [row.tool.name for group in groups for row in group.rows]

    assert names("share billing") == ["share_billing", "list_billing", "archive"]
    assert names("nowhere") == []
    assert "No matches." in page.get(list_of("tool"), {"q": "nowhere"}).content.decode()


def test_annotations_are_badges_and_filters(page: Client, example: GuildMember) -> None:
    describe_tool(example, "look", annotations={"readOnlyHint": True, "idempotentHint": True})
    describe_tool(example, "erase", annotations={"destructiveHint": True, "readOnlyHint": False})
    describe_tool(example, "drop", annotations={"destructiveHint": True})
    describe_tool(example, "odd", annotations={"readOnlyHint": "yes", "destructiveHint": 1})
    describe_tool(example, "both", annotations={"readOnlyHint": True, "destructiveHint": True})

    def rows(**query: str) -> dict[str, list[str]]:
        groups = page.get(list_of("tool"), query).context["groups"]
        return {row.tool.name: [badge.text for badge in row.badges] for group in groups for row in group.rows}

    assert rows() == {
        "look": ["only reads data", "safe to repeat"],
        "erase": ["may delete or overwrite data"],
        "drop": ["may delete or overwrite data"],
        "odd": [],
        "both": ["only reads data"],
    }
    assert list(rows(says="reads")) == ["look", "both"]
    assert list(rows(says="deletes")) == ["erase", "drop"]
    assert ("may delete", 2) in [(chip.label, chip.count) for chip in page.get(list_of("tool")).context["chips"]]


def test_chips_count_the_tools_of_the_chosen_member_and_keep_the_search(page: Client, example: GuildMember) -> None:
    make_tool(example, "on")
    make_tool(example, "off", enabled=False)
    make_tool(make_member("zoe"), "held", is_held=True)

    chips = page.get(list_of("tool"), {"q": "o", "member__id__exact": example.pk}).context["chips"]

    assert [(chip.label, chip.count, chip.is_active) for chip in chips] == [("all", 2, True), ("disabled", 1, False)]
    assert chips[1].address == f"?q=o&member__id__exact={example.pk}&enabled__exact=0"
    labels = [chip.label for chip in page.get(list_of("tool")).context["chips"]]
    assert labels == ["all", "disabled", "held"]


def test_the_list_follows_changes_and_answers_304_without_any(page: Client, example: GuildMember, echo: Tool) -> None:
    def part(etag: str = "") -> Any:
        return page.get(list_of("tool"), headers={"X-Live": "part", **({"If-None-Match": etag} if etag else {})})

    first = part()
    assert "<html" not in first.content.decode()
    assert part(first["ETag"]).status_code == 304
    Tool.objects.update(enabled=False)
    assert part(first["ETag"]).status_code == 200
    assert page.get(list_of("tool"), {"member__id__exact": "x"}, headers={"X-Live": "part"}).status_code == 404


def test_the_live_part_needs_the_permission(client: Client, bob: User, echo: Tool) -> None:
    client.force_login(bob)
    assert client.get(list_of("tool"), headers={"X-Live": "part"}).status_code == 403


def test_long_lists_have_pages(page: Client, example: GuildMember) -> None:
    Tool.objects.bulk_create(Tool(member=example, name=f"tool_{n}", position=n) for n in range(70))
    for query in ({}, {"q": "tool"}):
        context = page.get(list_of("tool"), {**query, "p": "3"}).context
        assert [number for number, _ in context["pages"]] == [1, 2, 3]
        assert sum(len(group.rows) for group in context["groups"]) == 20


def test_the_page_of_a_tool_has_its_title_its_parameters_and_its_description(
    page: Client, example: GuildMember
) -> None:
    schema = {
        "properties": {
            "city": {"type": "string", "description": "**Where** <b>it</b> is.", "maxLength": 5},
            "days": {"type": "array", "items": {"type": "object", "properties": {"n": {"type": "integer"}}}},
        },
        "required": ["city"],
    }
    tool = describe_tool(
        example, "forecast", title="The weather", description="- one\n- two", inputSchema=schema, outputSchema=schema
    )

    text = page.get(page_of(tool)).content.decode()

    assert "<h1>The weather</h1>" in text
    assert "<li>one</li>" in text
    assert "<strong>Where</strong> &lt;b&gt;it&lt;/b&gt; is." in text
    assert text.count("<code>days[].n</code>") == 2
    assert "at most 5 characters" in text
    assert reverse("admin:roster_tool_call", args=[tool.pk]) in text


def describe_tool(member: GuildMember, name: str, **definition: Any) -> Tool:
    return make_tool(member, name, position=Tool.objects.count(), definition={"name": name, **definition})


def test_the_actions_disable_and_enable_tools(page: Client, example: GuildMember, echo: Tool) -> None:
    disabled_tool = make_tool(example, "off", enabled=False)

    response = act(page, "tool", "disable", echo, disabled_tool)

    assert messages_of(response) == ["Disabled (1): echo.", "Not changed (1): off: it is already disabled."]
    echo.refresh_from_db()
    assert not echo.enabled
    page.post(reverse("admin:roster_tool_enable", args=[echo.pk]))
    echo.refresh_from_db()
    assert echo.enabled


def test_disabling_tools_needs_the_permission(client: Client, bob: User, echo: Tool) -> None:
    allow(bob, "view_tool")
    client.force_login(bob)

    assert client.post(reverse("admin:roster_tool_disable", args=[echo.pk])).status_code == 403
    act(client, "tool", "disable", echo)
    echo.refresh_from_db()
    assert echo.enabled


def test_a_user_who_may_not_call_tools_sees_no_links_to_call_them(client: Client, bob: User, echo: Tool) -> None:
    allow(bob, "view_tool", "view_guildmember")
    client.force_login(bob)
    call_url = reverse("admin:roster_tool_call", args=[echo.pk])

    assert call_url not in html(client.get(list_of("tool")))
    assert call_url not in html(client.get(page_of(echo)))
    assert call_url not in html(client.get(page_of(echo.member)))
    assert client.get(call_url).status_code == 403
    assert client.post(call_url, {"arguments": '{"text": "hello"}'}).status_code == 403
    assert not Call.objects.exists()


# The form to call a tool ------------------------------------------------------------------------------------------


def test_the_form_contains_the_required_and_the_default_arguments(page: Client, echo: Tool) -> None:
    response = page.get(reverse("admin:roster_tool_call", args=[echo.pk]))

    assert json.loads(response.context["form"].initial["arguments"]) == {"text": "", "times": 1}
    assert "Does echo." in html(response)
    assert "&quot;format&quot;: &quot;password&quot;" in html(response)


def test_a_sent_form_queues_the_call_and_leads_to_its_page(page: Client, alice: User, echo: Tool) -> None:
    response = call_form(page, echo, '{"text": "hello"}')

    call = Call.objects.get()
    assert response["Location"] == page_of(call)
    assert (call.arguments, call.source, call.requested_by) == ({"text": "hello"}, "admin", alice)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ("{nonsense", "the arguments are not JSON"),
        ("[1]", "must be a JSON object"),
        ('{"text": 1e999}', "the arguments are not JSON"),
        ('{"text": 5}', "text: 5 is not of type"),
        ("", "&#x27;text&#x27; is a required property"),
        ("[" * 100_000, "the arguments are nested too deep"),
    ],
)
def test_invalid_arguments_are_refused_at_the_form(page: Client, echo: Tool, arguments: str, reason: str) -> None:
    response = call_form(page, echo, arguments)

    assert reason in html(response)
    assert not Call.objects.exists()


def test_a_disabled_member_is_refused_at_the_form(page: Client, echo: Tool) -> None:
    GuildMember.objects.update(enabled=False)

    assert "is disabled; enable it first" in html(call_form(page, echo, '{"text": "x"}'))


def test_pressing_the_button_twice_makes_one_call(page: Client, echo: Tool) -> None:
    key = page.get(reverse("admin:roster_tool_call", args=[echo.pk])).context["call_key"]
    first = call_form(page, echo, '{"text": "x"}', call_key=str(key))
    second = call_form(page, echo, '{"text": "x"}', call_key=str(key))

    assert Call.objects.count() == 1
    assert first["Location"] == second["Location"]


def test_a_user_who_may_only_call_can_see_and_cancel_their_own_call(client: Client, bob: User, echo: Tool) -> None:
    other_call = make_call(echo.member)
    allow(bob, "invoke_tool")
    client.force_login(bob)

    own_url = call_form(client, echo, '{"text": "x"}')["Location"]

    assert "queued" in html(client.get(own_url))
    assert client.get(page_of(other_call)).status_code == 404
    assert client.post(reverse("admin:roster_call_cancel", args=[other_call.pk])).status_code == 404
    client.post(reverse("admin:roster_call_cancel", args=[Call.objects.get(source="admin").pk]))
    assert [row.status for row in Call.objects.order_by("id")] == ["queued", "cancelled"]


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({}, {}),
        ({"properties": "nonsense", "required": 5}, {}),
        ({"properties": {"a": {"enum": ["x", "y"]}}, "required": ["a", "missing", {}]}, {"a": "x"}),
        (
            {"properties": {"a": {"type": ["null", "string"]}, "b": {"const": 3}}, "required": ["a", "b"]},
            {"a": None, "b": 3},
        ),
        ({"properties": {"n": {"type": "integer", "minimum": 5}}, "required": ["n"]}, {"n": 5}),
        ({"properties": {"a": {"type": {"x": 1}}, "b": True}, "required": ["a", "b"]}, {"a": None, "b": None}),
        (
            {
                "properties": {"who": {"$ref": "#/$defs/who"}},
                "required": ["who"],
                "$defs": {"who": {"type": "object", "properties": {"id": {"type": "number"}}, "required": ["id"]}},
            },
            {"who": {"id": 0}},
        ),
        ({"properties": {"a": {"$ref": "http://elsewhere/x"}}, "required": ["a"]}, {"a": None}),
        ({"properties": {"a": {"anyOf": [{"type": "array"}, {"type": "null"}]}}, "required": ["a"]}, {"a": []}),
    ],
)
def test_a_skeleton_has_the_minimum_that_the_schema_needs(schema: dict[str, Any], expected: dict[str, Any]) -> None:
    assert calls.skeleton_of(schema) == expected


def test_a_schema_with_a_reference_to_itself_gives_a_finite_skeleton() -> None:
    schema = {"type": "object", "properties": {"again": {"$ref": "#"}}, "required": ["again"]}

    assert len(json.dumps(calls.skeleton_of(schema))) < 200


def test_a_schema_with_many_references_gives_a_skeleton_of_limited_size() -> None:
    names = [f"p{number}" for number in range(100)]
    schema = {"properties": {name: {"$ref": "#"} for name in names}, "required": names * 200}
    large_schema = {"properties": {name: {"$ref": "#/$defs/d"} for name in names}, "required": names}

    start = time.thread_time()
    assert len(json.dumps(calls.skeleton_of(schema))) < 100_000
    assert len(json.dumps(calls.skeleton_of({**large_schema, "$defs": {"d": {"default": "x" * 50_000}}}))) < 200_000
    assert time.thread_time() - start < 1
