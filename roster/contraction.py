"""The first operation of a migration that removes or narrows what older versions of Guild Hall use."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.core.management.base import CommandError
from django.db.migrations.operations import RunPython
from django.db.models.functions import Now

from roster.models import Node


class RequireMigration(RunPython):
    """From this migration on, only versions that have the migration `number` can use the database.

    Raises CommandError while a node of an older version is alive. An older version that starts meanwhile waits for
    the lock of the hall's row, and then refuses (`mcp_runtime.rows.migrations`).
    """

    def __init__(self, number: int) -> None:
        super().__init__(self._require, RunPython.noop)
        self.number = number

    def _require(self, apps: Any, schema_editor: Any) -> None:
        hall = apps.get_model("roster", "Hall").objects
        hall.get_or_create(pk=1)
        list(hall.select_for_update())
        hall.filter(required_migration__lt=self.number).update(required_migration=self.number)
        age = timedelta(seconds=Node.LEASE_SECONDS)
        nodes = apps.get_model("roster", "Node").objects.exclude(lease_id=None)
        older = nodes.filter(newest_migration__lt=self.number, heartbeat_at__gt=Now() - age).order_by("name")
        if names := ", ".join(f"{node.name} (version {node.version})" for node in older):
            raise CommandError(
                f"The database cannot be migrated while nodes run a version without migration {self.number:04}: "
                f"{names}. Stop them, or give them the version in between first."
            )
