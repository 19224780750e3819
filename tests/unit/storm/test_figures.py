"""A storm holds only when every figure does, and when it was one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.storm import figures
from tests.storm.ledger import Told
from tests.storm.reckoning import Reckoning, Strike
from tests.storm.report import Storm, write

KILLED = Strike("member killed", "http-0", fired_at=2.0, over_at=2.0, answered_at=4.0, well_at=3.5, back_off=1.0)
LEFT = Strike("member killed", "http-1", fired_at=3.0, left=["process 7 of http-1", "port 20001"])


def held(found: list[figures.Figure]) -> list[bool]:
    return [figure.holds for figure in found]


def test_every_kind_of_broken_promise_breaks_a_figure() -> None:
    assert held(figures.promises(Reckoning())) == [True] * 5
    for broken in ("lost", "doubled", "never_ended", "mistold", "unprovoked"):
        found = figures.promises(Reckoning(**{broken: ["a call"]}))
        assert held(found).count(False) == 1
        assert [figure.evidence for figure in found if not figure.holds] == [["a call"]]


def test_what_lives_two_seconds_after_a_kill_breaks_a_figure() -> None:
    assert held(figures.remains([KILLED])) == [True, True]
    assert held(figures.remains([KILLED, LEFT])) == [False, False]


def test_what_lives_while_the_runtime_is_frozen_has_no_bound() -> None:
    assert held(figures.remains([LEFT, Strike("worker frozen", "", fired_at=4.0, over_at=7.0)])) == [True, True]
    assert held(figures.remains([LEFT, Strike("worker frozen", "", fired_at=1.0, over_at=2.5)])) == [False, False]
    general = Strike("guard killed", "", fired_at=3.0, over_at=3.0, left=["process 7 of http-1"])
    assert held(figures.remains([general, Strike("web killed", "", fired_at=4.0, over_at=4.0)])) == [False, True]


def test_a_recovery_that_is_late_or_never_came_breaks_its_figure() -> None:
    assert figures.recovery("x", [1.0, 2.0], 5.0).holds
    assert not figures.recovery("x", [1.0, 6.0], 5.0).holds
    assert not figures.recovery("x", [1.0, None], 5.0).holds
    assert figures.recovery("x", [6.0], 5.0, has_bound=False).holds


@pytest.mark.parametrize(
    ("seconds", "status", "holds"),
    [(2.0, 0, True), (12.5, 0, False), (2.0, 1, False), (2.0, -9, False), (0.0, None, False)],
)
def test_a_hall_that_stops_late_or_not_by_itself_or_was_not_up_breaks_a_figure(
    seconds: float, status: int | None, holds: bool
) -> None:
    assert held(figures.stopped([], seconds, status)) == [True, holds]
    assert held(figures.stopped(["process 7 of web"], seconds, status)) == [False, holds]


def test_a_storm_that_never_looked_at_the_roster_did_not_check_it() -> None:
    assert held(figures.truth_of_the_roster(1, [])) == [True, True]
    assert held(figures.truth_of_the_roster(0, [])) == [True, False]
    assert held(figures.truth_of_the_roster(2, ["http-0 answers"])) == [False, True]


def test_a_storm_without_kills_calls_or_a_kind_of_fault_is_none() -> None:
    kinds = ["member killed"]
    assert held(figures.happened([KILLED], kinds, 1, 5, 5)) == [True, True, True]
    assert held(figures.happened([KILLED], [*kinds, "web killed"], 2, 5, 6)) == [False, False, False]


def test_a_fault_of_any_kind_that_ends_late_or_never_breaks_a_figure() -> None:
    assert held(figures.every_recovery([KILLED])) == [True, True]
    disk = Strike("disk full", "", fired_at=1.0, over_at=2.0, answered_at=3.0, well_at=46.0)
    assert held(figures.every_recovery([KILLED, disk])) == [False, True]
    assert figures.every_recovery([KILLED, disk])[0].evidence == ["disk full for all at 1.0: 44.0 s"]
    assert held(figures.every_recovery([replace(disk, well_at=None)])) == [True, False]
    assert held(figures.every_recovery([replace(disk, well_at=3.0, answered_at=None)])) == [True, False]


def test_a_killed_member_that_never_came_back_counts_though_others_are_hit_long_afterwards() -> None:
    never = Strike("member killed", "http-0", fired_at=2.0, over_at=2.0)
    later = Strike("web killed", "", fired_at=100.0, over_at=100.0, answered_at=101.0, well_at=101.0)
    assert figures.alone([never, later]) == [never]
    assert not figures.recoveries([never, later], has_bound=False)[0].holds


def test_the_report_says_what_broke_and_its_last_line_too(tmp_path: Path) -> None:
    told = [Told("k", "http-0", "rest", 1.0, 2.5, "succeeded", text="k", url="/1/")]
    all_figures = [*figures.promises(Reckoning(doubled=["k took effect twice"])), *figures.remains([KILLED])]
    storm = Storm("make storm", 0.0, 10.0, all_figures, Reckoning(accepted=1), [KILLED], told, ["disk full: no root"])
    write(storm, tmp_path)
    text = (tmp_path / "storm.md").read_text()
    assert not storm.holds
    assert "1 calls accepted" in storm.last_line
    assert storm.last_line.endswith("1 figures BROKEN: calls that took effect twice; not tried: disk full")
    assert "- k took effect twice" in text
    assert "- disk full: no root" in text
    assert "| 2.0 | member killed | http-0 | 1.0 s | 0.5 s | 1 | - |" in text
    assert (tmp_path / "storm.svg").read_text().startswith("<svg ")
