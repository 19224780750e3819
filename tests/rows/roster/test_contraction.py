"""A migration that removes what older versions use waits for the end of their nodes."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.apps import apps
from django.core.management.base import CommandError
from django.db.models.functions import Now

from roster.contraction import RequireMigration
from roster.models import Hall, Node
from tests.support.leases import add_node

pytestmark = pytest.mark.django_db


def migrate(number: int) -> None:
    RequireMigration(number).code(apps, None)  # type: ignore[arg-type]


def required() -> int:
    return Hall.objects.get().required_migration


def test_it_is_refused_with_the_names_of_living_nodes_of_an_older_version() -> None:
    add_node("new", newest_migration=30)
    add_node("old", newest_migration=29, version="0.1.0")
    with pytest.raises(CommandError, match=r"without migration 0030: old \(version 0\.1\.0\)\. Stop them"):
        migrate(30)


def test_nodes_that_have_ended_or_know_the_migration_do_not_hinder_it() -> None:
    add_node("new", newest_migration=30)
    add_node("ended", is_alive=False, newest_migration=29)
    dead = add_node("dead", newest_migration=29)
    Node.objects.filter(pk=dead.pk).update(heartbeat_at=Now() - timedelta(seconds=Node.LEASE_SECONDS + 1))
    migrate(30)
    assert required() == 30


def test_a_new_database_knows_it_too() -> None:
    assert not Hall.objects.exists()
    migrate(30)
    assert required() == 30


def test_the_highest_number_stays() -> None:
    migrate(30)
    migrate(28)
    assert required() == 30
