from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from mcp_runtime.control.nodes import read_liveness
from mcp_runtime.control.trash import restore_member, trashed_members
from mcp_runtime.protocol.errors import RequestRefusedError
from mcp_runtime.security.access import OPERATOR
from roster.management.hall_command import HallCommand
from roster.management.terminal import NO_RUNTIME, as_json, harmless
from roster.models import TrashedMember


class Command(HallCommand):
    help = "List the removed members whose folders are in the trash, or restore one."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--restore", type=int, metavar="NUMBER", help="move the folder of this member back")
        parser.add_argument("--json", action="store_true", help="print the list as JSON")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["restore"] is not None:
            self._restore(options["restore"])
        elif options["json"]:
            self.stdout.write(as_json([_values(row) for row in trashed_members(OPERATOR)]))
        else:
            self._list()

    def _restore(self, number: int) -> None:
        try:
            trashed = restore_member(number, OPERATOR)
        except RequestRefusedError as refusal:
            raise CommandError(harmless(str(refusal))) from refusal
        self.stdout.write(harmless(f"The hall moves the folder of {trashed.name} back to {trashed.directory}."))
        if not read_liveness().live_ids:
            self.stderr.write(NO_RUNTIME)

    def _list(self) -> None:
        rows = list(trashed_members(OPERATOR))
        if not rows:
            self.stdout.write("The trash is empty.")
        for row in rows:
            removed, expires = (f"{moment:%Y-%m-%d %H:%M} UTC" for moment in (row.removed_at, row.expires_at))
            by = f" by {row.removed_by}" if row.removed_by else ""
            end = "restored, and not back yet" if row.is_restored else f"deleted {expires}"
            self.stdout.write(harmless(f"{row.pk:>5}  {row.name:<24} removed {removed}{by}, {end}"))
            for fault in row.faults:
                self.stdout.write(self.style.WARNING(harmless(f"       {fault}")))


def _values(row: TrashedMember) -> dict[str, Any]:
    return {
        "number": row.pk,
        "name": row.name,
        "directory": row.directory,
        "removed_at": row.removed_at,
        "removed_by": row.removed_by and row.removed_by.get_username(),
        "expires_at": row.expires_at,
        "faults": row.faults,
    }
