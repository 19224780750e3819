from __future__ import annotations

from roster.management.node_command import NodeCommand
from roster.models import Node


class Command(NodeCommand):
    help = "Let a node that was drained get members again. To move members to it, use rebalance or move_member."
    verb = "undrain"

    def report(self, node: Node) -> str:
        return f"Node {node.name} can get members again."
