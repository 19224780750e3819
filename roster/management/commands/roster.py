from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand
from django.db.models import Prefetch

from mcp_runtime import control
from roster.management.terminal import NO_RUNTIME, as_json, one_line, table
from roster.models import GuildMember, Tool

ERROR_LENGTH = 100
COLUMNS = ["NAME", "STATUS", "ENDPOINT", "TOOLS", "ERROR OR PROGRESS"]


class Command(BaseCommand):
    help = "Show every member: its status, endpoint, tools, and what is wrong."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--json", action="store_true", help="a JSON list instead of the table")

    def handle(self, *args: Any, **options: Any) -> None:
        is_alive = control.live_runtime() is not None
        if not is_alive:
            self.stderr.write(NO_RUNTIME)
        tools = Prefetch("tools", Tool.objects.filter(control.visible_tools()).only("member_id", "name", "position"))
        members = control.roster().select_related("port_allocation").prefetch_related(tools)
        facts = [_facts(member, is_alive=is_alive) for member in members]
        if options["json"]:
            self.stdout.write(as_json(facts))
            return
        if not facts:
            self.stdout.write(
                f"No members in {settings.GUILD_HALL_MEMBERS_DIR}; make one with: manage.py new_member NAME"
            )
            return
        self.stdout.write(table(COLUMNS, [_row(fact) for fact in facts]))
        connected = sum(fact["status"] == GuildMember.Status.CONNECTED for fact in facts)
        self.stdout.write(f"{connected} of {len(facts)} connected.")


def _facts(member: GuildMember, *, is_alive: bool) -> dict[str, Any]:
    return {
        "name": member.name,
        "title": member.title,
        "version": member.version,
        "status": control.shown_status(member, runtime_is_alive=is_alive),
        "enabled": member.enabled,
        "wanted": member.wanted,
        "endpoint": member.endpoint if is_alive else None,
        "tools": [tool.name for tool in member.tools.all()],
        # Of what a dead runtime left on the row, nothing is true any more.
        "error": member.error if is_alive else member.manifest_error,
        "progress": member.start_progress if is_alive else "",
        "warnings": member.all_warnings if is_alive else member.manifest_warnings,
    }


def _row(fact: dict[str, Any]) -> list[str]:
    detail = fact["error"] or fact["progress"]
    return [
        fact["name"],
        fact["status"],
        fact["endpoint"] or "-",
        str(len(fact["tools"])),
        one_line(detail if fact["enabled"] else f"(disabled) {detail}", ERROR_LENGTH),
    ]
