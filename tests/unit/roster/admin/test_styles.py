"""The styles of all pages use one scale of sizes, which is at the beginning of static/roster/admin.css."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import django.contrib.admin
import pytest

STYLES = Path(__file__).parents[4] / "roster" / "static" / "roster"
DJANGO = Path(django.contrib.admin.__file__).parent / "static" / "admin" / "css"
# The page of the API docs is no page of the admin, and has nothing of it but its colours.
SHEETS = sorted(path for path in STYLES.glob("*.css") if path.name != "docs.css")
COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
DECLARATION = re.compile(r"(?<![\w-])(-{0,2}[a-z][\w-]*): ([^;{}]+?) ?(?=[;}])")
SPACING = re.compile(r"(padding|margin)(-[a-z]+)*|(row-|column-)?gap")
LITERAL = re.compile(r"(?<![\w.#-])-?[\d.]+(px|rem)")


def declarations(sheet: Path) -> Iterator[tuple[str, str]]:
    yield from DECLARATION.findall(COMMENT.sub("", sheet.read_text()))


def defined_in(sheet: Path) -> set[str]:
    return {name for name, _ in declarations(sheet) if name.startswith("--")}


@pytest.mark.parametrize("sheet", SHEETS, ids=lambda sheet: sheet.name)
def test_texts_have_a_size_of_the_scale(sheet: Path) -> None:
    sizes = {value for name, value in declarations(sheet) if name == "font-size"}
    assert {size for size in sizes if not re.fullmatch(r"var\(--font-[a-z]+\)|inherit|0", size)} == set()


@pytest.mark.parametrize("sheet", SHEETS, ids=lambda sheet: sheet.name)
def test_distances_are_of_the_scale(sheet: Path) -> None:
    distances = [(name, value) for name, value in declarations(sheet) if SPACING.fullmatch(name)]
    others = [
        f"{name}: {value}"
        for name, value in distances
        if any(found.group() not in ("1px", "-1px") for found in LITERAL.finditer(value))
    ]
    assert others == []


@pytest.mark.parametrize("sheet", SHEETS, ids=lambda sheet: sheet.name)
def test_rounded_corners_are_of_the_scale(sheet: Path) -> None:
    corners = [value for name, value in declarations(sheet) if name == "border-radius"]
    assert [value for value in corners if not re.fullmatch(r"(var\(--radius(-\w+)?\)|50%|2px|0| )+", value)] == []


def test_each_variable_that_a_style_uses_is_defined() -> None:
    texts = [sheet.read_text() for sheet in [*SHEETS, *DJANGO.glob("*.css")]]
    known = {name for text in texts for name in re.findall(r"(--[\w-]+):", text)}
    used = {name for sheet in SHEETS for name in re.findall(r"var\((--[\w-]+)\)", sheet.read_text())}
    assert used - known == set()


def test_the_scale_is_small() -> None:
    scale = defined_in(STYLES / "admin.css")
    counts = {kind: sum(name.startswith(f"--{kind}-") for name in scale) for kind in ("font", "space", "radius")}
    assert counts == {"font": 6, "space": 8, "radius": 2}
