from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests import machine
from tests.machine import Stopwatch


def test_what_the_host_took_and_the_disk_held_up_is_no_time_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    stolen, waited = iter([[1.0, 5.0], [1.1, 5.3]]), iter([2.0, 2.2])
    monkeypatch.setattr(machine, "_stolen", lambda: next(stolen))
    monkeypatch.setattr(machine, "_waited_for_disk", lambda: next(waited))
    watch = Stopwatch()
    time.sleep(0.05)
    elapsed = watch.elapsed
    assert watch.seconds == pytest.approx(elapsed - 0.3 - 0.2, abs=0.04)


def test_where_nobody_tells_every_second_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(machine, "Path", lambda name: tmp_path / name.lstrip("/"))
    watch = Stopwatch()
    time.sleep(0.05)
    assert watch.seconds == pytest.approx(watch.elapsed, abs=0.01)
