from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from django.test import Client

from roster.models import GuildMember, TrashedMember
from tests.support.api import client_of

pytestmark = pytest.mark.django_db


@pytest.fixture
def admin() -> Client:
    return client_of(User.objects.create_superuser("root"))


@pytest.fixture(autouse=True)
def notes() -> GuildMember:
    return GuildMember.objects.create(name="notes", directory="notes", manifest={})


def test_a_member_is_removed_listed_and_restored(admin: Client) -> None:
    response = admin.delete("/api/members/notes/")
    assert response.status_code == 202
    removed = response.json()
    assert (removed["name"], removed["removed_by"], removed["restore_requested_at"]) == ("notes", "root", None)
    assert admin.get("/api/trash/").json()["results"] == [removed]
    response = admin.post(f"/api/trash/{removed['id']}/restore/")
    assert response.status_code == 202
    assert response.json()["restore_requested_at"] is not None
    assert admin.get("/api/trash/").json()["results"] == []
    assert admin.post(f"/api/trash/{removed['id']}/restore/").status_code == 409


@pytest.mark.parametrize(
    ("address", "status"),
    [("/api/members/nothing/", 404), ("/api/members/notes/?froce=1", 400), ("/api/members/notes/?force=true", 202)],
)
def test_what_cannot_be_removed_is_refused(admin: Client, address: str, status: int) -> None:
    assert admin.delete(address).status_code == status
    assert TrashedMember.objects.count() == (status == 202)


def test_only_who_may_approve_members_removes_and_restores() -> None:
    bob = client_of(User.objects.create_user("bob"))
    assert bob.delete("/api/members/notes/").status_code == 403
    assert bob.get("/api/trash/").status_code == 403
    assert bob.post("/api/trash/1/restore/").status_code == 403
    assert TrashedMember.objects.count() == 0
