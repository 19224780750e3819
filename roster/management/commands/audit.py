from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from roster import audit
from roster.management.hall_command import HallCommand
from roster.management.terminal import as_json, beginning, count, one_line, table
from roster.models import AuditEntry

COLUMNS = ["TIME (UTC)", "ACTOR", "ACTION", "ABOUT", "CHANGE"]
WIDTH = 60  # of one cell
JSON_FIELDS = (
    *("id", "at", "kind", "source", "actor", "actor_user", "actor_token", "address", "target", "member"),
    *("before", "after"),
)


class Command(HallCommand):
    help = "Show the audit log, newest first: who changed what, and who logged in."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--since", type=beginning, metavar="WHEN", help="30d, 12h (ago), or a date")
        parser.add_argument("--kind", action="append", choices=AuditEntry.Kind.values, metavar="KIND", default=[])
        parser.add_argument("--actor", default="", metavar="NAME", help="a user, with all tokens of the user")
        parser.add_argument("--member", default="", metavar="NAME")
        parser.add_argument("--limit", type=count, default=50, help="so many at most (50)")
        parser.add_argument("--json", action="store_true", help="a JSON list instead of the table")

    def handle(self, *args: Any, **options: Any) -> None:
        conditions = {name: options[name] for name in ("since", "kind", "actor", "member")}
        entries = audit.filtered(AuditEntry.objects.all(), **conditions)[: options["limit"]]
        if options["json"]:
            self.stdout.write(as_json([{name: getattr(entry, name) for name in JSON_FIELDS} for entry in entries]))
        elif entries:
            self.stdout.write(table(COLUMNS, [_row(entry) for entry in entries]))
        else:
            self.stdout.write("The audit log has no such entries.")


def _row(entry: AuditEntry) -> list[str]:
    cells = [entry.actor, entry.action, entry.target, audit.summary(entry) or "-"]
    return [f"{entry.at:%Y-%m-%d %H:%M:%S}", *(one_line(cell, WIDTH) for cell in cells)]
