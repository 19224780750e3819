from __future__ import annotations

import shlex
from argparse import ArgumentParser
from dataclasses import asdict
from typing import Any

from django.core.management.base import CommandError

from mcp_runtime.control import registry
from mcp_runtime.control.registry import Listed
from mcp_runtime.protocol.errors import RequestRefusedError
from mcp_runtime.sources.server_json import Way
from roster.management.hall_command import HallCommand
from roster.management.terminal import as_json, harmless
from roster.management.ways import lines_of


class Command(HallCommand):
    help = "Look servers up in the registry of GUILD_HALL_REGISTRY_URL, to add them as members."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("text", nargs="?", default="", help="a part of the name of the server")
        parser.add_argument("--versions", action="store_true", help="all versions of the server with exactly this name")
        parser.add_argument("--cursor", default="", help="continue a list where another one ended")
        parser.add_argument("--json", action="store_true", help="print the result as JSON")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            is_one = options["versions"]
            page = registry.versions(options["text"]) if is_one else registry.search(options["text"], options["cursor"])
        except RequestRefusedError as error:
            raise CommandError(harmless(str(error))) from error
        if options["json"]:
            self.stdout.write(as_json({"servers": [asdict(each) for each in page.servers], "cursor": page.cursor}))
            return
        for listed in page.servers:
            self._show(listed)
        if not page.servers:
            self.stdout.write("The registry has no such server.")
        elif page.cursor:
            words = [*([options["text"]] if options["text"] else []), "--cursor", page.cursor]
            self.stdout.write(harmless(f"\nThere are more: guildhall registry {shlex.join(words)}"))

    def _show(self, listed: Listed) -> None:
        self.stdout.write("")
        self.stdout.write(harmless(f"{listed.name}@{listed.version}  {listed.description}"))
        if listed.fault:
            self.stdout.write(self.style.WARNING(harmless(f"  {listed.fault}")))
        for way in listed.ways:
            self._show_way(way)
        if not listed.fault and any(not way.refusal for way in listed.ways):
            name = shlex.quote(f"{listed.name}@{listed.version}")
            self.stdout.write(harmless(f"  propose it   guildhall add_member {name}"))

    def _show_way(self, way: Way) -> None:
        if way.refusal:
            self.stdout.write(self.style.WARNING(harmless(f"  way {way.number}        {way.label} {way.refusal}")))
            return
        for line in lines_of(way):
            self.stdout.write(harmless(line))
