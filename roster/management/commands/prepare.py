from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.core.management.base import BaseCommand

from mcp_runtime.protocol.errors import TokenError
from mcp_runtime.security import principals
from mcp_runtime.system import console
from roster import first_schema
from roster.management.hall_command import tables_of_database
from roster.models import Token

LOCAL_TOKEN = "local-token"  # noqa: S105 - the name of its file


class Command(BaseCommand):
    help = "Bring database and static files up to date and make the first account. `up` does this automatically."
    stealth_options = ("say",)  # the function with which `up` prints lines. It waits for no console

    def handle(self, *args: Any, **options: Any) -> None:
        self._say: Callable[[str], None] = options.get("say", self._write)
        tables_of_database()
        first_schema.load()
        call_command("migrate", verbosity=0, interactive=False)
        call_command("collectstatic", verbosity=0, interactive=False)
        self._make_first_account()
        self._make_local_token()

    def _make_first_account(self) -> None:
        """Create the account `admin` if there is no account at all. Its random password is shown only now."""
        users = get_user_model().objects
        if users.exists():
            return
        own_password = os.environ.get("GUILD_HALL_ADMIN_PASSWORD", "")
        password = own_password or secrets.token_urlsafe(12)
        users.create_superuser("admin", "", password)
        if own_password:
            self._say("First start: log in as  admin  with the password that GUILD_HALL_ADMIN_PASSWORD gives.")
        else:
            self._say(f"First start: log in as  admin  with the password  {password}")
            self._say("It will not be shown again; manage.py changepassword admin sets another.")

    def _make_local_token(self) -> None:
        """Write a token of the first account for users who may read the data folder. Print its path, not the token."""
        path = settings.GUILD_HALL_DATA_DIR / LOCAL_TOKEN
        if _is_good(path):
            return
        user = get_user_model().objects.filter(is_active=True).order_by("-is_superuser", "pk").first()
        if user is None:
            return
        _, token = Token.make(user=user, name=LOCAL_TOKEN)
        draft = path.with_name(f"{path.name}.{os.getpid()}")
        draft.unlink(missing_ok=True)
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(f"{token}\n")
        draft.replace(path)
        self._say(f"A token of {user.get_username()} for local use is in {path}")

    def _write(self, text: str) -> None:
        """Print, however long the console takes, because the first password is shown only once."""
        self.stdout.write(console.line("hall", text))
        self.stdout.flush()


def _is_good(path: Path) -> bool:
    try:
        principals.require_good(Token.objects.get(digest=Token.digest_of(path.read_text().strip())))
    except (OSError, UnicodeDecodeError, Token.DoesNotExist, TokenError):
        return False
    return True
