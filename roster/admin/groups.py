"""Groups in the admin. The groups of roles are read-only, because the table in `roster.roles` decides them."""

from __future__ import annotations

from typing import Any, cast

from django.contrib import admin
from django.contrib.auth.admin import GroupAdmin
from django.contrib.auth.models import Group, User
from django.db.models import Model, QuerySet
from django.http import HttpRequest

from roster import roles
from roster.admin import present
from roster.admin.rows import RecordedAdmin

ROLE_NOTE = (
    "This group is a role. The hall decides its name and its permissions, so nobody can change or delete it, and no "
    "member can be reserved for it. You give a user this role on the page of the user."
)

admin.site.unregister(Group)


@admin.register(Group)
class HallGroupAdmin(RecordedAdmin, GroupAdmin):
    """Only superusers choose the permissions of a group. Groups of other editors are for reserving members."""

    list_display = ["name", "role"]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Group]:
        groups: QuerySet[Group] = super().get_queryset(request)
        return groups.select_related("role")

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        note = {"description": ROLE_NOTE} if _is_role(obj) else {}
        has_permissions = obj is not None or request.user.is_superuser
        return [(None, {"fields": ["name", "permissions"] if has_permissions else ["name"], **note})]

    def get_readonly_fields(self, request: HttpRequest, obj: Model | None = None) -> Any:
        return [] if request.user.is_superuser or obj is None else ["permissions"]

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return super().has_change_permission(request, obj) and _may_edit(request, obj)

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return super().has_delete_permission(request, obj) and _may_edit(request, obj)

    @admin.display(description="role")
    def role(self, group: Group) -> str:
        return str(getattr(group, "role", present.NOTHING))


def _is_role(group: Model | None) -> bool:
    return getattr(group, "role", None) is not None


def _may_edit(request: HttpRequest, group: Any) -> bool:
    """True without a group, for the list."""
    return group is None or (not _is_role(group) and roles.may_edit_group(cast(User, request.user), group))
