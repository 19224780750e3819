"""Every shell block of README and docs that is marked `run` works against a real hall, as a reader runs it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.support.documents import PAGES, blocks
from tests.support.hall import Hall, bring_up

RUN = [page for page in PAGES if any(block.is_run for block in blocks(page))]


@pytest.fixture
def checkout(hall: Hall, tmp_path: Path) -> Path:
    """A folder with what a reader has in theirs: the commands, the members, and the data of a hall that runs."""
    for name in ("example", "notes"):
        shutil.copytree(
            ROOT / "guild-members" / name, hall.members_dir / name, ignore=shutil.ignore_patterns("notes.json")
        )
    bring_up(hall, "example", "notes")
    folder = tmp_path / "checkout"
    (folder / ".venv" / "bin").mkdir(parents=True)
    python = folder / ".venv" / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    (folder / "manage.py").symlink_to(ROOT / "manage.py")
    (folder / "guild-members").symlink_to(hall.members_dir)
    (folder / "var").symlink_to(hall.data_dir)
    return folder


def run_blocks(page: Path, hall: Hall, checkout: Path) -> subprocess.CompletedProcess[str]:
    """All in one shell, in their order: a later block may use what an earlier one made."""
    script = "\n".join(block.text for block in blocks(page) if block.is_run)
    for written, real in ((8000, hall.web_port), (8100, hall.gateway_port)):
        script = script.replace(f"localhost:{written}", f"localhost:{real}")
    return subprocess.run(
        ["bash", "-euxo", "pipefail", "-c", script],
        cwd=checkout,
        env=hall.environment(),
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.skipif(shutil.which("curl") is None and not os.environ.get("CI"), reason="no curl")
@pytest.mark.parametrize("page", RUN, ids=lambda page: page.name)
def test_the_commands_of_a_page_work_in_their_order(page: Path, hall: Hall, checkout: Path) -> None:
    done = run_blocks(page, hall, checkout)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{hall.output()}"
    assert '"error":{' not in done.stdout.replace(" ", "")
    assert '"code":' not in done.stdout
