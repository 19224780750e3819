"""A copy of the database runs beside the hall, as in a restore drill. Both halls have the same id."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import sys
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import psutil
import pytest

from tests.conftest import eventually
from tests.support.hall import PATIENCE, Hall, is_live

pytestmark = pytest.mark.timeout(200)

NAMES = ("one", "two")
OWN_SQLITE = {"DATABASE_URL": "", "REDIS_URL": ""}
GUARD = [sys.executable, "-m", "mcp_runtime.runtime.guard"]


def copy_of(hall: Hall, folder: Path) -> Hall:
    """The members folder and the port range are the same, as in a copy of all other files."""
    folder.mkdir()
    copy = Hall(folder)
    copy.members_dir.rmdir()
    copy.members_dir, copy.port_range = hall.members_dir, hall.port_range
    copy.data_dir.mkdir(mode=0o700)
    with (
        contextlib.closing(sqlite3.connect(hall.data_dir / "guildhall.sqlite3")) as source,
        contextlib.closing(sqlite3.connect(copy.data_dir / "guildhall.sqlite3")) as target,
    ):
        source.backup(target)
    return copy


def rows(hall: Hall) -> dict[str, tuple[str, int]]:
    """Status and pid of each member, by name. Empty while the database is being made."""
    address = f"file:{hall.data_dir}/guildhall.sqlite3?mode=ro"
    with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(address, uri=True)) as database:
        records = database.execute("select name, status, pid from roster_guildmember")
        return {name: (status, pid) for name, status, pid in records}
    return {}


def pids(hall: Hall, *, other_than: Collection[int] = ()) -> set[int]:
    """The pids of all members, once all are connected and none of them is in `other_than`."""

    def connected() -> bool:
        members = rows(hall)
        return set(members) == set(NAMES) and all(s == "connected" and p not in other_than for s, p in members.values())

    try:
        eventually(connected, within=3 * PATIENCE)
    except pytest.fail.Exception:
        pytest.fail(f"{rows(hall)}\n{hall.output()}")
    return {pid for _, pid in rows(hall).values()}


def lease_pid(hall: Hall) -> int:
    """The pid in the lease of the hall."""
    with contextlib.closing(sqlite3.connect(hall.data_dir / "guildhall.sqlite3")) as database:
        return int(database.execute("select pid from roster_node").fetchone()[0])


@pytest.fixture
def make_copy(hall: Hall, tmp_path: Path) -> Iterator[Callable[[], Hall]]:
    copies: list[Hall] = []

    def make() -> Hall:
        copies.append(copy_of(hall, tmp_path / "copy"))
        return copies[0]

    yield make
    for copy in copies:
        copy.end()


def test_a_copy_runs_beside_the_hall_and_each_ends_only_its_own_processes(
    hall: Hall, make_copy: Callable[[], Hall]
) -> None:
    for name in NAMES:
        hall.add(name)
    assert hall.manage("prepare", env=OWN_SQLITE).returncode == 0
    guard = hall.popen(GUARD, **OWN_SQLITE)
    own_pids = pids(hall)
    processes = [psutil.Process(pid) for pid in own_pids]
    copy = make_copy()  # its lease names the runtime of the hall, with a heartbeat of a moment ago
    copy_process = copy.up(**OWN_SQLITE)
    copy_pids = pids(copy, other_than=own_pids)
    assert pids(hall) == own_pids
    assert all(map(is_live, processes))

    worker = lease_pid(hall)
    os.kill(worker, signal.SIGSTOP)
    guard.kill()
    os.kill(worker, signal.SIGKILL)
    guard.wait(PATIENCE)
    hall.popen(GUARD, **OWN_SQLITE)
    pids(hall, other_than=own_pids | copy_pids)
    assert not any(map(is_live, processes))
    assert all(is_live(psutil.Process(pid)) for pid in copy_pids)
    assert copy_process.poll() is None
