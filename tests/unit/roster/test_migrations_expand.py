"""Migrations since the first hall with several nodes: the last version can use the database after them."""

from __future__ import annotations

import pytest
from django.db import models
from django.db.migrations import Migration
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.operations import (
    AddField,
    AlterField,
    AlterModelOptions,
    CreateModel,
    DeleteModel,
    RemoveField,
    RenameField,
    RunPython,
)
from django.db.migrations.operations.base import Operation

from roster.contraction import RequireMigration

LAST_BEFORE = 24
# Operations that change nothing for older versions, or that a reviewer must check.
EXPANDING = (CreateModel, AlterModelOptions, RunPython)


def fault(migration: Migration) -> str:
    """The first operation that an older version cannot live with. Empty if there is none."""
    operations = list(migration.operations)
    if operations and isinstance(operations[0], RequireMigration):
        number = int(migration.name.partition("_")[0])
        return "" if LAST_BEFORE < operations[0].number < number else "it must require an earlier migration"
    return next((text for text in map(_fault, operations) if text), "")


def _fault(operation: Operation) -> str:
    if isinstance(operation, AddField):
        field = operation.field
        is_optional = field.null or field.has_db_default() or isinstance(field, models.ManyToManyField)
        return "" if is_optional else f"{operation.name} needs null=True or a db_default"
    return "" if isinstance(operation, EXPANDING) else f"{operation.describe()}: begin with RequireMigration"


def ours() -> list[Migration]:
    migrations = MigrationLoader(None, ignore_no_migrations=True).disk_migrations
    return [migration for (app, name), migration in sorted(migrations.items()) if app == "roster"]


def test_every_migration_expands_or_says_which_versions_it_excludes() -> None:
    late = [migration for migration in ours() if int(migration.name[:4]) > LAST_BEFORE]
    assert late
    assert {migration.name: fault(migration) for migration in late if fault(migration)} == {}


@pytest.mark.parametrize(
    ("operation", "text"),
    [
        (AddField("hall", "x", models.IntegerField()), "x needs null=True or a db_default"),
        (AddField("hall", "x", models.IntegerField(default=1)), "x needs null=True or a db_default"),
        (AddField("hall", "x", models.IntegerField(db_default=1)), ""),
        (AddField("hall", "x", models.IntegerField(null=True)), ""),
        (RemoveField("hall", "x"), "Remove field x from hall: begin with RequireMigration"),
        (RenameField("hall", "x", "y"), "Rename field x on hall to y: begin with RequireMigration"),
        (AlterField("hall", "x", models.TextField()), "Alter field x on hall: begin with RequireMigration"),
        (DeleteModel("Hall"), "Delete model Hall: begin with RequireMigration"),
    ],
)
def test_an_operation_that_the_last_version_cannot_live_with_is_found(operation: Operation, text: str) -> None:
    migration = Migration("0030_x", "roster")
    migration.operations = [operation]
    assert fault(migration) == text
    migration.operations = [RequireMigration(29), operation]
    assert fault(migration) == ""
    migration.operations = [RequireMigration(30), operation]
    assert fault(migration) == "it must require an earlier migration"
