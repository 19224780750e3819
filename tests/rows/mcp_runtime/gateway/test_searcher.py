"""What the search keeps in memory, and what it does after a change of the catalog."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from typing import Any

import pytest

from mcp_runtime.gateway import catalog_rows, searcher
from mcp_runtime.gateway.catalog import Roster, Selection
from mcp_runtime.gateway.searcher import Found, Searcher
from mcp_runtime.security.access import OPERATOR, Principal
from roster.models import GuildMember, Tool, ToolSet, ToolSetEntry

ALL = Selection()
pytestmark = pytest.mark.django_db


def add_member(name: str, *tools: str, description: str = "Say something.") -> GuildMember:
    row = GuildMember.objects.create(name=name, directory=name)
    for position, tool in enumerate(tools):
        definition = {"name": tool, "description": description, "inputSchema": {"type": "object"}}
        Tool.objects.create(member=row, name=tool, position=position, definition=definition)
    return row


def find(instance: Searcher, roster: Roster, query: str, principal: Principal = OPERATOR, **more: Any) -> Found:
    selection = Selection(**more)
    return asyncio.run(instance.find(roster, principal, selection, query, 5))


def names(found: Found) -> list[str]:
    return [each.name for each in found.tools]


def test_after_a_change_only_new_definitions_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    add_member("a", "echo", "shout")
    read: list[str] = []
    weigh = searcher.weigh_tool
    monkeypatch.setattr(searcher, "weigh_tool", lambda listed: (read.append(listed.name), weigh(listed))[1])
    instance, roster = Searcher(), catalog_rows.load(Roster())
    assert names(find(instance, roster, "say")) == ["a__echo", "a__shout"]
    assert read == ["a__echo", "a__shout"]
    roster = catalog_rows.load(roster)  # nothing has changed
    find(instance, roster, "say")
    assert len(read) == 2
    add_member("b", "echo")
    roster = catalog_rows.load(roster)
    assert names(find(instance, roster, "say")) == ["a__echo", "a__shout", "b__echo"]
    assert read[2:] == ["b__echo"]
    GuildMember.objects.filter(name="a").update(enabled=False)
    assert names(find(instance, catalog_rows.load(roster), "say")) == ["b__echo"]
    assert len(read) == 3


def test_definitions_are_read_in_another_thread_and_once_for_searches_at_the_same_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    add_member("a", "echo")
    threads: list[threading.Thread] = []
    weigh = searcher.weigh_tool
    monkeypatch.setattr(
        searcher, "weigh_tool", lambda listed: (threads.append(threading.current_thread()), weigh(listed))[1]
    )
    instance, roster = Searcher(), catalog_rows.load(Roster())

    async def together() -> list[Found]:
        searches = [instance.find(roster, OPERATOR, ALL, "say", 5) for _ in range(10)]
        return await asyncio.gather(*searches)

    assert [names(found) for found in asyncio.run(together())] == [["a__echo"]] * 10
    assert len(threads) == 1
    assert threads[0] is not threading.current_thread()


def test_the_numbers_of_indexes_and_views_in_memory_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searcher, "MAX_SETS", 2)
    monkeypatch.setattr(searcher, "MAX_VIEWS", 3)
    member = add_member("a", "echo", "shout")
    for number in range(6):
        tool_set = ToolSet.objects.create(name=f"s{number}")
        ToolSetEntry.objects.create(tool_set=tool_set, member=member, tool_name="echo", new_name=f"n{number}")
    instance, roster = Searcher(), catalog_rows.load(Roster())
    for number in (0, 1, 2, 3, 4, 5, 0):
        assert names(find(instance, roster, "say", tool_set=f"s{number}")) == [f"n{number}"]
        assert len(find(instance, roster, "say", members=frozenset(("a", f"m{number}"))).tools) == 2
    assert set(instance.corpora) == {"", "s5", "s0"}
    assert len(instance.views) == 3


def test_a_tool_set_that_is_deleted_finds_nothing() -> None:
    add_member("a", "echo")
    assert find(Searcher(), catalog_rows.load(Roster()), "say", tool_set="gone") == Found([])


def test_each_principal_has_its_own_view() -> None:
    add_member("a", "echo")
    add_member("b", "echo")
    instance, roster = Searcher(), catalog_rows.load(Roster())
    bob = Principal(2, "bob", invokes=True, closed_members=frozenset({"a"}))
    for _ in range(2):
        assert names(find(instance, roster, "say")) == ["a__echo", "b__echo"]
        assert names(find(instance, roster, "say", bob)) == ["b__echo"]
        assert names(find(instance, roster, "a__echo", bob)) == ["b__echo"]
        assert names(find(instance, roster, "say", replace(bob, invokes=False))) == []


def test_the_exact_name_finds_only_this_tool() -> None:
    add_member("a", "echo", "echo_echo")
    instance, roster = Searcher(), catalog_rows.load(Roster())
    assert names(find(instance, roster, " a__echo\n")) == ["a__echo"]
    assert names(find(instance, roster, "echo")) == ["a__echo_echo", "a__echo"]


def test_a_search_among_a_thousand_tools_does_not_hold_up_the_event_loop() -> None:
    words = ["alpha", "beta", "gamma", "delta", "note", "mail", "file", "list", "create", "delete", "update"]
    row = GuildMember.objects.create(name="many", directory="many")
    definitions = [
        {"name": f"t{number}", "description": " ".join(words[: number % 11]), "inputSchema": {"type": "object"}}
        for number in range(1_000)
    ]
    Tool.objects.bulk_create(
        Tool(member=row, name=each["name"], position=number, definition=each) for number, each in enumerate(definitions)
    )
    instance, roster = Searcher(), catalog_rows.load(Roster())

    async def longest_pause() -> float:
        loop, pauses = asyncio.get_running_loop(), [0.0]

        async def tick() -> None:
            while True:
                before = loop.time()
                await asyncio.sleep(0)
                pauses.append(loop.time() - before)

        ticking = asyncio.ensure_future(tick())
        await instance.find(roster, OPERATOR, ALL, " ".join(words), 20)
        for _ in range(20):
            await instance.find(roster, OPERATOR, ALL, " ".join(words), 20)
            await asyncio.sleep(0)
        ticking.cancel()
        return sorted(pauses)[-3]  # other programs run on the machine too

    assert asyncio.run(longest_pause()) < 0.1
