from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError
from django.urls import reverse

from mcp_runtime.control import ways_in
from mcp_runtime.control.members import find_member
from mcp_runtime.protocol.errors import RequestRefusedError
from roster.addresses import web_address
from roster.management.hall_command import HallCommand
from roster.management.terminal import harmless


class Command(HallCommand):
    help = "Print the address at which a person signs a remote server in at its authorization server."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name", metavar="NAME")
        parser.add_argument(
            "--own", action="store_true", help="The address where each user signs in alone, if the member is so."
        )

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            member = find_member(options["name"])
        except RequestRefusedError as refusal:
            raise CommandError(harmless(str(refusal))) from refusal
        report = ways_in.report_of(member)
        if report is None:
            raise CommandError(f"{member.name} is no remote server, so it has nothing to sign in at.")
        if options["own"]:
            if not member.signs_in_by_user:
                raise CommandError(f"Users have no sign-in of their own at {member.name}.")
            if fault := ways_in.refusal(member, own=True):
                raise CommandError(harmless(fault[0].upper() + fault[1:]))
            self.stderr.write("Open this address, log in as the user whose calls are to use the account, and sign in:")
            self.stdout.write(f"{web_address()}{reverse('member-own-sign-in', args=[member.pk])}")
            return
        if fault := ways_in.refusal(member, own=False):
            raise CommandError(harmless(fault[0].upper() + fault[1:]))
        if report.state == "signed in":
            self.stderr.write(f"{member.name} is signed in at {harmless(report.issuer)} already.")
        self.stderr.write("Open this address, log in as a user who may start and stop members, and press Sign in:")
        self.stdout.write(f"{web_address()}{reverse('admin:roster_guildmember_sign_in', args=[member.pk])}")
