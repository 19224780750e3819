"""CONTRIBUTING.md leads people to the places in the code. A place that was renamed must be renamed there too."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.conftest import ROOT

TEXT = (ROOT / "CONTRIBUTING.md").read_text().partition("## Where a new thing goes")[2].partition("\n## ")[0]
PACKAGES = ("guildhall", "roster", "mcp_runtime", "tests")
FILE = r"[\w./-]+\.(?:py|sql|html)"
NAME = r"`[A-Za-z_][\w.]*`"
# Such as "`_call` and `_outcome` in `calls/dispatcher.py`".
NAMES_IN_FILE = re.compile(rf"({NAME}(?:(?:,|,? and| or)\s+{NAME})*)\s+in\s+`({FILE})`")
SOURCES = {path: path.read_text() for package in PACKAGES for path in (ROOT / package).rglob("*.py")}


def path_of(name: str) -> Path | None:
    """The file, from the root or from mcp_runtime."""
    return next((path for path in (ROOT / name, ROOT / "mcp_runtime" / name) if path.is_file()), None)


def is_in(text: str, name: str) -> bool:
    """Whether each part of a name such as `Token.LIMITS` is a word of the text."""
    return all(re.search(rf"\b{part}\b", text) for part in name.split("."))


@pytest.mark.parametrize("name", sorted(set(re.findall(rf"`({FILE})`", TEXT))))
def test_each_file_exists(name: str) -> None:
    is_short = "/" not in name  # the sentence has named its folder
    assert path_of(name) or (is_short and [*ROOT.glob(f"roster/**/{name}"), *ROOT.glob(f"mcp_runtime/**/{name}")])


@pytest.mark.parametrize(("names", "file"), sorted(set(NAMES_IN_FILE.findall(TEXT))))
def test_names_are_in_the_file_that_is_given(names: str, file: str) -> None:
    path = path_of(file)
    assert path is not None, "give its path, because a name is looked up there"
    text = path.read_text()
    assert [name for name in re.findall(r"`([\w.]+)`", names) if not is_in(text, name)] == []


@pytest.mark.parametrize("name", sorted({name for name in re.findall(r"`([A-Za-z_][\w.]*)`", TEXT) if "_" in name}))
def test_each_name_with_an_underscore_is_a_name_of_the_code(name: str) -> None:
    """Other names are too common for a search to show anything."""
    assert path_of(name) or re.search(r"\.\w{2,4}$", name) or any(is_in(text, name) for text in SOURCES.values())


def test_most_places_are_found_in_the_text() -> None:
    assert len(NAMES_IN_FILE.findall(TEXT)) > 30
