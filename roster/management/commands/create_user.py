from __future__ import annotations

import secrets
from argparse import ArgumentParser
from typing import Any

from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.core.management.base import CommandError

from roster import audit, roles
from roster.management import exit_codes
from roster.management.hall_command import HallCommand
from roster.management.users import find_role


class Command(HallCommand):
    help = "Make a user with a role; the generated password is printed once, alone on the last line."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name")
        parser.add_argument("--role", choices=roles.NAMES, default=roles.DEFAULT, help="%(default)s if left out")

    def handle(self, *args: Any, **options: Any) -> None:
        role, user = find_role(options["role"]), User(username=options["name"])
        if User.objects.filter(username__iexact=user.username).exists():
            raise CommandError(f"there is a user {user.username!r} already", returncode=exit_codes.REFUSED)
        password = secrets.token_urlsafe(12)
        user.set_password(password)
        try:
            user.full_clean()
        except ValidationError as error:
            raise CommandError(" ".join(error.messages)) from error
        with audit.merged():
            user.save()
            roles.set_role(user, role)
        self.stdout.write(
            f"User {user.get_username()} has the role {role}. The password is not shown again; "
            f"guildhall changepassword {user.get_username()} sets another:"
        )
        self.stdout.write(password)
