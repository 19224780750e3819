"""Statistics of the calls that ended: their number, the failed ones, and their durations. Rollups keep them small.

A rollup is a row of `CallRollup`. It has the number of calls of a tool that ended in one minute, one quarter of an hour
or one hour, the number of failed ones, and a histogram of their durations. The slots of the histogram are logarithmic.

Each call is added to the rollups once, in the transaction that moves `Hall.rolled_up_until` past its end by
compare-and-set. Calls that ended after `rolled_up_until` are counted by each query. They are called live calls.

A call is missing here if its row is written later than GRACE_SECONDS after its end. This happens to calls through the
gateway while the database is away. /metrics includes them.
"""

from __future__ import annotations

import json
import logging
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

from django.db import connection

from mcp_runtime.rows import clock, lease
from mcp_runtime.rows.database import short_transaction
from roster.models import Call, CallRollup, GuildMember, Hall

logger = logging.getLogger("guildhall.runtime")

ROLLUP_SECONDS = 15.0
# The gateway writes the row of a call a moment after the call ended.
GRACE_SECONDS = 5.0
# The longest time that one transaction adds, so that the rollups catch up in steps after a long stop.
MAX_STEP = timedelta(minutes=15)
CLOCK_TOLERANCE = timedelta(minutes=1)  # the clock may be corrected by small amounts
# The age up to which queries count live calls. Without it, they would be slow while the rollups catch up.
MAX_LIVE_AGE = timedelta(minutes=3)
# How long rollups are kept, by the seconds that they cover.
LIFETIMES = {60: timedelta(hours=2), 900: timedelta(hours=26), 3600: timedelta(days=8)}

# The upper limits of the slots in seconds, from 1 ms to 15 minutes. Each is a fifth more than the one before.
SLOT_LIMITS = tuple(0.001 * 2 ** (step / 4) for step in range(80))
NEVER_STARTED = -1  # the slot of calls that were not sent to a member
ALL_TOOLS = ""  # the tool name of rollups that count all tools of a member

SPARK_POINTS, SPARK_SECONDS = 12, 300

Key: TypeAlias = "tuple[int, int, str, int]"  # seconds, begins, tool, member

_CALLS, _ROLLUPS, _HALL, _MEMBERS = (model._meta.db_table for model in (Call, CallRollup, Hall, GuildMember))


@dataclass(frozen=True)
class Span:
    """The time that a plot shows: `points` points of `seconds` seconds each. The last point has not ended."""

    name: str
    seconds: int
    points: int

    def starts(self, now: datetime) -> list[int]:
        """Return the start of each point as Unix time, oldest first."""
        last = int(now.timestamp()) // self.seconds
        return [self.seconds * number for number in range(last - self.points + 1, last + 1)]


SPANS = {span.name: span for span in (Span("hour", 60, 60), Span("day", 900, 96), Span("week", 3600, 168))}


@dataclass(frozen=True)
class Point:
    """The calls that ended in the `Span.seconds` after `begins_at`. Durations are seconds. None if no call started."""

    begins_at: datetime
    calls: int
    failed: int
    p50: float | None
    p95: float | None
    mean: float | None


@dataclass(frozen=True)
class Series:
    """Points, oldest first, and their total."""

    span: Span
    points: list[Point]
    total: Point


# Rollups: the runtime's side -----------------------------------------------------------------------------------------


def roll_up(until: datetime | None = None, *, keep_going: Callable[[], bool] = lambda: True) -> int:
    """Add the calls that ended before `until`, by default GRACE_SECONDS ago. Return how many. May run concurrently."""
    target = until or clock.now() - timedelta(seconds=GRACE_SECONDS)
    count = 0
    while keep_going():
        rolled_up_until = lease.hall().rolled_up_until
        since = rolled_up_until or target - max(LIFETIMES.values())
        if since > clock.now() + CLOCK_TOLERANCE:
            logger.warning("calls were rolled up until %s, which is in the future: the clock was set back", since)
            Hall.objects.filter(pk=1, rolled_up_until=rolled_up_until).update(rolled_up_until=target)
        if since >= target:
            break
        calls = Call.objects.filter(finished_at__gte=since, finished_at__lt=target).order_by("finished_at")
        first = calls.values_list("finished_at", flat=True).first()
        end = target if first is None else min(target, first + MAX_STEP)
        count += _add(rolled_up_until, since, end)
    return count


def add_calls(call_ids: Iterable[int]) -> None:
    """Add these calls to the rollups, unless they are included. Called before the calls are deleted."""
    calls = Call.objects.filter(pk__in=call_ids).order_by("-finished_at")
    last = calls.values_list("finished_at", flat=True).first()
    rolled_up_until = lease.hall().rolled_up_until
    if last is not None and (rolled_up_until is None or last >= rolled_up_until):
        roll_up(min(last, clock.now()) + timedelta(microseconds=1))


def _add(rolled_up_until: datetime | None, since: datetime, until: datetime) -> int:
    """Add the calls that ended from `since` to `until`, and move `rolled_up_until` to `until`. Return how many.

    All rows are read before the transaction, because SQLite's writers would wait for it. This is safe, because a rollup
    changes only when `rolled_up_until` moves. If another process moved it, write nothing and return 0.
    """
    sql = f"""WITH ended AS MATERIALIZED ({_ended_calls("finished_at >= %s AND finished_at < %s")})
        SELECT member_id, tool_name, moment - moment %% 60, {_SLOT}, COUNT(*), SUM(failed), COALESCE(SUM(took), 0)
        FROM ended GROUP BY 1, 2, 3, 4"""  # noqa: S608 - constants
    with connection.cursor() as cursor:
        cursor.execute(sql, [_to_sql(since), _to_sql(until)])
        rows = cursor.fetchall()
    rollups = _rollups(rows)
    with short_transaction():
        if not Hall.objects.filter(pk=1, rolled_up_until=rolled_up_until).update(rolled_up_until=until):
            return 0
        CallRollup.objects.bulk_create(
            rollups,
            update_conflicts=True,
            unique_fields=["seconds", "begins", "tool_name", "member"],
            update_fields=["calls", "failed", "took", "slots"],
            batch_size=500,
        )
    return sum(row[4] for row in rows)


def _rollups(rows: Iterable[tuple[Any, ...]]) -> list[CallRollup]:
    """Return the stored rollups plus these rows, which count calls by minute and slot."""
    oldest = {seconds: int((clock.now() - lifetime).timestamp()) for seconds, lifetime in LIFETIMES.items()}
    rollups: dict[Key, CallRollup] = {}
    for member_id, tool_name, minute, slot, calls, failed, took in rows:
        for seconds in LIFETIMES:
            if minute < oldest[seconds]:
                continue
            begins = minute - minute % seconds
            for name in {tool_name, ALL_TOOLS}:
                key = (seconds, begins, name, member_id)
                if key not in rollups:
                    rollups[key] = _new_rollup(*key)
                _add_to(rollups[key], calls, failed, took, {str(slot): calls})
    for row in _stored_rollups(rollups):
        key = (row.seconds, row.begins, row.tool_name, row.member_id)
        if key in rollups:
            _add_to(rollups[key], row.calls, row.failed, row.took, row.slots)
    return list(rollups.values())


def _stored_rollups(keys: Iterable[Key]) -> Iterator[CallRollup]:
    """Yield the stored rollups of the same times as these."""
    starts: dict[int, set[int]] = defaultdict(set)
    for seconds, start, *_ in keys:
        starts[seconds].add(start)
    for seconds, values in starts.items():
        yield from CallRollup.objects.filter(seconds=seconds, begins__in=values)


def _new_rollup(seconds: int, begins: int, tool_name: str, member_id: int) -> CallRollup:
    key = {"seconds": seconds, "begins": begins, "tool_name": tool_name, "member_id": member_id}
    return CallRollup(**key, calls=0, failed=0, took=0.0, slots={})


def _add_to(row: CallRollup, calls: int, failed: int, took: float, slots: Mapping[str, int]) -> None:
    row.calls += calls
    row.failed += failed
    row.took += took
    for slot, count in slots.items():
        row.slots[slot] = row.slots.get(slot, 0) + count


def delete_expired() -> None:
    """Delete the rollups that no plot shows any more."""
    now = clock.now()
    for seconds, lifetime in LIFETIMES.items():
        CallRollup.objects.filter(seconds=seconds, begins__lt=int((now - lifetime).timestamp())).delete()


# Queries -------------------------------------------------------------------------------------------------------


def series(
    span: Span, *, member_id: int | None = None, tool_name: str = ALL_TOOLS, without: Collection[str] = ()
) -> Series:
    """Return the statistics of a tool, of a member, or of the hall without the members with these names.

    One query. The number of rows that it reads does not grow with the number of calls.
    """
    now = clock.now()
    starts = span.starts(now)
    of_members, names = _member_condition(member_id, without)
    of_tool = " AND tool_name = %s" if tool_name else ""
    sql = f"""WITH ended AS MATERIALIZED ({_ended_calls(_LIVE_WHERE)})
        SELECT begins, CAST(slots AS text), calls, failed, took FROM {_ROLLUPS}
        WHERE seconds = %s AND begins IN ({_placeholders(starts)}) AND tool_name = %s {of_members}
        UNION ALL
        SELECT moment - moment %% {span.seconds}, CAST({_SLOT} AS text), COUNT(*), SUM(failed), COALESCE(SUM(took), 0)
        FROM ended WHERE moment >= %s {of_members} {of_tool} GROUP BY 1, 2"""  # noqa: S608 - constants and placeholders
    tool = [tool_name] if tool_name else []
    parameters = [*_live_parameters(now), span.seconds, *starts, tool_name, *names, starts[0], *names, *tool]
    with connection.cursor() as cursor:
        cursor.execute(sql, parameters)
        rows = cursor.fetchall()
    parts: dict[int, list[_Part]] = defaultdict(list)
    for moment, slots, calls, failed, took in rows:
        parts[moment].append(_part(slots, int(calls), int(failed), float(took)))
    points = [_point(moment, parts[moment]) for moment in starts]
    all_parts = [part for moment in starts for part in parts[moment]]
    return Series(span, points, _point(starts[0], all_parts))


def last_hour() -> dict[int, list[tuple[int, int]]]:
    """Return (calls, failed calls) of SPARK_POINTS times SPARK_SECONDS by member, oldest first. One query."""
    now = clock.now()
    starts = Span("spark", SPARK_SECONDS, SPARK_POINTS).starts(now)
    minutes = list(range(starts[0], starts[-1] + SPARK_SECONDS, 60))
    sql = f"""WITH ended AS MATERIALIZED ({_ended_calls(_LIVE_WHERE)})
        SELECT member_id, moment - moment %% {SPARK_SECONDS}, SUM(calls), SUM(failed) FROM (
            SELECT member_id, begins AS moment, calls, failed FROM {_ROLLUPS}
            WHERE seconds = 60 AND begins IN ({_placeholders(minutes)}) AND tool_name = %s
            UNION ALL
            SELECT member_id, moment, 1, failed FROM ended
        ) AS parts GROUP BY 1, 2"""  # noqa: S608 - constants and placeholders
    with connection.cursor() as cursor:
        cursor.execute(sql, [*_live_parameters(now), *minutes, ALL_TOOLS])
        rows = cursor.fetchall()
    indexes = {moment: index for index, moment in enumerate(starts)}
    counts: dict[int, list[tuple[int, int]]] = {}
    for member_id, moment, calls, failed in rows:
        if moment in indexes:
            counts.setdefault(member_id, [(0, 0)] * SPARK_POINTS)[indexes[moment]] = int(calls), int(failed)
    return counts


def _member_condition(member_id: int | None, without: Collection[str]) -> tuple[str, list[Any]]:
    """Return a condition on members, and its parameters."""
    if member_id is not None:
        return "AND member_id = %s", [member_id]
    if without:
        return f"AND member_id NOT IN (SELECT id FROM {_MEMBERS} WHERE name IN ({_placeholders(without)}))", [*without]  # noqa: S608
    return "", []


@dataclass(frozen=True)
class _Part:
    """A part of a point: a rollup, or the live calls of one slot."""

    slots: dict[str, int]
    calls: int
    failed: int
    took: float


def _part(slots: str, calls: int, failed: int, took: float) -> _Part:
    value = json.loads(slots)
    return _Part(value if isinstance(value, dict) else {str(value): calls}, calls, failed, took)


def _point(begins: int, parts: list[_Part]) -> Point:
    slots: Counter[int] = Counter()
    for part in parts:
        for slot, count in part.slots.items():
            slots[int(slot)] += count
    calls = sum(part.calls for part in parts)
    started_calls = calls - slots.pop(NEVER_STARTED, 0)
    took = sum(part.took for part in parts)
    mean = took / started_calls if started_calls else None
    p50, p95 = quantile(slots, 0.5), quantile(slots, 0.95)
    if p50 is not None and p95 is not None:
        longest = _longest(slots, took)
        p50, p95 = min(p50, longest), min(p95, longest)
    if mean is not None and len(slots) == 1:  # one call, or calls of nearly the same duration, which is known exactly
        p50 = p95 = round(mean, 6)
    return Point(
        begins_at=datetime.fromtimestamp(begins, UTC),
        calls=calls,
        failed=sum(part.failed for part in parts),
        p50=p50,
        p95=p95,
        mean=mean,
    )


def quantile(slots: Mapping[int, int], fraction: float) -> float | None:
    """Return the duration in seconds that `fraction` of the calls did not exceed. It is wrong by a fifth at most."""
    rank = fraction * sum(slots.values())
    below = 0
    for slot in sorted(slots):
        if below + slots[slot] >= rank and slots[slot]:
            return _interpolate(slot, (rank - below) / slots[slot])
        below += slots[slot]
    return None


def _longest(slots: Mapping[int, int], took: float) -> float:
    """Return how long the longest of these calls took at most, if all together took `took` seconds.

    Without it, a percentile may be a fifth longer than the longest call of a few.
    """
    top = max(slots)
    others = sum(count * _lower_limit(slot) for slot, count in slots.items()) - _lower_limit(top)
    return max(_lower_limit(top), round(took - others, 6))


def _lower_limit(slot: int) -> float:
    return SLOT_LIMITS[slot - 1] if slot else 0.0


def _interpolate(slot: int, fraction: float) -> float:
    if slot >= len(SLOT_LIMITS):
        return SLOT_LIMITS[-1]
    if slot == 0:
        return SLOT_LIMITS[0] * fraction
    return SLOT_LIMITS[slot - 1] * math.pow(SLOT_LIMITS[slot] / SLOT_LIMITS[slot - 1], fraction)


# SQL, because on SQLite the ORM computes the difference of two times in Python, row by row. -----------------------

_LIVE_WHERE = f"""finished_at >= %s
    AND finished_at >= COALESCE((SELECT rolled_up_until FROM {_HALL} WHERE id = 1), %s) AND finished_at < %s"""  # noqa: S608


def _slot_between(lowest: int, highest: int) -> str:
    """Return SQL for the slot of `took`, as a binary search. Eighty conditions in a row would take most of the time."""
    if lowest == highest:
        return str(lowest)
    middle = (lowest + highest) // 2
    lower, upper = _slot_between(lowest, middle), _slot_between(middle + 1, highest)
    return f"CASE WHEN took < {SLOT_LIMITS[middle]!r} THEN {lower} ELSE {upper} END"


_SLOT = f"CASE WHEN took IS NULL THEN {NEVER_STARTED} ELSE {_slot_between(0, len(SLOT_LIMITS))} END"

# SQLite stores times as `2026-11-21 15:43:15.123456`, or without the fraction. strftime would round to milliseconds.
_SQLITE = """CAST(strftime('%%s', substr(finished_at, 1, 19)) AS INTEGER) AS moment,
    CAST(strftime('%%s', substr(finished_at, 1, 19)) - strftime('%%s', substr(started_at, 1, 19))
        + ('0' || substr(finished_at, 20)) - ('0' || substr(started_at, 20)) AS REAL) AS took"""
_POSTGRESQL = """CAST(FLOOR(EXTRACT(EPOCH FROM finished_at)) AS bigint) AS moment,
    CAST(EXTRACT(EPOCH FROM finished_at - started_at) AS double precision) AS took"""


def _ended_calls(where: str) -> str:
    """Return SQL for the calls that ended: the second of the end (Unix time), and the duration in seconds or NULL.

    `where` must not name a member, and the query is materialized. Otherwise SQLite would read all calls of the member.
    """
    times = _POSTGRESQL if connection.vendor == "postgresql" else _SQLITE
    failed = f"CASE WHEN status = '{Call.Status.FAILED.value}' THEN 1 ELSE 0 END AS failed"
    return f"SELECT member_id, tool_name, {failed}, {times} FROM {_CALLS} WHERE {where}"  # noqa: S608


def _live_parameters(now: datetime) -> list[Any]:
    """Return the parameters of `_LIVE_WHERE`."""
    earliest = _to_sql(now - MAX_LIVE_AGE)
    return [earliest, earliest, _to_sql(now + timedelta(days=1))]


def _to_sql(moment: datetime) -> Any:
    return connection.ops.adapt_datetimefield_value(moment)


def _placeholders(values: Collection[Any]) -> str:
    return ", ".join(["%s"] * len(values))
