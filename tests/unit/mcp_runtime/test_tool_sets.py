"""Which tools a tool set lists, and what a new name does to a definition."""

from __future__ import annotations

import json

from mcp_runtime.gateway.tool_sets import with_new_texts
from mcp_runtime.members.tool_sets import Entry, listing, name_conflicts

TOOLS = {"notes": ["add", "find"], "files": ["read"]}


def names(*entries: Entry, tools: dict[str, list[str]] = TOOLS) -> dict[str, str]:
    """Listed names, each with its member and tool."""
    return {name: str(entry) for name, entry in listing(entries, tools).entries.items()}


def test_a_whole_member_has_all_its_tools_under_their_usual_names() -> None:
    assert names(Entry("notes")) == {"notes__add": "notes/add", "notes__find": "notes/find"}
    assert names(Entry("notes"), tools={"notes": ["add"]}) == {"notes__add": "notes/add"}
    assert names(Entry("gone")) == {}


def test_entries_keep_their_order_and_have_their_new_names() -> None:
    entries = Entry("files", "read", "open"), Entry("notes", "find")
    assert list(names(*entries).items()) == [("open", "files/read"), ("notes__find", "notes/find")]
    assert list(names(*reversed(entries))) == ["notes__find", "open"]


def test_a_single_tool_of_a_whole_member_is_listed_once_with_its_new_texts() -> None:
    for entries in ([Entry("notes"), Entry("notes", "add", "write")], [Entry("notes", "add", "write"), Entry("notes")]):
        assert sorted(names(*entries)) == ["notes__find", "write"]


def test_a_tool_of_a_whole_member_loses_its_name_to_a_single_tool() -> None:
    thief = Entry("files", "read", "notes__add")
    for entries in ([Entry("notes"), thief], [thief, Entry("notes")]):
        result = listing(entries, TOOLS)
        assert str(result.entries["notes__add"]) == "files/read"
        assert result.hidden == {("notes", "add"): "notes__add"}


def test_of_two_single_tools_with_one_name_the_first_one_is_listed() -> None:
    first, second = Entry("notes", "add", "x"), Entry("files", "read", "x")
    result = listing([first, second], TOOLS)
    assert result.entries == {"x": first}
    assert result.hidden == {("files", "read"): "x"}
    assert name_conflicts([first, second]) == [("x", first, second)]
    assert name_conflicts([first, Entry("files", "read")]) == []


def test_a_tool_that_is_not_there_keeps_its_name() -> None:
    """Otherwise a client that knows the name would suddenly call another tool."""
    gone, whole = Entry("files", "gone", "notes__add"), Entry("notes")
    assert "notes__add" not in names(gone, whole)
    assert listing([gone, whole], TOOLS).hidden == {("notes", "add"): "notes__add"}


def test_new_texts_replace_only_the_name_and_the_description() -> None:
    definition = {"name": "notes__add", "description": "old", "inputSchema": {"type": "object", "description": "x"}}
    data = json.dumps(definition).encode()
    assert json.loads(with_new_texts(data, "write", "new")) == {**definition, "name": "write", "description": "new"}
    assert json.loads(with_new_texts(data, "write", "")) == {**definition, "name": "write"}
    without = json.dumps({"name": "a", "inputSchema": {}}).encode()
    assert json.loads(with_new_texts(without, "b", "c")) == {"name": "b", "inputSchema": {}, "description": "c"}


def test_a_definition_with_thousands_of_keys_does_not_break_the_list() -> None:
    data = json.dumps({"name": "a", **{f"key {number}": {} for number in range(300_000)}}).encode()
    assert json.loads(with_new_texts(data, "b", "c")) == {
        "name": "b",
        "description": "c",
        "inputSchema": {"type": "object"},
    }
