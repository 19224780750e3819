from __future__ import annotations

import time
from argparse import ArgumentParser
from datetime import datetime
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from mcp_runtime.control.members import FORCIBLE_VERBS, MEMBER_VERBS, find_member, live_runtime
from mcp_runtime.protocol.errors import RequestRefusedError
from roster.management.terminal import NO_RUNTIME, one_line, seconds
from roster.models import GuildMember

LOOK_SECONDS = 0.05
WAIT_SECONDS = 15.0
ERROR_LENGTH = 500

Status = GuildMember.Status


class Command(BaseCommand):
    help = "Start, stop, restart, enable, disable members, or list their tools anew."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("verb", choices=list(MEMBER_VERBS))
        parser.add_argument("names", nargs="+", metavar="NAME")
        parser.add_argument(
            "--force", action="store_true", help="stop, restart or disable even what an agent's session needs"
        )
        parser.add_argument("--wait", type=seconds, default=WAIT_SECONDS, help="seconds, for it to be done (15)")

    def handle(self, *args: Any, **options: Any) -> None:
        verb: str = options["verb"]
        asked_at = timezone.now()
        try:
            members = [find_member(name) for name in dict.fromkeys(options["names"])]
        except RequestRefusedError as refusal:
            raise CommandError(str(refusal)) from refusal
        force = {"force": True} if options["force"] and verb in FORCIBLE_VERBS else {}
        wished = [member for member in members if self.wish(verb, member, **force)]
        is_alive = live_runtime() is not None
        if not is_alive:
            self.stderr.write(NO_RUNTIME)
        deadline = time.monotonic() + options["wait"]
        done = [member for member in wished if not is_alive or self.report(verb, member, asked_at, deadline)]
        if done:
            self.stdout.write(f"{'Done' if is_alive else 'Noted for the next runtime'}: {verb} {_names(done)}.")
        if failed := [member for member in members if member not in done]:
            raise CommandError(f"{verb} did not succeed for {_names(failed)}")

    def wish(self, verb: str, member: GuildMember, **force: bool) -> bool:
        try:
            MEMBER_VERBS[verb](member, **force)
        except RequestRefusedError as refusal:
            self.stderr.write(one_line(str(refusal), ERROR_LENGTH))
            return False
        return True

    def report(self, verb: str, member: GuildMember, asked_at: datetime, deadline: float) -> bool:
        """Wait until the wish is seen to be fulfilled, or in vain; say where the member is. Whether it is fulfilled."""
        while (fulfilled := is_fulfilled(verb, member, asked_at)) is None and time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS)
            member.refresh_from_db()
        said = member.error or member.progress
        detail = f": {one_line(said, ERROR_LENGTH)}" if said else ""
        still = "still " if fulfilled is None else ""
        self.stdout.write(f"{member.name} is {still}{member.status}{detail}")
        return fulfilled is True


def is_fulfilled(verb: str, member: GuildMember, asked_at: datetime) -> bool | None:
    """Whether the wish came true (False: it came to an error); None while that is open."""
    changed = member.status_changed_at > asked_at
    match verb:
        case "stop" | "disable":
            return True if member.status in (Status.DISCONNECTED, Status.ERROR) else None
        case "refresh":
            return member.status == Status.CONNECTED if member.refresh_requested_at is None else None
        case "restart" if not changed:
            return None
    if member.manifest_error or (member.status == Status.ERROR and changed):
        return False
    return True if member.status == Status.CONNECTED else None


def _names(members: list[GuildMember]) -> str:
    return ", ".join(member.name for member in members)
