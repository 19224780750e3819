"""Growth beyond the limits is found, and allowed growth is not reported."""

from __future__ import annotations

import contextlib
import threading
from typing import Any, cast

import psutil
import pytest

from tests.storm import vitals
from tests.storm.vitals import Vitals, held, kept_memory

BEFORE = {"worker": Vitals(descriptors=100, threads=30, megabytes=90.0), "web": Vitals(20, 6, 110.0)}


@pytest.mark.parametrize(
    ("web", "threads_hold", "descriptors_hold"),
    [
        (Vitals(22, 7, 110.0), True, True),
        (Vitals(20 + 3 * 12, 18, 110.0), True, True),  # more threads with database connections, within their limit
        (Vitals(22, 6 + 15, 110.0), True, True),  # more threads, which have no open files yet
        (Vitals(80, 6, 110.0), True, False),
        (Vitals(20, 60, 110.0), False, True),
    ],
)
def test_a_figure_does_not_hold_if_threads_or_descriptors_increased_too_much(
    web: Vitals, threads_hold: bool, descriptors_hold: bool
) -> None:
    figures = held(BEFORE, {**BEFORE, "web": web})
    assert [figure.holds for figure in figures] == [threads_hold, descriptors_hold]


def test_the_figures_of_a_missing_part_do_not_hold() -> None:
    assert [figure.holds for figure in held(BEFORE, {"worker": BEFORE["worker"]})] == [False, False]
    assert [figure.holds for figure in held({"worker": BEFORE["worker"]}, BEFORE)] == [False, False]


@pytest.mark.parametrize(("megabytes", "holds"), [(115.0, True), (125.0, False)])
def test_growth_of_memory_by_more_than_a_twentieth_is_found(megabytes: float, holds: bool) -> None:
    vitals_after = {**BEFORE, "web": Vitals(20, 6, megabytes)}
    assert kept_memory(BEFORE, vitals_after).holds is holds


@pytest.mark.parametrize("missing_part", ["worker", "web"])
def test_the_memory_figure_of_a_missing_part_does_not_hold(missing_part: str) -> None:
    vitals = {part: part_vitals for part, part_vitals in BEFORE.items() if part != missing_part}
    assert not kept_memory(BEFORE, vitals).holds
    assert not kept_memory(vitals, BEFORE).holds


def test_connections_that_end_by_themselves_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vitals, "REST_SECONDS", 0.5)
    here = psutil.Process()
    at_rest = here.num_fds()

    class Hall:
        @staticmethod
        def part(name: str) -> psutil.Process | None:
            return here if name == "worker" else None

    with contextlib.ExitStack() as files:
        for _ in range(50):
            files.enter_context(open("/dev/null"))
        timer = threading.Timer(0.1, files.pop_all().close)
        timer.start()
        counted = vitals.vitals(cast("Any", Hall()))
        timer.join()

    assert list(counted) == ["worker"]
    assert at_rest <= counted["worker"].descriptors < at_rest + 50
