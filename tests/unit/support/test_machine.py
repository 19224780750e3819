from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import machine
from tests.support.machine import TICKS_A_SECOND, Stopwatch


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Of its own: the tests tell the time."""
    monkeypatch.setattr(machine, "is_ours", True)
    made = Clock()
    monkeypatch.setattr(machine, "time", made)
    return made


class Clock:
    def __init__(self) -> None:
        self.now = 5000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> System:
    monkeypatch.setattr(machine, "Path", lambda name: tmp_path / name.lstrip("/"))
    return System(tmp_path / "proc")


class System:
    """Tells as Linux does what the host took from each processor, and for how long all waited for the disk."""

    def __init__(self, proc: Path) -> None:
        self._proc = proc

    def tell(self, stolen: list[float], waited: float, for_a_processor: float = 0.0) -> None:
        (self._proc / "pressure").mkdir(parents=True, exist_ok=True)
        columns = [f"cpu{number} 0 0 0 0 0 0 0 {taken * TICKS_A_SECOND:.0f} 0" for number, taken in enumerate(stolen)]
        (self._proc / "stat").write_text("\n".join(["cpu 0 0 0 0 0 0 0 900 0", *columns, "intr 1"]))
        pressure = f"some avg10=0.00 total=99\nfull avg10=0.00 total={waited * 1e6:.0f}\n"
        (self._proc / "pressure" / "io").write_text(pressure)
        (self._proc / "pressure" / "cpu").write_text(f"some avg10=0.00 total={for_a_processor * 1e6:.0f}\n")


def test_what_the_host_took_and_the_disk_held_up_is_no_time_of_ours(system: System, clock: Clock) -> None:
    system.tell([1.0, 5.0], 2.0)
    watch = Stopwatch()
    system.tell([1.01, 5.02], 2.01, 3.0)
    clock.now += 0.1
    assert watch.seconds == pytest.approx(0.1 - 0.02 - 0.01)


def test_half_of_the_time_is_ours_whatever_the_machine_says(system: System, clock: Clock) -> None:
    system.tell([0.0], 0.0)
    watch = Stopwatch()
    system.tell([0.0], 10.0)
    clock.now += 0.05
    assert watch.seconds == pytest.approx(0.05 / 2)


@pytest.mark.usefixtures("system")
def test_where_nobody_tells_every_second_counts(clock: Clock) -> None:
    watch = Stopwatch()
    clock.now += 0.05
    assert watch.seconds == pytest.approx(0.05)


def test_beside_other_tests_the_wait_for_a_processor_is_no_time_of_ours_and_a_quarter_is(
    system: System, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "is_ours", False)
    system.tell([0.0], 0.0)
    watch = Stopwatch()
    system.tell([0.0], 0.0, 2.0)
    clock.now += 4.0
    assert watch.seconds == pytest.approx(2.0)
    system.tell([0.0], 0.0, 4.0)
    assert watch.seconds == pytest.approx(1.0)


@pytest.mark.parametrize(("is_ours", "seconds", "bound"), [(True, 2, 2), (False, 2, 8), (False, 60, 90)])
def test_only_who_has_the_machine_alone_is_held_to_the_second(
    monkeypatch: pytest.MonkeyPatch, is_ours: bool, seconds: float, bound: float
) -> None:
    monkeypatch.setattr(machine, "is_ours", is_ours)
    assert machine.patience(seconds) == bound
