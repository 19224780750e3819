from __future__ import annotations

import threading
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from mcp_runtime.calls import statistics, transitions
from mcp_runtime.control.calls import call_series, calls_of_last_hour
from mcp_runtime.rows import lease
from roster.models import Call, CallRollup, GuildMember, Hall

pytestmark = pytest.mark.django_db

NOON = datetime(2026, 3, 4, 12, 0, 30, tzinfo=UTC)


@pytest.fixture(autouse=True)
def _hall() -> None:
    lease.hall()


@pytest.fixture
def set_clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[datetime], None]:
    def set_to(moment: datetime) -> None:
        monkeypatch.setattr(timezone, "now", lambda: moment)

    set_to(NOON)
    return set_to


@pytest.fixture
def anna() -> GuildMember:
    return GuildMember.objects.create(name="anna", directory="anna")


@pytest.fixture
def bert() -> GuildMember:
    return GuildMember.objects.create(name="bert", directory="bert")


def ended(
    member: GuildMember,
    ago: timedelta = timedelta(0),
    *,
    number: int = 1,
    took: float | None = 0.1,
    tool: str = "echo",
    status: str = "succeeded",
    moment: datetime | None = None,
) -> None:
    finished = moment or timezone.now() - ago
    started = None if took is None else finished - timedelta(seconds=took)
    Call.objects.bulk_create(
        Call(
            member=member,
            tool_name=tool,
            timeout=1,
            source="rest",
            status=status,
            started_at=started,
            finished_at=finished,
        )
        for _ in range(number)
    )


def hour(**of: Any) -> statistics.Series:
    return call_series("hour", **of)


def shape(series: statistics.Series) -> dict[int, tuple[int, int]]:
    """(calls, failed) of the points that have any, by how many points ago."""
    last = len(series.points) - 1
    return {last - place: (point.calls, point.failed) for place, point in enumerate(series.points) if point.calls}


minutes = lambda number: timedelta(minutes=number)  # noqa: E731


# Rollups -------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("set_clock")
def test_a_call_is_counted_the_same_before_and_after_its_rollup(anna: GuildMember) -> None:
    ended(anna, minutes(2), number=3)
    ended(anna, minutes(1), number=2, status="failed", took=3)
    ended(anna, minutes(1), status="cancelled", took=None)
    before = hour(member=anna)
    assert shape(before) == {2: (3, 0), 1: (3, 2)}
    assert statistics.roll_up() == 6
    after = hour(member=anna)
    assert shape(after) == shape(before)
    assert [(point.p50, point.p95) for point in after.points] == [(point.p50, point.p95) for point in before.points]


@pytest.mark.usefixtures("set_clock")
def test_what_was_summed_is_not_summed_again(anna: GuildMember) -> None:
    ended(anna, minutes(5), number=3)
    assert [statistics.roll_up(), statistics.roll_up()] == [3, 0]
    assert shape(hour(member=anna)) == {5: (3, 0)}


def test_a_minute_that_is_summed_in_parts_has_all_its_calls(
    anna: GuildMember, set_clock: Callable[[datetime], None]
) -> None:
    for seconds in range(6):
        set_clock(NOON + timedelta(seconds=seconds))
        ended(anna)
        statistics.roll_up(timezone.now() + timedelta(microseconds=1))
    assert shape(hour(member=anna)) == {0: (6, 0)}
    assert CallRollup.objects.filter(seconds=60, tool_name="echo").count() == 1


@pytest.mark.usefixtures("set_clock")
def test_what_ended_a_moment_ago_waits_for_those_who_write_late(anna: GuildMember) -> None:
    ended(anna, timedelta(seconds=1))
    assert statistics.roll_up() == 0
    ended(anna, timedelta(seconds=2))  # written down after one that ended later
    assert shape(hour(member=anna)) == {0: (2, 0)}


@pytest.mark.usefixtures("set_clock")
def test_after_a_long_stop_the_rollups_catch_up_in_steps(anna: GuildMember) -> None:
    for hours in (1, 3, 30, 100):
        ended(anna, timedelta(hours=hours), number=hours)
    steps = iter([True, True, False])
    assert statistics.roll_up(keep_going=lambda: next(steps)) == 130
    assert statistics.roll_up() == 4
    assert shape(call_series("week", member=anna)) == {1: (1, 0), 3: (3, 0), 30: (30, 0), 100: (100, 0)}
    assert set(CallRollup.objects.filter(seconds=60).values_list("calls", flat=True)) == {
        1
    }  # no plot of minutes has more
    assert Hall.objects.get().rolled_up_until == NOON - timedelta(seconds=statistics.GRACE_SECONDS)


@pytest.mark.usefixtures("set_clock")
def test_calls_are_counted_on_when_the_clock_was_ahead_and_is_put_right(
    anna: GuildMember, set_clock: Callable[[datetime], None]
) -> None:
    set_clock(NOON + timedelta(hours=3))
    statistics.roll_up()
    set_clock(NOON)
    assert statistics.roll_up() == 0
    set_clock(NOON + timedelta(seconds=60))
    ended(anna, timedelta(seconds=10))
    assert statistics.roll_up() == 1


def test_calls_in_progress_are_in_no_figure(anna: GuildMember) -> None:
    Call.objects.create(member=anna, tool_name="echo", timeout=1, source="rest")
    assert statistics.roll_up() == 0
    assert shape(hour(member=anna)) == {}


def test_pruned_calls_stay_in_the_figures_even_those_of_this_moment(
    anna: GuildMember, set_clock: Callable[[datetime], None]
) -> None:
    ended(anna, timedelta(hours=2), number=4)
    ended(anna, minutes(3), number=3)
    ended(anna, number=2)
    statistics.roll_up(NOON - minutes(100))
    before = call_series("day", member=anna)
    assert transitions.prune(days=30, keep=0) == 9
    after = call_series("day", member=anna)
    assert (shape(after), after.total.p95) == (shape(before), before.total.p95)
    set_clock(NOON + timedelta(seconds=1))
    statistics.roll_up()
    ended(anna)
    assert call_series("day", member=anna).total.calls == 10


@pytest.mark.django_db(transaction=True)
def test_two_who_roll_up_at_once_count_each_call_once(anna: GuildMember) -> None:
    for ago in range(1, 40):
        ended(anna, minutes(ago), number=2)
    added: list[int] = []

    def work() -> None:
        added.append(statistics.roll_up())
        connection.close()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(added) == 78
    assert call_series("day", member=anna).total.calls == 78


def test_rollups_that_no_plot_shows_are_deleted(anna: GuildMember, set_clock: Callable[[datetime], None]) -> None:
    ended(anna)
    statistics.roll_up(NOON + timedelta(seconds=1))
    for later, left in ((timedelta(0), {60, 900, 3600}), (timedelta(hours=3), {900, 3600}), (timedelta(days=9), set())):
        set_clock(NOON + later)
        statistics.delete_expired()
        assert set(CallRollup.objects.values_list("seconds", flat=True)) == left


def test_the_index_on_the_end_is_what_a_step_reads(anna: GuildMember) -> None:
    ended(anna, number=5)
    with CaptureQueriesContext(
        connection,
    ) as queries:
        statistics.roll_up(timezone.now())
    assert len(queries) <= 11
    rollups = next(query["sql"] for query in queries if "MATERIALIZED" in query["sql"])
    if connection.vendor == "sqlite":
        with connection.cursor() as cursor:
            cursor.execute(f"EXPLAIN QUERY PLAN {rollups}")
            assert "call_by_end" in str(cursor.fetchall())


# Figures ----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("set_clock")
@pytest.mark.parametrize("is_summed", [True, False])
def test_members_and_tools_have_figures_of_their_own(anna: GuildMember, bert: GuildMember, is_summed: bool) -> None:
    ended(anna, minutes(1), number=1, tool="echo")
    ended(anna, minutes(1), number=2, tool="add")
    ended(bert, minutes(1), number=4, tool="echo")
    if is_summed:
        assert statistics.roll_up() == 7
    assert hour(member=anna, tool_name="echo").total.calls == 1
    assert hour(member=anna, tool_name="add").total.calls == 2
    assert hour(member=anna).total.calls == 3
    assert hour().total.calls == 7
    assert hour(without=["anna"]).total.calls == 4
    assert hour(without=["anna", "bert"]).total.calls == 0


@pytest.mark.usefixtures("set_clock")
@pytest.mark.parametrize(("span", "seconds", "points"), [("hour", 60, 60), ("day", 900, 96), ("week", 3600, 168)])
def test_a_span_has_its_points_however_many_calls(anna: GuildMember, span: str, seconds: int, points: int) -> None:
    ended(anna, timedelta(seconds=seconds * (points - 1)), number=2)
    ended(anna, timedelta(seconds=seconds * points), number=9)  # a moment too old
    ended(anna)
    statistics.roll_up()
    found = call_series(span, member=anna)
    assert len(found.points) == points
    assert shape(found) == {points - 1: (2, 0), 0: (1, 0)}
    assert {
        (b.begins_at - a.begins_at).total_seconds() for a, b in zip(found.points, found.points[1:], strict=False)
    } == {seconds}
    assert found.total.calls == 3


@pytest.mark.usefixtures("set_clock")
@pytest.mark.parametrize("is_summed", [True, False])
@pytest.mark.parametrize("took", [0.0004, 0.0015, 0.004, 0.03, 0.25, 2.0, 45.0, 600.0])
def test_percentiles_are_right_to_a_fifth(anna: GuildMember, took: float, is_summed: bool) -> None:
    ended(anna, minutes(1), number=20, took=took)
    if is_summed:
        statistics.roll_up()
    total = hour(member=anna).total
    assert total.mean == pytest.approx(took, abs=2e-6)
    for found in (total.p50, total.p95):
        assert found is not None
        assert abs(found - took) <= max(0.2 * took, 0.0006)


@pytest.mark.usefixtures("set_clock")
def test_a_moment_without_a_fraction_is_read_as_exactly(anna: GuildMember) -> None:
    ended(anna, moment=NOON.replace(second=0), took=0.25)
    ended(anna, moment=NOON.replace(second=10, microsecond=250_000), took=10.25)
    total = hour(member=anna).total
    assert total.mean == pytest.approx(5.25)


@pytest.mark.usefixtures("set_clock")
def test_the_slow_tail_shows_in_the_95th_percentile_alone(anna: GuildMember) -> None:
    ended(anna, minutes(1), number=90, took=0.01)
    ended(anna, minutes(1), number=10, took=5)
    total = hour(member=anna).total
    assert total.p50 == pytest.approx(0.01, rel=0.2)
    assert total.p95 == pytest.approx(5, rel=0.2)


@pytest.mark.usefixtures("set_clock")
def test_calls_that_were_never_started_count_but_took_no_time(anna: GuildMember) -> None:
    ended(anna, minutes(1), number=3, took=None, status="failed")
    total = hour(member=anna).total
    assert (total.calls, total.failed, total.p50, total.p95, total.mean) == (3, 3, None, None, None)


def test_database_and_python_know_the_same_slots(anna: GuildMember) -> None:
    lengths = [0.0002, 0.0012, 0.0016, 0.05, 1.3, 17.0, 300.0, 2000.0]
    for length in lengths:
        ended(anna, minutes(2), took=length)
    statistics.roll_up()
    slots = Counter[int]()
    for row in CallRollup.objects.filter(seconds=60, tool_name=""):
        slots.update({int(slot): count for slot, count in row.slots.items()})
    assert sorted(slots.elements()) == [bisect_right(statistics.SLOT_LIMITS, length) for length in lengths]


@pytest.mark.parametrize(
    ("slots", "part", "expected"),
    [
        ({}, 0.5, None),
        ({0: 4}, 0.5, 0.0005),
        ({len(statistics.SLOT_LIMITS): 3}, 0.95, statistics.SLOT_LIMITS[-1]),
        ({1: 2}, 1.0, statistics.SLOT_LIMITS[1]),
        ({1: 1, 5: 99}, 0.01, statistics.SLOT_LIMITS[1]),
    ],
)
def test_a_quantile_lies_inside_its_slot(slots: dict[int, int], part: float, expected: float | None) -> None:
    assert statistics.quantile(slots, part) == (expected if expected is None else pytest.approx(expected))


# The last hour of everybody ---------------------------------------------------------------------------------------


def test_the_last_hour_of_all_members_takes_one_query(
    anna: GuildMember, bert: GuildMember, set_clock: Callable[[datetime], None]
) -> None:
    set_clock(NOON + timedelta(minutes=2))
    ended(anna, minutes(1), number=2)
    ended(anna, minutes(12), number=3, status="failed")
    ended(bert, minutes(55))
    ended(bert, minutes(65))
    statistics.roll_up()
    ended(anna, number=4)
    with CaptureQueriesContext(connection) as queries:
        found = calls_of_last_hour()
    assert len(queries) == 1
    assert found == {
        anna.pk: [(0, 0)] * 9 + [(3, 3), (0, 0), (6, 0)],
        bert.pk: [(1, 0)] + [(0, 0)] * 11,
    }


def test_a_series_takes_one_query(anna: GuildMember) -> None:
    ended(anna, minutes(3), number=9)
    with CaptureQueriesContext(connection) as queries:
        hour(member=anna)
    assert len(queries) == 1
