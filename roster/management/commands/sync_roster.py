from __future__ import annotations

from typing import Any

from mcp_runtime.control.members import members_of_roster, sync_roster
from roster.management.hall_command import HallCommand
from roster.management.terminal import one_line

FAULT_LENGTH = 500


class Command(HallCommand):
    help = "Make the roster match the members folder: add, change and remove what the folder says."

    def handle(self, *args: Any, **options: Any) -> None:
        report = sync_roster()
        for member in members_of_roster().exclude(manifest_error=""):
            self.stderr.write(f"{member.name} cannot be used: {one_line(member.manifest_error, FAULT_LENGTH)}")
        self.stdout.write(f"Roster synced with the members folder: {report}.")
