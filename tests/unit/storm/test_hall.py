"""The storm's hall ends whole, whatever was done to it and to the storm."""

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

from tests.storm import hall as of_the_hall
from tests.storm.hall import END_WITH_US, StormHall, end_strays, hall_in_storm
from tests.storm.striking import wait_until

ROOT = Path(__file__).resolve().parents[3]
# A part of a hall, which ends with 0 when it is asked to. It waits for the signal itself: a handler runs too late for a
# `sleep` that begins just after the signal came.
PART = (
    "import signal; asked = {signal.SIGTERM}; signal.pthread_sigmask(signal.SIG_BLOCK, asked); print(flush=True)\n"
    "signal.sigtimedwait(asked, 60)"
)
HELPER = """
import subprocess, sys
from tests.storm.hall import END_WITH_US
print(subprocess.Popen([*END_WITH_US, "sleep", "60"]).pid, flush=True)
sys.stdin.read()
"""
SIGNALLED = """
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


class Folder(StormHall):
    """A hall that was not started: a folder, and whatever stands in the place of `up`."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.data, self._processes = folder, folder / "data", []

    def has(self, up: subprocess.Popen[bytes]) -> None:
        self._processes.append(up)


@pytest.fixture
def hall(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def started(hall: StormHall, place: Path | None = None) -> subprocess.Popen[bytes]:
    """A part of the hall; at a `place`, what works there and has no environment."""
    environment = {} if place else {**os.environ, "GUILD_HALL_DATA_DIR": str(hall.data)}
    process = subprocess.Popen([sys.executable, "-c", PART], cwd=place, env=environment, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    return process


def test_a_frozen_hall_stops_when_it_is_asked(hall: Folder) -> None:
    process = started(hall)
    hall.has(process)
    process.send_signal(signal.SIGSTOP)
    stop = hall.stop_whole(5.0)
    assert stop.status == 0
    assert stop.seconds < 4


def test_a_hall_that_does_not_stop_is_killed_and_told_and_one_that_is_not_there_too(hall: Folder) -> None:
    stubborn = subprocess.Popen(["sh", "-c", "trap '' TERM; while :; do sleep 0.1; done"])
    hall.has(stubborn)
    assert wait_until(lambda: "sleep" in names_below(stubborn.pid), 5)
    assert hall.stop_whole(0.3).status == -signal.SIGKILL
    assert hall.stop_whole().status is None


def names_below(pid: int) -> list[str]:
    return [process.name() for process in psutil.Process(pid).children()]


def test_parts_that_were_left_over_and_members_of_a_copy_are_counted_and_ended(hall: Folder) -> None:
    place = hall.folder / "copy-1" / "members" / "http-0"
    place.mkdir(parents=True)
    processes = [started(hall), started(hall, place)]
    assert set(hall.all_processes()) == {process.pid for process in processes}
    end_strays(hall)
    assert [process.wait(5) for process in processes] == [-signal.SIGKILL] * 2
    assert hall.all_processes() == {}


@pytest.mark.skipif(not END_WITH_US, reason="setpriv of util-linux is not there")
def test_the_hall_does_not_outlive_a_storm_that_is_killed() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HELPER], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as helper:
        assert helper.stdout is not None
        process = psutil.Process(int(helper.stdout.readline()))
        assert wait_until(lambda: process.name() == "sleep", 5)
        helper.kill()
        assert wait_until(lambda: is_gone(process), 5)


def is_gone(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.status() == psutil.STATUS_ZOMBIE
    return True


@pytest.mark.parametrize("first", ["SIGTERM", "SIGHUP"])
def test_a_storm_that_is_ended_ends_its_hall_whatever_else_the_terminal_sends(first: str) -> None:
    argv = [sys.executable, "-c", SIGNALLED.format(first=first)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 128 + getattr(signal, first)
    assert done.stdout == "all is ended\n"


def test_the_log_of_a_hall_that_does_not_come_up_is_shown_and_kept(
    hall: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def up() -> None:
        hall.log.write_text("The web cannot listen.\n")
        raise SystemExit("not within 60 s")

    hall.folder = tmp_path / "hall"
    hall.folder.mkdir()
    hall.log, hall.up, hall.disk = hall.folder / "log", up, SimpleNamespace(end=lambda: None)
    monkeypatch.setattr(of_the_hall, "StormHall", lambda: hall)
    with pytest.raises(SystemExit), hall_in_storm(tmp_path / "kept"):
        pass
    assert "The web cannot listen." in capsys.readouterr().out
    assert (tmp_path / "kept").read_text() == "The web cannot listen.\n"
    assert not hall.folder.exists()
