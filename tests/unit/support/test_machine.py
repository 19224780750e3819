from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.conftest import eventually
from tests.support import machine
from tests.support.machine import TICKS_A_SECOND, Stopwatch, Turn


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A clock that the tests set."""
    monkeypatch.setattr(machine, "is_ours", True)
    monkeypatch.setattr(machine, "_yardstick", lambda: machine.YARDSTICK_SECONDS)
    fake_time = Clock()
    monkeypatch.setattr(machine, "time", fake_time)
    return fake_time


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
    """Writes Linux's figures: the time that the host took from each processor, and the time of waiting for the disk."""

    def __init__(self, proc: Path) -> None:
        self._proc = proc

    def write_figures(self, stolen: list[float], waited: float, for_a_processor: float = 0.0) -> None:
        (self._proc / "pressure").mkdir(parents=True, exist_ok=True)
        columns = [
            f"cpu{number} 0 0 0 0 0 0 0 {stolen_seconds * TICKS_A_SECOND:.0f} 0"
            for number, stolen_seconds in enumerate(stolen)
        ]
        (self._proc / "stat").write_text("\n".join(["cpu 0 0 0 0 0 0 0 900 0", *columns, "intr 1"]))
        pressure = f"some avg10=0.00 total=99\nfull avg10=0.00 total={waited * 1e6:.0f}\n"
        (self._proc / "pressure" / "io").write_text(pressure)
        (self._proc / "pressure" / "cpu").write_text(f"some avg10=0.00 total={for_a_processor * 1e6:.0f}\n")


def test_time_that_the_host_took_or_the_disk_delayed_does_not_count(system: System, clock: Clock) -> None:
    system.write_figures([1.0, 5.0], 2.0)
    watch = Stopwatch()
    system.write_figures([1.01, 5.02], 2.01, 3.0)
    clock.now += 0.1
    assert watch.seconds == pytest.approx(0.1 - 0.02 - 0.01)


def test_at_least_half_of_the_time_counts(system: System, clock: Clock) -> None:
    system.write_figures([0.0], 0.0)
    watch = Stopwatch()
    system.write_figures([0.0], 10.0)
    clock.now += 0.05
    assert watch.seconds == pytest.approx(0.05 / 2)


@pytest.mark.usefixtures("system")
def test_every_second_counts_without_figures_of_the_system(clock: Clock) -> None:
    watch = Stopwatch()
    clock.now += 0.05
    assert watch.seconds == pytest.approx(0.05)


def test_beside_other_tests_waiting_for_a_processor_does_not_count(
    system: System, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "is_ours", False)
    system.write_figures([0.0], 0.0)
    watch = Stopwatch()
    system.write_figures([0.0], 0.0, 2.0)
    clock.now += 4.0
    assert watch.seconds == pytest.approx(2.0)
    system.write_figures([0.0], 0.0, 4.0)
    assert watch.seconds == pytest.approx(1.0)


def run_slower(monkeypatch: pytest.MonkeyPatch, times: float) -> None:
    monkeypatch.setattr(machine, "_yardstick", lambda: times * machine.YARDSTICK_SECONDS)


@pytest.mark.usefixtures("system")
@pytest.mark.parametrize("when", ["at its start", "at its end"])
def test_seconds_alone_are_scaled_to_a_machine_of_usual_speed(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    run_slower(monkeypatch, 3.0 if when == "at its start" else 1.0)
    watch = Stopwatch()
    run_slower(monkeypatch, 3.0 if when == "at its end" else 1.0)
    clock.now += 0.6
    assert watch.seconds == pytest.approx(0.2)
    assert watch.elapsed == pytest.approx(0.6)


@pytest.mark.parametrize(("times", "bound"), [(0.5, 2.0), (3.0, 6.0), (100.0, 2.0 * machine.MAX_SLOWNESS)])
def test_patience_alone_grows_with_the_slowness_up_to_a_limit(
    monkeypatch: pytest.MonkeyPatch, times: float, bound: float
) -> None:
    run_slower(monkeypatch, times)
    assert machine.patience(2.0) == bound


@pytest.mark.parametrize(("is_ours", "seconds", "bound"), [(True, 2, 2), (False, 2, 8), (False, 60, 90)])
def test_patience_beside_other_tests_is_longer(
    monkeypatch: pytest.MonkeyPatch, is_ours: bool, seconds: float, bound: float
) -> None:
    monkeypatch.setattr(machine, "is_ours", is_ours)
    assert machine.patience(seconds) == bound


# Turns ------------------------------------------------------------------------------------------------------------


class OtherTest:
    """A test of another process. It ends when `end` is called."""

    def __init__(self, folder: Path, *, measures: bool = False) -> None:
        self.has_begun, self.is_alone = threading.Event(), threading.Event()
        self.may_share, self.may_end = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, args=(folder, measures), daemon=True)
        self._thread.start()

    def _run(self, folder: Path, measures: bool) -> None:
        with Turn(folder, may_be_alone=measures) as turn:
            self.has_begun.set()
            if measures:
                turn.take_alone()
                self.is_alone.set()
                self.may_share.wait(10)
                turn.share_again()
            self.may_end.wait(10)

    def end(self) -> None:
        self.may_share.set()
        self.may_end.set()
        self._thread.join(10)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(machine, "_turn", None)  # removes the turn of this test itself
    return tmp_path


def test_tests_run_concurrently_until_one_measures(folder: Path) -> None:
    first_test = OtherTest(folder)
    assert first_test.has_begun.wait(10)
    measuring_test = OtherTest(folder, measures=True)
    assert measuring_test.has_begun.wait(10)
    assert not measuring_test.is_alone.wait(0.1)
    late_test = OtherTest(folder)
    assert not late_test.has_begun.wait(0.1)
    first_test.end()
    assert measuring_test.is_alone.wait(10)
    assert not late_test.has_begun.wait(0.1)
    measuring_test.end()
    assert late_test.has_begun.wait(10)
    late_test.end()


def test_others_run_beside_the_rest_of_a_test_that_has_measured(folder: Path) -> None:
    measuring_test = OtherTest(folder, measures=True)
    assert measuring_test.is_alone.wait(10)
    late_test = OtherTest(folder)
    assert not late_test.has_begun.wait(0.1)
    measuring_test.may_share.set()
    assert late_test.has_begun.wait(10)
    next_test = OtherTest(folder, measures=True)  # from when it waits to be alone, no other test begins
    assert next_test.has_begun.wait(10)
    late_test.end()
    assert not next_test.is_alone.wait(0.1)  # before the first has ended
    measuring_test.end()
    assert next_test.is_alone.wait(10)
    next_test.end()


def test_two_measuring_tests_do_not_block_each_other(folder: Path) -> None:
    measuring_tests = [OtherTest(folder, measures=True) for _ in range(2)]
    for _ in measuring_tests:
        eventually(lambda: any(test.is_alone.is_set() and not test.may_end.is_set() for test in measuring_tests))
        (running_test,) = [test for test in measuring_tests if test.is_alone.is_set() and not test.may_end.is_set()]
        running_test.end()


def test_only_a_test_with_the_marker_may_be_alone(folder: Path) -> None:
    with Turn(folder, may_be_alone=False) as turn, pytest.raises(AssertionError, match="needs the marker `alone`"):
        turn.take_alone()
