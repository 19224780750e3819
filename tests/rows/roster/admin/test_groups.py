"""Groups in the admin: roles are read-only, and editors cannot give rights through a group."""

from __future__ import annotations

import re

import pytest
from django.contrib.auth.models import Group, Permission, User
from django.test import Client
from django.urls import reverse

from mcp_runtime.control.tool_sets import Values, create_tool_set
from mcp_runtime.security.access import OPERATOR
from roster import roles
from roster.models import AuditEntry, Role
from tests.support.admin import html

pytestmark = pytest.mark.django_db

LIST = "/admin/auth/group/"


def page_of(group: Group) -> str:
    return reverse("admin:auth_group_change", args=[group.pk])


@pytest.fixture
def caller() -> Group:
    return Role.objects.get(name="caller").group


@pytest.fixture
def admin(client: Client) -> Client:
    """A browser where a user with the role admin is logged in."""
    user = User.objects.create_user("an-admin")
    roles.set_role(user, Role.objects.get(name="admin"))
    client.force_login(user)
    return client


def test_the_page_of_a_role_says_why_nobody_can_change_it(page: Client, caller: Group) -> None:
    text = html(page.get(page_of(caller)))
    assert "This group is a role" in text
    assert 'name="_save"' not in text
    assert "This group is a role" not in html(page.get(page_of(Group.objects.create(name="writers"))))
    assert '<td class="field-role">caller</td>' in html(page.get(LIST))


def test_a_superuser_cannot_rename_delete_or_extend_a_role(page: Client, caller: Group) -> None:
    data = {"name": "kings", "permissions": [Permission.objects.get(codename="delete_user").pk]}
    assert page.post(page_of(caller), data).status_code == 403
    assert page.post(reverse("admin:auth_group_delete", args=[caller.pk]), {"post": "yes"}).status_code == 403
    action = {"action": "delete_selected", "_selected_action": [caller.pk], "post": "yes"}
    page.post(LIST, action)
    caller.refresh_from_db()
    assert caller.name == "caller"
    assert not caller.permissions.filter(codename="delete_user").exists()


def test_an_admin_makes_and_renames_groups_without_permissions(admin: Client) -> None:
    permission = Permission.objects.get(codename="view_guildmember")
    admin.post(reverse("admin:auth_group_add"), {"name": "writers", "permissions": [permission.pk]})
    group = Group.objects.get(name="writers")
    assert not group.permissions.exists()
    admin.post(page_of(group), {"name": "editors", "permissions": [permission.pk]})
    group.refresh_from_db()
    assert group.name == "editors"
    assert not group.permissions.exists()


def test_an_admin_cannot_change_or_delete_a_group_with_a_permission_that_they_do_not_have(admin: Client) -> None:
    group = Group.objects.create(name="deleters")
    group.permissions.add(Permission.objects.get(codename="delete_user"))
    assert admin.get(page_of(group)).status_code == 200
    assert admin.post(page_of(group), {"name": "x"}).status_code == 403
    assert admin.post(reverse("admin:auth_group_delete", args=[group.pk]), {"post": "yes"}).status_code == 403
    admin.post(LIST, {"action": "delete_selected", "_selected_action": [group.pk], "post": "yes"})
    assert Group.objects.filter(name="deleters").exists()


def test_an_admin_learns_nothing_of_a_hidden_member_from_the_deletion_of_its_group(
    admin: Client, writers: Group
) -> None:
    delete_page = reverse("admin:auth_group_delete", args=[writers.pk])
    assert admin.get(delete_page).status_code == 403
    text = html(admin.post(LIST, {"action": "delete_selected", "_selected_action": [writers.pk]}))
    assert "example" not in text

    writers.user_set.add(User.objects.get(username="an-admin"))

    assert "example is for writers" in html(admin.get(delete_page))


def test_the_permissions_of_a_group_are_behind_a_click(page: Client) -> None:
    text = html(page.get(reverse("admin:auth_group_add")))
    assert re.search(r"<details>\s*<summary>\s*<h2[^>]*>Advanced</h2>", text)
    assert text.index("Advanced") < text.index('name="permissions"')


def test_a_superuser_still_chooses_the_permissions_of_other_groups(page: Client) -> None:
    permission = Permission.objects.get(codename="view_guildmember")
    page.post(reverse("admin:auth_group_add"), {"name": "writers", "permissions": [permission.pk]})
    assert list(Group.objects.get(name="writers").permissions.all()) == [permission]


# The users of a group ---------------------------------------------------------------------------------------------


@pytest.fixture
def people() -> dict[str, User]:
    """A user with fewer rights than an admin, one with more, and a superuser."""
    people = {name: User.objects.create_user(name) for name in ("carl", "dora", "more")}
    people["more"].user_permissions.set(Permission.objects.filter(codename="delete_user"))
    return {**people, "root": User.objects.create_superuser("root")}


def keys(people: dict[str, User], *names: str) -> list[int]:
    return [people[name].pk for name in names]


def test_an_admin_fills_a_group_and_the_audit_log_says_so(admin: Client, people: dict[str, User]) -> None:
    admin.post(reverse("admin:auth_group_add"), {"name": "writers", "users": keys(people, "carl")})
    group = Group.objects.get(name="writers")
    assert list(group.user_set.all()) == [people["carl"]]
    assert re.search(r'<option value="\d+" selected>carl</option>', html(admin.get(page_of(group))))
    newest = AuditEntry.objects.latest("pk").pk
    admin.post(page_of(group), {"name": "writers", "users": keys(people, "dora")})
    assert list(group.user_set.all()) == [people["dora"]]
    entries = (
        AuditEntry.objects.filter(pk__gt=newest)
        .order_by("target")
        .values_list("kind", "target", "actor", "before", "after")
    )
    assert list(entries) == [
        ("user_changed", "user carl", "an-admin", {"groups": ["writers"]}, {"groups": []}),
        ("user_changed", "user dora", "an-admin", {"groups": []}, {"groups": ["writers"]}),
    ]


def test_users_with_more_rights_stay_in_the_group_or_out_of_it(admin: Client, people: dict[str, User]) -> None:
    group = Group.objects.create(name="writers")
    group.user_set.add(people["root"])
    text = html(admin.get(page_of(group)))
    assert ">carl</option>" in text
    assert not re.search("(root|more)</option>", text)
    for name in ("root", "more"):
        text = html(admin.post(page_of(group), {"name": "writers", "users": keys(people, "carl", name)}))
        assert "is not one of the available choices" in text
    admin.post(page_of(group), {"name": "writers", "users": keys(people, "carl")})
    assert set(group.user_set.all()) == {people["root"], people["carl"]}


def test_nobody_joins_a_group_with_rights_that_they_lack(
    admin: Client, writers: Group, caller: Group, people: dict[str, User]
) -> None:
    """`writers` has a reserved member, and `caller` is a role."""
    an_admin = User.objects.get(username="an-admin")
    sealed, deleters = (Group.objects.create(name=name) for name in ("sealed", "deleters"))
    create_tool_set(Values("sealed", groups=[sealed]), OPERATOR, None)
    deleters.permissions.set(Permission.objects.filter(codename="delete_user"))
    for group in (writers, caller, sealed, deleters):
        assert 'name="users"' not in html(admin.get(page_of(group)))
        data = {"name": group.name, "users": [an_admin.pk, people["carl"].pk]}
        assert admin.post(page_of(group), data).status_code == 403
        assert not group.user_set.filter(username__in=["an-admin", "carl"]).exists()


def test_only_who_may_change_users_fills_a_group(client: Client, people: dict[str, User]) -> None:
    editor, group = User.objects.create_user("editor"), Group.objects.create(name="writers")
    editor.user_permissions.set(Permission.objects.filter(codename__in=["change_group", "add_group", "view_user"]))
    client.force_login(editor)
    assert 'name="users"' not in html(client.get(page_of(group)))
    assert client.post(page_of(group), {"name": "authors", "users": keys(people, "carl")}).status_code == 302
    client.post(reverse("admin:auth_group_add"), {"name": "others", "users": keys(people, "carl")})
    assert set(Group.objects.filter(name__in=["authors", "others"]).values_list("user", flat=True)) == {None}
