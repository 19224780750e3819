"""docs/roles.md is what the tables of rights say."""

from __future__ import annotations

from roster import roles
from tests.attack import rights_page
from tests.attack.rights_page import COLUMNS, PAGE


def lines_with(text: str) -> list[list[str]]:
    lines = [line for line in rights_page.page().splitlines() if text in line]
    return [[cell.strip() for cell in line.strip("|").split("|")][1:] for line in lines]


def test_the_page_is_generated() -> None:
    """If it fails, write the page again: the docstring of tests/attack/rights_page.py says how."""
    assert PAGE.read_text() == rights_page.page()


def test_each_role_has_a_column() -> None:
    names = [column.name for column in COLUMNS]
    assert names == ["anonymous", "no role", *roles.NAMES, "superuser"]


def test_each_role_sees_at_least_what_the_one_before_it_sees() -> None:
    order = {"-": 0, "own": 1, "fewer": 1, "sees": 2, "may": 2}
    tables = [line for line in rights_page.page().splitlines() if line.startswith(("| GET", "| POST", "| `/"))]
    assert len(tables) > 60
    for line in tables:
        cells = [order[cell.strip()] for cell in line.strip("|").split("|")[1:]]
        assert cells[1:] == sorted(cells[1:]), line


def test_known_answers_are_in_the_page() -> None:
    assert lines_with("GET `/api/audit/`") == [["-", "-", "-", "-", "-", "sees", "sees"]]
    assert lines_with("POST `/api/nodes/rebalance/`") == [["-", "-", "-", "-", "may", "may", "may"]]
    assert lines_with("`/agents/<agent>/mcp`") == [["-", "-", "-", "own", "own", "own", "own"]]
    assert lines_with("`/mcp`") == [["-", "sees", "sees", "may", "may", "may", "may"]]


def test_each_command_is_in_the_page() -> None:
    names = {path.stem for path in rights_page.COMMANDS.glob("[a-z]*.py")}
    assert [name for name in names if f"`{name}`" not in rights_page.page()] == []
