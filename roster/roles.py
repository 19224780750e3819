"""The roles of users. Each role is a group with fixed permissions. The table RIGHTS has all of them.

Every migration makes the groups match the table. docs/access.md contains the table. After a change, write it again with
`manage.py shell -v0 -c "from roster import roles; print(roles.as_markdown())"`.

This module also decides which users and roles an editor may change. Nobody gives a right that they do not have, and
nobody gets at such a right through another user's account.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from django.apps import apps as installed_apps
from django.contrib.auth.management import create_permissions
from django.contrib.auth.models import AnonymousUser, Group, Permission, User
from django.db import router, transaction
from django.db.models import F, Q, QuerySet
from django.db.models.signals import post_migrate
from django.dispatch import receiver

from roster import audit
from roster.models import GuildMember, Role, ToolSet

# Each role has all permissions of those before it.
NAMES = ("viewer", "caller", "operator", "admin")
DEFAULT = "caller"


@dataclass(frozen=True)
class Right:
    words: str  # what a user with the permission may do
    permission: str
    first_role: str  # this role and all later ones have the permission


RIGHTS = (
    Right("see members, their logs, their errors and the statistics of all calls", "roster.view_guildmember", "viewer"),
    Right("see tools and their schemas, prompts and resources", "roster.view_tool", "viewer"),
    Right("see the list of status changes", "roster.view_statuschange", "viewer"),
    Right("call tools, use prompts, resources and agents, see and cancel own calls", "roster.invoke_tool", "caller"),
    Right("create tokens", "roster.add_token", "caller"),
    Right("see own tokens in the admin", "roster.view_token", "caller"),
    Right("revoke and delete own tokens in the admin", "roster.delete_token", "caller"),
    Right(
        "start, stop and move members, enable and disable tools, prompts and resources, drain nodes",
        "roster.control_member",
        "operator",
    ),
    Right("approve changes that are held", "roster.approve_contract", "operator"),
    Right("see tool sets in the admin", "roster.view_toolset", "viewer"),
    Right("create tool sets", "roster.add_toolset", "operator"),
    Right("change tool sets", "roster.change_toolset", "operator"),
    Right("delete tool sets", "roster.delete_toolset", "operator"),
    Right("see the calls of all users, and with `roster.control_member` cancel them", "roster.view_call", "operator"),
    Right("see the agents of all users", "roster.view_agent", "operator"),
    Right("see nodes", "roster.view_node", "operator"),
    Right("see ports", "roster.view_portallocation", "operator"),
    Right("reserve members for groups", "roster.change_guildmember", "admin"),
    Right("propose members and edits of manifests, and approve what members run", "roster.approve_member", "admin"),
    Right("see the names of secrets, and which members may use them", "roster.view_secret", "admin"),
    Right("create secrets", "roster.add_secret", "admin"),
    Right("set secrets, and choose the members that may use them", "roster.change_secret", "admin"),
    Right("delete secrets", "roster.delete_secret", "admin"),
    Right("see users", "auth.view_user", "admin"),
    Right("create users", "auth.add_user", "admin"),
    Right("change users, and give them roles, groups and passwords", "auth.change_user", "admin"),
    Right("see groups", "auth.view_group", "admin"),
    Right("create groups", "auth.add_group", "admin"),
    Right("rename groups", "auth.change_group", "admin"),
    Right("delete groups", "auth.delete_group", "admin"),
    Right("see the audit log", "roster.view_auditentry", "admin"),
)


def permissions_of_role(name: str) -> frozenset[str]:
    """The permissions that the table gives to this role, such as `roster.invoke_tool`."""
    names = NAMES[: NAMES.index(name) + 1]
    return frozenset(right.permission for right in RIGHTS if right.first_role in names)


def permissions_with_a_meaning() -> QuerySet[Permission]:
    """Those that somebody can give. The OAuth library has its own, for screens that the hall does not have."""
    return Permission.objects.exclude(content_type__app_label="oauth2_provider")


def as_markdown() -> str:
    """The table for docs/access.md."""
    lines = [f"| A user may | Permission | {' | '.join(NAMES)} |", f"|---|---|{'---|' * len(NAMES)}"]
    for right in RIGHTS:
        cells = ["yes" if right.permission in permissions_of_role(name) else "no" for name in NAMES]
        lines.append(f"| {right.words} | `{right.permission}` | {' | '.join(cells)} |")
    return "\n".join(lines)


# The rows ---------------------------------------------------------------------------------------------------------


@receiver(post_migrate, dispatch_uid="roster.roles")
def update_groups(sender: Any, using: str, apps: Any = installed_apps, **_: Any) -> None:
    """Make the groups of the roles match the table. `apps` has the models as the migrations left them."""
    if sender.label != "roster" or "role" not in apps.all_models["roster"]:
        return
    role_model, group_model = apps.get_model("roster", "Role"), apps.get_model("auth", "Group")
    if not router.allow_migrate_model(using, role_model):
        return
    for label in ("roster", "auth"):  # Django creates them after each app, and `auth` comes after `roster`
        create_permissions(installed_apps.get_app_config(label), verbosity=0, using=using, apps=apps)
    permissions = apps.get_model("auth", "Permission").objects.using(using)
    rows = permissions.values_list("content_type__app_label", "codename", "pk")
    keys = {f"{app}.{codename}": pk for app, codename, pk in rows}
    with audit.unrecorded(), transaction.atomic(using=using):
        for name in NAMES:
            group = _group_of(name, role_model.objects.using(using), group_model.objects.using(using))
            expected = {keys[permission] for permission in permissions_of_role(name) if permission in keys}
            if set(group.permissions.values_list("pk", flat=True)) != expected:
                group.permissions.set(expected)
                # Models of migrations send no signals to roster.access_signals.
                hall = apps.get_model("roster", "Hall").objects.using(using)
                hall.filter(pk=1).update(access_version=F("access_version") + 1)


def _group_of(name: str, roles: Any, groups: Any) -> Any:
    """The group of the role, which is created with a free name if it is missing."""
    if role := roles.filter(name=name).select_related("group").first():
        return role.group
    names = itertools.chain([name, f"{name} (role)"], (f"{name} (role {number})" for number in itertools.count(2)))
    group = groups.create(name=next(free for free in names if not groups.filter(name=free).exists()))
    roles.create(name=name, group=group)
    return group


# The roles of users -----------------------------------------------------------------------------------------------


def role_of(user: User) -> Role | None:
    """The user's role. If they have several, the one with most permissions. Uses prefetched `groups__role`."""
    roles = [role for group in user.groups.all() if (role := getattr(group, "role", None))]
    return max(roles, key=lambda role: NAMES.index(role.name) if role.name in NAMES else -1, default=None)


def set_role(user: User, role: Role | None) -> None:
    """Give the user this role instead of those before. Other groups stay."""
    with audit.merged():
        old_groups = Group.objects.exclude(role=None).filter(user=user)
        user.groups.remove(*(old_groups if role is None else old_groups.exclude(role=role)))
        if role is not None:
            user.groups.add(role.group)


def has_any_right(user: User | AnonymousUser) -> bool:
    return bool(user.get_all_permissions())


# Who may change whom ----------------------------------------------------------------------------------------------


def roles_to_give(editor: User) -> list[Role]:
    """The roles that the editor may give: those without a permission that the editor does not have."""
    roles = Role.objects.select_related("group").prefetch_related("group__permissions__content_type")
    return [role for role in roles if _has_all(editor, _permissions_of_group(role.group))]


def editable_groups(editor: User) -> QuerySet[Group]:
    """The groups that the editor may change, fill and delete. None of them is a role.

    The editor has all permissions of such a group. All members and tool sets that are reserved for it exist for the
    editor.
    """
    groups = Group.objects.filter(role=None)
    return groups if editor.is_superuser else groups.exclude(pk__in=_groups_beyond(editor))


def editable_users(editor: User) -> QuerySet[User]:
    """The users whose rights the editor all has, and whose password and groups the editor so may set.

    The rights of an inactive user are those that they would have if they were active, because the editor could
    activate them.
    """
    if editor.is_superuser:
        return User.objects.all()
    users = User.objects.exclude(is_superuser=True).exclude(user_permissions__in=_missing_permissions(editor))
    return users.exclude(groups__in=_groups_beyond(editor))


def may_edit_group(editor: User, group: Group) -> bool:
    return editable_groups(editor).filter(pk=group.pk).exists()


def may_edit_user(editor: User, user: User) -> bool:
    return editable_users(editor).filter(pk=user.pk).exists()


def fill_group(group: Group, chosen: Iterable[User], editor: User) -> None:
    """Make the chosen users those of the group. Users whom the editor may not change stay in it or out of it."""
    editable = set(editable_users(editor))
    before, after = editable & set(group.user_set.all()), editable & set(chosen)
    group.user_set.remove(*(before - after))
    group.user_set.add(*(after - before))


def _groups_beyond(editor: User) -> QuerySet[Group]:
    """The groups, roles among them, that give more than the editor has."""
    hidden_members = GuildMember.objects.exclude(groups=None).exclude(groups__user=editor)
    hidden_sets = ToolSet.objects.exclude(groups=None).exclude(groups__user=editor)
    beyond = (
        Q(permissions__in=_missing_permissions(editor))
        | Q(guild_members__in=hidden_members)
        | Q(tool_sets__in=hidden_sets)
    )
    return Group.objects.filter(beyond).order_by()


def _missing_permissions(editor: User) -> list[int]:
    """The keys of the permissions that the editor does not have."""
    rows = Permission.objects.values_list("pk", "content_type__app_label", "codename")
    has = editor.get_all_permissions()
    return [pk for pk, app, codename in rows if f"{app}.{codename}" not in has]


def _permissions_of_group(group: Group) -> list[str]:
    return [f"{row.content_type.app_label}.{row.codename}" for row in group.permissions.all()]


def _has_all(editor: User, permissions: Iterable[str]) -> bool:
    return set(permissions) <= editor.get_all_permissions()
