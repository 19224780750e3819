"""What did not happen is no fault that was fired."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.storm import part_faults
from tests.storm.striking import Fault, Scene


class Standing:
    """A hall whose parts are told: a process, or None."""

    def __init__(self, log: Path, **parts: Any) -> None:
        self.log, self._parts = log, parts
        log.touch()

    def part(self, name: str) -> Any:
        return self._parts[name]

    def member_processes(self, name: str = "") -> dict[int, tuple[float, str]]:
        return {}

    def pauses_since(self, place: int) -> float:
        return 0.0


class Gone:
    def send_signal(self, number: int) -> None:
        raise psutil.NoSuchProcess(1)


class Alive:
    def send_signal(self, number: int) -> None:
        """It is not told to anybody."""


FAULTS = [fault for fault in part_faults.FAULTS if fault.name.startswith("worker")]


@pytest.mark.parametrize("worker", [None, Gone()])
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_part_that_is_not_there_was_neither_killed_nor_frozen(tmp_path: Path, worker: Any, fault: Fault) -> None:
    scene = Scene(Standing(tmp_path / "log", worker=worker))  # type: ignore[arg-type]
    fault.fire(scene, random.Random(1))
    assert scene.strikes == []


def test_of_two_parts_of_which_one_is_gone_only_the_other_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part_faults, "await_all", lambda *_: None)
    scene = Scene(Standing(tmp_path / "log", guard=Gone(), worker=Alive()))  # type: ignore[arg-type]
    part_faults.kill_parts(scene, ("guard", "worker"), "two parts killed", "guard and worker")
    assert [one.fault for one in scene.strikes] == ["worker killed"]
