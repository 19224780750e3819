from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from mcp_runtime.control.nodes import find_node, remove_node
from mcp_runtime.protocol.errors import RequestRefusedError
from roster.management.hall_command import HallCommand


class Command(HallCommand):
    help = "Remove a node that is gone for ever. Other nodes take its members."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("node")
        parser.add_argument("--force", action="store_true", help="remove it even if local state of members is lost")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            node = find_node(options["node"])
            count = remove_node(node, force=options["force"])
        except RequestRefusedError as refusal:
            raise CommandError(str(refusal)) from refusal
        self.stdout.write(f"Node {node.name} is removed. Members without a node now: {count}.")
