"""Filtered calls as text: CSV for tables, JSON and JSON lines for programs. Newest first, MAX_EXPORTED at most."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from django.db.models import F, Q, QuerySet, TextField, Value
from django.db.models.functions import Cast, Coalesce, Length

from mcp_runtime.control import call_search
from mcp_runtime.control.calls import masked_arguments
from mcp_runtime.control.tool_sets import ToolSetsOfCalls
from mcp_runtime.rows.database import give_connection_back
from roster.models import Call

MAX_EXPORTED = 100_000
BATCH = 1000  # ids in one query
# The rows in memory until a slow client has read them, and the characters of their arguments and results. One row alone
# may have megabytes.
BATCH_WITH_JSON = 50
BATCH_CHARACTERS = 500_000
FORMATS = {
    "csv": "text/csv; charset=utf-8",
    "jsonl": "application/x-ndjson",
    "json": "application/json",
}
COLUMNS = (
    *("id", "member", "tool", "status", "error_kind", "error_code", "error_message", "source", "requester"),
    *("queued_at", "started_at", "finished_at", "duration", "tool_set"),
)
# A spreadsheet reads text that begins like this as a formula, and members and callers choose the text.
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
# In many countries `;` separates cells, and then the quotes of a text with commas do not keep it together. The pattern
# matches wherever it begins, so its time is linear.
_GAP = re.compile(r"""([\s;"]+)([=+\-@]?)""")
_SEPARATORS = frozenset(";\t\r\n")


@dataclass(frozen=True)
class Selection:
    """The calls to export. `search` is a further condition, which has a limit of time, or empty."""

    rows: QuerySet[Call]
    tool_sets: ToolSetsOfCalls
    search: Q = field(default_factory=Q)
    with_results: bool = False
    limit: int = MAX_EXPORTED

    @property
    def most(self) -> int:
        return min(self.limit, MAX_EXPORTED)

    def ranges(self) -> Iterator[QuerySet[Call]]:
        """The calls in parts of at most BATCH, newest first. A search runs at once, and the rest on demand.

        Raises SearchError.
        """
        rows = self.rows.order_by("-id")
        if not self.search:
            return self._ranges_of_ids(rows)
        with call_search.limit():
            # One search for all parts: for the beginning of a word it costs the same for a part as for all calls.
            ids = list(rows.filter(self.search).values_list("pk", flat=True)[: self.most])
        return (rows.filter(pk__in=ids[first : first + BATCH]) for first in range(0, len(ids), BATCH))

    @staticmethod
    def _ranges_of_ids(rows: QuerySet[Call]) -> Iterator[QuerySet[Call]]:
        ids = Call.objects.values_list("id", flat=True)
        newest, oldest = ids.order_by("-id").first() or 0, ids.order_by("id").first() or 1
        for highest in range(newest, oldest - 1, -BATCH):
            yield rows.filter(pk__gt=highest - BATCH, pk__lte=highest)


class _Echo:
    """A file for csv that returns what is written."""

    def write(self, text: str) -> str:
        return text


def parts(selection: Selection, form: str) -> Iterator[str]:
    """The parts of the text in one of FORMATS. Raises SearchError before the first part."""
    if form == "csv":
        return _csv(selection, selection.ranges())
    objects = _objects(selection, selection.ranges())
    return (f"{each}\n" for each in objects) if form == "jsonl" else _array(objects)


def _csv(selection: Selection, ranges: Iterator[QuerySet[Call]]) -> Iterator[str]:
    writer = csv.writer(_Echo())
    yield writer.writerow(COLUMNS)
    for call in _newest(selection, ranges, ()):
        facts = _facts(call, selection.tool_sets)
        yield writer.writerow([_defused(facts[column]) for column in COLUMNS])


def _objects(selection: Selection, ranges: Iterator[QuerySet[Call]]) -> Iterator[str]:
    """Each call as JSON, with its arguments, and masked secrets. With its result only if the selection says so."""
    columns = ("arguments", "result", "error_data") if selection.with_results else ("arguments",)
    for call in _newest(selection, ranges, columns):
        facts = {**_facts(call, selection.tool_sets), "arguments": masked_arguments(call)}
        if selection.with_results:
            facts |= {"result": call.result, "error_data": call.error_data}
        yield json.dumps(facts, ensure_ascii=False)


def _array(objects: Iterator[str]) -> Iterator[str]:
    separator = "[\n"
    for each in objects:
        yield f"{separator}{each}"
        separator = ",\n"
    yield "[]\n" if separator == "[\n" else "\n]\n"


def _newest(selection: Selection, ranges: Iterator[QuerySet[Call]], json_columns: tuple[str, ...]) -> Iterator[Call]:
    """The rows of the ranges. A slow client keeps no cursor open, and no connection of the pool while it reads."""
    remaining = selection.most
    unread = [name for name in Call.UNLISTED if name not in json_columns]
    size = sum((_characters(name) for name in json_columns), Value(0) + Value(0))
    for rows in ranges:
        ids_and_sizes = list(rows.values_list("pk", size)[:remaining])
        for part in _parts(ids_and_sizes, BATCH_WITH_JSON if json_columns else BATCH):
            # The ids of the part have passed the search.
            batch = list(selection.rows.order_by("-id").filter(pk__in=part).defer(*unread))
            give_connection_back()
            yield from batch
            del batch  # so that the next one replaces it in memory
        remaining -= len(ids_and_sizes)
        if not remaining:
            return


def _characters(column: str) -> Any:
    return Coalesce(Length(Cast(F(column), TextField())), Value(0))


def _parts(ids_and_sizes: list[tuple[int, int]], most_ids: int) -> Iterator[list[int]]:
    """Split ids with their characters into parts of at most `most_ids`, and of BATCH_CHARACTERS or a single id."""
    part: list[int] = []
    characters = 0
    for pk, size in ids_and_sizes:
        if part and (len(part) == most_ids or characters + size > BATCH_CHARACTERS):
            yield part
            part, characters = [], 0
        part.append(pk)
        characters += size
    if part:
        yield part


def _facts(call: Call, tool_sets: ToolSetsOfCalls) -> dict[str, Any]:
    duration = call.duration
    moments = {name: getattr(call, name) for name in ("queued_at", "started_at", "finished_at")}
    return {
        "id": call.pk,
        "member": call.member.name,
        "tool": call.tool_name,
        "status": call.status,
        "error_kind": call.error_kind,
        "error_code": call.error_code,
        "error_message": call.error_message,
        "source": call.source,
        "requester": call.requester,
        **{name: moment and moment.isoformat() for name, moment in moments.items()},
        "duration": None if duration is None else duration.total_seconds(),
        "tool_set": tool_sets.of(call),
    }


def _defused(value: Any) -> Any:
    """A text with an apostrophe before each character that could begin a formula in a cell."""
    if not isinstance(value, str):
        return value
    text = _GAP.sub(_defused_gap, value)
    return f"'{text}" if text.startswith(_FORMULA) else text


def _defused_gap(match: re.Match[str]) -> str:
    gap, sign = match.groups()
    begins_cell = match.start() == 0 or not _SEPARATORS.isdisjoint(gap)
    return f"{gap}'{sign}" if sign and begins_cell else match[0]
