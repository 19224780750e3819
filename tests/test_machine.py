from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests import machine
from tests.machine import Stopwatch


def test_what_the_host_took_and_the_disk_held_up_is_no_time_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    stolen, waited = iter([[1.0, 5.0], [1.01, 5.02]]), iter([2.0, 2.01])
    monkeypatch.setattr(machine, "_stolen", lambda: next(stolen))
    monkeypatch.setattr(machine, "_waited_for_disk", lambda: next(waited))
    watch = Stopwatch()
    time.sleep(0.1)
    assert watch.elapsed - watch.seconds == pytest.approx(0.02 + 0.01, abs=0.005)


def test_half_of_the_time_is_ours_whatever_the_machine_says(monkeypatch: pytest.MonkeyPatch) -> None:
    waited = iter([0.0, 10.0])
    monkeypatch.setattr(machine, "_waited_for_disk", lambda: next(waited))
    watch = Stopwatch()
    time.sleep(0.05)
    assert watch.seconds == pytest.approx(watch.elapsed / 2, rel=0.1)


def test_where_nobody_tells_every_second_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(machine, "Path", lambda name: tmp_path / name.lstrip("/"))
    watch = Stopwatch()
    time.sleep(0.05)
    assert watch.seconds == pytest.approx(watch.elapsed, abs=0.01)
