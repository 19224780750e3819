"""The ratios that `make bench ARGS=placement` measures. Its seconds depend on the machine."""

from __future__ import annotations

from bench.placement import placement


def test_when_a_twentieth_of_two_hundred_nodes_dies_only_their_members_move_and_loads_stay_even() -> None:
    ratios = [figure for figure in placement(rounds=3) if figure.bound is not None]
    assert [figure.bound for figure in ratios] == [1.25, 1.2, 1.25]
    assert all(figure.is_within for figure in ratios), ratios
