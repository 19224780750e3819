"""Screens of rows that the runtime writes. Users read them, and do not add, edit or delete them."""

from __future__ import annotations

from typing import Any, cast

from django.contrib import admin
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.utils import quote
from django.contrib.admin.views.main import ChangeList
from django.contrib.auth.models import User
from django.db.models import Model, QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.text import capfirst

from mcp_runtime.security import principals
from mcp_runtime.security.access import Principal
from roster import audit
from roster.admin.present import one_line
from roster.models import GuildMember, Hall

_PRINCIPAL = "_guild_hall_principal"


def principal_of(request: HttpRequest) -> Principal:
    """The principal of the request. It is looked up once per request."""
    if not hasattr(request, _PRINCIPAL):
        setattr(request, _PRINCIPAL, _read_principal(request))
    return cast(Principal, getattr(request, _PRINCIPAL))


def _read_principal(request: HttpRequest) -> Principal:
    user = cast(User, request.user)
    version = getattr(getattr(request, "session", None), "access_version", None)
    if version is None:  # the session is new, or there is none
        return principals.principal_of_user(user)
    principal, permissions = principals.holder_of_session(user, version)
    if permissions is not None:
        # Where ModelBackend keeps what it read for `has_perm`, which would take two queries in each request.
        setattr(user, "_perm_cache", set(permissions))  # noqa: B010 - of Django, and of no public class
    return principal


class ReachableMembersFilter(admin.RelatedFieldListFilter):
    """A filter by member, without members that are reserved for groups of others. There may be hundreds."""

    def field_choices(self, field: Any, request: HttpRequest, model_admin: Any) -> Any:
        """Unlike Django's, reads no other column than the names."""
        rows = GuildMember.objects.exclude(name__in=principal_of(request).closed_members)
        return list(rows.order_by(*self.field_admin_ordering(field, request, model_admin)).values_list("pk", "name"))

    def choices(self, changelist: Any) -> Any:
        """The same as in Django, which makes the address of each choice from nothing. The field is never empty."""
        if changelist.add_facets:
            yield from super().choices(changelist)
            return
        others = changelist.get_query_string(remove=self.expected_parameters())
        yield {"selected": self.lookup_val is None, "query_string": others, "display": "All"}
        start = f"{others}{'&' if len(others) > 1 else ''}{self.lookup_kwarg}="
        chosen = set(self.lookup_val or ())
        for pk, name in self.lookup_choices:
            yield {"selected": str(pk) in chosen, "query_string": f"{start}{pk}", "display": name}

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
    """A list with its name as the heading, instead of Django's "Select tool to view"."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.title = cast("TitledAdmin", self.model_admin).list_name
        self._address = reverse(f"admin:{self.opts.app_label}_{self.opts.model_name}_changelist")

    def url_for_result(self, result: Model) -> str:
        """The same as in Django, which resolves the address of each row anew."""
        return f"{self._address}{quote(getattr(result, self.pk_attname))}/change/"


class TitledAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # Django's class cannot be subscripted at run time
    """Pages whose titles name what they show, instead of Django's "Change token" and "View node"."""

    list_title = ""  # what the list is called, if that is not the plural name
    has_history = True  # whether people change rows in the admin, so that pages offer a history

    @property
    def list_name(self) -> str:
        return self.list_title or capfirst(str(self.opts.verbose_name_plural))

    def title_of(self, row: Any) -> str:
        """The heading of the row's page."""
        kind, name = str(self.opts.verbose_name), one_line(str(row))
        return capfirst(name if name.startswith(kind) else f"{kind} {name}")

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return TitledChangeList

    def render_change_form(
        self,
        request: HttpRequest,
        context: Any,
        add: bool = False,
        change: bool = False,
        form_url: str = "",
        obj: Any = None,
    ) -> Any:
        stock_titles = [f"{verb} {self.opts.verbose_name}" for verb in ("Change", "View")]
        context |= {"list_name": self.list_name, "has_history": self.has_history}
        if obj is not None:
            title = self.title_of(obj) if context["title"] in stock_titles else context["title"]
            context |= {"title": title, "subtitle": None}
        return super().render_change_form(request, context, add, change, form_url, obj)

    def render_delete_form(self, request: HttpRequest, context: dict[str, Any]) -> Any:
        verb = "Cannot delete" if context["protected"] or context["perms_lacking"] else "Delete"
        title = f"{verb} {one_line(str(context['object']))}"
        return super().render_delete_form(request, {**context, "list_name": self.list_name, "title": title})

    def history_view(self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None) -> Any:
        page = super().history_view(request, object_id, {**(extra_context or {}), "list_name": self.list_name})
        context = getattr(page, "context_data", None)
        if context is not None:  # otherwise the row does not exist
            context["title"] = f"History of {one_line(str(context['object']))}"
        return page


def with_article(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeio' else 'a'} {noun}"  # "user" sounds like "you"


class SafeFilterAdmin(TitledAdmin):
    """Allow only the list's own filters in the URL.

    Django allows any column there. With `manifest__env__KEY__startswith` users could guess masked values.
    """

    nothing_yet = "There is nothing yet."  # what an empty list says

    def next_step(self, request: HttpRequest) -> SafeString | str:
        """What to do about an empty list: a link or a command. Empty if the user has no right to do it."""
        if not self.has_add_permission(request):
            return ""
        address = reverse(f"admin:{self.opts.app_label}_{self.opts.model_name}_add")
        return format_html('<a href="{}">Add {}</a>', address, with_article(str(self.opts.verbose_name)))

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        return super().changelist_view(request, {"next_step": self.next_step(request), **(extra_context or {})})

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest | None = None) -> bool:
        return any(lookup in _lookups_of(list_filter) for list_filter in self.list_filter)

    def action_checkbox(self, obj: Model) -> SafeString:
        """As Django's, without a template. It took half of the time of a long list."""
        box = '<input type="checkbox" name="{}" value="{}" class="action-select" aria-label="{}">'
        return format_html(box, ACTION_CHECKBOX_NAME, obj.pk, f"Select this object for an action - {obj}")


class RecordedAdmin(SafeFilterAdmin):
    """Users and groups. Their changes are in the audit log. What one form changes is one entry of each kind."""

    def changeform_view(
        self,
        request: HttpRequest,
        object_id: str | None = None,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> Any:
        if request.method != "POST":
            return super().changeform_view(request, object_id, form_url, extra_context)
        with audit.merged():
            # The rights of groups, which the form compares with those of the editor, must not grow meanwhile.
            list(Hall.objects.select_for_update())
            return super().changeform_view(request, object_id, form_url, extra_context)


def _lookups_of(list_filter: Any) -> set[str]:
    """The parameters of the filter in a URL."""
    if isinstance(list_filter, type):
        return {list_filter.parameter_name}  # type: ignore[attr-defined]  # of SimpleListFilter
    field = list_filter if isinstance(list_filter, str) else list_filter[0]
    return {f"{field}__{kind}" for kind in ("exact", "isnull", "gte", "lt", "id__exact")}


def titled(title: str, filter_class: type[admin.FieldListFilter]) -> type[admin.FieldListFilter]:
    """The filter with a title for people. Django's title is the name of the column, as in "By created at"."""

    def with_title(self: Any, *args: Any, **kwargs: Any) -> None:
        filter_class.__init__(self, *args, **kwargs)
        self.title = title

    return type(filter_class.__name__, (filter_class,), {"__init__": with_title})


class RuntimeRowList(TitledChangeList):
    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        if not self.query and not self.has_active_filters:
            self.full_result_count = self.result_count  # otherwise Django offers "show all" on a list that shows all


class RuntimeRowAdmin(SafeFilterAdmin):
    """Read-only for everybody. Operators have actions, which go through `mcp_runtime.control`."""

    has_history = False
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
