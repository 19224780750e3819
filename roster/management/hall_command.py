"""The base of commands that people run beside a hall."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.db import OperationalError, connection

from mcp_runtime.protocol.errors import MigrationError
from mcp_runtime.rows import migrations
from mcp_runtime.rows.database import unpooled
from roster.management import exit_codes
from roster.models import Hall

_HOW_TO_CHOOSE = "If yours is elsewhere, name its data folder: guildhall --hall FOLDER, or GUILD_HALL_DATA_DIR."


class HallCommand(BaseCommand):
    """A command for a hall that was started before. It omits the system checks, which are for a start.

    If the cause of a CommandError is an error of the hall, this error decides the exit code.
    """

    requires_system_checks = []

    def execute(self, *args: Any, **options: Any) -> Any:
        require_hall()
        try:
            return super().execute(*args, **options)
        except CommandError as error:
            if error.returncode == exit_codes.FAILURE:
                error.returncode = exit_codes.of_cause(error.__cause__)
            raise


def require_hall() -> None:
    """Raises CommandError if there is no hall that this version can use. Creates nothing."""
    if connection.vendor == "sqlite" and not Path(connection.settings_dict["NAME"]).exists():
        raise CommandError(_no_hall(), returncode=exit_codes.NO_HALL)  # a connection would create the file
    if Hall._meta.db_table not in tables_of_database():
        raise CommandError(_no_hall(), returncode=exit_codes.NO_HALL)
    if not settings.GUILD_HALL_DATA_DIR.is_dir():
        message = f"The data folder {settings.GUILD_HALL_DATA_DIR} does not exist. {_HOW_TO_CHOOSE}"
        raise CommandError(message, returncode=exit_codes.NO_HALL)
    require_same_migrations()


def require_same_migrations() -> None:
    """Raises CommandError if the database is too old or too new for this version."""
    try:
        migrations.require_same()
    except MigrationError as error:
        raise CommandError(str(error), returncode=exit_codes.NO_HALL) from error


def tables_of_database() -> list[str]:
    """The names of the tables. It does not use the pool, which tries for ten seconds. Raises CommandError."""
    unpooled_connection = connection if connection.vendor == "sqlite" else unpooled()
    try:
        return unpooled_connection.introspection.table_names()
    except OperationalError as error:
        reason = " ".join(str(error).split())
        message = f"The database cannot be used ({reason}). DATABASE_URL says which one it is."
        raise CommandError(message, returncode=exit_codes.NO_HALL) from error
    finally:
        if unpooled_connection is not connection:
            unpooled_connection.close()


def _no_hall() -> str:
    place = settings.GUILD_HALL_DATA_DIR if connection.vendor == "sqlite" else "this database"
    return f"There is no hall in {place}. Start one with: make run. {_HOW_TO_CHOOSE}"
