from __future__ import annotations

import time
from argparse import ArgumentParser
from contextlib import suppress
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError

from mcp_runtime.control.logs import is_elsewhere, log_after, log_of_call, log_tail
from mcp_runtime.control.members import find_member
from mcp_runtime.members import logs
from mcp_runtime.protocol.errors import RequestRefusedError
from roster.management.hall_command import HallCommand
from roster.management.terminal import count, harmless
from roster.models import Call, GuildMember

LINES = 50
MOST_LINES = 10_000  # at a time, if another node has the log
POLL_SECONDS = 0.5


class Command(HallCommand):
    help = "Print the end of what a member wrote to stderr and stdout, and follow it with -f."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name")
        parser.add_argument("-n", "--lines", type=count, default=LINES, help="how many lines (default: %(default)s)")
        parser.add_argument("--call", type=int, metavar="ID", help="the lines during this call of the member")
        parser.add_argument("-f", "--follow", action="store_true", help="go on with new lines until Ctrl-C")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            member = find_member(options["name"])
        except RequestRefusedError as refusal:
            raise CommandError(str(refusal)) from refusal
        lines = options["lines"]
        if options["call"] is not None:
            self._show_call(member, options["call"])
            return
        try:
            if options["follow"]:
                self._follow(member, lines)
                return
            tail = log_tail(member, lines)
        except RequestRefusedError as refusal:
            raise CommandError(str(refusal)) from refusal
        if not tail:
            self.stderr.write(f"{member.name} has written nothing yet.")
        for line in tail:
            self.stdout.write(harmless(line))

    def _show_call(self, member: GuildMember, call_id: int) -> None:
        call = Call.objects.filter(pk=call_id, member=member).select_related("member__node").first()
        if call is None:
            raise CommandError(f"{member.name} has no call {call_id}")
        try:
            span = log_of_call(call)
        except RequestRefusedError as refusal:
            raise CommandError(str(refusal)) from refusal
        for line in span.lines:
            self.stdout.write(harmless(line))
        if not span.lines:
            self.stderr.write(f"{member.name} wrote nothing during call {call_id}.")
        if span.is_cut:
            self.stderr.write(f"These are the first {len(span.lines)} lines.")
        if span.is_late:
            self.stderr.write("The call began before the oldest line of the log that is still stored.")

    def _follow(self, member: GuildMember, lines: int) -> None:
        with suppress(KeyboardInterrupt):
            if is_elsewhere(member):
                self._follow_elsewhere(member, lines)
            for line in logs.follow(logs.path_of(settings.GUILD_HALL_DATA_DIR, member.name), lines=lines):
                self.stdout.write(harmless(line))
                self.stdout.flush()

    def _follow_elsewhere(self, member: GuildMember, lines: int) -> None:
        """Ask the node again and again, also after the member has moved."""
        cursor = ""
        while True:
            part = log_after(member, cursor, lines)
            for line in part.lines:
                self.stdout.write(harmless(line))
            self.stdout.flush()
            cursor, lines = part.cursor, MOST_LINES
            time.sleep(POLL_SECONDS)
            member.refresh_from_db(fields=["node"])
