from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from mcp_runtime.control.nodes import MOVES_AT_A_TIME, rebalance
from roster.management.hall_command import HallCommand
from roster.management.terminal import count


class Command(HallCommand):
    help = "Spread the members over the nodes that are alive, a few at a time. Members with local state do not move."

    def add_arguments(self, parser: ArgumentParser) -> None:
        help_text = f"the maximum number of members that move ({MOVES_AT_A_TIME})"
        parser.add_argument("--limit", type=count, default=MOVES_AT_A_TIME, help=help_text)

    def handle(self, *args: Any, **options: Any) -> None:
        moves = rebalance(options["limit"])
        for move in moves:
            self.stdout.write(f"Requested: {move.member} moves from node {move.from_node} to node {move.to_node}.")
        if not moves:
            self.stdout.write("No member moves.")
        elif len(moves) == options["limit"]:
            self.stdout.write("More members may have to move. Run this again when these have moved.")
