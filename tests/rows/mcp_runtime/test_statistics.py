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

from mcp_runtime.calls import pruning, statistics
from mcp_runtime.control.calls import call_series, calls_of_last_hour
from mcp_runtime.rows import clock, lease
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
        monkeypatch.setattr(clock, "now", lambda: moment)

    set_to(NOON)
    return set_to


@pytest.fixture
def anna() -> GuildMember:
    return GuildMember.objects.create(name="anna", directory="anna")


@pytest.fixture
def bert() -> GuildMember:
    return GuildMember.objects.create(name="bert", directory="bert")


def add_calls(
    member: GuildMember,
    ago: timedelta = timedelta(0),
    *,
    number: int = 1,
    duration: float | None = 0.1,
    tool: str = "echo",
    status: str = "succeeded",
    moment: datetime | None = None,
) -> None:
    finished_at = moment or timezone.now() - ago
    started_at = None if duration is None else finished_at - timedelta(seconds=duration)
    Call.objects.bulk_create(
        Call(
            member=member,
            tool_name=tool,
            timeout=1,
            source="rest",
            status=status,
            started_at=started_at,
            finished_at=finished_at,
        )
        for _ in range(number)
    )


def series_of_hour(**filters: Any) -> statistics.Series:
    return call_series("hour", **filters)


def counts_by_age(series: statistics.Series) -> dict[int, tuple[int, int]]:
    """The points with calls, as (calls, failed calls) by the number of points since then."""
    last = len(series.points) - 1
    return {last - index: (point.calls, point.failed) for index, point in enumerate(series.points) if point.calls}


minutes = lambda number: timedelta(minutes=number)  # noqa: E731


# Rollups -------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("set_clock")
def test_a_call_counts_the_same_before_and_after_its_rollup(anna: GuildMember) -> None:
    add_calls(anna, minutes(2), number=3)
    add_calls(anna, minutes(1), number=2, status="failed", duration=3)
    add_calls(anna, minutes(1), status="cancelled", duration=None)
    before = series_of_hour(member=anna)
    assert counts_by_age(before) == {2: (3, 0), 1: (3, 2)}
    assert statistics.roll_up() == 6
    after = series_of_hour(member=anna)
    assert counts_by_age(after) == counts_by_age(before)
    assert [(point.p50, point.p95) for point in after.points] == [(point.p50, point.p95) for point in before.points]


@pytest.mark.usefixtures("set_clock")
def test_a_call_is_rolled_up_only_once(anna: GuildMember) -> None:
    add_calls(anna, minutes(5), number=3)
    assert [statistics.roll_up(), statistics.roll_up()] == [3, 0]
    assert counts_by_age(series_of_hour(member=anna)) == {5: (3, 0)}


def test_a_minute_that_is_rolled_up_in_parts_has_all_its_calls(
    anna: GuildMember, set_clock: Callable[[datetime], None]
) -> None:
    for seconds in range(6):
        set_clock(NOON + timedelta(seconds=seconds))
        add_calls(anna)
        statistics.roll_up(timezone.now() + timedelta(microseconds=1))
    assert counts_by_age(series_of_hour(member=anna)) == {0: (6, 0)}
    assert CallRollup.objects.filter(seconds=60, tool_name="echo").count() == 1


@pytest.mark.usefixtures("set_clock")
def test_calls_that_ended_a_moment_ago_are_rolled_up_later(anna: GuildMember) -> None:
    add_calls(anna, timedelta(seconds=1))
    assert statistics.roll_up() == 0
    add_calls(anna, timedelta(seconds=2))  # written after a call that ended later
    assert counts_by_age(series_of_hour(member=anna)) == {0: (2, 0)}


@pytest.mark.usefixtures("set_clock")
def test_after_a_long_stop_the_rollups_catch_up_in_steps(anna: GuildMember) -> None:
    for hours in (1, 3, 30, 100):
        add_calls(anna, timedelta(hours=hours), number=hours)
    steps = iter([True, True, False])
    assert statistics.roll_up(keep_going=lambda: next(steps)) == 130
    assert statistics.roll_up() == 4
    assert counts_by_age(call_series("week", member=anna)) == {1: (1, 0), 3: (3, 0), 30: (30, 0), 100: (100, 0)}
    assert set(CallRollup.objects.filter(seconds=60).values_list("calls", flat=True)) == {
        1
    }  # no plot of minutes has more
    assert Hall.objects.get().rolled_up_until == NOON - timedelta(seconds=statistics.GRACE_SECONDS)


@pytest.mark.usefixtures("set_clock")
def test_calls_are_counted_again_after_the_clock_is_corrected(
    anna: GuildMember, set_clock: Callable[[datetime], None]
) -> None:
    set_clock(NOON + timedelta(hours=3))
    statistics.roll_up()
    set_clock(NOON)
    assert statistics.roll_up() == 0
    set_clock(NOON + timedelta(seconds=60))
    add_calls(anna, timedelta(seconds=10))
    assert statistics.roll_up() == 1


def test_unfinished_calls_are_not_counted(anna: GuildMember) -> None:
    Call.objects.create(member=anna, tool_name="echo", timeout=1, source="rest")
    assert statistics.roll_up() == 0
    assert counts_by_age(series_of_hour(member=anna)) == {}


def test_deleted_calls_stay_in_the_statistics(anna: GuildMember, set_clock: Callable[[datetime], None]) -> None:
    add_calls(anna, timedelta(hours=2), number=4)
    add_calls(anna, minutes(3), number=3)
    add_calls(anna, number=2)
    statistics.roll_up(NOON - minutes(100))
    before = call_series("day", member=anna)
    assert pruning.prune_calls(days=30, keep=0) == 9
    after = call_series("day", member=anna)
    assert (counts_by_age(after), after.total.p95) == (counts_by_age(before), before.total.p95)
    set_clock(NOON + timedelta(seconds=1))
    statistics.roll_up()
    add_calls(anna)
    assert call_series("day", member=anna).total.calls == 10


@pytest.mark.django_db(transaction=True)
def test_rollups_at_the_same_time_count_each_call_once(anna: GuildMember) -> None:
    for ago in range(1, 40):
        add_calls(anna, minutes(ago), number=2)
    counts: list[int] = []

    def work() -> None:
        counts.append(statistics.roll_up())
        connection.close()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(counts) == 78
    assert call_series("day", member=anna).total.calls == 78


def test_old_rollups_are_deleted(anna: GuildMember, set_clock: Callable[[datetime], None]) -> None:
    add_calls(anna)
    statistics.roll_up(NOON + timedelta(seconds=1))
    for delay, remaining_seconds in (
        (timedelta(0), {60, 900, 3600}),
        (timedelta(hours=3), {900, 3600}),
        (timedelta(days=9), set()),
    ):
        set_clock(NOON + delay)
        statistics.delete_expired()
        assert set(CallRollup.objects.values_list("seconds", flat=True)) == remaining_seconds


def test_a_rollup_uses_the_index_on_the_end_of_calls(anna: GuildMember) -> None:
    add_calls(anna, number=5)
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
@pytest.mark.parametrize("is_rolled_up", [True, False])
def test_members_and_tools_have_their_own_statistics(anna: GuildMember, bert: GuildMember, is_rolled_up: bool) -> None:
    add_calls(anna, minutes(1), number=1, tool="echo")
    add_calls(anna, minutes(1), number=2, tool="add")
    add_calls(bert, minutes(1), number=4, tool="echo")
    if is_rolled_up:
        assert statistics.roll_up() == 7
    assert series_of_hour(member=anna, tool_name="echo").total.calls == 1
    assert series_of_hour(member=anna, tool_name="add").total.calls == 2
    assert series_of_hour(member=anna).total.calls == 3
    assert series_of_hour().total.calls == 7
    assert series_of_hour(without=["anna"]).total.calls == 4
    assert series_of_hour(without=["anna", "bert"]).total.calls == 0


@pytest.mark.usefixtures("set_clock")
@pytest.mark.parametrize(("span", "seconds", "points"), [("hour", 60, 60), ("day", 900, 96), ("week", 3600, 168)])
def test_a_span_has_the_same_number_of_points_for_any_number_of_calls(
    anna: GuildMember, span: str, seconds: int, points: int
) -> None:
    add_calls(anna, timedelta(seconds=seconds * (points - 1)), number=2)
    add_calls(anna, timedelta(seconds=seconds * points), number=9)  # a little too old
    add_calls(anna)
    statistics.roll_up()
    series = call_series(span, member=anna)
    assert len(series.points) == points
    assert counts_by_age(series) == {points - 1: (2, 0), 0: (1, 0)}
    assert {
        (next_point.begins_at - point.begins_at).total_seconds()
        for point, next_point in zip(series.points, series.points[1:], strict=False)
    } == {seconds}
    assert series.total.calls == 3


@pytest.mark.usefixtures("set_clock")
@pytest.mark.parametrize("is_rolled_up", [True, False])
@pytest.mark.parametrize("duration", [0.0004, 0.0015, 0.004, 0.03, 0.25, 2.0, 45.0, 600.0])
def test_percentiles_have_an_error_of_at_most_a_fifth(anna: GuildMember, duration: float, is_rolled_up: bool) -> None:
    add_calls(anna, minutes(1), number=20, duration=duration)
    if is_rolled_up:
        statistics.roll_up()
    total = series_of_hour(member=anna).total
    assert total.mean == pytest.approx(duration, abs=2e-6)
    for percentile in (total.p50, total.p95):
        assert percentile is not None
        assert abs(percentile - duration) <= max(0.2 * duration, 0.0006)


@pytest.mark.usefixtures("set_clock")
@pytest.mark.parametrize("is_rolled_up", [True, False])
def test_the_duration_of_one_call_is_exact(anna: GuildMember, is_rolled_up: bool) -> None:
    add_calls(anna, minutes(1), duration=10.0)
    if is_rolled_up:
        statistics.roll_up()
    total = series_of_hour(member=anna).total
    assert (total.p50, total.p95) == (pytest.approx(10.0, abs=1e-5), pytest.approx(10.0, abs=1e-5))


@pytest.mark.usefixtures("set_clock")
@pytest.mark.parametrize("is_rolled_up", [True, False])
def test_no_percentile_of_a_few_calls_is_longer_than_the_longest(anna: GuildMember, is_rolled_up: bool) -> None:
    for duration in (0.003, 0.004, 0.2, 10.0):
        add_calls(anna, minutes(1), duration=duration)
    if is_rolled_up:
        statistics.roll_up()
    total = series_of_hour(member=anna).total
    assert total.p50 is not None
    assert total.p50 < 0.2
    assert total.p95 == pytest.approx(10.0, abs=0.05)  # what the others took is known to a fifth


@pytest.mark.usefixtures("set_clock")
def test_a_time_without_a_fraction_is_read_exactly(anna: GuildMember) -> None:
    add_calls(anna, moment=NOON.replace(second=0), duration=0.25)
    add_calls(anna, moment=NOON.replace(second=10, microsecond=250_000), duration=10.25)
    total = series_of_hour(member=anna).total
    assert total.mean == pytest.approx(5.25)


@pytest.mark.usefixtures("set_clock")
def test_a_few_slow_calls_show_only_in_the_95th_percentile(anna: GuildMember) -> None:
    add_calls(anna, minutes(1), number=90, duration=0.01)
    add_calls(anna, minutes(1), number=10, duration=5)
    total = series_of_hour(member=anna).total
    assert total.p50 == pytest.approx(0.01, rel=0.2)
    assert total.p95 == pytest.approx(5, rel=0.2)


@pytest.mark.usefixtures("set_clock")
def test_calls_that_did_not_start_are_counted_without_a_duration(anna: GuildMember) -> None:
    add_calls(anna, minutes(1), number=3, duration=None, status="failed")
    total = series_of_hour(member=anna).total
    assert (total.calls, total.failed, total.p50, total.p95, total.mean) == (3, 3, None, None, None)


def test_database_and_python_have_the_same_slots(anna: GuildMember) -> None:
    durations = [0.0002, 0.0012, 0.0016, 0.05, 1.3, 17.0, 300.0, 2000.0]
    for duration in durations:
        add_calls(anna, minutes(2), duration=duration)
    statistics.roll_up()
    slots = Counter[int]()
    for row in CallRollup.objects.filter(seconds=60, tool_name=""):
        slots.update({int(slot): count for slot, count in row.slots.items()})
    assert sorted(slots.elements()) == [bisect_right(statistics.SLOT_LIMITS, duration) for duration in durations]


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


# The last hour of all members -------------------------------------------------------------------------------------


def test_the_last_hour_of_all_members_takes_one_query(
    anna: GuildMember, bert: GuildMember, set_clock: Callable[[datetime], None]
) -> None:
    set_clock(NOON + timedelta(minutes=2))
    add_calls(anna, minutes(1), number=2)
    add_calls(anna, minutes(12), number=3, status="failed")
    add_calls(bert, minutes(55))
    add_calls(bert, minutes(65))
    statistics.roll_up()
    add_calls(anna, number=4)
    with CaptureQueriesContext(connection) as queries:
        calls = calls_of_last_hour()
    assert len(queries) == 1
    assert calls == {
        anna.pk: [(0, 0)] * 9 + [(3, 3), (0, 0), (6, 0)],
        bert.pk: [(1, 0)] + [(0, 0)] * 11,
    }


def test_a_series_takes_one_query(anna: GuildMember) -> None:
    add_calls(anna, minutes(3), number=9)
    with CaptureQueriesContext(connection) as queries:
        series_of_hour(member=anna)
    assert len(queries) == 1
