from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client

from mcp_runtime.control import secrets
from mcp_runtime.control.members import reserve_member
from mcp_runtime.rows import lease
from mcp_runtime.secrets import values
from roster.models import GuildMember, PortAllocation, Secret
from tests.support.admin import allow
from tests.support.api import MANIFEST, add_member, client_of

pytestmark = pytest.mark.django_db

CANARY = "canary-4711"


@pytest.fixture(autouse=True)
def key_path(settings: Any, tmp_path: Path) -> Path:
    settings.GUILD_HALL_SECRETS_KEY_FILE = tmp_path / "secrets-key"
    return tmp_path / "secrets-key"


def put(client: Client, name: str, **body: Any) -> tuple[int, dict[str, Any]]:
    response = client.put(f"/api/secrets/{name}/", body, content_type="application/json")
    assert CANARY not in response.content.decode()
    return response.status_code, response.json()


def test_a_secret_is_made_and_set_again_and_no_response_has_its_value(as_alice: Client, example: GuildMember) -> None:
    status, answer = put(as_alice, "api-key", value=CANARY, members=["example"])
    assert (status, answer["name"], answer["changed_by"]) == (201, "api-key", "alice")
    assert answer["members"] == [{"member": "example", "is_current": True}]
    status, answer = put(as_alice, "api-key", value=f"{CANARY}\nmore ")
    assert (status, answer["members"]) == (200, [{"member": "example", "is_current": True}])
    assert values.decrypt(Secret.objects.get()) == f"{CANARY}\nmore "
    for address in ("/api/secrets/", "/api/secrets/api-key/", "/api/members/example/"):
        text = as_alice.get(address).content.decode()
        assert CANARY not in text
        assert Secret.objects.get().encrypted not in text
    assert as_alice.get("/api/secrets/").json()["results"][0]["name"] == "api-key"


def test_a_member_that_was_changed_is_not_current(as_alice: Client, example: GuildMember) -> None:
    put(as_alice, "api-key", value=CANARY, members=["example"])
    example.manifest = {**MANIFEST, "command": "bash"}
    example.save()
    expected = [{"member": "example", "is_current": False}]
    assert as_alice.get("/api/secrets/api-key/").json()["members"] == expected
    assert put(as_alice, "api-key", members=["example"])[1]["members"] == expected


@pytest.mark.parametrize(
    ("name", "body", "status", "word"),
    [
        ("new", {}, 400, "required for a new secret"),
        ("new", {"value": ""}, 400, "blank"),
        ("new", {"value": " "}, 409, "must not be empty"),
        ("a b", {"value": CANARY}, 409, "must be 1 to 64"),
        ("new", {"value": CANARY, "members": ["nobody"]}, 404, "no member 'nobody'"),
        ("new", {"value": CANARY, "other": 1}, 400, "other"),
        ("new", {"value": "x" * 65_537}, 400, "65536"),
    ],
)
def test_a_body_with_faults_changes_nothing(
    as_alice: Client, name: str, body: dict[str, Any], status: int, word: str
) -> None:
    answer = put(as_alice, name, **body)
    assert answer[0] == status
    assert word in str(answer[1])
    assert not Secret.objects.exists()


def test_a_secret_is_deleted(as_alice: Client) -> None:
    put(as_alice, "api-key", value=CANARY)
    assert as_alice.delete("/api/secrets/api-key/").status_code == 204
    for response in (as_alice.delete("/api/secrets/api-key/"), as_alice.get("/api/secrets/api-key/")):
        assert (response.status_code, response.json()["code"]) == (404, "unknown_secret")


def test_each_permission_opens_its_part(charlie: User) -> None:
    secrets.set_secret("old", CANARY, by=None)
    assert client_of(charlie).get("/api/secrets/").status_code == 403
    allow(charlie, "view_secret")
    assert client_of(charlie).get("/api/secrets/old/").status_code == 200
    assert put(client_of(charlie), "old", value=CANARY)[0] == 403
    assert put(client_of(charlie), "new", value=CANARY)[0] == 403
    assert client_of(charlie).delete("/api/secrets/old/").status_code == 403
    allow(charlie, "change_secret")
    assert put(client_of(charlie), "old", value=CANARY)[0] == 200
    assert put(client_of(charlie), "new", value=CANARY)[0] == 403
    allow(charlie, "add_secret", "delete_secret")
    assert put(client_of(charlie), "new", value=CANARY)[0] == 201
    assert client_of(charlie).delete("/api/secrets/old/").status_code == 204


def test_hidden_members_are_neither_shown_nor_chosen_nor_removed(bob: User, example: GuildMember) -> None:
    hidden = add_member("hidden")
    reserve_member(hidden, [Group.objects.create(name="circle")])
    secret = secrets.set_secret("api-key", CANARY, by=None)
    secrets.allow_secret(secret, hidden, by=None)
    allow(bob, "view_secret", "change_secret")
    as_bob = client_of(bob)
    assert as_bob.get("/api/secrets/api-key/").json()["members"] == []
    assert put(as_bob, "api-key", members=["hidden"])[0] == 404
    assert put(as_bob, "api-key", members=["example"])[1]["members"] == [{"member": "example", "is_current": True}]
    assert {use.member.name for use in secret.uses.all()} == {"example", "hidden"}


def test_a_narrowed_token_opens_no_secret(alice: User, example: GuildMember) -> None:
    narrowed = client_of(alice, scope="members", members=[example])
    assert narrowed.get("/api/secrets/").status_code == 403
    assert put(narrowed, "api-key", value=CANARY)[0] == 403


def test_members_that_run_with_an_old_value_are_named(alice: User, as_alice: Client) -> None:
    lease.take()
    manifest = {"name": "notes", "env": {"KEY": "${secret:api-key}"}}
    for name in ("notes", "hidden"):
        secrets.set_secret("api-key", "first", by=None)
        member = add_member(name, manifest=manifest, status="connected")
        PortAllocation.objects.create(member=member, port=20000 + member.pk)
    assert as_alice.get("/api/secrets/api-key/").json()["members_with_old_value"] == ["notes"]
    assert put(as_alice, "api-key", value=CANARY)[1]["members_with_old_value"] == ["hidden", "notes"]
    bob = User.objects.create_user("robert")
    allow(bob, "view_secret")
    reserve_member(GuildMember.objects.get(name="hidden"), [Group.objects.create(name="circle")])
    assert client_of(bob).get("/api/secrets/api-key/").json()["members_with_old_value"] == ["notes"]
