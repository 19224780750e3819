from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from mcp_runtime.control.members import live_runtime, own_live_runtime
from roster.management.hall_command import require_hall


class Command(BaseCommand):
    help = (
        "Run the runtime of this node: starts members, watches them, runs queued calls. Ctrl-C ends it and all of them."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--check", action="store_true", help="start none; exit code 0 if this node's is alive")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["check"]:
            self._check()
            return
        from mcp_runtime.runtime import pid_namespace, processes
        from mcp_runtime.system import running_halls  # late, because --check must start fast
        from roster.management.commands.up import become

        # The guard replaces this process, because it must be small, and Django is large.
        running_halls.announce(settings.GUILD_HALL_DATA_DIR, settings.BASE_DIR)
        guard = processes.COMMANDS["runtime"]
        become(pid_namespace.command_line(guard) if settings.GUILD_HALL_PID_NAMESPACE else guard)

    def _check(self) -> None:
        require_hall()
        holder = own_live_runtime()
        if holder is None and live_runtime() is None:
            raise CommandError("No runtime is alive.")
        if holder is None:
            raise CommandError(f"The runtime of node {settings.GUILD_HALL_NODE!r} is not alive. Another node is.")
        self.stdout.write(f"The runtime is {holder}.")
