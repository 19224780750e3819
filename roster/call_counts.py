"""How often each tool was called, for the pages that show what an agent needs.

Counting a hundred thousand rows takes a tenth of a second. So the counts of calls that were counted once are kept by
day, and each further look counts only newer rows.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from django.db import connection
from django.db.models import Count, Max, Min, Q, TextField
from django.db.models.functions import Cast, Substr

from roster.models import Call, GuildMember

MAX_KEPT = 4  # conditions on calls
# PostgreSQL may commit a row after another one with a higher id. No transaction takes as long as this.
SETTLE_SECONDS = 60.0

Name = tuple[str, str]  # of a tool: (member, tool)


@dataclass
class _Day:
    calls: Counter[tuple[int, str]] = field(default_factory=Counter)  # by the id of the member, and the tool
    last_id: int = 0


@dataclass
class _Kept:
    """The counts of all calls up to `settled_id`. Rows up to `known_id` were there at `known_at`, in monotonic time."""

    days: dict[str, _Day] = field(default_factory=dict)  # by the day in UTC, such as 2026-11-27
    settled_id: int = 0
    known_id: int = 0
    known_at: float = 0.0

    def settle(self, last_id: int) -> int:
        """Return the id up to which no further row can appear, now that `last_id` is the last one."""
        now = time.monotonic()
        if ids_ascend():
            return last_id
        settled = self.known_id if now - self.known_at >= SETTLE_SECONDS else self.settled_id
        if settled == self.known_id:
            self.known_id, self.known_at = last_id, now
        return settled


class CallCounts:
    """The kept counts of this process, by the condition on the calls. Threads may use it concurrently."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.kept: OrderedDict[Hashable, _Kept] = OrderedDict()

    def forget(self) -> None:
        with self._lock:
            self.kept.clear()

    def read(self, key: Hashable, calls: Q, since: datetime, most: int) -> Mapping[Name, int]:
        """Count the newest `most` calls, from the day of `since` on. `key` stands for `calls`.

        Whole days are dropped at either limit, so a count may have calls of some hours more, or of one day less.
        """
        with self._lock:
            kept = self.kept.setdefault(key, _Kept())
            self.kept.move_to_end(key)
            if len(self.kept) > MAX_KEPT:
                self.kept.popitem(last=False)
            days = self._up_to_date(kept, calls, since, most)
        total: Counter[tuple[int, str]] = Counter()
        for day in days:
            total.update(day.calls)
        members = dict(GuildMember.objects.values_list("pk", "name"))
        return {(members[pk], tool): number for (pk, tool), number in total.items() if pk in members}

    def _up_to_date(self, kept: _Kept, calls: Q, since: datetime, most: int) -> list[_Day]:
        last_id = Call.objects.filter(calls).aggregate(last=Max("pk"))["last"] or 0
        if last_id < kept.settled_id:  # the rows are those of another time, for example of a backup
            kept.days, kept.settled_id = {}, 0
        settled_id = kept.settle(last_id)
        if settled_id > kept.settled_id:
            _add(kept.days, _newer_days(calls & Q(pk__lte=settled_id), kept.settled_id, most))
            kept.settled_id = settled_id
        _drop_old(kept.days, since)
        days = kept.days
        if last_id > settled_id:
            days = {name: _Day(Counter(day.calls), day.last_id) for name, day in days.items()}
            _add(days, _newer_days(calls, settled_id, most))
            _drop_old(days, since)
        while len(days) > 1 and sum(day.calls.total() for day in days.values()) > most:
            del days[min(days)]
        return list(days.values())


def ids_ascend() -> bool:
    """Whether a row never appears after one with a higher id, because there is one writer at a time."""
    return connection.vendor == "sqlite"


def _newer_days(calls: Q, settled_id: int, most: int) -> dict[str, _Day]:
    newest = Call.objects.filter(calls, pk__gt=settled_id).order_by("-id").values("pk")[:most]
    rows = (
        Call.objects.filter(pk__in=newest)
        .order_by()
        .annotate(day=Substr(Cast("queued_at", TextField()), 1, 10))
        .values_list("day", "member_id", "tool_name")
        .annotate(calls=Count("pk"), last_id=Max("pk"))
    )
    days: dict[str, _Day] = {}
    for day, member_id, tool_name, number, last_id in rows:
        of_day = days.setdefault(day, _Day())
        of_day.calls[member_id, tool_name] += number
        of_day.last_id = max(of_day.last_id, last_id)
    return days


def _add(days: dict[str, _Day], more: Mapping[str, _Day]) -> None:
    for day, added in more.items():
        of_day = days.setdefault(day, _Day())
        of_day.calls.update(added.calls)
        of_day.last_id = max(of_day.last_id, added.last_id)


def _drop_old(days: dict[str, _Day], since: datetime) -> None:
    """Drop the days before `since`, and those whose calls were all pruned."""
    first = f"{since.astimezone(UTC):%Y-%m-%d}"
    first_id = Call.objects.aggregate(first=Min("pk"))["first"]
    for day in [name for name, each in days.items() if name < first or first_id is None or each.last_id < first_id]:
        del days[day]


kept_counts = CallCounts()
