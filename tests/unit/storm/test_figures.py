"""A storm holds only if every figure holds, and if it was a real storm."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.storm import figures
from tests.storm.ledger import CallRecord
from tests.storm.reckoning import Reckoning, Strike
from tests.storm.report import Storm, write

KILLED = Strike("member killed", "http-0", fired_at=2.0, over_at=2.0, answered_at=4.0, well_at=3.5, back_off=1.0)
KILLED_WITH_REMAINS = Strike("member killed", "http-1", fired_at=3.0, left=["process 7 of http-1", "port 20001"])


def holds_of(figure_list: list[figures.Figure]) -> list[bool]:
    return [figure.holds for figure in figure_list]


def test_every_kind_of_broken_promise_breaks_a_figure() -> None:
    assert holds_of(figures.promises(Reckoning())) == [True] * 5
    for promise in ("lost", "doubled", "never_ended", "misreported", "unprovoked"):
        figure_list = figures.promises(Reckoning(**{promise: ["a call"]}))
        assert holds_of(figure_list).count(False) == 1
        assert [figure.evidence for figure in figure_list if not figure.holds] == [["a call"]]


def test_a_process_or_port_that_remains_after_a_kill_breaks_a_figure() -> None:
    assert holds_of(figures.remains([KILLED])) == [True, True]
    assert holds_of(figures.remains([KILLED, KILLED_WITH_REMAINS])) == [False, False]


def test_remains_during_a_frozen_runtime_break_no_figure() -> None:
    assert holds_of(figures.remains([KILLED_WITH_REMAINS, Strike("worker frozen", "", fired_at=4.0, over_at=7.0)])) == [
        True,
        True,
    ]
    assert holds_of(figures.remains([KILLED_WITH_REMAINS, Strike("worker frozen", "", fired_at=1.0, over_at=2.5)])) == [
        False,
        False,
    ]
    guard_strike = Strike("guard killed", "", fired_at=3.0, over_at=3.0, left=["process 7 of http-1"])
    assert holds_of(figures.remains([guard_strike, Strike("web killed", "", fired_at=4.0, over_at=4.0)])) == [
        False,
        True,
    ]


def test_a_late_or_missing_recovery_breaks_its_figure() -> None:
    assert figures.recovery("x", [1.0, 2.0], 5.0).holds
    assert not figures.recovery("x", [1.0, 6.0], 5.0).holds
    assert not figures.recovery("x", [1.0, None], 5.0).holds
    assert figures.recovery("x", [6.0], 5.0, has_bound=False).holds


@pytest.mark.parametrize(
    ("seconds", "status", "holds"),
    [(2.0, 0, True), (12.5, 0, False), (2.0, 1, False), (2.0, -9, False), (0.0, None, False)],
)
def test_a_hall_that_stops_late_or_was_killed_or_not_running_breaks_a_figure(
    seconds: float, status: int | None, holds: bool
) -> None:
    assert holds_of(figures.stopped([], seconds, status)) == [True, holds]
    assert holds_of(figures.stopped(["process 7 of web"], seconds, status)) == [False, holds]


def test_a_storm_without_looks_at_the_roster_breaks_a_figure() -> None:
    assert holds_of(figures.truth_of_the_roster(1, [])) == [True, True]
    assert holds_of(figures.truth_of_the_roster(0, [])) == [True, False]
    assert holds_of(figures.truth_of_the_roster(2, ["http-0 answers"])) == [False, True]


def test_a_storm_without_enough_kills_calls_or_kinds_of_fault_breaks_figures() -> None:
    kinds = ["member killed"]
    assert holds_of(figures.happened([KILLED], kinds, 1, 5, 5)) == [True, True, True]
    assert holds_of(figures.happened([KILLED], [*kinds, "web killed"], 2, 5, 6)) == [False, False, False]


def test_a_late_or_missing_recovery_from_any_kind_of_fault_breaks_a_figure() -> None:
    assert holds_of(figures.every_recovery([KILLED])) == [True, True]
    disk = Strike("disk full", "", fired_at=1.0, over_at=2.0, answered_at=3.0, well_at=46.0)
    assert holds_of(figures.every_recovery([KILLED, disk])) == [False, True]
    assert figures.every_recovery([KILLED, disk])[0].evidence == ["disk full for all at 1.0: 44.0 s"]
    assert holds_of(figures.every_recovery([replace(disk, well_at=None)])) == [True, False]
    assert holds_of(figures.every_recovery([replace(disk, well_at=3.0, answered_at=None)])) == [True, False]


def test_a_member_without_recovery_counts_despite_later_faults() -> None:
    strike_without_recovery = Strike("member killed", "http-0", fired_at=2.0, over_at=2.0)
    later_strike = Strike("web killed", "", fired_at=100.0, over_at=100.0, answered_at=101.0, well_at=101.0)
    assert figures.alone([strike_without_recovery, later_strike]) == [strike_without_recovery]
    assert not figures.recoveries([strike_without_recovery, later_strike], has_bound=False)[0].holds


def test_the_report_and_its_last_line_name_the_broken_figures(tmp_path: Path) -> None:
    reports = [CallRecord("k", "http-0", "rest", 1.0, 2.5, "succeeded", text="k", url="/1/")]
    all_figures = [*figures.promises(Reckoning(doubled=["k took effect twice"])), *figures.remains([KILLED])]
    storm = Storm(
        "make storm", 0.0, 10.0, all_figures, Reckoning(accepted=1), [KILLED], reports, ["disk full: no root"]
    )
    write(storm, tmp_path)
    text = (tmp_path / "storm.md").read_text()
    assert not storm.holds
    assert "1 calls accepted" in storm.last_line
    assert storm.last_line.endswith("1 figures BROKEN: calls that took effect twice; not tried: disk full")
    assert "- k took effect twice" in text
    assert "- disk full: no root" in text
    assert "| 2.0 | member killed | http-0 | 1.0 s | 0.5 s | 1 | - |" in text
    assert (tmp_path / "storm.svg").read_text().startswith("<svg ")
