"""GET /api/audit/."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client

from roster import audit, roles
from roster.models import Actor, AuditEntry, GuildMember, Role, Token

pytestmark = pytest.mark.django_db
Kind = AuditEntry.Kind
URL = "/api/audit/"


@pytest.fixture
def user() -> User:
    user = User(username="ann")
    user.save()
    roles.set_role(user, Role.objects.get(name="admin"))
    return user


@pytest.fixture
def client(user: User) -> Client:
    return client_of(Token.make(user=user)[1])


def client_of(token: str) -> Client:
    return Client(headers={"Authorization": f"Bearer {token}"})


@pytest.fixture(autouse=True)
def log(user: User) -> None:
    GuildMember.objects.create(name="notes", directory="notes")
    olga = Actor("rest", f"olga{audit.WITH_TOKEN}gh_AbCdE…", 7, 8)
    AuditEntry.record(
        Kind.MEMBER_STOPPED, "member notes", member="notes", actor=olga, after={"desired_state": "stopped"}
    )
    AuditEntry.record(Kind.ROLE_CHANGED, "user bob", before={"role": None}, after={"role": "caller"})


def test_entries_are_newest_first_with_their_values(client: Client) -> None:
    first, second = client.get(URL).json()["results"][:2]
    assert (first["kind"], first["action"], first["target"]) == ("role_changed", "changed role", "user bob")
    assert (first["before"], first["after"]) == ({"role": None}, {"role": "caller"})
    assert second | {"id": 0, "at": ""} == {
        **{"id": 0, "at": "", "kind": "member_stopped", "action": "stopped member", "source": "rest"},
        **{"actor": f"olga{audit.WITH_TOKEN}gh_AbCdE…", "actor_user": 7, "actor_token": 8, "address": ""},
        **{"target": "member notes", "member": "notes", "before": None, "after": {"desired_state": "stopped"}},
    }


@pytest.mark.parametrize(
    ("query", "targets"),
    [
        ("kind=member_stopped&kind=role_changed", ["user bob", "member notes"]),
        ("source=rest", ["member notes"]),
        ("actor=olga", ["member notes"]),
        ("actor=olg", []),
        ("member=notes", ["member notes"]),
        ("since=2100-01-01T00:00:00Z", []),
        ("until=2100-01-01T00:00:00Z&page_size=1", ["user bob", "member notes"]),
    ],
)
def test_filters(client: Client, query: str, targets: list[str]) -> None:
    results, address = [], f"{URL}?{query}"
    while address:
        page = client.get(address).json()
        results += page["results"]
        address = page["next"]
    # The user of this test was created and given a role too.
    assert [row["target"] for row in results if row["target"] != "user ann"] == targets


@pytest.mark.parametrize("query", ["kind=nonsense", "sinse=2030-01-01", "since=yesterday"])
def test_a_wrong_filter_is_refused(client: Client, query: str) -> None:
    assert client.get(f"{URL}?{query}").status_code == 400


def test_members_of_others_do_not_exist(client: Client, user: User) -> None:
    circle = Group.objects.create(name="circle")
    GuildMember.objects.create(name="word-hidden", directory="x").groups.add(circle)
    AuditEntry.record(Kind.MEMBER_STOPPED, "member word-hidden", member="word-hidden")
    AuditEntry.record(Kind.TOKEN_CREATED, "token", after={"members": ["word-hidden"], "tools": ["word-hidden/x"]})
    assert "word-hidden" not in client.get(URL).content.decode()
    assert client.get(f"{URL}?member=word-hidden").json()["results"] == []
    user.groups.add(circle)
    assert client.get(URL).content.decode().count("word-hidden") == 4


@pytest.mark.parametrize("role", ["viewer", "caller", "operator"])
def test_it_needs_the_permission_and_a_token_for_everything(client: Client, user: User, role: str) -> None:
    narrow = Token.make(user=user, scope="members", members=[GuildMember.objects.get()])[1]
    assert client_of(narrow).get(URL).status_code == 403
    assert client.post(URL).status_code == 405
    assert client.delete(URL).status_code == 405
    roles.set_role(user, Role.objects.get(name=role))
    answer: Any = client.get(URL)
    assert answer.status_code == 403
    assert "roster.view_auditentry" in answer.json()["detail"]
    assert Client().get(URL).status_code == 401
