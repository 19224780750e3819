"""A copy of the database beside the running hall, as in a restore drill: the same hall by its id."""

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
from tests.support.hall import PATIENCE, Hall, lives

pytestmark = pytest.mark.timeout(200)

NAMES = ("one", "two")
OWN_SQLITE = {"DATABASE_URL": "", "REDIS_URL": ""}
GUARD = [sys.executable, "-m", "mcp_runtime.runtime.guard"]


def copy_of(hall: Hall, folder: Path) -> Hall:
    """The members' folder and the range of ports are the same, as in a copy of everything else."""
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
    """Status and pid of each member, by name; nothing while the database is being made."""
    address = f"file:{hall.data_dir}/guildhall.sqlite3?mode=ro"
    with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(address, uri=True)) as database:
        found = database.execute("select name, status, pid from roster_guildmember")
        return {name: (status, pid) for name, status, pid in found}
    return {}


def pids(hall: Hall, *, other_than: Collection[int] = ()) -> set[int]:
    """Of all of its members, once they are connected, and none of those any more."""

    def connected() -> bool:
        found = rows(hall)
        return set(found) == set(NAMES) and all(s == "connected" and p not in other_than for s, p in found.values())

    try:
        eventually(connected, within=3 * PATIENCE)
    except pytest.fail.Exception:
        pytest.fail(f"{rows(hall)}\n{hall.output()}")
    return {pid for _, pid in rows(hall).values()}


def holder(hall: Hall) -> int:
    """The pid in its lease."""
    with contextlib.closing(sqlite3.connect(hall.data_dir / "guildhall.sqlite3")) as database:
        return int(database.execute("select lease_pid from roster_hall").fetchone()[0])


@pytest.fixture
def copied(hall: Hall, tmp_path: Path) -> Iterator[Callable[[], Hall]]:
    copy: list[Hall] = []

    def make() -> Hall:
        copy.append(copy_of(hall, tmp_path / "copy"))
        return copy[0]

    yield make
    for one in copy:
        one.end()


def test_a_copy_runs_beside_the_hall_and_each_ends_only_what_it_left_itself(
    hall: Hall, copied: Callable[[], Hall]
) -> None:
    for name in NAMES:
        hall.add(name)
    assert hall.manage("prepare", env=OWN_SQLITE).returncode == 0
    guard = hall.popen(GUARD, **OWN_SQLITE)
    ours = pids(hall)
    left = [psutil.Process(pid) for pid in ours]
    copy = copied()  # names our runtime as its own, with a heartbeat of a moment ago
    beside = copy.up(**OWN_SQLITE)
    theirs = pids(copy, other_than=ours)
    assert pids(hall) == ours
    assert all(map(lives, left))

    worker = holder(hall)
    os.kill(worker, signal.SIGSTOP)
    guard.kill()
    os.kill(worker, signal.SIGKILL)
    guard.wait(PATIENCE)
    hall.popen(GUARD, **OWN_SQLITE)
    pids(hall, other_than=ours | theirs)
    assert not any(map(lives, left))
    assert all(lives(psutil.Process(pid)) for pid in theirs)
    assert beside.poll() is None
