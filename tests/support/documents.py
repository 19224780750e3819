"""README and docs as data: their code blocks, links and headings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.conftest import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(?P<info>[^`\n]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?P<target>[^)\s]+)\)|(?:src|srcset)=\"(?P<image>[^\"]+)\"")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


class Block(NamedTuple):
    page: Path
    line: int
    language: str
    # It has `run` after the language. A test runs it against a real hall.
    is_run: bool
    text: str

    @property
    def name(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path) -> list[Block]:
    source = page.read_text()
    return [
        Block(
            page,
            source.count("\n", 0, match.start()) + 1,
            (match["info"].split() or [""])[0],
            "run" in match["info"].split()[1:],
            match["text"],
        )
        for match in FENCE.finditer(source)
    ]


def all_blocks(*languages: str) -> list[Block]:
    return [block for page in PAGES for block in blocks(page) if block.language in languages]


def links(page: Path) -> Iterator[str]:
    """The links of the page to files of this repository, without those in code blocks."""
    for match in LINK.finditer(FENCE.sub("", page.read_text())):
        target = match["target"] or match["image"]
        if "://" not in target:
            yield target


def anchors(page: Path) -> set[str]:
    """The headings of the page, as links name them."""
    return {_slug(heading) for heading in HEADING.findall(FENCE.sub("", page.read_text()))}


def _slug(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")
