from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from mcp_runtime.control.members import find_tool, switch_tool
from mcp_runtime.protocol.errors import RequestRefusedError
from roster.management.hall_command import HallCommand
from roster.management.terminal import one_line


class Command(HallCommand):
    help = "Switch a tool of a member on or off; one that is off is hidden from lists and refused everywhere."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("verb", choices=["enable", "disable"])
        parser.add_argument("member")
        parser.add_argument("tool")

    def handle(self, *args: Any, **options: Any) -> None:
        on = options["verb"] == "enable"
        try:
            tool = find_tool(options["member"], options["tool"])
        except RequestRefusedError as refusal:
            raise CommandError(str(refusal)) from refusal
        switch_tool(tool, on=on)
        name = one_line(tool.name, 255)
        self.stdout.write(f"Tool {name} of {tool.member.name} is switched {'on' if on else 'off'}.")
