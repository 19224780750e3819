from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from roster import invitations, roles
from roster.management.hall_command import HallCommand
from roster.management.users import find_role
from roster.models import Invitation


class Command(HallCommand):
    help = "Invite a person, in the name of the operator; the link is printed once, alone on the last line."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("role", choices=roles.NAMES)
        parser.add_argument("--note", default="", metavar="TEXT", help="who it is for, to tell it from others")

    def handle(self, *args: Any, **options: Any) -> None:
        limit = Invitation._meta.get_field("note").max_length or 0
        if len(options["note"]) > limit:
            raise CommandError(f"the note has more than {limit} characters")
        try:
            invitation, link = invitations.invite(find_role(options["role"]), inviter=None, note=options["note"])
        except invitations.InvitationError as refusal:
            raise CommandError(str(refusal)) from refusal
        self.stdout.write(
            f"An invitation with the role {invitation.role}, good once and until "
            f"{invitation.expires_at:%Y-%m-%d %H:%M} UTC; the hall cannot show the link again:"
        )
        self.stdout.write(link)
