"""Groups in the admin: roles are read-only, and editors cannot give rights through a group."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import Group, Permission, User
from django.test import Client
from django.urls import reverse

from roster import roles
from roster.models import Role
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


def test_a_superuser_still_chooses_the_permissions_of_other_groups(page: Client) -> None:
    permission = Permission.objects.get(codename="view_guildmember")
    page.post(reverse("admin:auth_group_add"), {"name": "writers", "permissions": [permission.pk]})
    assert list(Group.objects.get(name="writers").permissions.all()) == [permission]
