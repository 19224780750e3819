from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from mcp_runtime.control.members import find_member
from mcp_runtime.control.nodes import find_node, move_member
from mcp_runtime.protocol.errors import RequestRefusedError
from roster.management.hall_command import HallCommand


class Command(HallCommand):
    help = "Move a member to another node of the hall."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("member")
        parser.add_argument("node")
        parser.add_argument("--force", action="store_true", help="move it even if its local state stays behind")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            member, node = find_member(options["member"]), find_node(options["node"])
            move_member(member, node, force=options["force"])
        except RequestRefusedError as refusal:
            raise CommandError(str(refusal)) from refusal
        self.stdout.write(f"Requested: {member.name} moves to node {node.name}.")
