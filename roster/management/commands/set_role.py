from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from roster import roles
from roster.management.hall_command import HallCommand
from roster.management.users import find_role, find_user

NO_ROLE = "none"


class Command(HallCommand):
    help = "Give a user a role instead of the one before. Groups that are not roles stay."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name")
        parser.add_argument("role", choices=[*roles.NAMES, NO_ROLE])

    def handle(self, *args: Any, **options: Any) -> None:
        user = find_user(options["name"])
        if options["role"] == NO_ROLE:
            roles.set_role(user, None)
            self.stdout.write(f"User {user.get_username()} has no role.")
            return
        role = find_role(options["role"])
        roles.set_role(user, role)
        more = ", and is a superuser, who may do everything" if user.is_superuser else ""
        self.stdout.write(f"User {user.get_username()} has the role {role}{more}.")
