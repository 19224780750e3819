from __future__ import annotations

import io
import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.utils import timezone

from mcp_runtime.control import secrets
from mcp_runtime.rows import lease
from mcp_runtime.secrets import values
from roster.models import GuildMember, PortAllocation, Secret
from tests.support.leases import own_node

pytestmark = pytest.mark.django_db

CANARY = "canary-4711"


@pytest.fixture(autouse=True)
def key_path(settings: Any, tmp_path: Path) -> Path:
    settings.GUILD_HALL_SECRETS_KEY_FILE = tmp_path / "secrets-key"
    return tmp_path / "secrets-key"


@pytest.fixture
def notes() -> GuildMember:
    return GuildMember.objects.create(name="notes", directory="notes", manifest={"env": {"K": "${secret:api-key}"}})


def run(*argv: str, value: str | bytes = "", monkeypatch: pytest.MonkeyPatch | None = None) -> str:
    if monkeypatch is not None:
        content = value.encode() if isinstance(value, str) else value
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content), encoding="utf-8"))
    output = io.StringIO()
    call_command(*argv, stdout=output)
    return output.getvalue()


def test_a_value_from_standard_input_is_set_for_members(notes: GuildMember, monkeypatch: pytest.MonkeyPatch) -> None:
    text = run("set_secret", "api-key", "--members", "notes", value=f"{CANARY}\n", monkeypatch=monkeypatch)
    assert text.startswith("The secret api-key is set. Allowed now: notes.")
    assert CANARY not in text
    assert values.decrypt(Secret.objects.get()) == CANARY
    assert secrets.needs_of(notes)[0].fault == ""


@pytest.mark.parametrize(
    ("argv", "value", "message"),
    [
        (["api-key"], b"", "must not be empty"),
        (["a b"], CANARY.encode(), "must be 1 to 64"),
        (["api-key"], b"\xff\xfe", "not text in UTF-8"),
        (["api-key", "--members", "nobody"], CANARY.encode(), "no member 'nobody'"),
        (["api-key"], b"x" * 70_000, "65,536"),
    ],
)
def test_what_cannot_be_set_is_refused(
    argv: list[str], value: bytes, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(CommandError, match=message):
        run("set_secret", *argv, value=value, monkeypatch=monkeypatch)
    assert not Secret.objects.exists()


def test_a_member_is_allowed_and_forbidden(notes: GuildMember) -> None:
    secrets.set_secret("api-key", CANARY, by=None)
    assert run("allow_secret", "api-key", "notes") == "notes may use the secret api-key.\n"
    assert secrets.needs_of(notes)[0].fault == ""
    assert "may not use" in run("allow_secret", "api-key", "notes", "--forbid")
    assert "may not use" in secrets.needs_of(notes)[0].fault
    for argv in (["nothing", "notes"], ["api-key", "nobody"]):
        with pytest.raises(CommandError):
            run("allow_secret", *argv)


def test_the_list_shows_names_and_members_and_no_value(notes: GuildMember) -> None:
    assert "has no secrets" in run("secrets")
    secret = secrets.set_secret("api-key", CANARY, by=None)
    secrets.allow_secret(secret, notes, by=None)
    notes.manifest = {**notes.manifest, "command": "bash"}
    notes.save()
    assert "notes (changed)" in run("secrets")
    (values_of_secret,) = json.loads(run("secrets", "--json"))
    assert values_of_secret["members"] == [{"member": "notes", "is_current": False}]
    assert (values_of_secret["name"], values_of_secret["changed_by"]) == ("api-key", None)
    assert CANARY not in run("secrets") + run("secrets", "--json")


def test_members_that_run_with_the_old_value_are_named(notes: GuildMember, monkeypatch: pytest.MonkeyPatch) -> None:
    secrets.set_secret("api-key", "first", by=None)
    lease.take()
    GuildMember.objects.update(status="connected", node=own_node())
    PortAllocation.objects.create(member=notes, port=20000)
    text = run("set_secret", "api-key", value=CANARY, monkeypatch=monkeypatch)
    assert "notes runs with the old value. Restart it: guildhall member restart notes\n" in text
    PortAllocation.objects.update(allocated_at=timezone.now())
    Secret.objects.update(changed_at=timezone.now() - timedelta(seconds=1))
    assert secrets.members_with_old_value(Secret.objects.get()) == []


def test_a_secret_is_deleted() -> None:
    secrets.set_secret("api-key", CANARY, by=None)
    assert run("delete_secret", "api-key") == "The secret api-key is deleted.\n"
    with pytest.raises(CommandError, match="no secret 'api-key'"):
        run("delete_secret", "api-key")


def test_one_command_rotates_the_key_of_a_hall_with_one_node(key_path: Path) -> None:
    with pytest.raises(CommandError, match="there is no key file"):
        run("rotate_secrets_key")
    secrets.set_secret("api-key", CANARY, by=None)
    old_key = key_path.read_text()
    assert run("rotate_secrets_key").startswith("1 secret is encrypted with a new key.")
    assert key_path.read_text() != old_key
    assert values.decrypt(Secret.objects.get()) == CANARY


def test_a_hall_with_several_nodes_rotates_step_by_step(key_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secrets.set_secret("api-key", CANARY, by=None)
    monkeypatch.setattr(lease, "has_other_nodes", lambda: True)
    with pytest.raises(CommandError, match="--step add, --step use, --step drop"):
        run("rotate_secrets_key")
    for step, count in (("add", 2), ("use", 2), ("drop", 1)):
        assert str(key_path) in run("rotate_secrets_key", "--step", step)
        assert len(key_path.read_text().splitlines()) == count
        assert values.decrypt(Secret.objects.get()) == CANARY
