from __future__ import annotations

import time

import pytest

from mcp_runtime.gateway.search import index as index_module
from mcp_runtime.gateway.search.index import Index, View, weigh

TOOLS = [
    ("notes__add_note", "Add a note to the notebook.", ["text"]),
    ("notes__delete_note", "Delete a note.", ["id"]),
    ("mail__send_message", "Send an email to a person.", ["to", "subject"]),
    ("weather__forecast", "Get the weather of the next days.", ["latitude", "longitude"]),
]


def index_of(*tools: tuple[str, str, list[str]]) -> Index:
    return Index([weigh(*tool) for tool in tools])


INDEX = index_of(*TOOLS)
EVERYTHING = INDEX.view([True] * len(TOOLS))


def names(query: str, view: View = EVERYTHING, limit: int = 5) -> list[str]:
    return [TOOLS[number][0] for number in INDEX.search(query, view, limit)]


def test_words_of_the_name_count_more_than_those_of_the_description() -> None:
    index = index_of(("one", "It makes a forecast.", []), ("forecast", "It makes something.", []))
    assert index.search("forecast", index.view([True, True]), 5) == [1, 0]


def test_a_synonym_finds_a_tool_that_lacks_the_word() -> None:
    assert names("remove one of my notes")[0] == "notes__delete_note"
    assert names("climate") == ["weather__forecast"]


def test_a_parameter_finds_its_tool() -> None:
    assert names("latitude") == ["weather__forecast"]


@pytest.mark.parametrize("query", ["", "  ", "the of a", "zzz", "?!", "\x00", "\ud800"])
def test_a_query_without_a_known_word_finds_nothing(query: str) -> None:
    assert INDEX.search(query, EVERYTHING, 5) == []


def test_an_index_without_tools_finds_nothing() -> None:
    index = Index([])
    assert index.search("note", index.view([]), 5) == []


def test_equal_tools_stay_in_the_order_of_the_roster() -> None:
    index = index_of(*[(f"echo_{number}", "Echo.", []) for number in range(30)])
    assert index.search("echo", index.view([True] * 30), 5) == [0, 1, 2, 3, 4]


def test_a_tool_that_is_not_allowed_is_not_found() -> None:
    view = INDEX.view([False, True, True, True])
    assert names("add", EVERYTHING) == ["notes__add_note"]
    assert INDEX.search("add", view, 5) == []
    assert "notes__add_note" not in names("add a note to the notebook", view)


def test_tools_that_are_not_allowed_do_not_change_the_order_of_the_others() -> None:
    """Otherwise a client could learn which words occur in tools that it may not use."""
    own = [("a", "forecast forecast report", []), ("b", "report number report", []), ("c", "number", [])]
    others = [(f"secret_{number}", "forecast of the forecast report", ["number"]) for number in range(50)]
    alone, together = index_of(*own), index_of(*own, *others)
    query = "forecast report number"
    allowed = together.view([True] * 3 + [False] * 50)
    assert together.search(query, allowed, 5) == alone.search(query, alone.view([True] * 3), 5)
    assert together.scores_of("forecast", allowed) == alone.scores_of("forecast", alone.view([True] * 3))


def test_frequent_words_add_to_the_scores_of_tools_with_rare_words() -> None:
    """In a long query, only tools with its rare words are counted once there are enough of them."""
    tools = [(f"one_{number}", "List the notes.", []) for number in range(300)]
    tools[200:260] = [(f"one_{number}", "List the zebras.", []) for number in range(200, 260)]
    tools[250] = ("one_250", "List the zebras of the moon.", [])
    index = index_of(*tools)
    view = index.view([True] * 300)
    assert index.search("list zebras", view, 3) == [200, 201, 202]
    assert index.search("list the zebras of the moon", view, 3) == [250, 200, 201]
    assert index.search("list notes", view, 3) == [0, 1, 2]


def test_the_words_of_one_tool_are_limited() -> None:
    words = " ".join(f"w{chr(97 + one)}{chr(97 + two)}{chr(97 + three)}x" for one in range(6) for two in range(26)
                     for three in range(26))  # fmt: skip
    assert len(weigh("name" * 1000, words, [words] * 1000)) <= index_module.MAX_WORDS


def test_the_scores_that_a_view_keeps_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "MAX_CACHED_SCORES", 3)
    view = INDEX.view([True] * len(TOOLS))
    for query in ("note", "mail", "weather", "delete", "add", "send"):
        INDEX.search(query, view, 5)
    assert len(view.cache) < 6
    assert names("weather", view) == names("weather")


def test_a_huge_query_takes_no_longer_than_its_limits_allow() -> None:
    started_at = time.thread_time()
    INDEX.search("forecast note " * 500_000, EVERYTHING, 5)
    INDEX.search("é" * 5_000_000, EVERYTHING, 5)
    assert time.thread_time() - started_at < 0.5
