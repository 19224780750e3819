"""Which members run with an old value of a secret. The tests write the rows of members as a runtime would."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from mcp_runtime.control import secrets
from mcp_runtime.rows import lease
from roster.models import GuildMember, PortAllocation, Secret, StatusChange
from tests.support.leases import add_node, own_node

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def runtime(settings: Any, tmp_path: Path) -> Iterator[None]:
    """As if a runtime were live."""
    settings.GUILD_HALL_SECRETS_KEY_FILE = tmp_path / "secrets-key"
    lease_id = lease.take()
    yield
    lease.release(lease_id)


@pytest.fixture
def secret() -> Secret:
    return secrets.set_secret("key", "first", by=None)


def add(name: str, status: str = "connected", **manifest: Any) -> GuildMember:
    """A member that refers to the secret, and that has just read it if it runs."""
    values = {"name": name, "command": "serve", "env": {"KEY": "${secret:key}"}, **manifest}
    url = values.get("url", "")
    member = GuildMember.objects.create(
        name=name, directory=name, manifest=values, status=status, server_url=url, node=own_node()
    )
    if status in ("connected", "starting"):
        StatusChange.objects.create(member=member, old="disconnected", new="starting", cause="start")
    if status == "connected" and not url:
        PortAllocation.objects.create(member=member, port=20000 + member.pk)
    return member


def old(secret: Secret) -> list[str]:
    secret.refresh_from_db()
    return [member.name for member in secrets.members_with_old_value(secret)]


def test_members_that_run_have_the_old_value_until_they_read_the_new_one(secret: Secret) -> None:
    notes = add("notes")
    assert old(secret) == []
    secrets.set_secret("key", "second", by=None)
    assert old(secret) == ["notes"]
    PortAllocation.objects.filter(member=notes).update(allocated_at=timezone.now())  # its next start
    assert old(secret) == []


def test_an_automatic_restart_in_progress_has_the_new_value(secret: Secret) -> None:
    keys = {"command": None, "env": {}, "url": "https://mcp.example.com", "headers": {"X-Key": "${secret:key}"}}
    far = add("far", "starting", **keys)
    secrets.set_secret("key", "second", by=None)
    assert old(secret) == ["far"]
    GuildMember.objects.filter(pk=far.pk).update(status_changed_at=timezone.now())  # it has no row of its own yet
    assert old(secret) == []


def test_a_new_list_of_members_is_no_new_value(secret: Secret) -> None:
    notes = add("notes")
    secrets.choose_members(secret, [notes], None, of=["notes"])
    assert old(secret) == []


def test_a_remote_server_has_the_value_from_the_beginning_of_its_connection(secret: Secret) -> None:
    keys = {"command": None, "env": {}, "url": "https://mcp.example.com", "headers": {"X-Key": "${secret:key}"}}
    linear = add("linear", **keys)
    secrets.set_secret("key", "second", by=None)
    assert old(secret) == ["linear"]
    StatusChange.objects.create(member=linear, old="error", new="starting", cause="restart")
    assert old(secret) == []


def test_a_remote_server_whose_changes_were_deleted_counts_from_its_start(secret: Secret) -> None:
    linear = add("linear", url="https://mcp.example.com")
    StatusChange.objects.all().delete()
    GuildMember.objects.filter(pk=linear.pk).update(started_at=timezone.now() - timedelta(days=90))
    secrets.set_secret("key", "second", by=None)
    assert old(secret) == ["linear"]


def test_members_that_have_no_value_now_or_no_use_for_it_are_not_listed(secret: Secret) -> None:
    for status in ("disconnected", "error", "stopping"):
        add(status, status)
    add("installing", "starting")  # it reads the value when it has its port
    add("other", env={"KEY": "${secret:other-key}"})
    gone = add("gone")
    GuildMember.objects.filter(pk=gone.pk).update(removed_at=timezone.now())
    secrets.set_secret("key", "second", by=None)
    assert old(secret) == []


def test_a_member_that_may_not_use_the_secret_any_more_still_has_the_old_value(secret: Secret) -> None:
    notes = add("notes")
    secrets.allow_secret(secret, notes, None)
    secrets.forbid_secret(secret, notes)
    secrets.set_secret("key", "second", by=None)
    assert old(secret) == ["notes"]


def test_members_of_a_dead_node_do_not_run(secret: Secret) -> None:
    notes = add("notes")
    GuildMember.objects.filter(pk=notes.pk).update(node=add_node("far", is_alive=False))
    secrets.set_secret("key", "second", by=None)
    assert old(secret) == []
