from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.contrib.auth import get_user_model
from django.core.management.base import BaseCommand, CommandError

from roster.models import ApiToken

MAX_NAME = ApiToken._meta.get_field("name").max_length or 0


class Command(BaseCommand):
    help = "Make an API token for a user; it is printed once, alone on the last line."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("user")
        parser.add_argument("--name", default="", help="what it is for, to tell it from others")

    def handle(self, *args: Any, **options: Any) -> None:
        users = get_user_model()
        user = users.objects.filter(**{users.USERNAME_FIELD: options["user"]}).first()
        if user is None:
            raise CommandError(f"no user {options['user']!r}; make one with: manage.py createsuperuser")
        if not user.is_active:
            raise CommandError(f"user {options['user']!r} is not active: a token of theirs would open nothing")
        if len(options["name"]) > MAX_NAME:
            raise CommandError(f"--name may have {MAX_NAME} characters at most")
        _, token = ApiToken.make(user=user, name=options["name"])
        self.stdout.write(f"A token for {user.get_username()}; it is not shown again:")
        self.stdout.write(token)
