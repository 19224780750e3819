"""A database that cannot be written for long, or is damaged: what readers, callers and commands are told."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import requests
from django.db import connection

from roster.models import Hall as HallRow
from tests.conftest import ROOT, eventually
from tests.support.hall import WEB, Hall, call, wait_for_status, wait_for_web

pytestmark = [
    pytest.mark.skipif("postgres" in os.environ.get("DATABASE_URL", ""), reason="of SQLite's one file and its lock"),
]
LONG_AGO = "2020-01-01 00:00:00"


@contextlib.contextmanager
def locked(since: str = LONG_AGO) -> Iterator[None]:
    """Another process holds the write lock, and has held it for longer than a lease lives without a heartbeat."""
    with contextlib.closing(sqlite3.connect(connection.settings_dict["NAME"], isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        other.execute("UPDATE roster_hall SET heartbeat_at = ?", [since])
        other.execute("COMMIT")
        other.execute("BEGIN IMMEDIATE")
        assert other.execute("SELECT heartbeat_at FROM roster_hall").fetchone() == (since,)
        try:
            yield
        finally:
            other.execute("ROLLBACK")


def shown(hall: Hall) -> str:
    return hall.manage("roster").stdout


def test_a_database_that_is_locked_for_long_leaves_members_shown_as_they_are_and_loses_nothing(hall: Hall) -> None:
    hall.add("anna")
    runtime = hall.start()
    wait_for_status(hall, "anna", "connected")
    eventually((hall.data_dir / "heartbeat").exists)
    with locked():
        assert "disconnected" not in shown(hall)
        assert "connected" in shown(hall)
        assert hall.manage("runtime", "--check").returncode == 0
        assert HallRow.objects.get().heartbeat_at.year == 2020  # type: ignore[union-attr]
        os.kill(hall.worker_pid, signal.SIGSTOP)
        frozen_at = time.time() - HallRow.LEASE_SECONDS - 1
        os.utime(hall.data_dir / "heartbeat", (frozen_at, frozen_at))
        try:
            assert hall.manage("runtime", "--check").returncode != 0  # frozen: it neither writes nor answers
        finally:
            os.kill(hall.worker_pid, signal.SIGCONT)
        eventually(lambda: hall.manage("runtime", "--check").returncode == 0)
    assert call("anna", "echo", {"text": "hello"}).status == "succeeded"
    assert runtime.poll() is None
    assert psutil.pid_exists(hall.worker_pid)


# Damaged ----------------------------------------------------------------------------------------------------------


def no_database(file: Path) -> None:
    file.write_bytes(b"x" * 50_000)


def lost_pages(file: Path) -> None:
    with file.open("r+b") as pages:
        pages.seek(4096)
        pages.write(b"\xff" * (file.stat().st_size - 4096))


def cut_off(file: Path) -> None:
    os.truncate(file, 5000)


DAMAGES = [no_database, lost_pages, cut_off]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data folder of a hall that was prepared and never ran."""
    folder = tmp_path_factory.mktemp("prepared")
    environment = {**os.environ, "GUILD_HALL_DATA_DIR": str(folder), "DATABASE_URL": "", "REDIS_URL": ""}
    subprocess.run([sys.executable, "manage.py", "prepare"], cwd=ROOT, env=environment, check=True, timeout=60)
    return folder


@pytest.fixture
def own_file(hall: Hall, prepared: Path, tmp_path: Path) -> Path:
    """A hall's own database, ready for use, and nobody's yet."""
    shutil.copytree(prepared, hall.data_dir)
    file = tmp_path / "own hall.sqlite3"
    (hall.data_dir / "guildhall.sqlite3").rename(file)
    Path(f"{hall.data_dir}/guildhall.sqlite3-wal").unlink(missing_ok=True)
    return file


def tells_what_to_do(said: str, file: Path) -> None:
    assert "Traceback" not in said
    assert f"The database {file} is damaged" in said
    aside = "; ".join(f"mv '{file}{part}' '{file}.damaged{part}'" for part in ("", "-wal", "-shm"))
    assert f"{aside}; cp BACKUP '{file}'" in said


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("command", ["prepare", "up", "roster", "create_token admin"])
def test_a_command_on_a_damaged_database_names_the_file_and_how_to_restore_it(
    hall: Hall, own_file: Path, damage: Callable[[Path], None], command: str
) -> None:
    damage(own_file)
    done = hall.manage(*command.split(), env={"DATABASE_URL": f"sqlite:///{own_file}"})
    assert done.returncode == 1
    tells_what_to_do(done.stderr, own_file)
    assert done.stderr.count("\n") == 1


def test_a_runtime_on_a_damaged_database_says_so_too(hall: Hall, own_file: Path) -> None:
    no_database(own_file)
    runtime = hall.popen([sys.executable, "-m", "mcp_runtime.runtime.guard"], DATABASE_URL=f"sqlite:///{own_file}")
    assert runtime.wait(20) == 70
    tells_what_to_do(hall.output(), own_file)


def test_the_web_says_what_is_wrong_when_its_database_is_damaged_while_it_runs(hall: Hall, own_file: Path) -> None:
    hall.popen(WEB, DATABASE_URL=f"sqlite:///{own_file}")
    wait_for_web(hall)
    token = (hall.data_dir / "local-token").read_text().strip()
    lost_pages(own_file)
    answer = requests.get(f"{hall.url}/api/members/", headers={"Authorization": f"Bearer {token}"}, timeout=10)
    assert (answer.status_code, answer.json()["code"]) == (503, "database_damaged")
    page = requests.get(f"{hall.url}/admin/", cookies={f"guildhall_{hall.web_port}_session": "x" * 32}, timeout=10)
    assert page.status_code == 503
    assert page.text.startswith("The hall's database is damaged.")
    assert requests.get(f"{hall.url}/readyz", timeout=10).json()["database"] is False
    tells_what_to_do(hall.output(), own_file)


def test_a_runtime_whose_database_is_damaged_while_it_runs_says_so_once(hall: Hall, own_file: Path) -> None:
    hall.popen([sys.executable, "-m", "mcp_runtime.runtime.guard"], DATABASE_URL=f"sqlite:///{own_file}")
    eventually((hall.data_dir / "heartbeat").exists, within=20)
    lost_pages(own_file)
    eventually(lambda: "is damaged" in hall.output(), within=20)
    time.sleep(2)  # some turns of everybody
    tells_what_to_do(hall.output(), own_file)
    assert hall.output().count("is damaged") <= 2  # by the heartbeat, and for all others


def test_the_commands_that_are_told_bring_the_backup_back(hall: Hall, own_file: Path) -> None:
    backup = own_file.with_name("backup.sqlite3")
    shutil.copy(own_file, backup)
    lost_pages(own_file)
    env = {"DATABASE_URL": f"sqlite:///{own_file}"}
    said = hall.manage("roster", env=env).stderr
    Path(f"{own_file}-wal").write_text("journal")
    commands = said[said.index("mv ") : said.index(" See docs/backup.md")].rstrip(".").replace("BACKUP", f"'{backup}'")
    subprocess.run(["sh", "-c", commands], check=True)
    assert Path(f"{own_file}.damaged-wal").read_text() == "journal"
    assert hall.manage("roster", env=env).returncode == 0
