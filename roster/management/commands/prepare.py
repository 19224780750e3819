from __future__ import annotations

import os
import secrets
from typing import Any

from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError
from django.db import OperationalError, connection

from mcp_runtime import console


class Command(BaseCommand):
    help = "Bring database and static files up to date and make the first account. `up` does this by itself."

    def handle(self, *args: Any, **options: Any) -> None:
        require_database()
        call_command("migrate", verbosity=0, interactive=False)
        call_command("collectstatic", verbosity=0, interactive=False)
        self._make_first_account()

    def _make_first_account(self) -> None:
        """The account `admin`, made when there is no account at all; its random password is shown this once."""
        users = get_user_model().objects
        if users.exists():
            return
        given = os.environ.get("GUILD_HALL_ADMIN_PASSWORD", "")
        password = given or secrets.token_urlsafe(12)
        users.create_superuser("admin", "", password)
        shown = "the one from GUILD_HALL_ADMIN_PASSWORD" if given else password
        self._say(f"First start: log in as  admin  with the password  {shown}")
        if not given:
            self._say("It is shown only now; manage.py changepassword admin sets another.")

    def _say(self, text: str) -> None:
        self.stdout.write(console.line("hall", text))
        self.stdout.flush()


def require_database() -> None:
    """Raises CommandError. Not through the pool: that tries for ten seconds, and then does not say why."""
    plain = connection.copy()
    plain.settings_dict["OPTIONS"].pop("pool", None)
    try:
        plain.ensure_connection()
    except OperationalError as error:
        reason = " ".join(str(error).split())
        raise CommandError(f"The database cannot be used ({reason}). DATABASE_URL says which one it is.") from error
    finally:
        plain.close()
