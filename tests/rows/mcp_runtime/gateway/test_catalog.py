"""The roster in memory: its names, and its lists for each client."""

from __future__ import annotations

import json
import tracemalloc
from dataclasses import replace
from typing import Any

import pytest

from mcp_runtime.gateway import catalog, catalog_rows
from mcp_runtime.gateway.catalog import Entry, Extras, Roster, Selection
from mcp_runtime.security.access import OPERATOR, Principal
from roster.models import Tool
from tests.support.catalog import LISTS, make_extras, make_member

ALL = Selection()


def list_names(roster: Roster, kind: str, principal: Principal = OPERATOR, selection: Selection = ALL) -> list[Any]:
    entries = json.loads(roster.list_of(kind, principal, selection))
    return [entry.get("uri") or entry.get("uriTemplate") or entry["name"] for entry in entries]


@pytest.fixture
def roster(db: None) -> Roster:
    make_member("b", "z", "a")
    make_member("a", "t", manifest={"timeout": 7, "tool_timeouts": {"t": 3}, "max_concurrency": 2}, display_name="A!")
    make_member("off", "t", enabled=False)
    make_member("gone", "t", removed_at="2026-01-01T00:00:00Z")
    Tool.objects.filter(name="z").update(enabled=False)
    make_extras("a", LISTS)
    make_extras("off", LISTS)
    make_extras("b", {"prompts": LISTS["prompts"]})
    return catalog_rows.load(Roster())


def test_the_roster_is_loaded_from_its_rows(roster: Roster) -> None:
    assert list(roster.members) == ["a", "b"]
    assert list(roster.tools) == ["a__t", "b__a"]
    first = roster.members["a"]
    assert (first.timeout, first.timeout_of("t"), first.max_concurrency, first.title) == (7, 3, 2, "A!")
    second = roster.members["b"]
    assert (second.timeout, second.timeout_of("a"), second.max_concurrency) == (30, 30, 16)
    assert (list(second.tools), second.hidden) == (["a"], {"z"})
    assert list(roster.extras) == ["a", "b"]


def test_names_in_lists_contain_the_member(roster: Roster) -> None:
    assert list_names(roster, "tools") == ["a__t", "b__a"]
    assert list_names(roster, "prompts") == ["a__greet", "b__greet"]
    assert list_names(roster, "resources") == ["guild://a/file:///a", "guild://a/x:1"]
    assert list_names(roster, "resourceTemplates") == ["guild://a/file:///{name}"]
    assert list_names(roster, "prompts", selection=Selection(frozenset({"b"}))) == ["b__greet"]


INVALID_FIELDS: dict[str, Any] = {
    **{"title": 5, "description": [], "mimeType": {}, "size": True, "_meta": "x", "name": None},
    **{"icons": [{"src": 5}, {"src": "x"}], "arguments": ["a", {"name": "b"}, {"name": "c", "required": "yes"}]},
    "annotations": {"audience": ["nobody"], "priority": 2, "lastModified": 5, "vendor": 1},
}


def test_an_invalid_field_of_one_entry_does_not_break_the_list(db: None) -> None:
    from mcp.types import ListPromptsResult, ListResourcesResult, ListResourceTemplatesResult

    make_member("a")
    valid_resource = {"uri": "x:2", "name": "two", "size": 3, "annotations": {"priority": 0.5}}
    lists: dict[str, Any] = {
        "prompts": [{**INVALID_FIELDS, "name": "greet"}, {**INVALID_FIELDS, "name": "x", "arguments": 5}],
        "resources": [{**INVALID_FIELDS, "uri": "x:1"}, valid_resource],
        "resourceTemplates": [{**INVALID_FIELDS, "uriTemplate": "x:{n}"}],
    }
    make_extras("a", lists)
    roster = catalog_rows.load(Roster())
    entries = {kind: json.loads(roster.list_of(kind, OPERATOR, ALL)) for kind in ("prompts", "resources")}
    templates = json.loads(roster.list_of("resourceTemplates", OPERATOR, ALL))
    assert len(ListPromptsResult.model_validate({"prompts": entries["prompts"]}).prompts) == 2
    assert len(ListResourcesResult.model_validate({"resources": entries["resources"]}).resources) == 2
    assert len(ListResourceTemplatesResult.model_validate({"resourceTemplates": templates}).resource_templates) == 1
    assert entries["prompts"][0] == {
        "name": "a__greet",
        "icons": [{"src": "x"}],
        "arguments": [{"name": "b"}],
        "annotations": {"vendor": 1},
    }
    first, second = entries["resources"]
    assert (first["name"], first["uri"]) == ("x:1", "guild://a/x:1")
    assert second == {"name": "two", "uri": "guild://a/x:2", "size": 3, "annotations": {"priority": 0.5}}


def test_lists_contain_only_what_the_client_may_use(roster: Roster) -> None:
    principal_of_tool = Principal(1, "x", invokes=True, tools=frozenset({("a", "t")}))
    assert list_names(roster, "tools", principal_of_tool) == ["a__t"]
    assert list_names(roster, "resources", principal_of_tool) == []
    principal_of_member = Principal(1, "x", invokes=True, members=frozenset({"b"}))
    assert (list_names(roster, "tools", principal_of_member), list_names(roster, "prompts", principal_of_member)) == (
        ["b__a"],
        ["b__greet"],
    )
    assert list_names(roster, "tools", Principal(1, "x")) == []


def test_each_list_and_its_digest_are_made_once(roster: Roster) -> None:
    first, digest = (method("tools", OPERATOR, ALL) for method in (roster.list_of, roster.digest_of))
    roster.list_of("tools", Principal(1, "x"), ALL)
    assert roster.list_of("tools", OPERATOR, ALL) is first
    assert roster.digest_of("tools", OPERATOR, ALL) is digest


def request_lists(roster: Roster, principal: Principal, scopes: int) -> None:
    """Request the lists of this number of scopes. Each scope has the same resources."""
    for number in range(scopes):
        roster.digest_of("resources", principal, Selection(frozenset({"a", f"m{number}"})))


def roster_with_bytes(size: int, roster: Roster) -> Roster:
    return replace(roster, extras={"a": Extras(resources=(Entry("x:1", "guild://a/x:1", b"{}", b"x" * size),))})


def test_lists_of_many_scopes_stay_within_the_memory_of_one_user(roster: Roster) -> None:
    large_roster = roster_with_bytes(1_000_000, roster)
    tracemalloc.start()
    try:
        request_lists(large_roster, OPERATOR, 100)
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size < 20_000_000


def test_the_lists_of_one_user_leave_those_of_another_in_memory(roster: Roster) -> None:
    large_roster, ada = roster_with_bytes(100_000, roster), Principal(1, "ada", invokes=True)
    first = large_roster.list_of("resources", ada, ALL)
    request_lists(large_roster, Principal(2, "bob", invokes=True), 600)
    assert large_roster.list_of("resources", ada, ALL) is first


def test_the_user_with_the_largest_lists_loses_them_first(roster: Roster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "MAX_LISTS", 1_000_000, raising=False)
    large_roster, ada = roster_with_bytes(100_000, roster), Principal(1, "ada", invokes=True)
    first = large_roster.list_of("resources", ada, ALL)
    for user in (2, 3):
        request_lists(large_roster, Principal(user, "x", invokes=True), 600)
    assert large_roster.list_of("resources", ada, ALL) is first


def test_a_list_that_is_too_large_for_the_memory_is_still_returned(
    roster: Roster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog, "MAX_LISTS_OF_USER", 10, raising=False)
    assert list_names(roster, "tools") == list_names(roster, "tools") == ["a__t", "b__a"]


def test_prompts_and_resources_are_found_by_their_listed_names(roster: Roster) -> None:
    assert roster.prompt("b__greet") == ("b", "greet")
    assert roster.prompt("c__greet") is None
    assert roster.resource("guild://a/x:1", OPERATOR, ALL) == ("a", "x:1")
    assert roster.resource("guild://a/made:up", OPERATOR, ALL) == ("a", "made:up")  # of a template, perhaps
    assert roster.resource("x:1", OPERATOR, ALL) == ("a", "x:1")
    for unknown in ("x:2", "guild://a", "guild://a/", "guild://"):
        assert roster.resource(unknown, OPERATOR, ALL) is None


@pytest.mark.parametrize("uri", ["guild://a/x:1", "x:1"])
def test_a_client_cannot_find_a_resource_that_it_may_not_use(roster: Roster, uri: str) -> None:
    assert roster.resource(uri, Principal(1, "x", invokes=True, members=frozenset({"b"})), ALL) is None
    assert roster.resource(uri, Principal(1, "x", invokes=True, tools=frozenset({("a", "t")})), ALL) is None
    assert roster.resource(uri, OPERATOR, Selection(frozenset({"b"}))) is None
    assert roster.resource(uri.replace("/a/", "/off/"), Principal(1, "x"), ALL) is None


class CountedUri(str):
    """A URI that counts its comparisons with parts of templates."""

    comparisons = 0

    def startswith(self, *args: Any) -> bool:
        self.comparisons += 1
        return super().startswith(*args)

    def find(self, *args: Any) -> int:
        self.comparisons += 1
        return super().find(*args)


def roster_with(templates: list[str], roster: Roster) -> Roster:
    lists = {"resourceTemplates": [{"uriTemplate": template, "name": "t"} for template in templates]}
    make_extras("a", lists)
    return replace(roster, extras={"a": catalog_rows.load(Roster()).extras["a"]})


def test_a_template_is_split_when_it_is_listed_and_not_for_each_uri(
    roster: Roster, monkeypatch: pytest.MonkeyPatch
) -> None:
    new_roster = roster_with(["zz:/{a}/1"], roster)
    monkeypatch.setattr(catalog, "_EXPRESSION", None)
    assert new_roster.resource("zz:/x/1", OPERATOR, ALL) == ("a", "zz:/x/1")


@pytest.mark.parametrize(
    "templates",
    [[f"zz:/{{a}}/{number}" for number in range(2_000)], ["zz:" + "{a}x" * 470 + str(number) for number in range(50)]],
)
def test_the_number_of_comparisons_of_a_uri_with_templates_is_limited(roster: Roster, templates: list[str]) -> None:
    uri = CountedUri("zz:/" + "x" * 1_900 + "/-")
    roster_with(templates, roster).resource(uri, OPERATOR, ALL)
    assert uri.comparisons < 300


def test_the_literals_of_a_template_have_a_maximum_length(roster: Roster) -> None:
    literals = catalog.literals_of("x:{a}" + "b" * 1_000 + "{c}/d")
    assert [len(part) for part in literals] == [2, catalog.MAX_LITERAL, 2]
    assert catalog.literals_match(literals, "x:1" + "b" * 1_000 + "2/d")
