"""A fault that did not happen is not recorded as fired."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.storm import part_faults
from tests.storm.striking import Fault, Scene


class FakeHall:
    """A hall with these parts. Each is a process or None."""

    def __init__(self, log: Path, **parts: Any) -> None:
        self.log, self._parts = log, parts
        log.touch()

    def part(self, name: str) -> Any:
        return self._parts[name]

    def member_processes(self, name: str = "") -> dict[int, tuple[float, str]]:
        return {}

    def pauses_since(self, place: int) -> float:
        return 0.0


class EndedProcess:
    def send_signal(self, number: int) -> None:
        raise psutil.NoSuchProcess(1)


class RunningProcess:
    def send_signal(self, number: int) -> None:
        """Send nothing."""


FAULTS = [fault for fault in part_faults.FAULTS if fault.name.startswith("worker")]


@pytest.mark.parametrize("worker", [None, EndedProcess()])
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_missing_part_gives_no_strike(tmp_path: Path, worker: Any, fault: Fault) -> None:
    scene = Scene(FakeHall(tmp_path / "log", worker=worker))  # type: ignore[arg-type]
    fault.fire(scene, random.Random(1))
    assert scene.strikes == []


def test_only_the_running_one_of_two_parts_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part_faults, "await_all", lambda *_: None)
    scene = Scene(FakeHall(tmp_path / "log", guard=EndedProcess(), worker=RunningProcess()))  # type: ignore[arg-type]
    part_faults.kill_parts(scene, ("guard", "worker"), "two parts killed", "guard and worker")
    assert [strike.fault for strike in scene.strikes] == ["worker killed"]
