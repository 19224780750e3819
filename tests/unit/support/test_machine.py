from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.support import machine
from tests.support.machine import TICKS_A_SECOND, Stopwatch


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> System:
    monkeypatch.setattr(machine, "Path", lambda name: tmp_path / name.lstrip("/"))
    return System(tmp_path / "proc")


class System:
    """Tells as Linux does what the host took from each processor, and for how long all waited for the disk."""

    def __init__(self, proc: Path) -> None:
        self._proc = proc

    def tell(self, stolen: list[float], waited: float) -> None:
        (self._proc / "pressure").mkdir(parents=True, exist_ok=True)
        columns = [f"cpu{number} 0 0 0 0 0 0 0 {taken * TICKS_A_SECOND:.0f} 0" for number, taken in enumerate(stolen)]
        (self._proc / "stat").write_text("\n".join(["cpu 0 0 0 0 0 0 0 900 0", *columns, "intr 1"]))
        pressure = f"some avg10=0.00 total=99\nfull avg10=0.00 total={waited * 1e6:.0f}\n"
        (self._proc / "pressure" / "io").write_text(pressure)


def test_what_the_host_took_and_the_disk_held_up_is_no_time_of_ours(system: System) -> None:
    system.tell([1.0, 5.0], 2.0)
    watch = Stopwatch()
    system.tell([1.01, 5.02], 2.01)
    time.sleep(0.1)
    assert watch.elapsed - watch.seconds == pytest.approx(0.02 + 0.01, abs=0.005)


def test_half_of_the_time_is_ours_whatever_the_machine_says(system: System) -> None:
    system.tell([0.0], 0.0)
    watch = Stopwatch()
    system.tell([0.0], 10.0)
    time.sleep(0.05)
    assert watch.seconds == pytest.approx(watch.elapsed / 2, rel=0.1)


@pytest.mark.usefixtures("system")
def test_where_nobody_tells_every_second_counts() -> None:
    watch = Stopwatch()
    time.sleep(0.05)
    assert watch.seconds == pytest.approx(watch.elapsed, abs=0.01)
