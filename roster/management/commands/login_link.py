from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from roster import login_links
from roster.management import exit_codes
from roster.management.hall_command import HallCommand
from roster.management.users import find_user


class Command(HallCommand):
    help = "Make a link with which a user logs in to the admin once; the link is printed once, alone on the last line."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name")

    def handle(self, *args: Any, **options: Any) -> None:
        user = find_user(options["name"])
        if not user.is_active:
            raise CommandError(f"user {user.get_username()!r} is not active", returncode=exit_codes.REFUSED)
        link = login_links.make(user)
        minutes = int(login_links.LIFETIME.total_seconds() // 60)
        self.stdout.write(
            f"A link for user {user.get_username()}, good once and for {minutes} minutes. It needs no password and no "
            "single sign-on; the hall cannot show it again:"
        )
        self.stdout.write(link.address)
