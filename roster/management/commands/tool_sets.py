from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from mcp_runtime.control import tool_sets
from mcp_runtime.security.access import OPERATOR
from roster.management.hall_command import HallCommand
from roster.management.terminal import as_json, table
from roster.models import ToolSet

COLUMNS = ["TOOL SET", "TITLE", "RESERVED FOR", "CONTENT"]
NO_SETS = "This hall has no tool sets. Create one in the admin, or with PUT /api/tool-sets/NAME/."


class Command(HallCommand):
    help = "Show the tool sets: the members and tools in each, with their new names."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--json", action="store_true", help="a JSON list instead of the table")

    def handle(self, *args: Any, **options: Any) -> None:
        rows = list(ToolSet.objects.select_related("created_by").prefetch_related("groups"))
        if options["json"]:
            self.stdout.write(as_json([_values(row) for row in rows]))
        elif rows:
            self.stdout.write(table(COLUMNS, [_row(row) for row in rows]))
        else:
            self.stdout.write(NO_SETS)


def _values(row: ToolSet) -> dict[str, Any]:
    return {
        "name": row.name,
        "title": row.title,
        "description": row.description,
        "groups": sorted(group.name for group in row.groups.all()),
        "created_at": row.created_at,
        "changed_at": row.changed_at,
        "created_by": row.created_by and row.created_by.get_username(),
        "entries": [
            {
                "member": entry.member,
                "tool": entry.tool,
                "new_name": entry.new_name,
                "new_description": entry.new_description,
            }
            for entry in tool_sets.entries_of(row, OPERATOR)
        ],
    }


def _row(row: ToolSet) -> list[str]:
    entries = tool_sets.entries_of(row, OPERATOR)
    content = ", ".join(f"{entry} as {entry.new_name}" if entry.new_name else str(entry) for entry in entries)
    return [row.name, row.title or "-", ", ".join(_values(row)["groups"]) or "-", content or "-"]
