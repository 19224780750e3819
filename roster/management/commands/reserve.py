from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.contrib.auth.models import Group
from django.core.management.base import CommandError

from mcp_runtime.control.members import find_member, reserve_member
from mcp_runtime.protocol.errors import RequestRefusedError
from roster.management import exit_codes
from roster.management.hall_command import HallCommand
from roster.management.terminal import names


class Command(HallCommand):
    help = "Reserve a member for the users of some groups, or open it to everybody who may call tools."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("member")
        choice = parser.add_mutually_exclusive_group(required=True)
        choice.add_argument("--groups", type=names, metavar="A,B", help="these groups alone, instead of those before")
        choice.add_argument("--everybody", action="store_true")

    def handle(self, *args: Any, **options: Any) -> None:
        names = options["groups"] or []
        groups = list(Group.objects.filter(name__in=names))
        if unknown := set(names) - {group.name for group in groups}:
            raise CommandError(
                f"no group {', '.join(sorted(unknown))}; groups are made in the admin", returncode=exit_codes.NOT_FOUND
            )
        try:
            member = find_member(options["member"])
            reserve_member(member, groups)
        except RequestRefusedError as refusal:
            raise CommandError(str(refusal)) from refusal
        access = f"reserved for {', '.join(names)}" if names else "open to everybody who may call tools"
        self.stdout.write(f"{member.name} is {access}.")
