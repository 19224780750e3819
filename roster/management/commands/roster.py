from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.conf import settings
from django.db.models import Prefetch

from mcp_runtime.control.members import members_of_roster, true_row, visible_tools
from mcp_runtime.control.nodes import Liveness, read_liveness
from roster.diagnosis import Diagnosis
from roster.diagnosis.rows import diagnosis_of_row
from roster.management.hall_command import HallCommand
from roster.management.terminal import NO_RUNTIME, as_json, one_line, remedy_line, table
from roster.models import GuildMember, Tool

ERROR_LENGTH = 100
COLUMNS = ["NAME", "STATUS", "ENDPOINT", "TOOLS", "ERROR OR PROGRESS"]


class Command(HallCommand):
    help = "Show every member: its status, endpoint, tools, and what is wrong."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--json", action="store_true", help="a JSON list instead of the table")

    def handle(self, *args: Any, **options: Any) -> None:
        liveness = read_liveness()
        if not liveness.live_ids:
            self.stderr.write(NO_RUNTIME)
        tools = Prefetch("tools", Tool.objects.filter(visible_tools()).only("member_id", "name", "position"))
        rows = members_of_roster().select_related("port_allocation").prefetch_related(tools)
        members = [true_row(row, live_ids=liveness.live_ids) for row in rows]
        facts = [_facts(member, diagnosis_of_row(member, liveness)) for member in members]
        if options["json"]:
            self.stdout.write(as_json(facts))
            return
        if not facts:
            self.stdout.write(
                f"No members in {settings.GUILD_HALL_MEMBERS_DIR}; make one with: guildhall new_member NAME"
            )
            return
        remarks = [member.silence or _dead_node(member, liveness) for member in members]
        self.stdout.write(table(COLUMNS, list(map(_row, facts, remarks))))
        for fact in facts:
            if fact["diagnosis"] and (fact["status"] == GuildMember.Status.ERROR or fact["error"]):
                self.stdout.write(f"{fact['name']}: {remedy_line(fact['diagnosis']['remedy'])}")
        count = sum(fact["status"] == GuildMember.Status.CONNECTED for fact in facts)
        self.stdout.write(f"{count} of {len(facts)} connected.")


def _facts(member: GuildMember, diagnosis: Diagnosis | None) -> dict[str, Any]:
    return {
        "name": member.name,
        "title": member.title,
        "version": member.version,
        "status": member.status,
        "enabled": member.enabled,
        "desired_state": member.desired_state,
        "endpoint": member.endpoint,
        "tools": [tool.name for tool in member.tools.all()],
        "error": member.error,
        "diagnosis": _explanation(diagnosis) if diagnosis else None,
        "next_restart_at": member.next_restart_at if member.status == GuildMember.Status.ERROR else None,
        "progress": member.start_progress,
        "no_answer_since": member.no_answer_since,
        "warnings": member.all_warnings,
    }


def _explanation(diagnosis: Diagnosis) -> dict[str, str]:
    texts = {"cause": diagnosis.cause, "remedy": diagnosis.remedy, "last_words": diagnosis.last_words}
    return {**texts, "key": diagnosis.key}


def _dead_node(member: GuildMember, liveness: Liveness) -> str:
    owner = liveness.dead_owner_of(member)
    return f"the node {owner!r} that owns it does not answer" if owner else ""


def _row(fact: dict[str, Any], remark: str) -> list[str]:
    detail = one_line(fact["error"] or fact["progress"] or remark, ERROR_LENGTH)
    if next_try := fact["next_restart_at"]:
        detail += f"; next restart at {next_try:%Y-%m-%d %H:%M:%S} UTC"
    return [
        fact["name"],
        fact["status"],
        fact["endpoint"] or "-",
        str(len(fact["tools"])),
        detail if fact["enabled"] else f"(disabled) {detail}".rstrip(),
    ]
