from __future__ import annotations

from argparse import ArgumentParser
from dataclasses import asdict
from typing import Any

from mcp_runtime.control.nodes import NodeReport, all_nodes
from roster.management.hall_command import HallCommand
from roster.management.terminal import as_json, table

COLUMNS = ["NODE", "RUNTIME", "HOST", "MEMBERS", "CALLS A MINUTE", "CAPACITY", "CPU", "MEMORY", "LABELS", "VERSION"]
NO_NODES = "This hall has never had a runtime. Start one with: guildhall up"

HOLDS_LEASE = (
    "The fence of node {name} was off when it died, so no other node takes its members. Start it again, or if it is "
    "gone for ever: guildhall remove_node {name}"
)


class Command(HallCommand):
    help = "Show the machines that run this hall: since when each is alive, its members, calls, CPU, memory and labels."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--json", action="store_true", help="a JSON list instead of the table")

    def handle(self, *args: Any, **options: Any) -> None:
        nodes = all_nodes()
        if options["json"]:
            self.stdout.write(as_json([asdict(node) for node in nodes]))
        elif nodes:
            self.stdout.write(table(COLUMNS, [_row(node) for node in nodes]))
            for node in nodes:
                if node.holds_lease:
                    self.stdout.write(HOLDS_LEASE.format(name=node.name))
                for protection, reason in (node.sandbox_gaps or {}).items():
                    self.stdout.write(f"Sandboxes on node {node.name} lack the protection of {protection}: {reason}.")
        else:
            self.stdout.write(NO_NODES)


def _row(node: NodeReport) -> list[str]:
    since = f" since {node.since:%Y-%m-%d %H:%M:%S} UTC" if node.since else ""
    return [
        node.name,
        ", ".join([f"{'alive' if node.is_alive else 'not alive'}{since}", *_remarks(node)]),
        node.host or "-",
        _text(node.members),
        _text(node.calls_per_minute),
        _text(node.capacity),
        "-" if node.cpu_percent is None else f"{node.cpu_percent:.1f} %",
        "-" if node.memory_bytes is None else f"{node.memory_bytes / 1e6:.0f} MB",
        ", ".join(node.labels) or "-",
        node.version or "-",
    ]


def _remarks(node: NodeReport) -> list[str]:
    return ["draining"] * node.is_draining + ["still holds its lease"] * node.holds_lease


def _text(number: int | None) -> str:
    return "-" if number is None else str(number)
