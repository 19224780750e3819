"""How many calls ended when, how many failed, how long they took: rollups that stay small however many calls there are.

A rollup is a row (`CallRollup`): so many calls of a tool ended in this minute (quarter, hour), so many of them failed,
and so many took about that long, counted by slots of a logarithmic scale. A call is in the rollups once: it is added in
the transaction that moves `Hall.rolled_up_until` past its end, by compare-and-set. What ended since is counted
when asked.

Calls that are written down later than GRACE_SECONDS after their end (the gateway's, while the database is away) are
missing here; /metrics has them.
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

from django.db import connection, transaction
from django.utils import timezone

from mcp_runtime.rows import lease
from roster.models import CallRollup, GuildMember, Hall, Invocation

logger = logging.getLogger("guildhall.runtime")

ROLLUP_SECONDS = 15.0
# The gateway writes its calls down a moment after they ended.
GRACE_SECONDS = 5.0
# Of one transaction at most, so that the rollups catch up in steps after a long stop.
STEP = timedelta(minutes=15)
AHEAD = timedelta(minutes=1)  # of the clock, which may be put right in small steps
# Readers count calls that are not in rollups yet, at most so far back: a hall that catches up must not delay them.
LIVE = timedelta(minutes=3)
# How long rollups are kept, by the seconds that they stand for.
LIFETIMES = {60: timedelta(hours=2), 900: timedelta(hours=26), 3600: timedelta(days=8)}

# Upper ends of the slots, in seconds: from 1 ms on each is a fifth more than the one before, up to 15 minutes.
SLOT_ENDS = tuple(0.001 * 2 ** (step / 4) for step in range(80))
NEVER_STARTED = -1  # the slot of calls that no member got
ALL_TOOLS = ""  # the name under which a rollup counts all tools of a member

SPARK_POINTS, SPARK_SECONDS = 12, 300

Key: TypeAlias = "tuple[int, int, str, int]"  # seconds, begins, tool, member

_CALLS, _ROLLUPS, _HALL, _MEMBERS = (model._meta.db_table for model in (Invocation, CallRollup, Hall, GuildMember))


@dataclass(frozen=True)
class Span:
    """What a plot shows: so many points of so many seconds each, the last of them not over."""

    name: str
    seconds: int
    points: int

    def begins(self, now: datetime) -> list[int]:
        """When each point begins, as Unix time, oldest first."""
        last = int(now.timestamp()) // self.seconds
        return [self.seconds * number for number in range(last - self.points + 1, last + 1)]


SPANS = {span.name: span for span in (Span("hour", 60, 60), Span("day", 900, 96), Span("week", 3600, 168))}


@dataclass(frozen=True)
class Point:
    """The calls that ended within `Span.seconds` from then on. Times are seconds; None: no call was started."""

    begins_at: datetime
    calls: int
    failed: int
    p50: float | None
    p95: float | None
    mean: float | None


@dataclass(frozen=True)
class Series:
    """Points, oldest first, and all of them together."""

    span: Span
    points: list[Point]
    total: Point


# Rollups: the runtime's side -----------------------------------------------------------------------------------------


def roll_up(until: datetime | None = None, *, keep_going: Callable[[], bool] = lambda: True) -> int:
    """Add the calls that ended before `until` (by default GRACE_SECONDS ago). Returns how many. Several may do it."""
    target = until or timezone.now() - timedelta(seconds=GRACE_SECONDS)
    count = 0
    while keep_going():
        rolled_up_until = lease.hall().rolled_up_until
        since = rolled_up_until or target - max(LIFETIMES.values())
        if since > timezone.now() + AHEAD:
            logger.warning("calls were rolled up until %s, which is in the future: the clock was set back", since)
            Hall.objects.filter(pk=1, rolled_up_until=rolled_up_until).update(rolled_up_until=target)
        if since >= target:
            break
        calls = Invocation.objects.filter(finished_at__gte=since, finished_at__lt=target).order_by("finished_at")
        first = calls.values_list("finished_at", flat=True).first()
        end = target if first is None else min(target, first + STEP)
        count += _add(rolled_up_until, since, end)
    return count


def cover(invocation_ids: Iterable[int]) -> None:
    """Add these calls to the rollups, if they are not there yet, before they are deleted."""
    calls = Invocation.objects.filter(pk__in=invocation_ids).order_by("-finished_at")
    last = calls.values_list("finished_at", flat=True).first()
    rolled_up_until = lease.hall().rolled_up_until
    if last is not None and (rolled_up_until is None or last >= rolled_up_until):
        roll_up(min(last, timezone.now()) + timedelta(microseconds=1))


def _add(rolled_up_until: datetime | None, since: datetime, until: datetime) -> int:
    """Move the hall's `rolled_up_until` from the first argument to `until`, and add the calls that ended between.

    All is read before the transaction, where SQLite's writers would wait for it: whoever changes a rollup
    moves `rolled_up_until` too. If somebody else moved it, nothing is written, and the count is 0.
    """
    sql = f"""WITH ended AS MATERIALIZED ({_ended_calls("finished_at >= %s AND finished_at < %s")})
        SELECT member_id, tool_name, moment - moment %% 60, {_SLOT}, COUNT(*), SUM(failed), COALESCE(SUM(took), 0)
        FROM ended GROUP BY 1, 2, 3, 4"""  # noqa: S608 - constants
    with connection.cursor() as cursor:
        cursor.execute(sql, [_adapted(since), _adapted(until)])
        rows = cursor.fetchall()
    rollups = _rollups(rows)
    with transaction.atomic():
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
    """The rollups as they will be, with what is in these rows by minute and slot."""
    oldest = {seconds: int((timezone.now() - lifetime).timestamp()) for seconds, lifetime in LIFETIMES.items()}
    rollups: dict[Key, CallRollup] = {}
    for member_id, tool_name, minute, slot, calls, failed, took in rows:
        for seconds in LIFETIMES:
            if minute < oldest[seconds]:
                continue
            begins = minute - minute % seconds
            for name in {tool_name, ALL_TOOLS}:
                key = (seconds, begins, name, member_id)
                if key not in rollups:
                    rollups[key] = _empty(*key)
                _increase(rollups[key], calls, failed, took, {str(slot): calls})
    for stored in _stored_rollups(rollups):
        key = (stored.seconds, stored.begins, stored.tool_name, stored.member_id)
        if key in rollups:
            _increase(rollups[key], stored.calls, stored.failed, stored.took, stored.slots)
    return list(rollups.values())


def _stored_rollups(keys: Iterable[Key]) -> Iterator[CallRollup]:
    """The rollups of the same times as these, as they are."""
    times: dict[int, set[int]] = defaultdict(set)
    for seconds, begins, *_ in keys:
        times[seconds].add(begins)
    for seconds, moments in times.items():
        yield from CallRollup.objects.filter(seconds=seconds, begins__in=moments)


def _empty(seconds: int, begins: int, tool_name: str, member_id: int) -> CallRollup:
    key = {"seconds": seconds, "begins": begins, "tool_name": tool_name, "member_id": member_id}
    return CallRollup(**key, calls=0, failed=0, took=0.0, slots={})


def _increase(row: CallRollup, calls: int, failed: int, took: float, slots: Mapping[str, int]) -> None:
    row.calls += calls
    row.failed += failed
    row.took += took
    for slot, count in slots.items():
        row.slots[slot] = row.slots.get(slot, 0) + count


def forget() -> None:
    """Delete rollups that no plot shows any more."""
    now = timezone.now()
    for seconds, lifetime in LIFETIMES.items():
        CallRollup.objects.filter(seconds=seconds, begins__lt=int((now - lifetime).timestamp())).delete()


# Figures: for readers ---------------------------------------------------------------------------------------------


def series(
    span: Span, *, member_id: int | None = None, tool_name: str = ALL_TOOLS, without: Collection[str] = ()
) -> Series:
    """The figures of a member's tool, of a member, or of the whole hall without the members of these names.

    One query, which reads no more rows for a million calls than for a thousand.
    """
    now = timezone.now()
    begins = span.begins(now)
    whose, names = _whose(member_id, without)
    of_tool = " AND tool_name = %s" if tool_name else ""
    sql = f"""WITH ended AS MATERIALIZED ({_ended_calls(_LIVE_WHERE)})
        SELECT begins, CAST(slots AS text), calls, failed, took FROM {_ROLLUPS}
        WHERE seconds = %s AND begins IN ({_places(begins)}) AND tool_name = %s {whose}
        UNION ALL
        SELECT moment - moment %% {span.seconds}, CAST({_SLOT} AS text), COUNT(*), SUM(failed), COALESCE(SUM(took), 0)
        FROM ended WHERE moment >= %s {whose} {of_tool} GROUP BY 1, 2"""  # noqa: S608 - constants and placeholders
    tool = [tool_name] if tool_name else []
    parameters = [*_live_since(now), span.seconds, *begins, tool_name, *names, begins[0], *names, *tool]
    with connection.cursor() as cursor:
        cursor.execute(sql, parameters)
        rows = cursor.fetchall()
    parts: dict[int, list[_Part]] = defaultdict(list)
    for moment, slots, calls, failed, took in rows:
        parts[moment].append(_part(slots, int(calls), int(failed), float(took)))
    points = [_point(moment, parts[moment]) for moment in begins]
    all_parts = [part for moment in begins for part in parts[moment]]
    return Series(span, points, _point(begins[0], all_parts))


def last_hour() -> dict[int, list[tuple[int, int]]]:
    """Of each member that had calls: (calls, failed) of SPARK_POINTS times SPARK_SECONDS, oldest first. One query."""
    now = timezone.now()
    begins = Span("spark", SPARK_SECONDS, SPARK_POINTS).begins(now)
    minutes = list(range(begins[0], begins[-1] + SPARK_SECONDS, 60))
    sql = f"""WITH ended AS MATERIALIZED ({_ended_calls(_LIVE_WHERE)})
        SELECT member_id, moment - moment %% {SPARK_SECONDS}, SUM(calls), SUM(failed) FROM (
            SELECT member_id, begins AS moment, calls, failed FROM {_ROLLUPS}
            WHERE seconds = 60 AND begins IN ({_places(minutes)}) AND tool_name = %s
            UNION ALL
            SELECT member_id, moment, 1, failed FROM ended
        ) AS parts GROUP BY 1, 2"""  # noqa: S608 - constants and placeholders
    with connection.cursor() as cursor:
        cursor.execute(sql, [*_live_since(now), *minutes, ALL_TOOLS])
        rows = cursor.fetchall()
    place = {moment: number for number, moment in enumerate(begins)}
    figures: dict[int, list[tuple[int, int]]] = {}
    for member_id, moment, calls, failed in rows:
        if moment in place:
            figures.setdefault(member_id, [(0, 0)] * SPARK_POINTS)[place[moment]] = int(calls), int(failed)
    return figures


def _whose(member_id: int | None, without: Collection[str]) -> tuple[str, list[Any]]:
    """A condition on members, and its parameters."""
    if member_id is not None:
        return "AND member_id = %s", [member_id]
    if without:
        return f"AND member_id NOT IN (SELECT id FROM {_MEMBERS} WHERE name IN ({_places(without)}))", [*without]  # noqa: S608
    return "", []


@dataclass(frozen=True)
class _Part:
    """A part of a point: a rollup, or live calls of one slot."""

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
    return Point(
        begins_at=datetime.fromtimestamp(begins, UTC),
        calls=calls,
        failed=sum(part.failed for part in parts),
        p50=quantile(slots, 0.5),
        p95=quantile(slots, 0.95),
        mean=sum(part.took for part in parts) / started_calls if started_calls else None,
    )


def quantile(slots: Mapping[int, int], part: float) -> float | None:
    """How long `part` of the calls took at most, in seconds; inside a slot by its scale, so a fifth off at worst."""
    rank = part * sum(slots.values())
    below = 0
    for slot in sorted(slots):
        if below + slots[slot] >= rank and slots[slot]:
            return _inside(slot, (rank - below) / slots[slot])
        below += slots[slot]
    return None


def _inside(slot: int, part: float) -> float:
    if slot >= len(SLOT_ENDS):
        return SLOT_ENDS[-1]
    if slot == 0:
        return SLOT_ENDS[0] * part
    return SLOT_ENDS[slot - 1] * math.pow(SLOT_ENDS[slot] / SLOT_ENDS[slot - 1], part)


# In SQL: on SQLite the ORM's difference of two times is computed row by row in Python. ------------------------------

_LIVE_WHERE = f"""finished_at >= %s
    AND finished_at >= COALESCE((SELECT rolled_up_until FROM {_HALL} WHERE id = 1), %s) AND finished_at < %s"""  # noqa: S608


def _slot_between(lowest: int, highest: int) -> str:
    """The slot of `took`, halved again and again: a ladder of eighty steps takes longer than all the rest."""
    if lowest == highest:
        return str(lowest)
    middle = (lowest + highest) // 2
    lower, upper = _slot_between(lowest, middle), _slot_between(middle + 1, highest)
    return f"CASE WHEN took < {SLOT_ENDS[middle]!r} THEN {lower} ELSE {upper} END"


_SLOT = f"CASE WHEN took IS NULL THEN {NEVER_STARTED} ELSE {_slot_between(0, len(SLOT_ENDS))} END"

# The text of a moment is `2026-11-21 15:43:15.123456`, or ends with its seconds; strftime would round to milliseconds.
_SQLITE = """CAST(strftime('%%s', substr(finished_at, 1, 19)) AS INTEGER) AS moment,
    CAST(strftime('%%s', substr(finished_at, 1, 19)) - strftime('%%s', substr(started_at, 1, 19))
        + ('0' || substr(finished_at, 20)) - ('0' || substr(started_at, 20)) AS REAL) AS took"""
_POSTGRESQL = """CAST(FLOOR(EXTRACT(EPOCH FROM finished_at)) AS bigint) AS moment,
    CAST(EXTRACT(EPOCH FROM finished_at - started_at) AS double precision) AS took"""


def _ended_calls(where: str) -> str:
    """Calls that ended: each with the second of its end (Unix time) and the seconds that it took, or NULL.

    By its end alone, and materialized: beside a member, SQLite would read all that this member ever did.
    """
    times = _POSTGRESQL if connection.vendor == "postgresql" else _SQLITE
    failed = f"CASE WHEN status = '{Invocation.Status.FAILED.value}' THEN 1 ELSE 0 END AS failed"
    return f"SELECT member_id, tool_name, {failed}, {times} FROM {_CALLS} WHERE {where}"  # noqa: S608


def _live_since(now: datetime) -> list[Any]:
    """The parameters of `_LIVE_WHERE`."""
    earliest = _adapted(now - LIVE)
    return [earliest, earliest, _adapted(now + timedelta(days=1))]


def _adapted(moment: datetime) -> Any:
    return connection.ops.adapt_datetimefield_value(moment)


def _places(values: Collection[Any]) -> str:
    return ", ".join(["%s"] * len(values))
