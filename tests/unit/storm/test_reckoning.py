"""A call that was lost, doubled or reported wrongly is found, and no other call."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from tests.storm.ledger import BROKEN, GONE, REFUSED, SILENT, CallRecord, Effect, by_key
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

SUCCEEDED = CallRecord(
    "k", "http-0", "rest", called_at=10.0, ended_at=11.0, end="succeeded", text="k", url="/api/calls/1/"
)
FAILED = replace(SUCCEEDED, end="failed", kind="transport", text="")
EFFECTS = {"k": [Effect("k", 10.5, 77)]}
KILLED = Strike("member killed", "http-0", fired_at=10.2, over_at=10.2, answered_at=12.0, well_at=11.5)


def test_a_call_that_ran_once_and_succeeded_breaks_no_promise() -> None:
    reckoning = reckon([SUCCEEDED], EFFECTS, [])
    assert (reckoning.calls, reckoning.accepted) == (1, 1)
    assert [reckoning.lost, reckoning.doubled, reckoning.never_ended, reckoning.misreported, reckoning.unprovoked] == [
        []
    ] * 5


def test_a_call_that_took_effect_twice_is_doubled() -> None:
    (message,) = reckon([SUCCEEDED], {"k": [Effect("k", 10.5, 77), Effect("k", 12.0, 78)]}, []).doubled
    assert message == "k took effect 2 times, in the processes 77, 78, 1.5 s apart"


def test_an_unknown_call_that_took_effect_twice_is_doubled() -> None:
    assert len(reckon([], {"k": [Effect("k", 1.0, 7)] * 2}, []).doubled) == 1


def test_an_accepted_call_that_the_hall_no_longer_knows_is_lost() -> None:
    assert len(reckon([settled(replace(SUCCEEDED, end=SILENT), None)], EFFECTS, []).lost) == 1
    assert settled(SUCCEEDED, None).end == GONE


def test_a_call_without_a_response_never_ended() -> None:
    report = replace(SUCCEEDED, source="modern", end=SILENT, text="", url="")
    assert len(reckon([report], {}, []).never_ended) == 1


def test_a_call_that_was_never_sent_is_not_counted_as_never_ended() -> None:
    assert (
        reckon([replace(SUCCEEDED, source="session", end=SILENT, sent=False, text="", url="")], {}, []).never_ended
        == []
    )


@pytest.mark.parametrize(
    ("report", "took_effect", "reason"),
    [
        (SUCCEEDED, False, "nothing took effect"),
        (replace(SUCCEEDED, text="another"), True, "the result of something else"),
        (replace(FAILED, kind="unavailable"), True, "never sent"),
        (replace(FAILED, source="modern", sent=False), True, '"sent": false'),
        (replace(SUCCEEDED, end=REFUSED, kind="503", text=""), True, "refused"),
        (replace(SUCCEEDED, end="cancelled", text=""), True, "nobody asked"),
        (replace(FAILED, source="session", kind="cancelled"), False, "nobody asked"),
        (replace(SUCCEEDED, later="failed lost"), True, "later another one: failed lost"),
    ],
)
def test_a_wrong_report_to_the_client_is_found(report: CallRecord, took_effect: bool, reason: str) -> None:
    assert reason in contradiction(report, took_effect)
    assert len(reckon([report], EFFECTS if took_effect else {}, []).misreported) == 1


@pytest.mark.parametrize("took_effect", [True, False])
@pytest.mark.parametrize(
    "report",
    [
        *(replace(FAILED, kind=kind) for kind in ("transport", "timeout", "lost", "protocol", "tool")),
        replace(FAILED, source="modern", end=BROKEN, kind="ConnectionResetError", url=""),
    ],
)
def test_a_failure_that_may_have_run_contradicts_nothing(report: CallRecord, took_effect: bool) -> None:
    assert contradiction(report, took_effect) == ""


def test_an_unsent_call_that_did_not_run_contradicts_nothing() -> None:
    assert contradiction(replace(FAILED, kind="unavailable", sent=False), ran=False) == ""


def test_only_a_fault_of_the_same_member_at_that_time_explains_a_failure() -> None:
    assert reckon([FAILED], EFFECTS, [KILLED]).unprovoked == []
    assert len(reckon([FAILED], EFFECTS, [replace_strike(member="http-1")]).unprovoked) == 1
    assert len(reckon([FAILED], EFFECTS, [replace_strike(fired_at=12.0)]).unprovoked) == 1
    later_failure = replace(FAILED, called_at=12.5, ended_at=13.0)
    assert len(reckon([later_failure], EFFECTS, [KILLED]).unprovoked) == 1


def test_a_fault_of_all_members_explains_any_failure() -> None:
    assert reckon([FAILED], EFFECTS, [replace_strike(member=ALL)]).unprovoked == []


def test_a_fault_without_recovery_explains_failures_until_the_patience_ends() -> None:
    endless_strike = Strike("worker killed", ALL, fired_at=1.0, over_at=2.0, back_off=3.0)
    for strike in (
        endless_strike,
        replace(endless_strike, well_at=2_000.0),
        replace(endless_strike, answered_at=2_000.0),
    ):
        assert strike.end == 2.0 + 3.0 + PATIENCE
    assert reckon([FAILED], EFFECTS, [endless_strike]).unprovoked == []
    assert len(reckon([replace(FAILED, called_at=100.0, ended_at=101.0)], EFFECTS, [endless_strike]).unprovoked) == 1


def test_only_calls_that_were_accepted_during_the_storm_are_counted() -> None:
    calls = [replace(SUCCEEDED, called_at=at) for at in (9.0, 10.0, 15.0, 20.0, 21.0)]
    refused_call = replace(SUCCEEDED, called_at=15.0, end=REFUSED, url="")
    assert accepted_within([*calls, refused_call], 10.0, 10.0) == 3


def test_failures_of_flaky_and_lying_members_need_no_fault() -> None:
    assert reckon([replace(FAILED, member="flaky-1"), replace(FAILED, member="lying-0")], {}, []).unprovoked == []


def test_a_member_is_back_with_the_first_successful_call_after_its_fault() -> None:
    earlier_call = replace(SUCCEEDED, called_at=10.1, ended_at=10.3)
    other_member = replace(SUCCEEDED, member="http-1", called_at=10.3, ended_at=10.4)
    failed_call = replace(FAILED, called_at=10.3, ended_at=10.5)
    success = replace(SUCCEEDED, called_at=10.4, ended_at=12.0)
    assert answered_since([earlier_call, other_member, failed_call, success], KILLED, ["http-0"]) == 12.0
    assert answered_since([earlier_call], KILLED, ["http-0"]) is None


def test_back_off_does_not_count_as_recovery_time() -> None:
    strike = replace_strike(back_off=1.0)
    assert strike.answered_after == pytest.approx(0.8)
    assert strike.well_after == pytest.approx(0.3)


def test_a_different_outcome_from_rest_is_added_to_the_report() -> None:
    row = {"status": "failed", "error": {"kind": "lost"}}
    assert settled(SUCCEEDED, row).later == "failed lost"
    assert settled(SUCCEEDED, {"status": "succeeded", "error": None}) == SUCCEEDED


def test_the_outcome_from_rest_completes_a_report_without_a_response() -> None:
    report = replace(SUCCEEDED, end=SILENT, text="")
    assert settled(report, {"status": "succeeded", "error": None}) == SUCCEEDED
    assert settled(report, {"status": "running", "error": None}).end == SILENT


def test_an_incomplete_line_of_the_ledger_is_no_effect() -> None:
    assert by_key(["a 1.0 7\n", "a 2.0 8\n", "b 3.0 7\n", "c 4.0"]) == {
        "a": [Effect("a", 1.0, 7), Effect("a", 2.0, 8)],
        "b": [Effect("b", 3.0, 7)],
    }


def test_percentiles_are_measured_values() -> None:
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert percentile([float(n) for n in range(1, 101)], 0.95) == 95.0
    assert math.isnan(percentile([], 0.95))


def replace_strike(**values: object) -> Strike:
    return Strike(**{**vars(KILLED), **values})  # type: ignore[arg-type]
