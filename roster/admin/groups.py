"""Groups in the admin, with their users. The groups of roles are read-only, because `roster.roles` decides them."""

from __future__ import annotations

from typing import Any, ClassVar, cast

from django import forms
from django.contrib import admin
from django.contrib.admin.widgets import FilteredSelectMultiple
from django.contrib.auth.admin import GroupAdmin
from django.contrib.auth.models import Group, User
from django.db.models import ManyToManyField, Model, QuerySet
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString

from roster import roles
from roster.admin import present
from roster.admin.rows import RecordedAdmin

ROLE_NOTE = (
    "This group is a role. The hall decides its name and its permissions, so nobody can change or delete it, and no "
    "member can be reserved for it. You give a user this role on the page of the user."
)

FILL = "auth.change_user"  # beside the permission to change the group
USERS_HELP = "Users who have more rights than you are not in these lists. They stay in the group or out of it."

admin.site.unregister(Group)


class UsersChoice(FilteredSelectMultiple):
    """Two lists of users. Django's script puts them into the parent of the select, which must not have the label."""

    def render(self, *args: Any, **kwargs: Any) -> SafeString:
        return format_html('<div class="related-widget-wrapper">{}</div>', super().render(*args, **kwargs))


class GroupForm(forms.ModelForm):  # type: ignore[type-arg]  # Django's class cannot be subscripted at run time
    """A form with the users whom the editor may change. A subclass for each request has the editor."""

    editor: ClassVar[User]

    users = forms.ModelMultipleChoiceField(
        User.objects.none(), required=False, widget=UsersChoice("users", False), help_text=USERS_HELP
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not self.editor.has_perm(FILL):  # Django leaves it in the form, although no fieldset has it
            del self.fields["users"]
        else:
            users = roles.editable_users(self.editor).order_by("username")
            cast(Any, self.fields["users"]).queryset = users
            if self.instance.pk is not None:
                self.initial["users"] = list(users.filter(groups=self.instance))


@admin.register(Group)
class HallGroupAdmin(RecordedAdmin, GroupAdmin):
    """Only superusers choose the permissions of a group. Groups of other editors are for reserving members."""

    nothing_yet = "There are no groups yet. Members and tool sets can be reserved for the people of a group."
    form = GroupForm
    list_display = ["name", "role"]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Group]:
        groups: QuerySet[Group] = super().get_queryset(request)
        return groups.select_related("role")

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        note = {"description": ROLE_NOTE} if _is_role(obj) else {}
        fields = ["name"]
        if self._may_fill(request, obj):
            fields.append("users")
        fieldsets: list[Any] = [(None, {"fields": fields, **note})]
        if obj is not None or request.user.is_superuser:  # some sixty rights, and a role has those that people need
            fieldsets.append(("Advanced", {"classes": ["collapse"], "fields": ["permissions"]}))
        return fieldsets

    def formfield_for_manytomany(
        self, db_field: ManyToManyField[Any, Any], request: HttpRequest | None = None, **kwargs: Any
    ) -> Any:
        if db_field.name == "permissions":
            kwargs["queryset"] = roles.permissions_with_a_meaning()
        return super().formfield_for_manytomany(db_field, request, **kwargs)

    def get_form(self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any) -> Any:
        form = super().get_form(request, obj, change=change, **kwargs)
        return type(form.__name__, (form,), {"editor": request.user})

    def save_related(self, request: HttpRequest, form: Any, formsets: Any, change: bool) -> None:
        super().save_related(request, form, formsets, change)
        if "users" in form.cleaned_data:
            roles.fill_group(form.instance, form.cleaned_data["users"], cast(User, request.user))

    def get_readonly_fields(self, request: HttpRequest, obj: Model | None = None) -> Any:
        return [] if request.user.is_superuser or obj is None else ["permissions"]

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return super().has_change_permission(request, obj) and _may_edit(request, obj)

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return super().has_delete_permission(request, obj) and _may_edit(request, obj)

    def _may_fill(self, request: HttpRequest, group: Model | None) -> bool:
        may_edit = self.has_add_permission(request) if group is None else self.has_change_permission(request, group)
        return may_edit and request.user.has_perm(FILL)

    @admin.display(description="role")
    def role(self, group: Group) -> str:
        return str(getattr(group, "role", present.NOTHING))


def _is_role(group: Model | None) -> bool:
    return getattr(group, "role", None) is not None


def _may_edit(request: HttpRequest, group: Any) -> bool:
    """True without a group, for the list."""
    return group is None or roles.may_edit_group(cast(User, request.user), group)
