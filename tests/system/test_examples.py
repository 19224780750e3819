"""The members of docs/examples.md work as shown. Only what `pip` and `npm` install comes from this machine."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.support.documents import FENCE
from tests.support.hall import Hall, call, wait_for_status
from tests.support.real_servers import NODE, SUITE

PAGE = (ROOT / "docs" / "examples.md").read_text()
SECTIONS = {part.partition("\n")[0]: part for part in re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]}
FILE = re.compile(r"^`(?P<name>[\w.-]+)`:\n\n", re.MULTILINE)


def write_files(section: str, folder: Path) -> None:
    folder.mkdir(parents=True)
    for match in FILE.finditer(section):
        code = FENCE.match(section, match.end())
        assert code, match["name"]
        (folder / match["name"]).write_text(code["text"])


def install(folder: Path) -> None:
    """Install what the commands of the page install, without the network."""
    python = folder / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    (folder / "node_modules").symlink_to(SUITE / "node_modules")


@pytest.mark.parametrize("title", SECTIONS)
def test_the_member_of_the_page_starts_and_its_tool_is_called(hall: Hall, title: str) -> None:
    if "TypeScript" in title and not NODE.exists():
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)("make conformance-suite installs it")
    folder = hall.members_dir / "greeter"
    write_files(SECTIONS[title], folder)
    install(folder)
    hall.start(PATH=f"{NODE.parent}:{os.environ['PATH']}")
    row = wait_for_status(hall, "greeter", "connected", within=60)
    assert (row.all_warnings, row.tools.get().description) == ([], "Say hello to somebody.")
    call_row = call("greeter", "hello", {"name": "Ada"})
    assert (call_row.status, call_row.result["content"][0]["text"]) == ("succeeded", "Hello, Ada!")
