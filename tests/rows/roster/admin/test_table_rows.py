"""The rows of lists are the same as Django's own, but cost less."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib import admin
from django.contrib.admin.templatetags import admin_list
from django.contrib.admin.views.main import ChangeList
from django.contrib.auth.models import Group, User
from django.test import Client, RequestFactory
from django.urls import reverse

from mcp_runtime.calls import statistics
from roster.admin import table_rows
from roster.models import GuildMember, Node, StatusChange, Token, Tool
from tests.support.admin import EVIL, list_of, make_call, make_member

pytestmark = pytest.mark.django_db


@pytest.fixture
def rows_of_all(example: GuildMember, echo: Tool, alice: User) -> None:
    make_member("broken", display_name=EVIL, manifest_error=EVIL, status="error", enabled=False)
    StatusChange.objects.create(member=example, old="connected", new="error", cause="exit", exit_code=-9, message=EVIL)
    Node.objects.create(name="old")
    Token.make(user=alice, name=EVIL)
    Group.objects.create(name=EVIL)
    User.objects.create_user("bob", email="bob@example.org", last_name=EVIL, is_active=False)
    make_call(example)
    statistics.roll_up()


def change_list(alice: User, model: Any, query: str = "") -> ChangeList:
    screen = admin.site._registry[model]
    request = RequestFactory().get(f"/{query}")
    request.user = alice
    cl: ChangeList = screen.get_changelist_instance(request)
    cl.formset = None
    return cl


def written(rows: Any) -> list[str]:
    return ["".join(cells) for cells in rows]


@pytest.mark.parametrize("query", ["", "?q=e", "?all="])
def test_the_rows_of_each_list_are_those_of_django(alice: User, rows_of_all: None, query: str) -> None:
    rows_seen = 0
    for model in admin.site._registry:
        cl = change_list(alice, model, query)
        own_rows = written(table_rows.rows(cl))
        assert own_rows == written(admin_list.results(cl)), model
        rows_seen += len(own_rows)
    assert rows_seen >= 8


def test_a_list_whose_column_is_the_row_itself_is_left_to_django(
    alice: User, rows_of_all: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin.site._registry[Group], "list_display", ("__str__",))
    cl = change_list(alice, Group)
    assert written(table_rows.rows(cl)) == written(admin_list.results(cl))


def test_a_row_leads_back_to_the_filtered_list(alice: User, rows_of_all: None) -> None:
    member = GuildMember.objects.get(name="broken")
    cl = change_list(alice, GuildMember, "?enabled__exact=0")
    cl.preserved_filters = "_changelist_filters=enabled__exact%3D0"
    address = reverse("admin:roster_guildmember_change", args=[member.pk])

    rows = written(table_rows.rows(cl))

    assert rows == written(admin_list.results(cl))
    assert f'href="{address}?_changelist_filters=enabled__exact%3D0"' in rows[0]


def test_texts_of_others_are_escaped(page: Client, rows_of_all: None) -> None:
    shown = page.get(list_of("guildmember")).content.decode()

    assert EVIL not in shown
