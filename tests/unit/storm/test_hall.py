"""The hall of the storm ends completely after any fault of the hall or of the storm."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from tests.storm import hall as hall_module
from tests.storm.hall import END_WITH_US, StormHall, end_strays, hall_in_storm
from tests.storm.striking import wait_until

ROOT = Path(__file__).resolve().parents[3]
# A part of a hall, which ends with 0 on SIGTERM. It waits for the signal itself, because a handler runs too late for a
# `sleep` that begins just after the signal came.
PART_PROGRAM = (
    "import signal; asked = {signal.SIGTERM}; signal.pthread_sigmask(signal.SIG_BLOCK, asked); print(flush=True)\n"
    "signal.sigtimedwait(asked, 60)"
)
HELPER_PROGRAM = """
import subprocess, sys
from tests.storm.hall import END_WITH_US
print(subprocess.Popen([*END_WITH_US, "sleep", "60"]).pid, flush=True)
sys.stdin.read()
"""
SIGNALLED_STORM = """
import os, signal, time
from tests.storm.__main__ import end_on_signals
end_on_signals()
try:
    os.kill(os.getpid(), signal.{first})
    time.sleep(10)
finally:
    os.kill(os.getpid(), signal.SIGHUP)
    print("all is ended")
"""


class FolderHall(StormHall):
    """A hall that was not started. It has a folder, and the processes that a test adds instead of `up`."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.data, self._processes = folder, folder / "data", []

    def add_process(self, up: subprocess.Popen[bytes]) -> None:
        self._processes.append(up)


@pytest.fixture
def hall(tmp_path: Path) -> FolderHall:
    return FolderHall(tmp_path)


def start_part(hall: StormHall, directory: Path | None = None) -> subprocess.Popen[bytes]:
    """Start a part of the hall, or a process without environment that works in `directory`."""
    environment = {} if directory else {**os.environ, "GUILD_HALL_DATA_DIR": str(hall.data)}
    process = subprocess.Popen(
        [sys.executable, "-c", PART_PROGRAM], cwd=directory, env=environment, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    return process


def test_a_frozen_hall_stops_on_request(hall: FolderHall) -> None:
    process = start_part(hall)
    hall.add_process(process)
    process.send_signal(signal.SIGSTOP)
    stop = hall.stop_whole(5.0)
    assert stop.status == 0
    assert stop.seconds < 4


def test_the_status_of_a_stop_shows_a_killed_and_a_missing_hall(hall: FolderHall) -> None:
    process_without_sigterm = subprocess.Popen(["sh", "-c", "trap '' TERM; while :; do sleep 0.1; done"])
    hall.add_process(process_without_sigterm)
    assert wait_until(lambda: "sleep" in names_below(process_without_sigterm.pid), 5)
    assert hall.stop_whole(0.3).status == -signal.SIGKILL
    assert hall.stop_whole().status is None


def names_below(pid: int) -> list[str]:
    names = []
    for process in psutil.Process(pid).children():
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended meanwhile
            names.append(process.name())
    return names


def test_leftover_parts_and_members_of_a_copy_are_counted_and_ended(hall: FolderHall) -> None:
    directory = hall.folder / "copy-1" / "members" / "http-0"
    directory.mkdir(parents=True)
    processes = [start_part(hall), start_part(hall, directory)]
    assert set(hall.all_processes()) == {process.pid for process in processes}
    end_strays(hall)
    assert [process.wait(5) for process in processes] == [-signal.SIGKILL] * 2
    assert hall.all_processes() == {}


@pytest.mark.skipif(not END_WITH_US, reason="setpriv of util-linux is not there")
def test_the_hall_does_not_outlive_a_storm_that_is_killed() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HELPER_PROGRAM], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as helper:
        assert helper.stdout is not None
        process = psutil.Process(int(helper.stdout.readline()))
        assert wait_until(lambda: process.name() == "sleep", 5)
        helper.kill()
        assert wait_until(lambda: has_ended(process), 5)


def has_ended(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.status() == psutil.STATUS_ZOMBIE
    return True


@pytest.mark.parametrize("first_signal", ["SIGTERM", "SIGHUP"])
def test_a_storm_ended_by_a_signal_ends_its_hall_despite_further_signals(first_signal: str) -> None:
    argv = [sys.executable, "-c", SIGNALLED_STORM.format(first=first_signal)]
    result = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=30, check=False)
    assert result.returncode == 128 + getattr(signal, first_signal)
    assert result.stdout == "all is ended\n"


def test_the_log_of_a_hall_that_does_not_start_is_printed_and_saved(
    hall: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def up() -> None:
        hall.log.write_text("The web cannot listen.\n")
        raise SystemExit("not within 60 s")

    hall.folder = tmp_path / "hall"
    hall.folder.mkdir()
    hall.log, hall.up, hall.disk = hall.folder / "log", up, SimpleNamespace(end=lambda: None)
    monkeypatch.setattr(hall_module, "StormHall", lambda: hall)
    with pytest.raises(SystemExit), hall_in_storm(tmp_path / "kept"):
        pass
    assert "The web cannot listen." in capsys.readouterr().out
    assert (tmp_path / "kept").read_text() == "The web cannot listen.\n"
    assert not hall.folder.exists()
