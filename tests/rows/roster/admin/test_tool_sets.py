from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client

from mcp_runtime.control import tool_sets
from mcp_runtime.control.members import reserve_member
from mcp_runtime.control.tool_sets import Entry, Values, create_tool_set
from mcp_runtime.security.access import OPERATOR
from roster.models import Tool, ToolSet
from tests.support.admin import ESCAPED, EVIL, allow, html, list_of, make_member, page_of

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("runtime")]
ADD = "/admin/roster/toolset/add/"


@pytest.fixture(autouse=True)
def members() -> None:
    for name in ("notes", "files"):
        member = make_member(name)
        Tool.objects.create(member=member, name="add", definition={"name": "add", "description": f"adds to {name}"})


def form(*rows: tuple[str, str, str], **values: Any) -> dict[str, Any]:
    """What a browser sends. Each row is content, new name and new description."""
    data = {"name": "writing", "title": "", "description": "", **values}
    data |= {"entries-TOTAL_FORMS": len(rows), "entries-INITIAL_FORMS": 0}
    for number, row in enumerate(rows):
        for field, value in zip(("content", "new_name", "new_description"), row, strict=True):
            data[f"entries-{number}-{field}"] = value
    return data


def test_a_tool_set_is_created_with_its_entries_and_shows_what_an_agent_sees(page: Client, alice: User) -> None:
    circle = Group.objects.create(name="circle")
    rows = ("notes/add", "write", "Writes."), ("files", "", ""), ("", "", "")
    response = page.post(ADD, form(*rows, title="Writing", reserved_for=[circle.pk]), follow=True)
    assert response.status_code == 200
    row = ToolSet.objects.get()
    assert (row.title, row.created_by, list(row.groups.all())) == ("Writing", alice, [circle])
    assert tool_sets.entries_of(row, OPERATOR) == [Entry("notes", "add", "write", "Writes."), Entry("files")]
    text = html(page.get(page_of(row)))
    assert "What you see at /sets/writing/mcp" in text
    assert "<td>write</td><td>notes/add</td><td>Writes.</td>" in text
    assert "<td>files__add</td><td>files/add</td><td>adds to files</td>" in text
    assert '<option value="notes/add">' in text
    assert "/sets/writing/mcp" in html(page.get(list_of("toolset")))


def test_entries_are_replaced_and_removed(page: Client) -> None:
    row = create_tool_set(Values("writing", entries=[Entry("notes", "add", "write"), Entry("files")]), OPERATOR, None)
    first, second = row.entries.all()
    data = form(("notes/add", "note", ""), ("files", "", ""), title="New")
    data |= {"entries-INITIAL_FORMS": 2, "entries-0-id": first.pk, "entries-1-id": second.pk, "entries-1-DELETE": "on"}
    page.post(page_of(row), data)
    row.refresh_from_db()
    assert (row.name, row.title) == ("writing", "New")
    assert tool_sets.entries_of(row, OPERATOR) == [Entry("notes", "add", "note")]
    page.post(f"/admin/roster/toolset/{row.pk}/delete/", {"post": "yes"})
    assert not ToolSet.objects.exists()


@pytest.mark.parametrize(
    ("rows", "values", "text"),
    [
        ([("notes/add", "x", ""), ("files/add", "x", "")], {}, "already has the name"),
        ([("nobody", "", "")], {}, "No member"),
        ([("notes/gone", "", "")], {}, "lists no tool"),
        ([("notes", "x", "")], {}, "cannot have a new name"),
        ([("notes", "", ""), ("notes", "", "")], {}, "is in the tool set twice"),
        ([], {"name": "A b"}, "Use lower case letters"),
        ([], {"title": "a\x01"}, "control characters"),
        ([(EVIL, "", "")], {}, ESCAPED),
    ],
)
def test_faults_are_explained_in_the_form(
    page: Client, rows: list[tuple[str, str, str]], values: dict[str, Any], text: str
) -> None:
    response = page.post(ADD, form(*rows, **values))
    assert response.status_code == 200
    assert text in html(response)
    assert not ToolSet.objects.exists()


def test_other_users_see_only_what_exists_for_them(page: Client, alice: User) -> None:
    circle = Group.objects.create(name="circle")
    row = create_tool_set(Values("writing", entries=[Entry("notes"), Entry("files", "add", "save")]), OPERATOR, None)
    closed = create_tool_set(Values("closed", groups=[circle]), OPERATOR, None)
    reserve_member(Tool.objects.get(member__name="files").member, [circle])
    bob = User.objects.create_user("bob", is_staff=True)
    allow(bob, "view_toolset", "invoke_tool")
    page.force_login(bob)
    text = html(page.get(page_of(row)))
    assert "notes__add" in text
    assert "save" not in text.replace("_save", "")
    assert "closed" not in html(page.get(list_of("toolset")))
    assert page.get(page_of(closed)).status_code == 302
    assert page.post(page_of(row), form(title="x")).status_code == 403
    allow(bob, "change_toolset")
    page.force_login(User.objects.get(pk=bob.pk))
    page.post(page_of(row), form(("notes/add", "", ""), title="x"))
    assert set(tool_sets.entries_of(row, OPERATOR)) == {Entry("notes", "add"), Entry("files", "add", "save")}


def test_a_token_is_made_for_a_tool_set(page: Client, alice: User) -> None:
    row = create_tool_set(Values("writing", entries=[Entry("notes")]), OPERATOR, None)
    add = "/admin/roster/token/add/"
    data = {"user": alice.pk, "name": "ci", "scope": "tool_set", "tool_set": row.pk}
    page.post(add, data, follow=True)
    token = row.tokens.get()
    assert token.scope == "tools"
    assert "tool set writing" in html(page.get(page_of(token)))
    tool = Tool.objects.get(member__name="notes")
    assert "does not use tools" in html(page.post(add, {**data, "tools": [tool.pk]}))
    for scope in ("all", "tools"):
        assert "does not use tool set" in html(page.post(add, {**data, "scope": scope}))
    assert "The scope is “A tool set”. Choose at least one." in html(page.post(add, {**data, "tool_set": ""}))
    assert row.tokens.count() == 1


def test_the_page_of_a_set_leads_to_a_form_for_its_token(page: Client, client: Client, bob: User) -> None:
    row = create_tool_set(Values("writing", entries=[Entry("notes")]), OPERATOR, None)
    address = f"/admin/roster/token/add/?scope=tool_set&amp;tool_set={row.pk}"
    assert address in html(page.get(page_of(row)))
    form = page.get(address.replace("&amp;", "&")).context["adminform"].form
    assert (form["scope"].value(), form["tool_set"].value()) == ("tool_set", str(row.pk))
    allow(bob, "view_toolset")
    client.force_login(bob)
    assert address not in html(client.get(page_of(row)))


def test_nobody_makes_a_token_for_a_set_that_does_not_exist_for_them(client: Client, bob: User) -> None:
    row = create_tool_set(Values("sealed", groups=[Group.objects.create(name="circle")]), OPERATOR, None)
    allow(bob, "add_token", "view_token")
    client.force_login(bob)
    data = {"user": bob.pk, "scope": "tool_set", "tool_set": row.pk}
    text = html(client.post("/admin/roster/token/add/", data))
    assert "Select a valid choice" in text
    assert "sealed" not in text
    assert not bob.tokens.exists()


def test_the_page_and_the_list_have_the_whole_address_of_the_set(client: Client, bob: User, settings: Any) -> None:
    settings.GUILD_HALL_GATEWAY_URL = "https://gateway.example.com"
    row = create_tool_set(Values("writing", entries=[Entry("notes")]), OPERATOR, None)
    allow(bob, "view_toolset")
    client.force_login(bob)
    address = "https://gateway.example.com/sets/writing/mcp"
    assert f'<code id="gateway-address">{address}</code>' in html(client.get(page_of(row)))
    assert address in html(client.get(list_of("toolset")))
