from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from mcp_runtime.control.members import find_member
from mcp_runtime.control.nodes import read_liveness
from mcp_runtime.control.packages import relock
from mcp_runtime.protocol.errors import RequestRefusedError
from roster.management.hall_command import HallCommand
from roster.management.terminal import NO_RUNTIME, harmless


class Command(HallCommand):
    help = "Delete the lock of a member's packages, so that the next start installs the newest ones that it allows."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name", metavar="NAME")
        parser.add_argument("--force", action="store_true", help="even if an agent needs it")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            relock(find_member(options["name"]), force=options["force"])
        except RequestRefusedError as refusal:
            raise CommandError(harmless(str(refusal))) from refusal
        self.stdout.write(f"The lock of {options['name']} is deleted. Its next start makes another one.")
        if not read_liveness().live_ids:
            self.stderr.write(NO_RUNTIME)
