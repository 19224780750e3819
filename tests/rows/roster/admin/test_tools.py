"""Tools in the admin: the list, the switch, and the form that calls one without a script."""

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


def test_tools_of_a_member_whose_folder_is_gone_are_hidden_until_asked_for(page: Client) -> None:
    here, gone = make_member("here"), make_member("gone", removed_at=timezone.now())
    make_tool(here, "still")
    make_tool(gone, "past")

    def names(**query: Any) -> list[str]:
        return [row.name for row in page.get(list_of("tool"), query).context["cl"].result_list]

    assert names() == ["still"]
    assert names(folder="gone") == ["past"]
    assert names(member__id__exact=gone.pk) == ["past"]
    assert ">Call</a>" not in page.get(list_of("tool"), {"folder": "gone"}).content.decode()


def test_the_filter_by_member_names_those_whose_tools_are_listed_and_the_chosen_one(page: Client) -> None:
    make_member("gone", removed_at=timezone.now())
    make_member("here")
    past = make_member("past", removed_at=timezone.now())
    make_member("still")

    def named(**query: Any) -> list[str]:
        filters = page.get(list_of("tool"), query).context["cl"].filter_specs
        return [name for spec in filters if spec.title == "member" for _, name in spec.lookup_choices]

    assert named() == ["here", "still"]
    assert named(folder="gone") == ["gone", "past"]
    assert named(folder="any") == ["gone", "here", "past", "still"]
    assert named(member__id__exact=past.pk) == ["here", "past", "still"]
    assert page.get(list_of("tool"), {"member__id__exact": "x"})["Location"].endswith("?e=1")


def test_the_only_member_in_place_can_be_filtered_by(page: Client) -> None:
    here = make_member("here")
    make_tool(here, "still")
    make_tool(make_member("gone", removed_at=timezone.now()), "past")

    found = page.get(list_of("tool"), {"member__id__exact": here.pk}).context["cl"].result_list

    assert [tool.name for tool in found] == ["still"]


def test_a_list_offers_to_show_all_where_something_is_left_out(page: Client, echo: Tool) -> None:
    assert "Show all" not in page.get(list_of("tool")).content.decode()
    assert "Show all" in page.get(list_of("tool"), {"q": "echo"}).content.decode()


def test_tools_are_disabled_and_enabled_where_that_changes_something(
    page: Client, example: GuildMember, echo: Tool
) -> None:
    off = make_tool(example, "off", enabled=False)

    response = act(page, "tool", "disable", echo, off)

    assert messages_of(response) == ["Disabled (1): echo.", "Not changed (1): off: it is already disabled."]
    echo.refresh_from_db()
    assert not echo.enabled
    page.post(reverse("admin:roster_tool_enable", args=[echo.pk]))
    echo.refresh_from_db()
    assert echo.enabled


def test_switching_tools_wants_the_permission(client: Client, bob: User, echo: Tool) -> None:
    allow(bob, "view_tool")
    client.force_login(bob)

    assert client.post(reverse("admin:roster_tool_disable", args=[echo.pk])).status_code == 403
    act(client, "tool", "disable", echo)
    echo.refresh_from_db()
    assert echo.enabled


def test_who_may_not_call_is_offered_no_call(client: Client, bob: User, echo: Tool) -> None:
    allow(bob, "view_tool", "view_guildmember")
    client.force_login(bob)
    call = reverse("admin:roster_tool_call", args=[echo.pk])

    assert call not in html(client.get(list_of("tool")))
    assert call not in html(client.get(page_of(echo)))
    assert call not in html(client.get(page_of(echo.member)))
    assert client.get(call).status_code == 403
    assert client.post(call, {"arguments": '{"text": "hello"}'}).status_code == 403
    assert not Call.objects.exists()


# The form to call a tool ------------------------------------------------------------------------------------------


def test_the_form_begins_with_what_the_schema_requires_and_presets(page: Client, echo: Tool) -> None:
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
    ("arguments", "complaint"),
    [
        ("{nonsense", "the arguments are not JSON"),
        ("[1]", "must be a JSON object"),
        ('{"text": 1e999}', "the arguments are not JSON"),
        ('{"text": 5}', "text: 5 is not of type"),
        ("", "&#x27;text&#x27; is a required property"),
        ("[" * 100_000, "the arguments are nested too deep"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_at_the_form(
    page: Client, echo: Tool, arguments: str, complaint: str
) -> None:
    response = call_form(page, echo, arguments)

    assert complaint in html(response)
    assert not Call.objects.exists()


def test_a_disabled_member_is_refused_at_the_form(page: Client, echo: Tool) -> None:
    GuildMember.objects.update(enabled=False)

    assert "is disabled; enable it first" in html(call_form(page, echo, '{"text": "x"}'))


def test_pressing_the_button_twice_calls_once(page: Client, echo: Tool) -> None:
    shown = page.get(reverse("admin:roster_tool_call", args=[echo.pk])).context["call_key"]
    first = call_form(page, echo, '{"text": "x"}', call_key=str(shown))
    second = call_form(page, echo, '{"text": "x"}', call_key=str(shown))

    assert Call.objects.count() == 1
    assert first["Location"] == second["Location"]


def test_a_caller_without_other_rights_can_call_see_and_cancel_their_own_call(
    client: Client, bob: User, echo: Tool
) -> None:
    others = make_call(echo.member)
    allow(bob, "invoke_tool")
    client.force_login(bob)

    own = call_form(client, echo, '{"text": "x"}')["Location"]

    assert "queued" in html(client.get(own))
    assert client.get(page_of(others)).status_code == 403
    assert client.post(reverse("admin:roster_call_cancel", args=[others.pk])).status_code == 403
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
def test_a_skeleton_holds_the_least_that_might_fit(schema: dict[str, Any], expected: dict[str, Any]) -> None:
    assert calls.skeleton_of(schema) == expected


def test_a_schema_that_refers_to_itself_gives_a_skeleton_that_ends() -> None:
    schema = {"type": "object", "properties": {"again": {"$ref": "#"}}, "required": ["again"]}

    assert len(json.dumps(calls.skeleton_of(schema))) < 200


def test_a_schema_whose_properties_refer_to_each_other_gives_a_skeleton_of_bounded_size() -> None:
    names = [f"p{number}" for number in range(100)]
    schema = {"properties": {name: {"$ref": "#"} for name in names}, "required": names * 200}
    large = {"properties": {name: {"$ref": "#/$defs/d"} for name in names}, "required": names}

    watch = time.thread_time()
    assert len(json.dumps(calls.skeleton_of(schema))) < 100_000
    assert len(json.dumps(calls.skeleton_of({**large, "$defs": {"d": {"default": "x" * 50_000}}}))) < 200_000
    assert time.thread_time() - watch < 1
