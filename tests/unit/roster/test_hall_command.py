"""Commands without a hall, for example in a terminal without the variables of the running hall."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT


def manage(data_dir: Path, *argv: str, database_url: str = "") -> subprocess.CompletedProcess[str]:
    other_variables = {name: value for name, value in os.environ.items() if not name.startswith("GUILD_HALL_")}
    environment = {
        **other_variables,
        "GUILD_HALL_DATA_DIR": str(data_dir),
        "DATABASE_URL": database_url,
        "REDIS_URL": "",
    }
    return subprocess.run(
        [sys.executable, "manage.py", *argv], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize("command", [["roster"], ["create_token", "admin"], ["runtime", "--check"]])
def test_a_command_without_a_hall_gives_one_line_and_creates_no_database(tmp_path: Path, command: list[str]) -> None:
    process = manage(tmp_path, *command)
    assert (process.returncode, process.stdout) == (3, "")
    assert process.stderr == (
        f"CommandError: There is no hall in {tmp_path}. Start one with: make run. If yours is elsewhere, name its data "
        "folder: guildhall --hall FOLDER, or GUILD_HALL_DATA_DIR.\n"
    )
    assert not list(tmp_path.glob("*.sqlite3*"))


def test_an_empty_database_is_not_a_hall(tmp_path: Path) -> None:
    (tmp_path / "guildhall.sqlite3").touch()
    assert f"There is no hall in {tmp_path}." in manage(tmp_path, "roster").stderr


def test_an_unreachable_database_gives_a_short_error(tmp_path: Path) -> None:
    process = manage(tmp_path, "roster", database_url="postgres://nobody@127.0.0.1:1/hall")
    assert process.returncode == 3
    assert process.stderr.startswith("CommandError: The database cannot be used (connection failed")
    assert len(process.stderr.splitlines()) <= 3  # the error of the server takes two lines
