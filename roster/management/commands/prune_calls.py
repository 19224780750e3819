from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.conf import settings

from mcp_runtime.control.calls import prune_calls
from roster.management.hall_command import HallCommand
from roster.management.terminal import count

NOT_ERASED = (
    "Words of deleted calls may still be in the files of the database, because another program reads it for long, such "
    "as a backup. Repeat this command when that program has ended."
)


class Command(HallCommand):
    help = "Delete finished calls that are older than --days, and the oldest ones beyond --keep."

    def add_arguments(self, parser: ArgumentParser) -> None:
        for name, default, description in [
            ("days", settings.GUILD_HALL_KEEP_CALLS_DAYS, "keep calls that ended in the last DAYS days"),
            ("keep", settings.GUILD_HALL_KEEP_CALLS, "keep at most the newest KEEP calls"),
        ]:
            parser.add_argument(f"--{name}", type=count, default=default, help=f"{description} (default: %(default)s)")

    def handle(self, *args: Any, **options: Any) -> None:
        pruned, are_erased = prune_calls(days=options["days"], keep=options["keep"])
        self.stdout.write(f"Pruned {pruned} finished calls.")
        if not are_erased:
            self.stderr.write(NOT_ERASED)
