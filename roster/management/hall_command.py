"""What the commands have in common that a person types beside a hall."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.db import OperationalError, connection

from roster.database import unpooled
from roster.models import Hall


class HallCommand(BaseCommand):
    """A command for a hall that was started once. Without system checks, which are for a start."""

    requires_system_checks = []

    def execute(self, *args: Any, **options: Any) -> Any:
        require_hall()
        return super().execute(*args, **options)


def require_hall() -> None:
    """Raises CommandError where there is no hall, or its database does not answer. Nothing is made."""
    if connection.vendor == "sqlite" and not Path(connection.settings_dict["NAME"]).exists():
        raise CommandError(_no_hall())  # to connect would make the file
    if Hall._meta.db_table not in tables_of_database():
        raise CommandError(_no_hall())


def tables_of_database() -> list[str]:
    """Raises CommandError where it does not answer. Not through the pool: that tries for ten seconds."""
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
