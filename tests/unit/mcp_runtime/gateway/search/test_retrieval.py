"""How often the search finds the tool of a query, on labelled queries that it was not tuned for.

retrieval/README.md names their authors. The second half was not read while the search was written.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from mcp_runtime.gateway.search.index import Index, weigh

CORPUS = json.loads((Path(__file__).parent / "retrieval" / "bfcl.json").read_text())
Queries = list[dict[str, str]]


def is_held_out(tool: str) -> bool:
    return hashlib.sha256(b"guild hall search\0" + tool.encode()).digest()[0] % 2 == 1


TUNING: Queries = [each for each in CORPUS["queries"] if not is_held_out(each["tool"])]
HELD_OUT: Queries = [each for each in CORPUS["queries"] if is_held_out(each["tool"])]


def recall(queries: Queries, tools: list[dict[str, Any]], best: int) -> float:
    """The part of the queries whose tool is among the `best` first results."""
    index = Index([weigh(tool["name"], tool["description"], tool["parameters"]) for tool in tools])
    view = index.view([True] * len(tools))
    found = [{tools[number]["name"] for number in index.search(each["query"], view, best)} for each in queries]
    return sum(each["tool"] in names for each, names in zip(queries, found, strict=True)) / len(queries)


def test_no_tool_is_the_label_of_queries_in_both_halves() -> None:
    assert not {each["tool"] for each in TUNING} & {each["tool"] for each in HELD_OUT}
    assert (len(TUNING), len(HELD_OUT)) == (239, 256)


def test_the_half_that_the_search_was_tuned_with() -> None:
    tools = [tool for tool in CORPUS["tools"] if not is_held_out(tool["name"])]
    assert recall(TUNING, tools, best=5) >= 0.94


def test_the_half_that_was_not_read() -> None:
    assert recall(HELD_OUT, CORPUS["tools"], best=5) >= 0.88
    assert recall(HELD_OUT, CORPUS["tools"], best=1) >= 0.66
