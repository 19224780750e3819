from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from mcp_runtime.control import secrets
from mcp_runtime.protocol.errors import RequestRefusedError
from roster.management.hall_command import HallCommand


class Command(HallCommand):
    help = "Delete a secret; members that run keep its value until they end."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            secrets.delete_secret(secrets.find_secret(options["name"]))
        except RequestRefusedError as refusal:
            raise CommandError(str(refusal)) from refusal
        self.stdout.write(f"The secret {options['name']} is deleted.")
