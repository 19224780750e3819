"""A version of Guild Hall uses a database only if both fit each other."""

from __future__ import annotations

import threading

import pytest
from django.core.management.base import CommandError
from django.db import connection
from django.db.migrations.recorder import MigrationRecorder
from django.test import Client

from mcp_runtime.http1 import listeners
from mcp_runtime.protocol.errors import MigrationError
from mcp_runtime.rows import lease, migrations
from mcp_runtime.runtime import worker
from roster.management.hall_command import require_hall
from roster.models import Hall, Node
from tests.support.leases import current_lease_id

pytestmark = pytest.mark.django_db

TOO_OLD = r"This version of Guild Hall \(.*\) is too old for the database, which needs a version with migration 9000"
MISSING = r"The database does not have the migration \d{4}_\w+ of this version .* guildhall prepare"


@pytest.fixture(autouse=True)
def no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listeners, "bind", lambda *_: [])
    monkeypatch.setattr(worker.signal, "signal", lambda *_: None)
    monkeypatch.setattr("mcp_runtime.members.process.kill_left_behind", lambda *_: None)


def require(number: int) -> None:
    lease.hall()
    Hall.objects.update(required_migration=number)


def forget_the_newest() -> None:
    name = MigrationRecorder.Migration.objects.filter(app="roster").latest("name").name
    MigrationRecorder.Migration.objects.filter(app="roster", name=name).delete()


def test_a_runtime_notes_the_newest_migration_of_its_version() -> None:
    worker.take_the_hall(threading.Event())
    applied = MigrationRecorder.Migration.objects.filter(app="roster").latest("name").name
    assert Node.objects.get().newest_migration == migrations.newest() == int(applied[:4])


def test_a_runtime_that_is_older_than_the_database_allows_takes_no_lease(caplog: pytest.LogCaptureFixture) -> None:
    require(9000)
    assert worker.run() == worker.EX_CONFIG
    assert current_lease_id() is None
    with pytest.raises(MigrationError, match=TOO_OLD):  # also if the migration runs during its start
        lease.take()
    assert current_lease_id() is None
    assert "Install the version of the other nodes" in caplog.text


def test_a_runtime_of_the_oldest_version_that_is_allowed_starts() -> None:
    require(migrations.newest())
    worker.take_the_hall(threading.Event())
    assert current_lease_id() is not None


def test_a_runtime_starts_on_a_database_that_a_newer_version_has_migrated() -> None:
    MigrationRecorder(connection).record_applied("roster", "9000_of_a_newer_version")
    worker.take_the_hall(threading.Event())
    assert current_lease_id() is not None


def test_a_runtime_does_not_start_on_a_database_that_its_version_has_not_migrated() -> None:
    forget_the_newest()
    with pytest.raises(MigrationError, match=MISSING):
        worker.take_the_hall(threading.Event())
    assert current_lease_id() is None


def test_commands_of_a_version_that_does_not_fit_the_database_say_so() -> None:
    require_hall()
    require(9000)
    with pytest.raises(CommandError, match=TOO_OLD):
        require_hall()
    forget_the_newest()
    with pytest.raises(CommandError, match=MISSING):
        require_hall()


@pytest.mark.django_db(transaction=True)
def test_a_web_that_is_too_old_for_the_database_is_not_ready(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    require(9000)
    assert client.get("/readyz").json()["database"] is False
    assert "is too old for the database" in caplog.text
    require(0)
    assert client.get("/readyz").json()["database"] is True
