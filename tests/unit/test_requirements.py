"""docs/requirements.md: no demand of the seeds is missing, and every test that it names exists."""

from __future__ import annotations

import ast
import collections
import re
from functools import cache

import pytest

from tests.conftest import ROOT

EXPECTED = [
    *(f"REQ-MCP-HTTP-{number}" for number in range(1, 45)),
    *("REQ-MCP-HTTP-10b", "REQ-MCP-HTTP-11b"),  # two numbers were used twice
    *(f"E-{number}" for number in range(1, 4)),
    *(f"SC-{number}" for number in range(1, 13)),
    *(f"V-{number}" for number in range(1, 10)),
    *(f"000-{number}" for number in range(1, 9)),
    *(f"001-{number}" for number in range(1, 16)),
    *(f"004-AC{number}" for number in range(1, 6)),
    *(f"P-{number}" for number in range(1, 11)),  # our own demands, from docs/architecture.md
]
ISSUE = re.compile(r"\bissue [34]\b")
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def rows() -> list[tuple[str, str, str]]:
    """Id, demand and proof of every row."""
    table_rows = []
    for line in (ROOT / "docs" / "requirements.md").read_text().splitlines():
        match = re.fullmatch(r"\| (\S+) \| (.+) \| (.+) \|", line)
        if match and match[1] not in ("Id", "---"):
            table_rows.append((match[1], match[2], match[3]))
    return table_rows


@cache
def names_in(path: str) -> frozenset[str]:
    tree = ast.parse((ROOT / path).read_text()) if (ROOT / path).is_file() else ast.Module([], [])
    functions = (node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    return frozenset(name for name in functions if name.startswith("test_"))


def test_every_demand_is_in_the_table_once() -> None:
    assert collections.Counter(row[0] for row in rows()) == collections.Counter(EXPECTED)


@pytest.mark.parametrize(("demand", "proof"), [(row[0], row[2]) for row in rows()])
def test_every_demand_names_existing_tests_or_an_open_issue(demand: str, proof: str) -> None:
    citations = TEST.findall(proof)
    assert citations or ISSUE.search(proof)
    assert [f"{path}::{name}" for path, name in citations if name not in names_in(path)] == []
    assert proof.count("::") == len(citations), "a name that is not written as `tests/...py::test_...`"
