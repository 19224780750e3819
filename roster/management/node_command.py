"""What the commands that drain and undrain a node share."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from mcp_runtime.control.nodes import NODE_VERBS, find_node
from mcp_runtime.protocol.errors import RequestRefusedError
from roster.management.hall_command import HallCommand
from roster.models import Node


class NodeCommand(HallCommand):
    """One of NODE_VERBS for the node that is named."""

    verb = ""

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("node")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            node = find_node(options["node"])
            NODE_VERBS[self.verb](node)
        except RequestRefusedError as refusal:
            raise CommandError(str(refusal)) from refusal
        self.stdout.write(self.report(node))

    def report(self, node: Node) -> str:
        raise NotImplementedError
