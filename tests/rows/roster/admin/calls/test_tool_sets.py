"""The tool set of a call: in the list, on its page, in a comparison and in an export, for those who may know it."""

from __future__ import annotations

import csv
import io
import json

import pytest
from django.contrib.auth.models import Group, Permission, User
from django.test import Client
from django.urls import reverse

from mcp_runtime.control.tool_sets import Values, create_tool_set, delete_tool_set
from mcp_runtime.security.access import OPERATOR
from roster.models import Call, GuildMember, ToolSet
from tests.support.calls import LIST, add, html, ids, words

pytestmark = pytest.mark.django_db


@pytest.fixture
def closed_set() -> ToolSet:
    return create_tool_set(Values("sealed", groups=[Group.objects.create(name="writers")]), OPERATOR, None)


@pytest.fixture
def calls(anna: GuildMember, closed_set: ToolSet) -> list[Call]:
    """Through a reserved set, through an open one, and without a set."""
    create_tool_set(Values("public"), OPERATOR, None)
    return [add(anna, tool_set=name, source="gateway") for name in ("sealed", "public", None)]


def exported(page: Client, form: str) -> str:
    response = page.get(reverse("admin:roster_call_export", args=[form]))
    return b"".join(response.streaming_content).decode()


def page_of(call: Call) -> str:
    return reverse("admin:roster_call_change", args=[call.pk])


def comparison(one: Call, other: Call) -> str:
    return f"{reverse('admin:roster_call_compare')}?left={one.pk}&right={other.pk}"


def test_the_tool_set_is_in_the_list_on_the_page_and_in_an_export(
    page: Client, calls: list[Call], closed_set: ToolSet
) -> None:
    assert "Gateway, sealed" in html(page.get(LIST))
    assert ids(page, tool_set="sealed") == [calls[0].pk]
    address = reverse("admin:roster_toolset_change", args=[closed_set.pk])
    assert f'<dt>Tool set</dt><dd><a href="{address}">sealed</a>' in html(page.get(page_of(calls[0])))
    assert "Tool set -" in words(page.get(page_of(calls[2])))
    assert "Tool set sealed public" in words(page.get(comparison(*calls[:2])))
    rows = csv.DictReader(io.StringIO(exported(page, "csv")))
    assert [row["tool_set"] for row in rows] == ["", "public", "sealed"]
    lines = exported(page, "jsonl").splitlines()
    assert [json.loads(line)["tool_set"] for line in lines] == [None, "public", "sealed"]


def test_a_tool_set_that_does_not_exist_for_a_user_is_nowhere(client: Client, bob: User, calls: list[Call]) -> None:
    places = [html(client.get(address)) for address in (LIST, f"{LIST}?tool_set=public", page_of(calls[0]))]
    places += [html(client.get(comparison(*calls[:2]))), exported(client, "csv"), exported(client, "jsonl")]
    assert not [place for place in places if "sealed" in place]
    assert ids(client, tool_set="sealed") == []
    assert ids(client, tool_set="public") == [calls[1].pk]
    assert len(ids(client)) == 3


def test_a_user_of_the_group_sees_the_tool_set(client: Client, bob: User, calls: list[Call]) -> None:
    bob.groups.add(Group.objects.get(name="writers"))
    assert ids(client, tool_set="sealed") == [calls[0].pk]
    assert "Tool set sealed" in words(client.get(page_of(calls[0])))


def test_only_the_page_of_a_set_that_the_user_may_open_is_linked(
    client: Client, bob: User, calls: list[Call], closed_set: ToolSet
) -> None:
    assert "Tool set public" in words(client.get(page_of(calls[1])))
    assert "/admin/roster/toolset/" not in html(client.get(page_of(calls[1])))
    bob.user_permissions.add(Permission.objects.get(codename="view_toolset"))
    assert "/admin/roster/toolset/" in html(client.get(page_of(calls[1])))


def test_a_deleted_set_is_still_shown_to_superusers_and_its_own_user(
    client: Client, alice: User, bob: User, calls: list[Call], closed_set: ToolSet
) -> None:
    delete_tool_set(closed_set)
    assert ids(client, tool_set="sealed") == []
    Call.objects.filter(pk=calls[0].pk).update(requested_by=bob)
    assert ids(client, tool_set="sealed") == [calls[0].pk]
    assert "Tool set sealed" in words(client.get(page_of(calls[0])))
    client.force_login(alice)
    Call.objects.update(requested_by=None)
    assert ids(client, tool_set="sealed") == [calls[0].pk]


def test_the_page_of_a_set_leads_to_its_calls(page: Client, calls: list[Call], closed_set: ToolSet) -> None:
    assert f'href="{LIST}?tool_set=sealed"' in html(
        page.get(reverse("admin:roster_toolset_change", args=[closed_set.pk]))
    )
