"""A call that was lost, doubled or told wrongly is found, and one that was not is not."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from tests.storm.ledger import BROKEN, GONE, REFUSED, SILENT, Effect, Told, by_key
from tests.storm.load import settled
from tests.storm.reckoning import (
    ALL,
    PATIENCE,
    Strike,
    accepted_within,
    answered_since,
    contradiction,
    percentile,
    reckon,
)

FINE = Told("k", "http-0", "rest", asked_at=10.0, told_at=11.0, end="succeeded", text="k", url="/api/calls/1/")
FAILED = replace(FINE, end="failed", kind="transport", text="")
RAN = {"k": [Effect("k", 10.5, 77)]}
KILLED = Strike("member killed", "http-0", fired_at=10.2, over_at=10.2, answered_at=12.0, well_at=11.5)


def test_a_call_that_ran_once_and_was_told_so_breaks_no_promise() -> None:
    found = reckon([FINE], RAN, [])
    assert (found.asked, found.accepted) == (1, 1)
    assert [found.lost, found.doubled, found.never_ended, found.mistold, found.unprovoked] == [[]] * 5


def test_a_call_that_took_effect_twice_is_doubled() -> None:
    (found,) = reckon([FINE], {"k": [Effect("k", 10.5, 77), Effect("k", 12.0, 78)]}, []).doubled
    assert found == "k took effect 2 times, in the processes 77, 78, 1.5 s apart"


def test_a_call_that_nobody_asked_for_but_ran_twice_is_doubled_too() -> None:
    assert len(reckon([], {"k": [Effect("k", 1.0, 7)] * 2}, []).doubled) == 1


def test_an_accepted_call_that_the_hall_no_longer_knows_is_lost() -> None:
    assert len(reckon([settled(replace(FINE, end=SILENT), None)], RAN, []).lost) == 1
    assert settled(FINE, None).end == GONE


def test_a_call_without_an_answer_never_ended() -> None:
    silent = replace(FINE, source="modern", end=SILENT, text="", url="")
    assert len(reckon([silent], {}, []).never_ended) == 1


def test_a_call_that_was_never_sent_for_want_of_a_session_is_not_one_that_never_ended() -> None:
    assert reckon([replace(FINE, source="session", end=SILENT, sent=False, text="", url="")], {}, []).never_ended == []


@pytest.mark.parametrize(
    ("told", "ran", "why"),
    [
        (FINE, False, "nothing took effect"),
        (replace(FINE, text="another"), True, "the result of something else"),
        (replace(FAILED, kind="unavailable"), True, "never sent"),
        (replace(FAILED, source="modern", sent=False), True, '"sent": false'),
        (replace(FINE, end=REFUSED, kind="503", text=""), True, "refused"),
        (replace(FINE, end="cancelled", text=""), True, "nobody asked"),
        (replace(FAILED, source="session", kind="cancelled"), False, "nobody asked"),
        (replace(FINE, later="failed lost"), True, "later another one: failed lost"),
    ],
)
def test_what_was_told_wrongly_is_found(told: Told, ran: bool, why: str) -> None:
    assert why in contradiction(told, ran)
    assert len(reckon([told], RAN if ran else {}, []).mistold) == 1


@pytest.mark.parametrize("ran", [True, False])
@pytest.mark.parametrize(
    "told",
    [
        *(replace(FAILED, kind=kind) for kind in ("transport", "timeout", "lost", "protocol", "tool")),
        replace(FAILED, source="modern", end=BROKEN, kind="ConnectionResetError", url=""),
    ],
)
def test_what_may_have_run_is_true_whether_it_ran_or_not(told: Told, ran: bool) -> None:
    assert contradiction(told, ran) == ""


def test_what_was_never_sent_and_did_not_run_is_told_rightly() -> None:
    assert contradiction(replace(FAILED, kind="unavailable", sent=False), ran=False) == ""


def test_a_failure_is_explained_by_a_fault_of_its_member_at_that_time_and_by_no_other() -> None:
    assert reckon([FAILED], RAN, [KILLED]).unprovoked == []
    assert len(reckon([FAILED], RAN, [replace_strike(member="http-1")]).unprovoked) == 1
    assert len(reckon([FAILED], RAN, [replace_strike(fired_at=12.0)]).unprovoked) == 1
    later = replace(FAILED, asked_at=12.5, told_at=13.0)
    assert len(reckon([later], RAN, [KILLED]).unprovoked) == 1


def test_a_fault_that_hits_everybody_explains_any_failure_while_it_lasts() -> None:
    assert reckon([FAILED], RAN, [replace_strike(member=ALL)]).unprovoked == []


def test_a_fault_that_nobody_recovered_from_explains_what_fails_until_patience_is_over() -> None:
    never = Strike("worker killed", ALL, fired_at=1.0, over_at=2.0, back_off=3.0)
    for strike in (never, replace(never, well_at=2_000.0), replace(never, answered_at=2_000.0)):
        assert strike.end == 2.0 + 3.0 + PATIENCE
    assert reckon([FAILED], RAN, [never]).unprovoked == []
    assert len(reckon([replace(FAILED, asked_at=100.0, told_at=101.0)], RAN, [never]).unprovoked) == 1


def test_of_calls_only_those_are_counted_that_were_asked_while_it_stormed() -> None:
    calls = [replace(FINE, asked_at=at) for at in (9.0, 10.0, 15.0, 20.0, 21.0)]
    refused = replace(FINE, asked_at=15.0, end=REFUSED, url="")
    assert accepted_within([*calls, refused], 10.0, 10.0) == 3


def test_members_that_fail_by_themselves_need_no_fault() -> None:
    assert reckon([replace(FAILED, member="flaky-1"), replace(FAILED, member="lying-0")], {}, []).unprovoked == []


def test_a_member_is_back_with_the_first_call_that_was_asked_since_its_fault() -> None:
    before = replace(FINE, asked_at=10.1, told_at=10.3)
    elsewhere = replace(FINE, member="http-1", asked_at=10.3, told_at=10.4)
    failed = replace(FAILED, asked_at=10.3, told_at=10.5)
    back = replace(FINE, asked_at=10.4, told_at=12.0)
    assert answered_since([before, elsewhere, failed, back], KILLED, ["http-0"]) == 12.0
    assert answered_since([before], KILLED, ["http-0"]) is None


def test_what_the_hall_waits_on_purpose_is_not_recovery() -> None:
    strike = replace_strike(back_off=1.0)
    assert strike.answered_after == pytest.approx(0.8)
    assert strike.well_after == pytest.approx(0.3)


def test_what_rest_says_later_stands_beside_what_the_client_was_told() -> None:
    row = {"status": "failed", "error": {"kind": "lost"}}
    assert settled(FINE, row).later == "failed lost"
    assert settled(FINE, {"status": "succeeded", "error": None}) == FINE


def test_a_client_that_left_early_is_told_how_it_ended() -> None:
    left = replace(FINE, end=SILENT, text="")
    assert settled(left, {"status": "succeeded", "error": None}) == FINE
    assert settled(left, {"status": "running", "error": None}).end == SILENT


def test_a_line_whose_writer_was_killed_within_it_is_no_effect() -> None:
    assert by_key(["a 1.0 7\n", "a 2.0 8\n", "b 3.0 7\n", "c 4.0"]) == {
        "a": [Effect("a", 1.0, 7), Effect("a", 2.0, 8)],
        "b": [Effect("b", 3.0, 7)],
    }


def test_percentiles_are_values_that_were_measured() -> None:
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert percentile([float(n) for n in range(1, 101)], 0.95) == 95.0
    assert math.isnan(percentile([], 0.95))


def replace_strike(**values: object) -> Strike:
    return Strike(**{**vars(KILLED), **values})  # type: ignore[arg-type]
