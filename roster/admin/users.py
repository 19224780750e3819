"""Users in the admin. An editor chooses the role of a user, and their groups. Only superusers choose raw permissions.

`roster.roles` decides which users an editor may change, and which roles and groups an editor may give.
"""

from __future__ import annotations

from typing import Any, ClassVar, cast

from django import forms
from django.contrib import admin
from django.contrib.auth.admin import UserAdmin
from django.contrib.auth.forms import UserChangeForm, UserCreationForm
from django.contrib.auth.models import Group, User
from django.db import transaction
from django.db.models import ManyToManyField, Model, Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.html import format_html

from roster import roles
from roster.admin import present
from roster.admin.rows import RecordedAdmin
from roster.models import Identity, Role

ROLE_HELP = (
    "A viewer sees members and tools. A caller also calls tools and creates tokens. An operator also starts and stops "
    "members and sees all calls. An admin also adds, edits, reserves and removes members, sets secrets, and manages "
    "users and groups."
)
GROUPS_HELP = (
    "You can choose groups that give no more rights than you have. Members and tool sets are reserved for groups."
)
ADVANCED_HELP = "Most users need only a role. These rights add to it. Only superusers can change them."
SIGN_ON_HELP = "Each login gives and takes what GUILD_HALL_OIDC_GROUPS says. All other groups stay as they are here."
OUT_OF_REACH = "You cannot change this user, because the user has rights that you do not have."

admin.site.unregister(User)


class RoleForm(forms.ModelForm):  # type: ignore[type-arg]  # Django's class cannot be subscripted at run time
    """A form with the roles that the editor may give. A subclass for each request has the editor."""

    editor: ClassVar[User]

    role = forms.ModelChoiceField(
        Role.objects.none(), required=False, to_field_name="name", empty_label="no role", help_text=ROLE_HELP
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        field: Any = self.fields["role"]
        offered = roles.roles_to_give(self.editor)
        field.queryset = Role.objects.filter(pk__in=[role.pk for role in offered])
        if self.instance.pk:
            field.initial = roles.role_of(self.instance)
        else:
            field.initial = next((role for role in offered if role.name == roles.DEFAULT), None)


class NewUserForm(RoleForm, UserCreationForm):  # type: ignore[type-arg]  # as above
    pass


class UserForm(RoleForm, UserChangeForm):  # type: ignore[type-arg]  # as above
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if "groups" in self.fields:
            self.initial["groups"] = list(self.instance.groups.filter(pk__in=self._groups_to_give))

    @property
    def _groups_to_give(self) -> QuerySet[Group]:
        field: Any = self.fields["groups"]
        return cast("QuerySet[Group]", field.queryset)

    def clean_groups(self) -> QuerySet[Group]:
        """Add the groups that the form does not have, which are those of roles. Otherwise they would be removed."""
        others = self.instance.groups.exclude(pk__in=self._groups_to_give)
        return Group.objects.filter(Q(pk__in=self.cleaned_data["groups"]) | Q(pk__in=others))


class RoleFilter(admin.SimpleListFilter):
    title = "role"
    parameter_name = "role"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [*((name, name) for name in roles.NAMES), ("none", "no role")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[User]) -> QuerySet[User]:
        match self.value():
            case None:
                return queryset
            case "none":
                return queryset.exclude(groups__in=Group.objects.exclude(role=None))
            case name:
                return queryset.filter(groups__role__name=name)


@admin.register(User)
class HallUserAdmin(RecordedAdmin, UserAdmin):  # type: ignore[type-arg]  # as above
    add_form_template = None  # Django's template is for a field that this form does not have
    add_form = NewUserForm
    form = UserForm
    list_display = ["username", "role", "first_name", "last_name", "email", "is_active"]
    list_filter = [RoleFilter, "is_active", "is_superuser"]
    readonly_fields = ["logged_in", "joined", "sign_on"]
    logged_in = present.moment_column("last_login", "last login")
    joined = present.moment_column("date_joined", "date joined")
    add_fieldsets = ((None, {"classes": ["wide"], "fields": ["username", "password1", "password2", "role"]}),)
    fieldsets = (
        (None, {"fields": ["username", "password", "role", "is_active"]}),
        ("Groups", {"fields": ["groups"]}),
        ("Personal info", {"fields": ["first_name", "last_name", "email"]}),
        ("Important dates", {"fields": ["logged_in", "joined"]}),
    )
    advanced = (
        "Advanced",
        {
            "classes": ["collapse"],
            "description": ADVANCED_HELP,
            "fields": ["is_superuser", "is_staff", "user_permissions"],
        },
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[User]:
        users: QuerySet[User] = super().get_queryset(request)
        return users.prefetch_related("groups__role")

    def delete_model(self, request: HttpRequest, obj: User) -> None:
        self.delete_queryset(request, User.objects.filter(pk=obj.pk))

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[User]) -> None:
        """Delete them when no client of theirs gets tokens, because Django deletes only the rows that it has seen."""
        with transaction.atomic():
            list(User.objects.select_for_update().filter(pk__in=queryset.values_list("pk", flat=True)).order_by("pk"))
            super().delete_queryset(request, queryset)

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        fieldsets = super().get_fieldsets(request, obj)
        if obj is None:
            return fieldsets
        if hasattr(obj, "identity"):
            fieldsets = (*fieldsets, ("Single sign-on", {"fields": ["sign_on"], "description": SIGN_ON_HELP}))
        if not self.has_change_permission(request, obj):  # without the button that sets a password
            note = {} if _may_edit(request, obj) else {"description": OUT_OF_REACH}
            return [(None, {"fields": ["username", "role", "is_active"], **note}), *fieldsets[2:]]
        return [*fieldsets, self.advanced] if request.user.is_superuser else fieldsets

    def user_change_password(self, request: HttpRequest, id: str, form_url: str = "") -> HttpResponse:
        with transaction.atomic():  # the password and its entry in the audit log
            return super().user_change_password(request, id, form_url)

    def get_form(self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any) -> Any:
        form = super().get_form(request, obj, change=change, **kwargs)
        return type(form.__name__, (form,), {"editor": request.user})

    def formfield_for_manytomany(self, db_field: ManyToManyField[Any, Any], request: HttpRequest, **kwargs: Any) -> Any:
        if db_field.name == "user_permissions":
            kwargs["queryset"] = roles.permissions_with_a_meaning()
        if db_field.name == "groups":  # the field `role` has those of roles
            kwargs["queryset"] = roles.editable_groups(cast(User, request.user)).order_by("name")
            kwargs |= {"widget": forms.CheckboxSelectMultiple, "help_text": GROUPS_HELP}
        return super().formfield_for_manytomany(db_field, request, **kwargs)

    def save_related(self, request: HttpRequest, form: Any, formsets: Any, change: bool) -> None:
        super().save_related(request, form, formsets, change)
        roles.set_role(form.instance, form.cleaned_data["role"])

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return super().has_change_permission(request, obj) and _may_edit(request, obj)

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return super().has_delete_permission(request, obj) and _may_edit(request, obj)

    @admin.display(description="person at the provider")
    def sign_on(self, user: User) -> str:
        identity: Identity = user.identity
        return format_html("{}. Last login there: {}", identity, present.when(identity.last_login_at))

    @admin.display(description="role")
    def role(self, user: User) -> str:
        return "superuser" if user.is_superuser else str(roles.role_of(user) or present.NOTHING)


def _may_edit(request: HttpRequest, user: Any) -> bool:
    """True without a user, for the list."""
    return user is None or roles.may_edit_user(cast(User, request.user), user)
