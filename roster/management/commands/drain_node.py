from __future__ import annotations

from roster.management.node_command import NodeCommand
from roster.models import Node


class Command(NodeCommand):
    help = "Drain a node: it gives its members to other nodes and gets no others, until undrain_node."
    verb = "drain"

    def report(self, node: Node) -> str:
        return f"Node {node.name} is draining. Members to give away: {node.members.count()}."
