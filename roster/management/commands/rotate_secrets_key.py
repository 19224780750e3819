from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError

from mcp_runtime.control import secrets
from mcp_runtime.protocol.errors import RequestRefusedError
from roster.management.hall_command import HallCommand

SEVERAL_NODES = (
    "The hall has other nodes, which need the new key before it is used. Run the three steps one after the other, and "
    "copy {path} to all nodes after each: --step add, --step use, --step drop."
)
NEXT = {
    "add": "A new key is in {path}, and does not encrypt yet. Copy the file to all nodes, and then: --step use",
    "use": "{count} encrypted with the new key. Copy {path} to all nodes, and then: --step drop",
    "drop": "The old keys are gone from {path}. Copy it to all nodes.",
}
DONE = "{count} encrypted with a new key. The old keys are gone from {path}. Copies of it are of no use any more."


class Command(HallCommand):
    help = "Encrypt all secrets with a new key; members that run do not notice it."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--step", choices=secrets.KEY_STEPS, help="one of the steps, for a hall with several nodes")

    def handle(self, *args: Any, **options: Any) -> None:
        step, path = options["step"], settings.GUILD_HALL_SECRETS_KEY_FILE
        if step is None and secrets.has_other_nodes():
            raise CommandError(SEVERAL_NODES.format(path=path))
        try:
            count = secrets.rotate_key([step] if step else secrets.KEY_STEPS)
        except RequestRefusedError as refusal:
            raise CommandError(str(refusal)) from refusal
        number = "1 secret is" if count == 1 else f"{count} secrets are"
        self.stdout.write((NEXT[step] if step else DONE).format(path=path, count=number))
