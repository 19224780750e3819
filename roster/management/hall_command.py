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
from roster.models import Hall


class HallCommand(BaseCommand):
    """A command for a hall that was started before. It omits the system checks, which are for a start."""

    requires_system_checks = []

    def execute(self, *args: Any, **options: Any) -> Any:
        require_hall()
        return super().execute(*args, **options)


def require_hall() -> None:
    """Raises CommandError if there is no hall that this version can use. Creates nothing."""
    if connection.vendor == "sqlite" and not Path(connection.settings_dict["NAME"]).exists():
        raise CommandError(_no_hall())  # a connection would create the file
    if Hall._meta.db_table not in tables_of_database():
        raise CommandError(_no_hall())
    require_same_migrations()


def require_same_migrations() -> None:
    """Raises CommandError if the database is too old or too new for this version."""
    try:
        migrations.require_same()
    except MigrationError as error:
        raise CommandError(str(error)) from error


def tables_of_database() -> list[str]:
    """The names of the tables. It does not use the pool, which tries for ten seconds. Raises CommandError."""
    unpooled_connection = unpooled()
    try:
        return unpooled_connection.introspection.table_names()
    except OperationalError as error:
        reason = " ".join(str(error).split())
        raise CommandError(f"The database cannot be used ({reason}). DATABASE_URL says which one it is.") from error
    finally:
        unpooled_connection.close()


def _no_hall() -> str:
    place = settings.GUILD_HALL_DATA_DIR if connection.vendor == "sqlite" else "this database"
    return (
        f"There is no hall in {place}. Start one with: manage.py up. If yours runs already, give this terminal the "
        f"same GUILD_HALL_ variables and DATABASE_URL."
    )
