"""What grows is found, and what may grow is not."""

from __future__ import annotations

import pytest

from tests.storm.vitals import Vitals, held, kept_memory

BEFORE = {"worker": Vitals(descriptors=100, threads=30, megabytes=90.0), "web": Vitals(20, 6, 110.0)}


@pytest.mark.parametrize(
    ("web", "threads_hold", "descriptors_hold"),
    [
        (Vitals(22, 7, 110.0), True, True),
        (Vitals(20 + 3 * 12, 18, 110.0), True, True),  # more threads at the database, in their bound
        (Vitals(22, 6 + 15, 110.0), True, True),  # more threads, which have no files yet
        (Vitals(80, 6, 110.0), True, False),
        (Vitals(20, 60, 110.0), False, True),
    ],
)
def test_threads_and_descriptors_that_stay_are_found(web: Vitals, threads_hold: bool, descriptors_hold: bool) -> None:
    found = held(BEFORE, {**BEFORE, "web": web})
    assert [figure.holds for figure in found] == [threads_hold, descriptors_hold]


def test_a_part_that_is_gone_does_not_hold() -> None:
    assert [figure.holds for figure in held(BEFORE, {"worker": BEFORE["worker"]})] == [False, False]
    assert [figure.holds for figure in held({"worker": BEFORE["worker"]}, BEFORE)] == [False, False]


@pytest.mark.parametrize(("megabytes", "holds"), [(115.0, True), (125.0, False)])
def test_memory_that_grows_by_more_than_a_twentieth_is_found(megabytes: float, holds: bool) -> None:
    after = {**BEFORE, "web": Vitals(20, 6, megabytes)}
    assert kept_memory(BEFORE, after).holds is holds


@pytest.mark.parametrize("gone", ["worker", "web"])
def test_memory_of_a_part_that_is_gone_is_not_within_any_bound(gone: str) -> None:
    without = {part: one for part, one in BEFORE.items() if part != gone}
    assert not kept_memory(BEFORE, without).holds
    assert not kept_memory(without, BEFORE).holds
