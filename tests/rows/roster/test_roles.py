"""The groups of roles match the table, and roles of users give no more than the editor has."""

from __future__ import annotations

from typing import Any

import pytest
from django.apps import apps
from django.contrib.auth.models import Group, Permission, User
from django.core.management import call_command
from django.db import connection
from django.db.models import ProtectedError
from django.test.utils import CaptureQueriesContext

from mcp_runtime.control.members import reserve_member
from mcp_runtime.control.tool_sets import Values, create_tool_set
from mcp_runtime.protocol.errors import RequestRefusedError
from mcp_runtime.security import principals
from mcp_runtime.security.access import OPERATOR
from roster import roles
from roster.models import GuildMember, Hall, Role
from tests.support.admin import make_member

pytestmark = pytest.mark.django_db


def update_groups() -> None:
    roles.update_groups(sender=apps.get_app_config("roster"), using="default")


def user_with(role: str, name: str = "") -> User:
    user = User.objects.create_user(name or f"a-{role}")
    roles.set_role(user, Role.objects.get(name=role))
    return User.objects.get(pk=user.pk)  # without cached permissions


def test_a_migrated_database_has_each_role_with_the_permissions_of_the_table() -> None:
    assert {role.name: role.group.name for role in Role.objects.all()} == {name: name for name in roles.NAMES}
    for name in roles.NAMES:
        assert user_with(name).get_all_permissions() == roles.permissions_of_role(name)


def test_a_second_migration_writes_nothing() -> None:
    with CaptureQueriesContext(connection) as queries:
        update_groups()
    words = {query["sql"].split()[0] for query in queries.captured_queries}
    assert words.isdisjoint({"INSERT", "UPDATE", "DELETE"})


def test_a_migration_repairs_the_permissions_of_a_role_and_tells_the_caches() -> None:
    hall = Hall.objects.get_or_create(pk=1)[0]
    caller = Role.objects.get(name="caller").group
    bob = user_with("caller")
    assert principals.principal_of_user(bob).invokes
    Group.permissions.through.objects.filter(group=caller).delete()
    version = Hall.objects.get(pk=hall.pk).access_version

    call_command("migrate", verbosity=0, interactive=False)

    assert User.objects.get(pk=bob.pk).get_all_permissions() == roles.permissions_of_role("caller")
    assert Hall.objects.get(pk=hall.pk).access_version > version


def test_a_group_that_has_the_name_of_a_role_already_does_not_become_the_role() -> None:
    """Its users would get the rights of the role."""
    Role.objects.all().delete()
    Group.objects.all().delete()
    mallory, group = User.objects.create_user("mallory"), Group.objects.create(name="admin")
    Group.objects.create(name="viewer")
    Group.objects.create(name="viewer (role)")
    mallory.groups.add(group)

    update_groups()

    assert mallory.get_all_permissions() == set()
    names = {role.name: role.group.name for role in Role.objects.all()}
    assert names == {"viewer": "viewer (role 2)", "caller": "caller", "operator": "operator", "admin": "admin (role)"}


def test_missing_permissions_are_created_first() -> None:
    """In a new database, Django creates those of users after the roles."""
    Permission.objects.all().delete()
    update_groups()
    assert user_with("admin").get_all_permissions() == roles.permissions_of_role("admin")


def test_a_database_from_before_the_roles_is_left_alone() -> None:
    class OldApps:
        all_models: dict[str, Any] = {"roster": {}}

    roles.update_groups(sender=apps.get_app_config("roster"), using="default", apps=OldApps())


def test_no_member_can_be_reserved_for_a_role() -> None:
    member, writers = make_member("example"), Group.objects.create(name="writers")
    reserve_member(member, [writers])
    with pytest.raises(RequestRefusedError, match="'viewer', 'admin' is a role"):
        reserve_member(member, Group.objects.filter(name__in=["viewer", "admin", "writers"]))
    assert list(member.groups.all()) == [writers]


def test_the_group_of_a_role_cannot_be_deleted() -> None:
    with pytest.raises(ProtectedError):
        Role.objects.get(name="viewer").group.delete()


def test_of_several_roles_the_one_with_most_permissions_counts() -> None:
    bob = user_with("operator")
    bob.groups.add(Role.objects.get(name="viewer").group)
    assert str(roles.role_of(bob)) == "operator"
    roles.set_role(bob, Role.objects.get(name="caller"))
    assert [group.name for group in bob.groups.all()] == ["caller"]


@pytest.mark.parametrize("name", roles.NAMES)
def test_an_editor_may_give_the_roles_up_to_their_own(name: str) -> None:
    expected = list(roles.NAMES[: roles.NAMES.index(name) + 1])
    assert [role.name for role in roles.roles_to_give(user_with(name))] == expected


def test_an_editor_may_change_a_user_only_if_they_have_all_rights_of_the_user() -> None:
    admin, other_admin = user_with("admin"), user_with("admin", "other")
    special, root = user_with("viewer", "special"), User.objects.create_superuser("root")
    special.user_permissions.add(Permission.objects.get(codename="delete_guildmember"))
    assert roles.may_edit_user(admin, other_admin)
    assert roles.may_edit_user(root, special)
    for user in (special, root):
        for is_active in (True, False):
            User.objects.filter(pk=user.pk).update(is_active=is_active)
            assert not roles.may_edit_user(admin, User.objects.get(pk=user.pk))


def test_an_editor_may_not_change_a_user_who_may_use_a_member_that_is_hidden_from_the_editor() -> None:
    admin, olga, writers = user_with("admin"), user_with("viewer"), Group.objects.create(name="writers")
    olga.groups.add(writers)
    assert roles.may_edit_user(admin, olga)
    hidden: GuildMember = make_member("hidden")
    reserve_member(hidden, [writers])
    assert not roles.may_edit_user(admin, olga)
    admin.groups.add(writers)
    assert roles.may_edit_user(admin, olga)


def test_an_editor_may_change_only_groups_and_users_whose_tool_sets_exist_for_the_editor() -> None:
    admin, olga, circle = user_with("admin"), user_with("viewer"), Group.objects.create(name="circle")
    olga.groups.add(circle)
    create_tool_set(Values("sealed", groups=[circle]), OPERATOR, None)
    assert not roles.may_edit_group(admin, circle)
    assert not roles.may_edit_user(admin, olga)
    admin.groups.add(circle)
    assert roles.may_edit_group(admin, circle)
    assert roles.may_edit_user(admin, olga)
