"""Tool sets: which values are refused, who sees which entries, the preview, and the audit log."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import Group, Permission, User
from django.db.models import ProtectedError
from django.utils import timezone

from mcp_runtime.control import tool_sets
from mcp_runtime.control.members import reserve_member, set_tool_enabled
from mcp_runtime.control.tool_sets import Entry, Values, change_tool_set, create_tool_set, delete_tool_set, preview
from mcp_runtime.protocol.errors import RequestRefusedError, UnknownMemberError, UnknownToolError, UnknownToolSetError
from mcp_runtime.security import principals
from mcp_runtime.security.access import OPERATOR, Principal
from roster.models import AuditEntry, GuildMember, Role, Tool, ToolSet

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def members() -> None:
    for name in ("notes", "files"):
        member = GuildMember.objects.create(name=name, directory=name)
        for position, tool in enumerate(("add", "find")):
            definition = {"name": tool, "description": f"{tool} of {name}"}
            Tool.objects.create(member=member, name=tool, definition=definition, position=position)


def create(*entries: Entry, principal: Principal = OPERATOR, **values: Any) -> ToolSet:
    return create_tool_set(Values(values.pop("name", "writing"), entries=entries, **values), principal, None)


def principal_of(name: str, *groups: Group) -> Principal:
    user = User.objects.create_user(name)
    user.user_permissions.add(Permission.objects.get(codename="invoke_tool"))
    user.groups.set(groups)
    return principals.principal_of_user(user)


def test_a_tool_set_has_its_values_and_its_entries_in_their_order() -> None:
    bob = User.objects.create_user("bob")
    entries = [Entry("notes", "find", "search", "Finds."), Entry("files")]
    row = create_tool_set(Values("writing", "Writing", "For writers.", entries=entries), OPERATOR, bob)
    assert (row.title, row.description, row.created_by) == ("Writing", "For writers.", bob)
    assert tool_sets.entries_of(row, OPERATOR) == entries
    change_tool_set(row, Values("writing", "W", entries=entries[::-1]), OPERATOR)
    row.refresh_from_db()
    assert (row.name, row.title, row.description) == ("writing", "W", "")
    assert tool_sets.entries_of(row, OPERATOR) == entries[::-1]


NO_NAMES = ["", "-a", "_a", "A", "a b", "a/b", "a\n", "x" * 65, "ä"]


@pytest.mark.parametrize("name", NO_NAMES)
def test_a_name_that_is_no_part_of_an_address_is_refused(name: str) -> None:
    with pytest.raises(RequestRefusedError, match="lower case"):
        create(name=name)
    assert not ToolSet.objects.exists()


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"title": "x" * 101}, "the title has more than 100 characters"),
        ({"description": "x" * 2001}, "the description has more than 2000 characters"),
        ({"title": "a\x00"}, "control characters"),
        ({"description": "\ud800"}, "control characters"),
        ({"entries": [Entry("notes"), Entry("notes")]}, "'notes' is in the tool set twice"),
        ({"entries": [Entry("notes", "add"), Entry("notes", "add", "x")]}, "'notes/add' is in the tool set twice"),
        ({"entries": [Entry("notes", "", "x")]}, "cannot have a new name"),
        ({"entries": [Entry("notes", "", "", "x")]}, "cannot have a new name"),
        ({"entries": [Entry("notes", "add", "a b")]}, "the new name 'a b' of 'notes/add'"),
        ({"entries": [Entry("notes", "add", "x" * 65)]}, "1 to 64 letters"),
        ({"entries": [Entry("notes", "add", "x\n")]}, "1 to 64 letters"),
        ({"entries": [Entry("notes", "add", "x", "y" * 4001)]}, "more than 4000 characters"),
        ({"entries": [Entry("notes", f"t{number}") for number in range(201)]}, "200 entries at most"),
        (
            {"entries": [Entry("notes", "add", "x"), Entry("files", "add", "x")]},
            "'notes/add' already has the name 'x' in this tool set; give 'files/add' another new name",
        ),
        (
            {"entries": [Entry("notes", "add", "files__add"), Entry("files", "add")]},
            "already has the name 'files__add'",
        ),
    ],
)
def test_impossible_values_are_refused_with_their_reason(values: dict[str, Any], reason: str) -> None:
    row = create(Entry("files", "find"), title="before")
    for attempt in (
        lambda: create_tool_set(Values("other", **values), OPERATOR, None),
        lambda: change_tool_set(row, Values("writing", **values), OPERATOR),
    ):
        with pytest.raises(RequestRefusedError, match=reason):
            attempt()
    row.refresh_from_db()
    assert (ToolSet.objects.get().title, tool_sets.entries_of(row, OPERATOR)) == ("before", [Entry("files", "find")])


def test_unknown_members_and_tools_are_refused_and_tools_that_left_may_stay() -> None:
    with pytest.raises(UnknownMemberError):
        create(Entry("nobody"))
    with pytest.raises(UnknownToolError, match="lists no tool 'gone'"):
        create(Entry("notes", "gone"))
    row = create(Entry("notes", "add"))
    Tool.objects.filter(name="add").delete()
    change_tool_set(row, Values("writing", "T", entries=[Entry("notes", "add")]), OPERATOR)
    assert tool_sets.entries_of(row, OPERATOR) == [Entry("notes", "add")]


def test_a_name_is_taken_once_and_the_number_of_sets_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    create()
    with pytest.raises(RequestRefusedError, match="taken"):
        create()
    monkeypatch.setattr(tool_sets, "MAX_SETS", 1)
    with pytest.raises(RequestRefusedError, match="1 tool sets at most"):
        create(name="other")


def test_an_editor_neither_sees_nor_changes_entries_of_members_of_others() -> None:
    circle = Group.objects.create(name="circle")
    reserve_member(GuildMember.objects.get(name="files"), [circle])
    row = create(Entry("files", "add", "secret-name"), Entry("notes"))
    editor = principal_of("editor")
    assert tool_sets.entries_of(row, editor) == [Entry("notes")]
    with pytest.raises(UnknownMemberError):
        change_tool_set(row, Values("writing", entries=[Entry("files")]), editor)
    with pytest.raises(RequestRefusedError, match=r"^another tool already has the name"):
        change_tool_set(row, Values("writing", entries=[Entry("notes", "add", "secret-name")]), editor)
    change_tool_set(row, Values("writing", entries=[Entry("notes", "add")]), editor)
    assert set(tool_sets.entries_of(row, OPERATOR)) == {Entry("files", "add", "secret-name"), Entry("notes", "add")}


def test_entries_of_a_removed_member_stay_until_it_comes_back() -> None:
    row = create(Entry("notes", "find"), Entry("files"))
    GuildMember.objects.filter(name="notes").update(removed_at=timezone.now())
    change_tool_set(row, Values("writing", "Another title", entries=tool_sets.entries_of(row, OPERATOR)), OPERATOR)
    GuildMember.objects.update(removed_at=None)
    assert set(tool_sets.entries_of(row, OPERATOR)) == {Entry("notes", "find"), Entry("files")}


def test_a_reserved_tool_set_exists_only_for_its_groups() -> None:
    circle = Group.objects.create(name="circle")
    row = create(Entry("notes"), groups=[circle])
    outsider, insider = principal_of("outsider"), principal_of("insider", circle)
    assert tool_sets.find_tool_set("writing", insider) == row
    assert list(tool_sets.visible_tool_sets(outsider)) == []
    with pytest.raises(UnknownToolSetError):
        tool_sets.find_tool_set("writing", outsider)
    with pytest.raises(ProtectedError):
        circle.delete()
    with pytest.raises(RequestRefusedError, match="is a role"):
        change_tool_set(row, Values("writing", groups=[Role.objects.get(name="caller").group]), OPERATOR)
    change_tool_set(row, Values("writing"), OPERATOR)
    assert tool_sets.find_tool_set("writing", principal_of("third")) == row


def test_the_preview_shows_what_a_client_sees_and_why_the_rest_is_missing() -> None:
    entries = [
        Entry("notes"),
        Entry("files", "add", "notes__find", "New."),
        Entry("files", "find"),
        Entry("files", "gone", "x"),
    ]
    task = Tool.objects.get(member__name="notes", name="add")
    task.definition["execution"] = {"taskSupport": "required"}
    task.save()
    lines = {(line.member, line.tool): line for line in preview(entries, OPERATOR)}
    assert (lines["files", "add"].name, lines["files", "add"].description) == ("notes__find", "New.")
    assert (lines["files", "find"].name, lines["files", "find"].description) == ("files__find", "find of files")
    faults = {key: line.fault for key, line in lines.items() if line.fault}
    assert faults == {
        ("notes", "add"): "it runs only as a task, which tool sets do not offer",
        ("notes", "find"): "another tool has the name notes__find",
        ("files", "gone"): "the member does not list it now, or it is disabled",
    }
    set_tool_enabled(Tool.objects.get(member__name="files", name="find"), False)
    assert {line.tool for line in preview(entries, OPERATOR) if not line.fault} == {"add"}
    nobody = Principal(1, "nobody")
    assert {line.fault for line in preview([Entry("files", "add")], nobody)} == {"you may not call it"}


def test_a_tool_set_that_somebody_else_deleted_is_unknown() -> None:
    row, same = create(Entry("notes")), ToolSet.objects.get()
    delete_tool_set(same)
    with pytest.raises(UnknownToolSetError, match="deleted"):
        change_tool_set(row, Values("writing", "Other"), OPERATOR)
    with pytest.raises(UnknownToolSetError, match="deleted"):
        delete_tool_set(row)
    assert AuditEntry.objects.filter(kind=AuditEntry.Kind.TOOL_SET_DELETED).count() == 1


def test_the_audit_log_has_what_changed() -> None:
    row = create(Entry("notes", "add", "write", "Writes."), Entry("files"), title="T")
    change_tool_set(row, Values("writing", "T", entries=[Entry("files")]), OPERATOR)
    change_tool_set(row, Values("writing", "T", entries=[Entry("files")]), OPERATOR)  # changes nothing
    delete_tool_set(row)
    tools = ["notes/add as write with the description: Writes."]
    entries = [(entry.kind, entry.target, entry.before, entry.after) for entry in AuditEntry.objects.order_by("id")]
    assert entries == [
        ("tool_set_created", "tool set writing", None, {"title": "T", "members": ["files"], "tools": tools}),
        ("tool_set_changed", "tool set writing", {"tools": tools}, {}),
        ("tool_set_deleted", "tool set writing", {"title": "T", "members": ["files"]}, None),
    ]
    assert not ToolSet.objects.exists()
