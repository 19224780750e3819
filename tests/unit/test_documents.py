"""The examples in README and docs are valid for their programs, and all links lead to existing places."""

from __future__ import annotations

import ast
import json
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.support.documents import PAGES, Block, all_blocks, anchors, links


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_to_a_file_and_a_heading_that_exist(page: Path) -> None:
    broken = []
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


def test_every_shell_block_has_valid_syntax() -> None:
    for block in all_blocks("sh"):
        process = subprocess.run(["bash", "-n"], input=block.text, capture_output=True, text=True, timeout=30)
        assert process.returncode == 0, f"{block.name}: {process.stderr}"


@pytest.mark.parametrize("block", all_blocks("json"), ids=lambda block: block.name)
def test_every_json_block_is_valid_json(block: Block) -> None:
    json.loads(block.text)


@pytest.mark.parametrize("block", all_blocks("python"), ids=lambda block: block.name)
def test_every_python_block_compiles(block: Block) -> None:
    ast.parse(block.text)


def test_the_readme_stays_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_is_not_too_long_to_read(page: Path) -> None:
    assert len(page.read_text().splitlines()) <= 200
