from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from mcp_runtime.control.members import find_member
from mcp_runtime.control.sign_ins import sign_out
from mcp_runtime.protocol.errors import RequestRefusedError
from roster.management.hall_command import HallCommand
from roster.management.terminal import harmless


class Command(HallCommand):
    help = "Forget the tokens of a remote server, and revoke them if its authorization server can."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name", metavar="NAME")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            is_revoked = sign_out(find_member(options["name"]))
        except RequestRefusedError as refusal:
            raise CommandError(harmless(str(refusal))) from refusal
        end = "" if is_revoked else " Its authorization server did not confirm that the tokens ended."
        self.stdout.write(f"{options['name']} is signed out.{end}")
