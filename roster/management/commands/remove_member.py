from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from mcp_runtime.control.members import find_member
from mcp_runtime.control.nodes import read_liveness
from mcp_runtime.control.trash import remove_member
from mcp_runtime.protocol.errors import RequestRefusedError
from roster.management.hall_command import HallCommand
from roster.management.terminal import NO_RUNTIME, harmless
from roster.models import TrashedMember


class Command(HallCommand):
    help = "Stop a member, and move its folder to the trash, from where it can be restored for 30 days."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name", metavar="NAME")
        parser.add_argument("--force", action="store_true", help="even if an agent needs it")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            trashed = remove_member(find_member(options["name"]), by=None, force=options["force"])
        except RequestRefusedError as refusal:
            raise CommandError(harmless(str(refusal))) from refusal
        self.stdout.write(f"The hall moves the folder of {trashed.name} to the trash.")
        self.stdout.write(f"For {TrashedMember.KEEP.days} days: guildhall trash --restore {trashed.pk}")
        if not read_liveness().live_ids:
            self.stderr.write(NO_RUNTIME)
