from __future__ import annotations

import time
from argparse import ArgumentParser
from dataclasses import asdict
from typing import Any

from django.core.management.base import CommandError

from mcp_runtime.control.members import find_member
from mcp_runtime.control.nodes import read_liveness
from mcp_runtime.control.versions import VersionReport, ask_for_newest, propose_newest, version_report
from mcp_runtime.protocol.errors import RequestRefusedError
from roster.management import exit_codes
from roster.management.hall_command import HallCommand
from roster.management.terminal import NO_RUNTIME, as_json, harmless

PATIENCE_SECONDS = 180.0
LOOK_SECONDS = 0.3


class Command(HallCommand):
    help = "Find out the newest version of a member's package, and propose to edit the member to it."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name", metavar="NAME")
        parser.add_argument("--propose", action="store_true", help="propose an edit, if there is a newer version")
        parser.add_argument("--json", action="store_true", help="print the result as JSON")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            member = find_member(options["name"])
            if not read_liveness().live_ids:
                raise CommandError(NO_RUNTIME, returncode=exit_codes.UNAVAILABLE)
            ask_for_newest(member)
            report = self._wait(options["name"])
            edit = propose_newest(member, by=None) if options["propose"] and report.is_newer else None
        except RequestRefusedError as refusal:
            raise CommandError(harmless(str(refusal))) from refusal
        if options["json"]:
            self.stdout.write(as_json({**asdict(report), "is_newer": report.is_newer, "edit": edit and edit.pk}))
            return
        self.stdout.write(harmless(f"{report.package} {report.version or 'without an exact version'}"))
        self.stdout.write(harmless(f"newest: {report.newest}"))
        if edit is not None:
            self.stdout.write(f"Edit {edit.pk} is proposed: guildhall edit_member {member.name} --approve {edit.pk}")

    @staticmethod
    def _wait(name: str) -> VersionReport:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            report = version_report(find_member(name))
            if report is None or report.fault:
                raise CommandError(harmless(report.fault if report else "its packages have changed meanwhile"))
            if report.newest:
                return report
            if time.monotonic() > deadline:
                raise CommandError("The runtime of its node gave no answer.", returncode=exit_codes.NO_ANSWER)
            time.sleep(LOOK_SECONDS)
