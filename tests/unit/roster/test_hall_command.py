"""Commands where no hall is: in a terminal without the variables of the hall that runs, for one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT


def manage(data_dir: Path, *argv: str, database_url: str = "") -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GUILD_HALL_")}
    environment = {**kept, "GUILD_HALL_DATA_DIR": str(data_dir), "DATABASE_URL": database_url, "REDIS_URL": ""}
    return subprocess.run(
        [sys.executable, "manage.py", *argv], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize("command", [["roster"], ["create_token", "admin"], ["runtime", "--check"]])
def test_where_no_hall_is_a_command_says_so_in_one_line_and_makes_no_database(
    tmp_path: Path, command: list[str]
) -> None:
    ran = manage(tmp_path, *command)
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr == (
        f"CommandError: There is no hall in {tmp_path}. Start one with: manage.py up. If yours runs already, give this "
        "terminal the same GUILD_HALL_ variables and DATABASE_URL.\n"
    )
    assert not list(tmp_path.glob("*.sqlite3*"))


def test_an_empty_database_is_no_hall_either(tmp_path: Path) -> None:
    (tmp_path / "guildhall.sqlite3").touch()
    assert f"There is no hall in {tmp_path}." in manage(tmp_path, "roster").stderr


def test_a_database_that_does_not_answer_is_said_in_one_line(tmp_path: Path) -> None:
    ran = manage(tmp_path, "roster", database_url="postgres://nobody@127.0.0.1:1/hall")
    assert ran.returncode == 1
    assert ran.stderr.startswith("CommandError: The database cannot be used (connection failed")
    assert len(ran.stderr.splitlines()) <= 3  # the server's own words take two
