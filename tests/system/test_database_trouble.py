"""A database that is locked for a long time, or damaged, and what the web, the runtime and the commands report."""

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

from roster.models import Node
from tests.conftest import ROOT, eventually
from tests.support.hall import WEB, Hall, call, wait_for_status, wait_for_web

pytestmark = [
    pytest.mark.skipif(
        "postgres" in os.environ.get("DATABASE_URL", ""), reason="SQLite alone has one file with a lock"
    ),
]
LONG_AGO = "2020-01-01 00:00:00"


@contextlib.contextmanager
def locked(since: str = LONG_AGO) -> Iterator[None]:
    """Another process has the write lock, and the last heartbeat is older than the lease allows."""
    with contextlib.closing(sqlite3.connect(connection.settings_dict["NAME"], isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("UPDATE roster_node SET heartbeat_at = ?", [since])
        writer.execute("COMMIT")
        writer.execute("BEGIN IMMEDIATE")
        assert writer.execute("SELECT heartbeat_at FROM roster_node").fetchone() == (since,)
        try:
            yield
        finally:
            writer.execute("ROLLBACK")


def roster_text(hall: Hall) -> str:
    return hall.manage("roster").stdout


def test_members_keep_their_status_and_calls_work_after_a_long_database_lock(hall: Hall) -> None:
    hall.add("anna")
    runtime = hall.start()
    wait_for_status(hall, "anna", "connected")
    eventually((hall.data_dir / "heartbeat").exists)
    with locked():
        assert "disconnected" not in roster_text(hall)
        assert "connected" in roster_text(hall)
        assert hall.manage("runtime", "--check").returncode == 0
        assert Node.objects.get().heartbeat_at.year == 2020  # type: ignore[union-attr]
        os.kill(hall.worker_pid, signal.SIGSTOP)
        frozen_at = time.time() - Node.LEASE_SECONDS - 1
        os.utime(hall.data_dir / "heartbeat", (frozen_at, frozen_at))
        try:
            assert hall.manage("runtime", "--check").returncode != 0  # frozen, it neither writes nor answers
        finally:
            os.kill(hall.worker_pid, signal.SIGCONT)
        eventually(lambda: hall.manage("runtime", "--check").returncode == 0)
    assert call("anna", "echo", {"text": "hello"}).status == "succeeded"
    assert runtime.poll() is None
    assert psutil.pid_exists(hall.worker_pid)


# Damaged ----------------------------------------------------------------------------------------------------------


def overwrite_file(file: Path) -> None:
    file.write_bytes(b"x" * 50_000)


def overwrite_pages(file: Path) -> None:
    with file.open("r+b") as pages:
        pages.seek(4096)
        pages.write(b"\xff" * (file.stat().st_size - 4096))


def truncate_file(file: Path) -> None:
    os.truncate(file, 5000)


DAMAGES = [overwrite_file, overwrite_pages, truncate_file]


@pytest.fixture(scope="module")
def prepared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data folder of a hall that was prepared and never ran."""
    folder = tmp_path_factory.mktemp("prepared")
    environment = {**os.environ, "GUILD_HALL_DATA_DIR": str(folder), "DATABASE_URL": "", "REDIS_URL": ""}
    subprocess.run([sys.executable, "manage.py", "prepare"], cwd=ROOT, env=environment, check=True, timeout=60)
    return folder


@pytest.fixture
def database_file(hall: Hall, prepared_folder: Path, tmp_path: Path) -> Path:
    """A prepared database that no process uses yet."""
    shutil.copytree(prepared_folder, hall.data_dir)
    file = tmp_path / "own hall.sqlite3"
    (hall.data_dir / "guildhall.sqlite3").rename(file)
    Path(f"{hall.data_dir}/guildhall.sqlite3-wal").unlink(missing_ok=True)
    return file


def check_instructions(text: str, file: Path) -> None:
    assert "Traceback" not in text
    assert f"The database {file} is damaged" in text
    moves = "; ".join(f"mv '{file}{part}' '{file}.damaged{part}'" for part in ("", "-wal", "-shm"))
    assert f"{moves}; cp BACKUP '{file}'" in text


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("command", ["prepare", "up", "roster", "create_token admin"])
def test_a_command_on_a_damaged_database_names_the_file_and_how_to_restore_it(
    hall: Hall, database_file: Path, damage: Callable[[Path], None], command: str
) -> None:
    damage(database_file)
    result = hall.manage(*command.split(), env={"DATABASE_URL": f"sqlite:///{database_file}"})
    assert result.returncode == 1
    check_instructions(result.stderr, database_file)
    assert result.stderr.count("\n") == 1


def test_a_runtime_on_a_damaged_database_reports_the_damage(hall: Hall, database_file: Path) -> None:
    overwrite_file(database_file)
    runtime = hall.popen([sys.executable, "-m", "mcp_runtime.runtime.guard"], DATABASE_URL=f"sqlite:///{database_file}")
    assert runtime.wait(20) == 70
    check_instructions(hall.output(), database_file)


def test_a_running_web_reports_a_damaged_database(hall: Hall, database_file: Path) -> None:
    hall.popen(WEB, DATABASE_URL=f"sqlite:///{database_file}")
    wait_for_web(hall)
    token = (hall.data_dir / "local-token").read_text().strip()
    overwrite_pages(database_file)
    response = requests.get(f"{hall.url}/api/members/", headers={"Authorization": f"Bearer {token}"}, timeout=10)
    assert (response.status_code, response.json()["code"]) == (503, "database_damaged")
    page = requests.get(f"{hall.url}/admin/", cookies={f"guildhall_{hall.web_port}_session": "x" * 32}, timeout=10)
    assert page.status_code == 503
    assert page.text.startswith("The hall's database is damaged.")
    assert requests.get(f"{hall.url}/readyz", timeout=10).json()["database"] is False
    check_instructions(hall.output(), database_file)


def test_a_running_runtime_reports_a_damaged_database_only_once(hall: Hall, database_file: Path) -> None:
    hall.popen([sys.executable, "-m", "mcp_runtime.runtime.guard"], DATABASE_URL=f"sqlite:///{database_file}")
    eventually((hall.data_dir / "heartbeat").exists, within=20)
    overwrite_pages(database_file)
    eventually(lambda: "is damaged" in hall.output(), within=20)
    time.sleep(2)  # several turns of each thread
    check_instructions(hall.output(), database_file)
    assert hall.output().count("is damaged") <= 2  # by the heartbeat, and for all other threads


def test_the_commands_in_the_error_restore_the_backup(hall: Hall, database_file: Path) -> None:
    backup = database_file.with_name("backup.sqlite3")
    shutil.copy(database_file, backup)
    overwrite_pages(database_file)
    env = {"DATABASE_URL": f"sqlite:///{database_file}"}
    text = hall.manage("roster", env=env).stderr
    Path(f"{database_file}-wal").write_text("journal")
    commands = text[text.index("mv ") : text.index(" See docs/backup.md")].rstrip(".").replace("BACKUP", f"'{backup}'")
    subprocess.run(["sh", "-c", commands], check=True)
    assert Path(f"{database_file}.damaged-wal").read_text() == "journal"
    assert hall.manage("roster", env=env).returncode == 0
