"""Users in the admin: their roles, and what an editor with fewer rights cannot do, also with forged fields."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Group, Permission, User
from django.test import Client
from django.urls import reverse

from mcp_runtime.control.members import reserve_member
from mcp_runtime.control.tool_sets import Values, create_tool_set
from mcp_runtime.security.access import OPERATOR
from roster import roles
from roster.models import AuditEntry, GuildMember, Role
from tests.support.admin import html

pytestmark = pytest.mark.django_db

LIST, ADD = "/admin/auth/user/", "/admin/auth/user/add/"
PASSWORD = "a long secret"
FORGED = {"is_superuser": "on", "is_staff": "on"}


def make_user(name: str, role: str | None = None, **columns: Any) -> User:
    user = User.objects.create_user(name, password=PASSWORD, **columns)
    roles.set_role(user, role and Role.objects.get(name=role))
    return User.objects.get(pk=user.pk)


def browser_of(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def page_of(user: User) -> str:
    return reverse("admin:auth_user_change", args=[user.pk])


def role_of(user: User) -> str:
    return str(roles.role_of(User.objects.get(pk=user.pk)))


def new_user(name: str, role: str, **more: Any) -> dict[str, Any]:
    return {"username": name, "password1": PASSWORD, "password2": PASSWORD, "role": role, **more}


def change_of(user: User, **more: Any) -> dict[str, Any]:
    return {"username": user.username, "role": role_of(user), "is_active": "on", **more}


@pytest.fixture
def anna() -> User:
    return make_user("anna", "admin")


@pytest.fixture
def admin(anna: User) -> Client:
    """A browser where anna, whose role is admin, is logged in."""
    return browser_of(anna)


# What works -------------------------------------------------------------------------------------------------------


def test_a_user_who_is_made_in_the_browser_is_a_caller_and_can_log_in(admin: Client, client: Client) -> None:
    assert '<option value="caller" selected>' in html(admin.get(ADD))
    html(admin.post(ADD, new_user("carl", "caller"), follow=True))
    carl = User.objects.get(username="carl")
    assert carl.get_all_permissions() == roles.permissions_of_role("caller")
    login = client.post(reverse("admin:login"), {"username": "carl", "password": PASSWORD, "next": "/admin/"})
    assert login.headers["Location"] == "/admin/"
    assert 'id="roster"' in html(client.get("/admin/"))


def test_the_role_is_changed_and_taken_on_the_users_page(admin: Client) -> None:
    carl, writers = make_user("carl", "caller"), Group.objects.create(name="writers")
    carl.groups.add(writers)
    assert '<option value="caller" selected>' in html(admin.get(page_of(carl)))
    for role, groups in (("operator", {"operator", "writers"}), ("", {"writers"})):
        html(admin.post(page_of(carl), change_of(carl, role=role, groups=[writers.pk]), follow=True))
        assert {group.name for group in carl.groups.all()} == groups
    assert LogEntry.objects.latest("pk").get_change_message() == "Changed role."


def test_the_list_shows_roles_and_filters_by_them(page: Client) -> None:
    make_user("carl", "caller"), make_user("nora")
    text = html(page.get(LIST))
    for word in ("superuser", "caller", "-"):
        assert f'<td class="field-role">{word}</td>' in text
    assert "nora" not in html(page.get(LIST, {"role": "caller"}))
    assert "carl" not in html(page.get(LIST, {"role": "none"}))


def test_a_superuser_sets_raw_rights_under_advanced_and_the_role_stays(page: Client) -> None:
    carl, writers = make_user("carl", "caller"), Group.objects.create(name="writers")
    text = html(page.get(page_of(carl)))
    assert "Advanced" in text
    assert 'name="is_superuser"' in text
    permission = Permission.objects.get(codename="view_node")
    page.post(page_of(carl), change_of(carl, groups=[writers.pk], user_permissions=[permission.pk], is_staff="on"))
    carl.refresh_from_db()
    assert {group.name for group in carl.groups.all()} == {"writers", "caller"}
    assert list(carl.user_permissions.all()) == [permission]
    assert carl.is_staff


def test_a_superuser_cannot_give_a_role_as_a_raw_group(page: Client) -> None:
    carl = make_user("carl", "caller")
    text = html(page.post(page_of(carl), change_of(carl, groups=[Role.objects.get(name="admin").group.pk])))
    assert "is not one of the available choices" in text
    assert role_of(carl) == "caller"


def test_an_admin_chooses_the_groups_of_a_user_and_the_audit_log_says_so(admin: Client, anna: User) -> None:
    carl = make_user("carl", "caller")
    first, second = (Group.objects.create(name=name) for name in ("first", "second"))
    html(admin.post(page_of(carl), change_of(carl, groups=[first.pk]), follow=True))
    html(admin.post(page_of(carl), change_of(carl, groups=[second.pk]), follow=True))
    assert {group.name for group in carl.groups.all()} == {"caller", "second"}
    assert LogEntry.objects.latest("pk").get_change_message() == "Changed Groups."
    entry = AuditEntry.objects.latest("pk")
    assert (entry.kind, entry.target, entry.actor) == ("user_changed", "user carl", "anna")
    assert (entry.before, entry.after) == ({"groups": ["first"]}, {"groups": ["second"]})


@pytest.mark.parametrize("kind", ["permission", "member", "tool set", "role"])
def test_an_admin_gives_no_group_with_more_rights_to_anybody(
    admin: Client, anna: User, example: GuildMember, kind: str
) -> None:
    carl, open_group = make_user("carl", "viewer"), Group.objects.create(name="open")
    group = Role.objects.get(name="operator").group if kind == "role" else Group.objects.create(name="beyond")
    if kind == "permission":
        group.permissions.set(Permission.objects.filter(codename="delete_user"))
    if kind == "member":
        reserve_member(example, [group])
    if kind == "tool set":
        create_tool_set(Values("sealed", groups=[group]), OPERATOR, None)
    assert not re.search(rf'name="groups" value="{group.pk}"', html(admin.get(page_of(carl))))
    for user in (anna, carl):
        text = html(admin.post(page_of(user), change_of(user, groups=[open_group.pk, group.pk])))
        assert "is not one of the available choices" in text
        assert not user.groups.filter(pk__in=[group.pk, open_group.pk]).exists()


# What an attacker tries -------------------------------------------------------------------------------------------


def test_forged_fields_give_no_rights_to_a_new_user(admin: Client) -> None:
    permission = Permission.objects.get(codename="delete_user")
    group = Group.objects.create(name="writers")
    admin.post(ADD, new_user("carl", "viewer", **FORGED, groups=[group.pk], user_permissions=[permission.pk]))
    carl = User.objects.get(username="carl")
    assert carl.get_all_permissions() == roles.permissions_of_role("viewer")
    assert (carl.is_superuser, carl.is_staff, role_of(carl)) == (False, False, "viewer")
    assert [each.name for each in carl.groups.all()] == ["viewer"]


def test_forged_fields_give_no_rights_to_oneself_or_others(admin: Client, anna: User) -> None:
    carl = make_user("carl", "viewer")
    permission = Permission.objects.get(codename="delete_user")
    group = Group.objects.create(name="viewers of nodes")
    group.permissions.set([permission])
    for user in (anna, carl):
        before = user.get_all_permissions()
        assert "Advanced" not in html(admin.get(page_of(user)))
        forged = change_of(user, **FORGED, groups=[group.pk], user_permissions=[permission.pk])
        assert "is not one of the available choices" in html(admin.post(page_of(user), forged))
        del forged["groups"]
        assert admin.post(page_of(user), forged).status_code == 302
        fresh = User.objects.get(pk=user.pk)
        assert fresh.get_all_permissions() == before
        assert (fresh.is_superuser, fresh.is_staff) == (False, False)
        assert not fresh.groups.filter(pk=group.pk).exists()


def test_an_editor_gives_no_role_with_permissions_that_they_lack() -> None:
    editor, carl = make_user("editor", "operator"), make_user("carl", "viewer")
    names = ["view_user", "add_user", "change_user"]
    editor.user_permissions.set(Permission.objects.filter(codename__in=names))
    browser = browser_of(editor)
    assert 'value="admin"' not in html(browser.get(page_of(carl)))
    for user in (carl, editor):
        data = change_of(user, role="admin")
        assert "Select a valid choice" in html(browser.post(page_of(user), data))
    assert "Select a valid choice" in html(browser.post(ADD, new_user("eve", "admin")))
    assert (role_of(carl), role_of(editor)) == ("viewer", "operator")
    assert not User.objects.filter(username="eve").exists()
    browser.post(page_of(carl), change_of(carl, role="operator"))
    assert role_of(carl) == "operator"


@pytest.mark.parametrize("is_active", [True, False])
@pytest.mark.parametrize("kind", ["superuser", "more permissions", "hidden member"])
def test_a_user_with_more_rights_than_the_editor_is_out_of_reach(
    anna: User, example: GuildMember, kind: str, is_active: bool
) -> None:
    target = make_user("target", "viewer", is_superuser=kind == "superuser", is_active=is_active)
    if kind == "more permissions":
        target.user_permissions.add(Permission.objects.get(codename="delete_guildmember"))
    if kind == "hidden member":
        writers = Group.objects.create(name="writers")
        target.groups.add(writers)
        reserve_member(example, [writers])
    anna.user_permissions.add(Permission.objects.get(codename="delete_user"))
    browser = browser_of(anna)
    before = User.objects.values().get(pk=target.pk)
    password = {"password1": "another secret", "password2": "another secret", "usable_password": "true"}

    text = html(browser.get(page_of(target)))
    statuses = [
        browser.post(page_of(target), change_of(target, username="renamed", role="")).status_code,
        browser.post(page_of(target), {"username": "target", "role": "viewer"}).status_code,  # deactivates
        browser.post(f"{LIST}{target.pk}/password/", {**password, "set-password": "x"}).status_code,
        browser.post(f"{LIST}{target.pk}/password/", {"usable_password": "false", "unset-password": "x"}).status_code,
        browser.post(f"{LIST}{target.pk}/delete/", {"post": "yes"}).status_code,
        browser.post(LIST, {"action": "delete_selected", "_selected_action": [target.pk], "post": "yes"}).status_code,
    ]

    assert "the user has rights that you do not have" in text
    assert 'name="_save"' not in text
    assert target.password not in text
    assert statuses == [403] * 6
    assert User.objects.values().get(pk=target.pk) == before
    assert role_of(target) == "viewer"


def test_an_editor_sets_the_password_of_a_user_with_fewer_rights(admin: Client, client: Client) -> None:
    carl = make_user("carl", "operator")
    data = {"password1": "another secret", "password2": "another secret", "usable_password": "true"}
    assert admin.post(f"{LIST}{carl.pk}/password/", {**data, "set-password": "x"}).status_code == 302
    assert client.login(username="carl", password="another secret")


@pytest.mark.parametrize("role", ["viewer", "caller", "operator"])
def test_other_roles_see_no_users(role: str) -> None:
    browser, anna = browser_of(make_user("carl", role)), make_user("anna", "admin")
    assert browser.get(LIST).status_code == 403
    assert browser.get(page_of(anna)).status_code == 403
    assert browser.post(ADD, new_user("eve", "viewer")).status_code == 403
    assert LIST not in html(browser.get("/admin/"))


def test_the_list_of_users_cannot_be_filtered_by_passwords_or_tokens(admin: Client) -> None:
    for lookup in ("password__startswith", "token__digest__startswith", "user_permissions__codename"):
        assert admin.get(LIST, {lookup: "a"}).status_code == 400
