"""The filtered list of calls as a file: CSV for tables, JSON lines for programs. Streamed, MAX_EXPORTED at most."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

from django.db.models import QuerySet, TextField, Value
from django.db.models.functions import Cast, Length
from django.http import StreamingHttpResponse

from mcp_runtime.control.calls import masked_arguments
from mcp_runtime.rows.database import give_connection_back
from mcp_runtime.security.limits import Owner, SharedSlots
from roster.api.requests import SeatedStream
from roster.models import Call

MAX_EXPORTED = 100_000
BATCH = 1000  # ids in one query
# The rows in memory until a slow client has read them, and the characters of their arguments. One row alone may have
# megabytes.
BATCH_WITH_ARGUMENTS = 50
BATCH_CHARACTERS = 500_000
# The files that this process sends at the same time. A slow client holds a batch in memory.
exports = SharedSlots(8)
UNREAD = ("result", "error_data")
FORMATS = {"csv": "text/csv; charset=utf-8", "jsonl": "application/x-ndjson"}
COLUMNS = (
    *("id", "member", "tool", "status", "error_kind", "error_code", "error_message", "source", "requester"),
    *("queued_at", "started_at", "finished_at", "duration"),
)
# A spreadsheet reads text that begins like this as a formula, and members and callers choose the text.
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")


class _Echo:
    """A file for csv that returns what is written."""

    def write(self, text: str) -> str:
        return text


def exported(calls: QuerySet[Call], form: str, owner: Owner) -> StreamingHttpResponse | None:
    """The calls, newest first, as an attachment in one of FORMATS. None if `owner` reads too many files already."""
    seat = ExitStack()
    if not seat.enter_context(exports.seat(owner)):
        return None
    lines = _csv(calls) if form == "csv" else _json_lines(calls)
    response = StreamingHttpResponse(SeatedStream(lines, seat), content_type=FORMATS[form])
    response.headers["Content-Disposition"] = f'attachment; filename="calls.{form}"'
    return response


def _csv(calls: QuerySet[Call]) -> Iterator[str]:
    writer = csv.writer(_Echo())
    yield writer.writerow(COLUMNS)
    for call in _newest(calls.defer(*UNREAD, "arguments")):
        facts = _facts(call)
        yield writer.writerow([_defused(facts[column]) for column in COLUMNS])


def _json_lines(calls: QuerySet[Call]) -> Iterator[str]:
    """The call with its arguments, and masked secrets. Results are only in the API, because one may have megabytes."""
    for call in _newest(calls.defer(*UNREAD), with_arguments=True):
        facts = {**_facts(call), "arguments": masked_arguments(call)}
        yield json.dumps(facts, ensure_ascii=False) + "\n"


def _newest(calls: QuerySet[Call], *, with_arguments: bool = False) -> Iterator[Call]:
    """The rows, by ranges of ids. So a slow client keeps no cursor open, and no search takes long.

    No connection of the pool is held while a client reads.
    """
    rows = calls.order_by("-id")
    ids = Call.objects.values_list("id", flat=True)
    newest, oldest = ids.order_by("-id").first() or 0, ids.order_by("id").first() or 1
    remaining = MAX_EXPORTED
    size = Length(Cast("arguments", TextField())) if with_arguments else Value(0)
    for highest in range(newest, oldest - 1, -BATCH):
        ids_and_sizes = list(rows.filter(pk__lte=highest, pk__gt=highest - BATCH).values_list("pk", size)[:remaining])
        for part in _parts(ids_and_sizes, BATCH_WITH_ARGUMENTS if with_arguments else BATCH):
            batch = list(rows.filter(pk__in=part))
            give_connection_back()
            yield from batch
            del batch  # so that the next one replaces it in memory
        remaining -= len(ids_and_sizes)
        if not remaining:
            return


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


def _facts(call: Call) -> dict[str, Any]:
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
    }


def _defused(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value
