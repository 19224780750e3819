from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from mcp_runtime.control.members import find_member
from mcp_runtime.control.secrets import allow_secret, find_secret, forbid_secret
from mcp_runtime.protocol.errors import RequestRefusedError
from roster.management.hall_command import HallCommand


class Command(HallCommand):
    help = "Allow a member, as its manifest is now, to use a secret, or forbid that."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("secret")
        parser.add_argument("member")
        parser.add_argument("--forbid", action="store_true", help="it keeps the value that it has until it ends")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            secret, member = find_secret(options["secret"]), find_member(options["member"])
        except RequestRefusedError as refusal:
            raise CommandError(str(refusal)) from refusal
        if options["forbid"]:
            forbid_secret(secret, member)
            self.stdout.write(f"{member.name} may not use the secret {secret.name} any more.")
        else:
            allow_secret(secret, member, by=None)
            self.stdout.write(f"{member.name} may use the secret {secret.name}.")
