"""The groups of a member over REST, for the role admin and for others."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client

from roster import roles
from roster.models import AuditEntry, GuildMember, Role, Token
from tests.support.api import client_of

pytestmark = pytest.mark.django_db
ADDRESS = "/api/members/example/groups/"


@pytest.fixture
def anna() -> User:
    """An admin who is in the group `writers`."""
    user = User.objects.create_user("anna")
    roles.set_role(user, Role.objects.get(name="admin"))
    user.groups.add(Group.objects.create(name="writers"))
    Group.objects.create(name="editors")
    return User.objects.get(pk=user.pk)


@pytest.fixture
def admin(anna: User, example: GuildMember) -> Client:
    return client_of(anna)


def put(client: Client, *names: str) -> tuple[int, Any]:
    response = client.put(ADDRESS, {"groups": list(names)}, content_type="application/json")
    return response.status_code, response.json()


def test_an_admin_reserves_a_member_and_opens_it_again(admin: Client, as_charlie: Client) -> None:
    assert admin.get(ADDRESS).json() == {"groups": []}
    assert put(admin, "writers", "editors", "writers") == (200, {"groups": ["editors", "writers"]})
    assert admin.get(ADDRESS).json() == {"groups": ["editors", "writers"]}
    entry = AuditEntry.objects.latest("pk")
    assert (entry.kind, entry.target, entry.source) == ("member_reserved", "member example", "rest")
    assert (entry.before, entry.after) == ({"groups": []}, {"groups": ["editors", "writers"]})
    assert entry.actor.startswith("anna")
    assert as_charlie.get("/api/members/example/").status_code == 404
    assert put(admin) == (200, {"groups": []})
    assert as_charlie.get("/api/members/example/").status_code == 200


def test_a_member_that_is_reserved_for_others_does_not_exist_for_an_admin(admin: Client, example: GuildMember) -> None:
    assert put(admin, "editors") == (200, {"groups": ["editors"]})
    assert admin.get(ADDRESS).status_code == 404
    assert put(admin)[0] == 404
    assert [group.name for group in example.groups.all()] == ["editors"]
    assert admin.get(ADDRESS).json() == admin.get("/api/members/nobody/groups/").json() | {
        "detail": "no member 'example' is in the roster"
    }


def test_other_roles_and_narrowed_tokens_may_not_see_or_choose_groups(
    anna: User, admin: Client, as_bob: Client, example: GuildMember
) -> None:
    narrowed = client_of(anna, scope=Token.Scope.MEMBERS, members=[example])
    operator = User.objects.create_user("olga")
    roles.set_role(operator, Role.objects.get(name="operator"))
    for client in (as_bob, client_of(User.objects.get(pk=operator.pk)), narrowed):
        assert client.get(ADDRESS).status_code == 403
        assert put(client, "writers")[0] == 403
    assert not example.groups.exists()


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        ({"groups": ["nobody"]}, 400, "there is no group 'nobody'"),
        ({"groups": ["a", "wri\0ters"]}, 400, "groups: 1: Null characters are not allowed."),
        ({"groups": ["writers"] * 1_001}, 400, "there may be 1000 groups at most"),
        ({"groups": "writers"}, 400, "Expected a list"),
        ({"groups": [], "gruops": []}, 400, "unknown"),
        ({}, 400, "required"),
        ({"groups": ["caller"]}, 409, "is a role"),
    ],
)
def test_wrong_groups_are_refused_and_change_nothing(
    admin: Client, example: GuildMember, body: dict[str, Any], status: int, text: str
) -> None:
    response = admin.put(ADDRESS, body, content_type="application/json")
    assert response.status_code == status
    assert text in response.content.decode()
    assert not example.groups.exists()
