from __future__ import annotations

from argparse import ArgumentParser
from contextlib import suppress
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError

from mcp_runtime.control.members import find_member, log_note
from mcp_runtime.members import logs
from mcp_runtime.protocol.errors import RequestRefusedError
from roster.management.hall_command import HallCommand
from roster.management.terminal import count, harmless

LINES = 50


class Command(HallCommand):
    help = "Print the end of what a member wrote to stderr and stdout, and follow it with -f."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name")
        parser.add_argument("-n", "--lines", type=count, default=LINES, help="how many lines (default: %(default)s)")
        parser.add_argument("-f", "--follow", action="store_true", help="go on with new lines until Ctrl-C")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            member = find_member(options["name"])
        except RequestRefusedError as refusal:
            raise CommandError(str(refusal)) from refusal
        if note := log_note(member):
            self.stderr.write(note)
        path, lines = logs.path_of(settings.GUILD_HALL_DATA_DIR, member.name), options["lines"]
        if not options["follow"]:
            tail = logs.tail(path, lines)
            if not tail and not note:
                self.stderr.write(f"{member.name} has written nothing yet.")
            for line in tail:
                self.stdout.write(harmless(line))
            return
        with suppress(KeyboardInterrupt):
            for line in logs.follow(path, lines=lines):
                self.stdout.write(harmless(line))
                self.stdout.flush()
