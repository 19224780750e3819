from __future__ import annotations

import time
from argparse import ArgumentParser
from datetime import datetime
from typing import Any

from django.core.management.base import CommandError
from django.utils import timezone

from mcp_runtime.control.members import FORCIBLE_VERBS, MEMBER_VERBS, find_member
from mcp_runtime.control.nodes import Liveness, read_liveness
from mcp_runtime.protocol.errors import RequestRefusedError
from roster.diagnosis.rows import diagnosis_of_row
from roster.management import exit_codes
from roster.management.hall_command import HallCommand
from roster.management.terminal import NO_RUNTIME, one_line, remedy_line, seconds
from roster.models import GuildMember

LOOK_SECONDS = 0.05
WAIT_SECONDS = 15.0
ERROR_LENGTH = 500

Status = GuildMember.Status


class Command(HallCommand):
    help = "Start, stop, restart, enable, disable members, or list their tools again."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("verb", choices=list(MEMBER_VERBS))
        parser.add_argument("names", nargs="+", metavar="NAME")
        parser.add_argument("--force", action="store_true", help="stop, restart or disable even what an agent needs")
        parser.add_argument("--wait", type=seconds, default=WAIT_SECONDS, help="seconds, for it to be done (15)")

    def handle(self, *args: Any, **options: Any) -> None:
        verb: str = options["verb"]
        requested_at = timezone.now()
        try:
            members = [find_member(name) for name in dict.fromkeys(options["names"])]
        except RequestRefusedError as refusal:
            raise CommandError(str(refusal)) from refusal
        force = {"force": True} if options["force"] and verb in FORCIBLE_VERBS else {}
        pending = [member for member in members if self.request(verb, member, **force)]
        without_runtime = self.without_runtime(pending, read_liveness())
        deadline = time.monotonic() + options["wait"]
        others = [member for member in pending if member not in without_runtime]
        successes = [member for member in others if self.report(verb, member, requested_at, deadline)]
        for title, group in (("Done", successes), ("Noted for the next runtime", without_runtime)):
            if group:
                self.stdout.write(f"{title}: {verb} {_names(group)}.")
        if failures := [member for member in members if member not in (*successes, *without_runtime)]:
            were_refused = not any(member in pending for member in failures)
            code = exit_codes.REFUSED if were_refused else exit_codes.FAILED_CALL
            raise CommandError(f"{verb} did not succeed for {_names(failures)}", returncode=code)

    def without_runtime(self, members: list[GuildMember], liveness: Liveness) -> list[GuildMember]:
        """The members that no runtime takes care of now. Prints the reason."""
        if not liveness.live_ids:
            self.stderr.write(NO_RUNTIME)
            return members
        dead_owners = {member: owner for member in members if (owner := liveness.dead_owner_of(member))}
        for member, owner in dead_owners.items():
            self.stderr.write(f"{member.name}: the node {owner!r} that owns it does not answer")
        return list(dead_owners)

    def request(self, verb: str, member: GuildMember, **force: bool) -> bool:
        try:
            MEMBER_VERBS[verb](member, **force)
        except RequestRefusedError as refusal:
            self.stderr.write(one_line(str(refusal), ERROR_LENGTH))
            return False
        return True

    def report(self, verb: str, member: GuildMember, requested_at: datetime, deadline: float) -> bool:
        """Wait until the verb is done or has failed, and print the member's state. Returns whether it is done.

        `member` is as it was at the request.
        """
        was_starting = member.status == Status.STARTING
        while (is_done := is_fulfilled(verb, member, requested_at, was_starting=was_starting)) is None:
            if time.monotonic() >= deadline:
                break
            time.sleep(LOOK_SECONDS)
            member.refresh_from_db()
        text = member.error or member.progress
        detail = f": {one_line(text, ERROR_LENGTH)}" if text else ""
        still = "still " if is_done is None else ""
        self.stdout.write(f"{member.name} is {still}{member.status}{detail}")
        if is_done is False and (diagnosis := diagnosis_of_row(member, read_liveness())):
            self.stdout.write(remedy_line(diagnosis.remedy))
        return is_done is True


def is_fulfilled(verb: str, member: GuildMember, requested_at: datetime, *, was_starting: bool) -> bool | None:
    """Whether it is done. False if it ended in an error, None while it is in progress.

    If the member `was_starting` at the request, that start fulfils it. A start that fails as the ones before it
    leaves `status_changed_at` at the first failure.
    """
    has_changed = member.status_changed_at > requested_at
    match verb:
        case "stop" | "disable":
            return True if member.status in (Status.DISCONNECTED, Status.ERROR) else None
        case "refresh":
            return member.status == Status.CONNECTED if member.refresh_requested_at is None else None
        case "restart" if not has_changed:
            return None
    if member.manifest_error or (member.status == Status.ERROR and (has_changed or was_starting)):
        return False
    return True if member.status == Status.CONNECTED else None


def _names(members: list[GuildMember]) -> str:
    return ", ".join(member.name for member in members)
