from __future__ import annotations

import getpass
import sys
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from mcp_runtime.control.members import find_member
from mcp_runtime.control.secrets import allow_secret, members_with_old_value, set_secret
from mcp_runtime.protocol.errors import RequestRefusedError
from mcp_runtime.secrets.references import MAX_SECRET
from roster.management.hall_command import HallCommand
from roster.management.terminal import names


class Command(HallCommand):
    help = "Set a secret for members; its value is read from standard input, or asked for on a terminal."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name", help="manifests refer to it as ${secret:NAME}")
        parser.add_argument("--members", type=names, default=[], metavar="A,B", help="members that may use it as well")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            members = [find_member(name) for name in options["members"]]
            secret = set_secret(options["name"], _value(options["name"]), by=None)
            for member in members:
                allow_secret(secret, member, by=None)
        except RequestRefusedError as refusal:
            raise CommandError(str(refusal)) from refusal
        may_use = f" Allowed now: {', '.join(member.name for member in members)}." if members else ""
        self.stdout.write(f"The secret {secret.name} is set.{may_use}")
        for member in members_with_old_value(secret):
            self.stdout.write(
                f"{member.name} runs with the old value. Restart it: guildhall member restart {member.name}"
            )


def _value(name: str) -> str:
    """The value without the line break at its end. Raises CommandError."""
    if sys.stdin.isatty():
        return getpass.getpass(f"Value of {name} (not shown): ")
    try:
        text = sys.stdin.read(MAX_SECRET + 2)
    except UnicodeDecodeError as error:
        raise CommandError("The value on standard input is not text in UTF-8.") from error
    return text.removesuffix("\n").removesuffix("\r")
