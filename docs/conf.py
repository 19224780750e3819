"""The site of docs/, made by `make docs`. Every warning, such as a broken link, fails the build.

The README is the first page, and the other pages at the top of the repository are pages of the site too. Their links
are written for the repository, so they are rewritten here for the site.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

project = "Guild Hall"
copyright = "Guild Hall contributors, MIT License"
extensions = ["myst_parser"]
html_theme = "furo"
html_title = "Guild Hall"
html_static_path = ["images"]
html_copy_source = False
html_show_sourcelink = False
myst_heading_anchors = 4

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
# A file outside docs/, and the page of the site that shows it.
SHOWN_BY = {
    ROOT / "README.md": DOCS / "index.md",
    ROOT / "CHANGELOG.md": DOCS / "project" / "changelog.md",
    ROOT / "CONTRIBUTING.md": DOCS / "project" / "contributing.md",
    ROOT / "SECURITY.md": DOCS / "project" / "security.md",
    ROOT / "LICENSE": DOCS / "project" / "license.md",
    ROOT / "bench" / "README.md": DOCS / "project" / "bench.md",
}
INCLUDE = re.compile(r"^```\{include\} (\S+)\n```$", re.MULTILINE)
LINK = re.compile(r"\]\((?![a-z]+:|#)([^)#\s]+)")
PICTURE = re.compile(r"(src|srcset)=\"docs/images/")


def rewrite(_app: Any, name: str, source: list[str]) -> None:
    page = DOCS / f"{name}.md"

    def included(match: re.Match[str]) -> str:
        origin = (page.parent / match[1]).resolve()
        text = PICTURE.sub(r'\1="_static/', origin.read_text(encoding="utf-8"))
        return with_links(text, origin, page)

    source[0] = INCLUDE.sub(included, with_links(source[0], page, page))


def with_links(text: str, origin: Path, page: Path) -> str:
    """The text of `origin` with its links as `page` needs them."""

    def link(match: re.Match[str]) -> str:
        target = (origin.parent / match[1]).resolve()
        return "](" + os.path.relpath(SHOWN_BY.get(target, target), page.parent)

    return LINK.sub(link, text)


def setup(app: Any) -> dict[str, bool]:
    app.connect("source-read", rewrite)
    return {"parallel_read_safe": True}
