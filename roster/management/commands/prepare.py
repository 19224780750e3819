from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.core.management.base import BaseCommand
from django.db import Error, OperationalError, connection, transaction

from mcp_runtime.protocol.errors import TokenError
from mcp_runtime.security import principals
from mcp_runtime.system import console
from roster import first_schema
from roster.login_backends import allows_passwords
from roster.management.hall_command import require_same_migrations, tables_of_database
from roster.models import AuditEntry, Token

MIGRATE_SECONDS = 60.0
LOCK_SECONDS = 1.0  # shorter than the waits of the hall, so that none of them fails
LOCK_ERRORS = ("55P03", "40P01")  # lock not available, deadlock
LOCAL_TOKEN = "local-token"  # noqa: S105 - the name of its file


class Command(BaseCommand):
    help = "Bring database and static files up to date and make the first account. `up` does this automatically."
    stealth_options = ("say",)  # the function with which `up` prints lines. It waits for no console

    def handle(self, *args: Any, **options: Any) -> None:
        self.say: Callable[[str], None] = options.get("say", self._write)
        tables_of_database()
        first_schema.load()
        migrate()
        require_same_migrations()
        call_command("collectstatic", verbosity=0, interactive=False)
        self.make_first_account()
        self._make_local_token()

    def make_first_account(self) -> None:
        """Create the account `admin` if there is no account at all. Its random password is shown only now."""
        users = get_user_model().objects
        if users.exists():
            return
        own_password = os.environ.get("GUILD_HALL_ADMIN_PASSWORD", "")
        password = own_password or secrets.token_urlsafe(12)
        users.create_superuser("admin", "", password)
        if not allows_passwords():
            self.say("First start: use single sign-on, or log in as  admin  with: guildhall login_link admin")
        elif own_password:
            self.say("First start: log in as  admin  with the password that GUILD_HALL_ADMIN_PASSWORD gives.")
        else:
            self.say(f"First start: log in as  admin  with the password  {password}")
            self.say("It will not be shown again; guildhall changepassword admin sets another.")

    def _make_local_token(self) -> None:
        """Write a token of the first account for users who may read the data folder. Print its path, not the token."""
        path = settings.GUILD_HALL_DATA_DIR / LOCAL_TOKEN
        if _is_good(path):
            return
        user = get_user_model().objects.filter(is_active=True).order_by("-is_superuser", "pk").first()
        if user is None:
            return
        with transaction.atomic():
            row, token = Token.make(user=user, name=LOCAL_TOKEN)
            AuditEntry.record(AuditEntry.Kind.TOKEN_CREATED, row.audit_name, after={"scope": row.scope})
        draft = path.with_name(f"{path.name}.{os.getpid()}")
        draft.unlink(missing_ok=True)
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(f"{token}\n")
        draft.replace(path)
        self.say(f"A token of {user.get_username()} for local use is in {path}")

    def _write(self, text: str) -> None:
        """Print, however long the console takes, because the first password is shown only once."""
        self.stdout.write(console.line("hall", text))
        self.stdout.flush()


def migrate() -> None:
    """Migrate the database. On PostgreSQL the hall may run meanwhile.

    A migration that changes a table waits until all transactions with it have ended, and all later ones wait behind it.
    So a long one, for example of a backup, would stop the hall. Therefore each migration waits LOCK_SECONDS at most,
    and is repeated until MIGRATE_SECONDS have passed. Raises CommandError, and OperationalError after that time.
    """
    deadline = time.monotonic() + MIGRATE_SECONDS
    while True:
        try:
            with lock_timeout(LOCK_SECONDS):
                call_command("migrate", verbosity=0, interactive=False)
            return
        except OperationalError as error:
            if getattr(error.__cause__, "sqlstate", "") not in LOCK_ERRORS or time.monotonic() > deadline:
                raise
        time.sleep(LOCK_SECONDS)


@contextlib.contextmanager
def lock_timeout(seconds: float) -> Iterator[None]:
    """Limit the wait for each lock on this thread's connection. SQLite has a limit of its own."""
    if connection.vendor != "postgresql":
        yield
        return
    with connection.cursor() as cursor:
        cursor.execute("SELECT set_config('lock_timeout', %s, false)", [f"{seconds:g}s"])
    try:
        yield
    finally:
        with contextlib.suppress(Error), connection.cursor() as cursor:
            cursor.execute("SET lock_timeout TO DEFAULT")


def _is_good(path: Path) -> bool:
    try:
        principals.require_good(Token.objects.get(digest=Token.digest_of(path.read_text().strip())))
    except (OSError, UnicodeDecodeError, Token.DoesNotExist, TokenError):
        return False
    return True
