"""Every shell block of README and docs that is marked `run` works against a real hall, as a reader runs it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from guildhall import entry_point
from tests.conftest import ROOT
from tests.support.documents import PAGES, blocks
from tests.support.hall import Hall, bring_up

PAGES_TO_RUN = [page for page in PAGES if any(block.is_run for block in blocks(page))]


@pytest.fixture
def checkout(hall: Hall, tmp_path: Path) -> Path:
    """A folder like that of a reader, with the commands, the members, and the data of a running hall."""
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
    entry_point.write(folder / ".venv" / "bin" / "guildhall", Path(sys.executable))
    (folder / "manage.py").symlink_to(ROOT / "manage.py")
    (folder / "guild-members").symlink_to(hall.members_dir)
    (folder / "var").symlink_to(hall.data_dir)
    return folder


def run_blocks(page: Path, hall: Hall, checkout: Path) -> subprocess.CompletedProcess[str]:
    """Run all blocks in order in one shell, because a later block may use what an earlier one made."""
    script = "\n".join(block.text for block in blocks(page) if block.is_run)
    for documented_port, port in ((8000, hall.web_port), (8100, hall.gateway_port)):
        script = script.replace(f"localhost:{documented_port}", f"localhost:{port}")
    return subprocess.run(
        ["bash", "-euxo", "pipefail", "-c", script],
        cwd=checkout,
        env=hall.environment(),
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.skipif(shutil.which("curl") is None and not os.environ.get("CI"), reason="no curl")
@pytest.mark.parametrize("page", PAGES_TO_RUN, ids=lambda page: page.name)
def test_the_commands_of_a_page_work_in_their_order(page: Path, hall: Hall, checkout: Path) -> None:
    result = run_blocks(page, hall, checkout)
    assert result.returncode == 0, f"{result.stdout}\n{result.stderr}\n{hall.output()}"
    assert '"error":{' not in result.stdout.replace(" ", "")
    assert '"code":' not in result.stdout
