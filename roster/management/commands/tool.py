from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from mcp_runtime.control.members import find_tool, set_tool_enabled
from mcp_runtime.protocol.errors import RequestRefusedError
from roster.management.hall_command import HallCommand
from roster.management.terminal import one_line


class Command(HallCommand):
    help = "Enable or disable a tool of a member. A disabled tool is in no list, and nobody can call it."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("verb", choices=["enable", "disable"])
        parser.add_argument("member")
        parser.add_argument("tool")

    def handle(self, *args: Any, **options: Any) -> None:
        enabled = options["verb"] == "enable"
        try:
            tool = find_tool(options["member"], options["tool"])
        except RequestRefusedError as refusal:
            raise CommandError(str(refusal)) from refusal
        set_tool_enabled(tool, enabled)
        name = one_line(tool.name, 255)
        self.stdout.write(f"Tool {name} of {tool.member.name} is {'enabled' if enabled else 'disabled'}.")
