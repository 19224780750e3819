from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError
from django.db.models import Q, QuerySet

from mcp_runtime.control import call_search
from mcp_runtime.control.calls import masked_arguments
from mcp_runtime.control.tool_sets import ToolSetsOfCalls
from mcp_runtime.protocol.errors import SearchError
from mcp_runtime.security import access
from mcp_runtime.security.access import OPERATOR, Principal
from roster.call_export import FORMATS, MAX_EXPORTED, Selection, parts
from roster.management.hall_command import HallCommand
from roster.management.requesters import principal_for
from roster.management.terminal import as_json, beginning, count, harmless, one_line, table
from roster.models import Call

LINES, MOST_LINES = 50, 1_000  # of the table
TABLE = "table"
COLUMNS = ["CALL", "QUEUED (UTC)", "STATUS", "MEMBER", "TOOL", "REQUESTER", "ARGUMENTS OR ERROR"]
WIDTH = 60  # of the last cell
NAME = 24  # of the others
FILTERS = {
    "member": "member__name",
    "tool": "tool_name",
    "status": "status__in",
    "error_kind": "error_kind__in",
    "source": "source__in",
    "since": "queued_at__gte",
    "until": "queued_at__lt",
}


class Command(HallCommand):
    help = "List calls, newest first, search them by words of their arguments and results, or export them."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--search", default="", metavar="WORDS", help="ended calls with all these words")
        parser.add_argument("--member", metavar="NAME")
        parser.add_argument("--tool", metavar="NAME")
        parser.add_argument("--status", action="append", choices=Call.Status.values, metavar="STATUS")
        parser.add_argument("--error-kind", action="append", choices=Call.ErrorKind.values, metavar="KIND")
        parser.add_argument("--source", action="append", choices=Call.Source.values, metavar="SOURCE")
        parser.add_argument("--since", type=beginning, metavar="WHEN", help="30d, 12h (ago), or a date")
        parser.add_argument("--until", type=beginning, metavar="WHEN", help="30d, 12h (ago), or a date")
        parser.add_argument("--user", help="only what this user may see. Without it, the operator sees all")
        limits = f"so many at most (default: {LINES} of at most {MOST_LINES:,} in a table, {MAX_EXPORTED:,} in a file)"
        parser.add_argument("--limit", type=count, help=limits)
        parser.add_argument(
            "--format", choices=[TABLE, *FORMATS], default=TABLE, help="a table (default), or the text of a file"
        )
        parser.add_argument("--results", action="store_true", help="with the results, in json and jsonl")

    def handle(self, *args: Any, **options: Any) -> None:
        principal = principal_for(options["user"])
        rows = _rows(principal, options)
        try:
            if options["search"]:
                call_search.require_available()
            if options["format"] == TABLE:
                with call_search.limit():
                    self._show(rows.filter(_search(options["search"])), options["limit"])
            else:
                self._export(rows, principal, options)
        except SearchError as error:
            raise CommandError(str(error)) from error

    def _show(self, rows: QuerySet[Call], limit: int | None) -> None:
        columns = ("result", "error_data", "search_text")
        calls = list(rows.order_by("-id").defer(*columns)[: LINES if limit is None else min(limit, MOST_LINES)])
        if calls:
            self.stdout.write(table(COLUMNS, [_line(call) for call in calls]))
        else:
            self.stdout.write("There are no such calls.")

    def _export(self, rows: QuerySet[Call], principal: Principal, options: dict[str, Any]) -> None:
        limit = options["limit"]
        selection = Selection(
            rows,
            ToolSetsOfCalls(principal, is_superuser=principal is OPERATOR),
            _search(options["search"]),
            with_results=options["results"],
            limit=MAX_EXPORTED if limit is None else limit,
        )
        # A program gets the text unchanged. A terminal would obey its control characters.
        is_terminal = self.stdout.isatty()
        for part in parts(selection, options["format"]):
            self.stdout.write(harmless(part) if is_terminal else part, ending="")


def _rows(principal: Principal, options: dict[str, Any]) -> QuerySet[Call]:
    filters = {lookup: options[name] for name, lookup in FILTERS.items() if options[name]}
    return Call.objects.select_related("member").filter(access.readable_calls(principal), **filters)


def _search(text: str) -> Q:
    return call_search.matching(text) if text else Q()


def _line(call: Call) -> list[str]:
    texts = [call.member.name, call.tool_name, call.requester or "-"]
    about = call.error_message or as_json(masked_arguments(call))
    cells = [f"{call.queued_at:%Y-%m-%d %H:%M:%S}", call.error_kind or call.status]
    return [str(call.pk), *cells, *(one_line(text, NAME) for text in texts), one_line(about, WIDTH)]
