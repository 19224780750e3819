"""Screens of rows that the runtime writes. Users read them, and do not add, edit or delete them."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, cast

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.contrib.auth.models import User
from django.db.models import Model, Q, QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.text import capfirst

from mcp_runtime.security import principals
from mcp_runtime.security.access import Principal
from roster import audit

_PRINCIPAL = "_guild_hall_principal"


def principal_of(request: HttpRequest) -> Principal:
    """The principal of the request. It is looked up once per request."""
    if not hasattr(request, _PRINCIPAL):
        setattr(request, _PRINCIPAL, principals.principal_of_user(cast(User, request.user)))
    return cast(Principal, getattr(request, _PRINCIPAL))


class ReachableMembersFilter(admin.RelatedFieldListFilter):
    """A filter by member, without members that are reserved for groups of others."""

    def field_choices(self, field: Any, request: HttpRequest, model_admin: Any) -> Any:
        return field.get_choices(
            include_blank=False,
            ordering=self.field_admin_ordering(field, request, model_admin),
            limit_choices_to=~Q(name__in=principal_of(request).closed_members),
        )

    def has_output(self) -> bool:
        # Otherwise, with only one choice, Django removes the member from the URL and filters nothing.
        return self.lookup_val is not None or super().has_output()


class FolderFilter(admin.SimpleListFilter):
    """Hide members whose folder is gone, unless the user selects them."""

    title = "folder"
    parameter_name = "folder"
    removed_at = "removed_at"  # its lookup

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("gone", "gone"), ("any", "all")]

    def choices(self, changelist: Any) -> Any:
        in_place, *others = super().choices(changelist)
        yield {**in_place, "display": "in place"}
        yield from others

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        match self.value():
            case "gone":
                return queryset.exclude(**{self.removed_at: None})
            case "any":
                return queryset
            case _:
                return queryset.filter(**{self.removed_at: None})


class TitledChangeList(ChangeList):
    """A list with the plural name as its heading. Django's "Select tool to view" stays in popups."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not self.is_popup:
            self.title = capfirst(str(self.opts.verbose_name_plural))


class SafeFilterAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # Django's class cannot be subscripted at run time
    """Allow only the list's own filters in the URL.

    Django allows any column there. With `manifest__env__KEY__startswith` users could guess masked values.
    """

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest | None = None) -> bool:
        return any(lookup in _lookups_of(list_filter) for list_filter in self.list_filter)

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return TitledChangeList


class RecordedAdmin(SafeFilterAdmin):
    """Rows whose changes are in the audit log. What one form changes is one entry of each kind."""

    def changeform_view(
        self,
        request: HttpRequest,
        object_id: str | None = None,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> Any:
        with audit.merged() if request.method == "POST" else nullcontext():
            return super().changeform_view(request, object_id, form_url, extra_context)


def _lookups_of(list_filter: Any) -> set[str]:
    """The parameters of the filter in a URL."""
    if isinstance(list_filter, type):
        return {list_filter.parameter_name}  # type: ignore[attr-defined]  # of SimpleListFilter
    field = list_filter if isinstance(list_filter, str) else list_filter[0]
    return {f"{field}__{kind}" for kind in ("exact", "isnull", "gte", "lt", "id__exact")}


class RuntimeRowList(TitledChangeList):
    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        if not self.query and not self.has_active_filters:
            self.full_result_count = self.result_count  # otherwise Django offers "show all" on a list that shows all


class RuntimeRowAdmin(SafeFilterAdmin):
    """Read-only for everybody. Operators have actions, which go through `mcp_runtime.control`."""

    show_full_result_count = False
    list_per_page = 50
    member_name = "member__name"  # the lookup of the name of the row's member

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Rows without members that are reserved for groups of others, and without rows about them."""
        rows: QuerySet[Any] = super().get_queryset(request)
        closed_names = principal_of(request).closed_members
        return rows.exclude(**{f"{self.member_name}__in": closed_names}) if closed_names else rows

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return RuntimeRowList

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_control_permission(self, request: HttpRequest) -> bool:
        """For actions with `permissions=["control"]`."""
        return principal_of(request).controls

    def has_invoke_permission(self, request: HttpRequest) -> bool:
        """For actions with `permissions=["invoke"]`."""
        return principal_of(request).invokes

    def existing(self, request: HttpRequest, object_id: str) -> Any:
        """The row of the page with the button."""
        row = self.get_object(request, object_id)
        if row is None:
            raise Http404(f"no {self.opts.verbose_name} {object_id}")
        return row

    def page_of(self, row: Model) -> HttpResponse:
        return redirect(f"admin:{self.opts.app_label}_{self.opts.model_name}_change", row.pk)
