from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from roster.models import GuildMember, ManifestEdit
from tests.support.admin import allow
from tests.support.api import client_of

pytestmark = pytest.mark.django_db

MANIFEST = {
    "name": "notes",
    "version": "1",
    "transport": "stdio",
    "command": "serve",
    "args": [],
    "env": {"KEY": "hide"},
}


@pytest.fixture
def admin() -> Client:
    return client_of(User.objects.create_superuser("root"))


@pytest.fixture(autouse=True)
def notes() -> GuildMember:
    return GuildMember.objects.create(name="notes", directory="notes", manifest=MANIFEST)


def patch(client: Client, **body: Any) -> Any:
    return client.patch("/api/members/notes/", body, content_type="application/json")


def test_an_edit_is_proposed_listed_approved_and_taken_back(admin: Client) -> None:
    response = patch(admin, manifest={"timeout": 60, "env": {"KEY": None}})
    assert response.status_code == 201
    edit = response.json()
    assert (edit["state"], edit["needs_restart"], edit["created_by"]) == ("proposed", True, "root")
    assert edit["changes"] == [
        {"key": "timeout", "before": None, "after": 60, "default": 30.0},
        {"key": "env.KEY", "before": "********", "after": None, "default": None},
    ]
    address = f"/api/edits/{edit['id']}/"
    assert admin.get("/api/edits/?member=notes").json()["results"] == [admin.get(address).json()]
    assert admin.get("/api/edits/?member=other").json()["results"] == []
    response = admin.post(f"{address}approve/")
    assert (response.status_code, response.json()["state"]) == (202, "approved")
    assert admin.post(f"{address}undo/").status_code == 409  # no node has written it
    ManifestEdit.objects.update(nodes={"main": ""})
    GuildMember.objects.update(manifest={**MANIFEST, "timeout": 60, "env": {}})
    response = admin.post(f"{address}undo/")
    assert (response.status_code, response.json()["undoes"]) == (202, edit["id"])
    assert admin.get(address).json()["undone_by"] == response.json()["id"]


def test_an_edit_is_proposed_and_approved_in_one_request(admin: Client) -> None:
    response = patch(admin, manifest={"timeout": 60}, approve=True)
    assert (response.status_code, response.json()["approved_by"]) == (202, "root")


def test_an_edit_is_discarded(admin: Client) -> None:
    number = patch(admin, manifest={"timeout": 60}).json()["id"]
    assert admin.delete(f"/api/edits/{number}/").status_code == 204
    assert admin.get(f"/api/edits/{number}/").json()["code"] == "unknown_edit"


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        ({"manifest": {"timeout": 0}}, 400, "timeout: must be seconds"),
        ({"manifest": {"name": "other"}}, 400, "another name is another member"),
        ({"manifest": {"url": "https://example.com/?token=abcdef12345"}}, 400, "seems to hold a secret"),
        ({"manifest": {}}, 409, "another value"),
        ({"manifest": []}, 400, "dictionary"),
        ({}, 400, "required"),
        ({"manifest": {"timeout": 5}, "aprove": True}, 400, "unknown"),
    ],
)
def test_what_cannot_be_edited_is_refused(admin: Client, body: dict[str, Any], status: int, text: str) -> None:
    response = patch(admin, **body)
    assert (response.status_code, ManifestEdit.objects.count()) == (status, 0)
    assert text in response.content.decode()


def test_numbers_that_no_edit_has_are_unknown(admin: Client) -> None:
    assert admin.get("/api/edits/7/").status_code == 404
    assert admin.get(f"/api/edits/{'9' * 30}/").status_code == 404


@pytest.mark.parametrize("permissions", [["approve_member"], ["view_guildmember", "control_member"]])
def test_only_who_sees_manifests_and_approves_members_edits_them(permissions: list[str]) -> None:
    bob = User.objects.create_user("bob")
    allow(bob, *permissions)
    client = client_of(bob)
    assert patch(client, manifest={"timeout": 60}).status_code == 403
    for answer in (client.get("/api/edits/"), client.get("/api/edits/1/"), client.post("/api/edits/1/approve/")):
        assert answer.status_code == 403
    assert ManifestEdit.objects.count() == 0
