"""The clock moves only for the processes of the hall, and the disk is full for every writer."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.storm.surroundings import Clock, Disk, through

PRINT_CLOCKS = "import sys, time, datetime, sqlite3\nfor _ in sys.stdin:\n  print(time.time(), time.monotonic(), datetime.datetime.now().timestamp(), sqlite3.connect(':memory:').execute(\"select strftime('%s', 'now')\").fetchone()[0], flush=True)"  # noqa: E501


def test_only_the_wall_clock_jumps_in_processes_with_the_moved_clock(tmp_path: Path) -> None:
    clock = Clock(tmp_path)
    if clock.why_not:
        pytest.skip(clock.why_not)
    environment = {**os.environ, **clock.environment}
    with subprocess.Popen(
        [sys.executable, "-c", PRINT_CLOCKS], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:

        def clock_differences() -> list[float]:
            """The differences of the wall clock, the monotonic clock, datetime and SQLite to this process."""
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write("\n")
            process.stdin.flush()
            wall, monotonic, of_datetime, of_sqlite = map(float, process.stdout.readline().split())
            now = time.time()
            return [wall - now, monotonic - time.monotonic(), of_datetime - now, of_sqlite - now]

        assert clock_differences() == pytest.approx([0, 0, 0, 0], abs=2)
        clock.jump_to(7200.0)
        assert clock_differences() == pytest.approx([7200, 0, 7200, 7200], abs=2)
        clock.jump_to(-15.0)
        assert clock_differences() == pytest.approx([-15, 0, -15, -15], abs=2)
        process.stdin.close()  # type: ignore[union-attr]


def test_a_full_disk_refuses_writes_until_it_is_emptied(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    if disk.why_not:
        pytest.skip(disk.why_not)
    try:
        disk.fill()
        with pytest.raises(OSError, match="No space left"):
            (tmp_path / "more").write_bytes(bytes(100_000))
        disk.empty()
        (tmp_path / "more").write_bytes(bytes(100_000))
    finally:
        disk.end()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("postgres://hall:secret@db:5432/name", "postgres://hall:secret@127.0.0.1:77/name"),
        ("redis://127.0.0.1:6379/9", "redis://127.0.0.1:77/9"),
    ],
)
def test_only_the_address_of_a_services_url_is_replaced_by_the_proxy(url: str, expected: str) -> None:
    class FakeProxy:
        address = "127.0.0.1:77"

    assert through(FakeProxy(), url) == expected  # type: ignore[arg-type]
