"""Which versions of Guild Hall can use the database.

Migrations first expand and later contract. So nodes of the last version can run while this version migrates the
database and replaces them one by one. A migration that removes something which an older version uses begins with
`roster.contraction.RequireMigration`. It does not run while nodes of such a version are alive, and afterwards these
versions refuse to start.
"""

from __future__ import annotations

import functools
from pathlib import Path

from django.apps import apps
from django.db import connection

from mcp_runtime.protocol import mcp
from mcp_runtime.protocol.errors import MigrationError
from roster.models import Hall


@functools.cache
def _newest_name() -> str:
    folder = Path(apps.get_app_config("roster").path) / "migrations"
    return max(path.stem for path in folder.glob("[0-9]*.py"))


def newest() -> int:
    """The number of the newest migration that this version has."""
    return number_of(_newest_name())


def number_of(name: str) -> int:
    """24 for `0024_agents_of_nodes`."""
    return int(name.partition("_")[0])


def require_same() -> None:
    """Raise MigrationError if the database does not have all migrations of this version, or is too new for it."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT MAX(name) FROM django_migrations WHERE app = 'roster'")
        (applied,) = cursor.fetchone()
    if applied is None or number_of(applied) < newest():
        raise MigrationError(
            f"The database does not have the migration {_newest_name()} of this version ({mcp.HALL_VERSION}). "
            "Run this version's guildhall prepare on one machine, and start again."
        )
    require_use()


def require_use() -> None:
    """Raise MigrationError if this version cannot use the database any more."""
    required = Hall.objects.filter(pk=1).values_list("required_migration", flat=True).first() or 0
    if newest() < required:
        raise MigrationError(
            f"This version of Guild Hall ({mcp.HALL_VERSION}, with migration {newest():04}) is too old for the "
            f"database, which needs a version with migration {required:04}. Install the version of the other nodes."
        )
