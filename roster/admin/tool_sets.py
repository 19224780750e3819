"""Tool sets in the admin: choose members and tools, give them other names, and see what an agent sees."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, cast

from django import forms
from django.contrib import admin, messages
from django.contrib.auth.models import Group, User
from django.core.exceptions import PermissionDenied, ValidationError
from django.db.models import Count, QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import URLPattern, path

from mcp_runtime.control import tool_sets
from mcp_runtime.control.tool_sets import Entry, Values
from mcp_runtime.protocol.errors import RequestRefusedError
from mcp_runtime.security.access import Principal
from roster import addresses, agent_view
from roster.admin import agent_view as agent_view_page
from roster.admin import choosing, present
from roster.admin.choosing import Choice, Offer
from roster.admin.rows import SafeFilterAdmin, principal_of
from roster.models import ToolSet, ToolSetEntry

FIELDS = ["name", "title", "description"]
MAX_CHOICES = choosing.MAX_FOUND // 2  # of members, and of tools
CONTENT_HELP = "A member, or MEMBER/TOOL for one of its tools."


def _find_entries(request: HttpRequest, words: Sequence[str]) -> list[Choice]:
    """Members and tools. A word may be MEMBER/TOOL, as in the field."""
    parts = [part for word in words for part in word.split("/") if part]
    return [Choice(text, text) for text in tool_sets.choices(principal_of(request), parts, limit=MAX_CHOICES)]


def _may_edit(request: HttpRequest) -> bool:
    return request.user.has_perm("roster.add_toolset") or request.user.has_perm("roster.change_toolset")


ENTRIES = choosing.register(Offer("tool-set-entries", "members and tools", _may_edit, _find_entries))


class ToolSetForm(forms.ModelForm):  # type: ignore[type-arg]  # as for ModelAdmin
    reserved_for = forms.ModelMultipleChoiceField(
        Group.objects.filter(role=None),
        required=False,
        widget=forms.CheckboxSelectMultiple,
        help_text="If you choose groups, only their users and superusers can use the tool set.",
    )

    class Meta:
        model = ToolSet
        fields = FIELDS
        widgets = {"description": forms.Textarea(attrs={"rows": 3})}

    principal: Principal  # set by ToolSetAdmin.get_form

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if "reserved_for" in self.fields:
            field: Any = self.fields["reserved_for"]
            if not field.queryset.exists():
                field.help_text = "There are no groups yet, so all users who may call tools can use the tool set."
            if self.instance.pk is not None:
                field.initial = self.instance.groups.all()

    def clean(self) -> dict[str, Any] | None:
        cleaned = super().clean()
        data = self.cleaned_data
        values = Values(self.instance.name, data.get("title", ""), data.get("description", ""))
        _explain(lambda: tool_sets.require_possible(values, self.principal, None))
        return cleaned


class EntryForm(forms.ModelForm):  # type: ignore[type-arg]  # as for ModelAdmin
    content = forms.CharField(
        max_length=320,
        strip=False,
        label="Member or tool",
        help_text=CONTENT_HELP,
        widget=forms.TextInput(attrs={"list": "tool-set-choices", "autocomplete": "off", "size": 30}),
    )

    class Meta:
        model = ToolSetEntry
        fields = ("new_name", "new_description")
        widgets = {"new_description": forms.Textarea(attrs={"rows": 2, "cols": 40})}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.instance.pk is not None:
            self.fields["content"].initial = str(self.instance)
        for field in self.fields.values():  # the labels are in the head of the table, where they belong to no field
            field.widget.attrs["aria-label"] = str(field.label)
        # The help is in a tooltip of the head, which a phone does not show.
        self.fields["content"].widget.attrs["placeholder"] = "member or member/tool"
        for name in ("new_name", "new_description"):
            self.fields[name].widget.attrs["placeholder"] = "unchanged"

    def entry(self) -> Entry:
        member, _, tool = self.cleaned_data["content"].partition("/")
        return Entry(member, tool, self.cleaned_data["new_name"], self.cleaned_data["new_description"])


class EntryFormSet(forms.BaseInlineFormSet):  # type: ignore[type-arg]  # as for ModelAdmin
    principal: Principal  # set by EntryInline.get_formset

    def add_fields(self, form: Any, index: int | None) -> None:
        super().add_fields(form, index)
        if "DELETE" in form.fields:
            form.fields["DELETE"].widget.attrs["aria-label"] = "Delete this entry"

    def entries(self) -> list[Entry]:
        filled = [form for form in self.forms if form.cleaned_data.get("content")]
        return [cast(EntryForm, form).entry() for form in filled if not form.cleaned_data.get("DELETE")]

    def clean(self) -> None:
        super().clean()
        if not any(self.errors):
            row = self.instance if self.instance.pk is not None else None
            values = Values("", entries=self.entries())
            _explain(lambda: tool_sets.require_possible(values, self.principal, row))


class EntryInline(admin.TabularInline):  # type: ignore[type-arg]  # as for ModelAdmin
    """The entries. The permissions of the tool set decide."""

    model = ToolSetEntry
    form = EntryForm
    formset = EntryFormSet
    fields = ("content", "new_name", "new_description")
    verbose_name, verbose_name_plural = "entry", "entries"
    extra = 3
    max_num = ToolSet.MAX_ENTRIES

    def get_queryset(self, request: HttpRequest) -> QuerySet[ToolSetEntry]:
        rows: QuerySet[ToolSetEntry] = super().get_queryset(request).select_related("member")
        return rows.filter(member__removed_at=None).exclude(member__name__in=principal_of(request).closed_members)

    def get_formset(self, request: HttpRequest, obj: Any = None, **kwargs: Any) -> Any:
        formset = super().get_formset(request, obj, **kwargs)
        return type("EntryFormSet", (formset,), {"principal": principal_of(request)})

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.has_perm(f"roster.{'change' if obj else 'add'}_toolset")

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.has_perm("roster.change_toolset")

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return self.has_change_permission(request)

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False  # the preview shows the tools to users who may only view


@admin.register(ToolSet)
class ToolSetAdmin(SafeFilterAdmin):
    nothing_yet = (
        "There are no tool sets yet. A tool set is a choice of tools with an address of its own at the gateway, "
        "so that an agent sees only what it needs."
    )
    form = ToolSetForm
    inlines = (EntryInline,)
    list_display = ("name", "title", "address", "entry_count", "changed", "created_by")
    list_select_related = ("created_by",)
    search_fields = ("name", "title")
    change_form_template = "admin/roster/toolset/change_form.html"

    changed = present.moment_column("changed_at", "changed")

    def get_queryset(self, request: HttpRequest) -> QuerySet[ToolSet]:
        visible = tool_sets.visible_tool_sets(principal_of(request))
        return visible.annotate(entries_in_all=Count("entries")).order_by("name")

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        may_edit = obj is None or self.has_change_permission(request, obj)
        return [*FIELDS, "reserved_for"] if may_edit else FIELDS

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> list[str]:
        return [] if obj is None else ["name"]  # it is in the configurations of clients

    def get_form(self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any) -> Any:
        form = super().get_form(request, obj, change, **kwargs)
        return type(form.__name__, (form,), {"principal": principal_of(request)})

    def changeform_view(
        self, request: HttpRequest, object_id: str | None = None, form_url: str = "", extra_context: Any = None
    ) -> Any:
        context = {"choices": _find_entries(request, []), "offer": ENTRIES, **(extra_context or {})}
        if object_id is not None and (row := self.get_object(request, object_id)) is not None:
            principal = principal_of(request)
            context["gateway_address"] = addresses.address_of_tool_set(row.name)
            context["preview"] = tool_sets.preview(tool_sets.entries_of(row, principal), principal)
        try:
            return super().changeform_view(request, object_id, form_url, context)
        except RequestRefusedError as refusal:  # another editor was faster
            messages.error(request, f"Not saved: {refusal}")
            return redirect(request.get_full_path())

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(self.agent_view)
        return [path("<int:object_id>/view/", view, name="roster_toolset_view"), *super().get_urls()]

    def agent_view(self, request: HttpRequest, object_id: int) -> HttpResponse:
        """What an agent sees at its address."""
        row = self.get_object(request, str(object_id))
        if row is None or not self.has_view_permission(request, row):
            raise PermissionDenied
        principal = principal_of(request)
        return agent_view_page.page(
            self,
            request,
            row,
            partial(agent_view.of_tool_set, row, principal),
            partial(agent_view.trim_tool_set, row, principal) if self.has_change_permission(request, row) else None,
            trim_help=(
                "The other tools of this list leave the tool set. Tools that are held or disabled, and entries of "
                "members that you cannot see, stay."
            ),
        )

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        """Save nothing yet. `save_related` has the entries too."""

    def save_related(self, request: HttpRequest, form: Any, formsets: Any, change: bool) -> None:
        row, data = form.instance, form.cleaned_data
        entries = [entry for formset in formsets for entry in formset.entries()]
        values = Values(row.name, data["title"], data["description"], list(data["reserved_for"]), entries)
        if change:
            tool_sets.change_tool_set(row, values, principal_of(request))
        else:
            row.pk = tool_sets.create_tool_set(values, principal_of(request), cast(User, request.user)).pk

    def construct_change_message(self, request: HttpRequest, form: Any, formsets: Any, add: bool = False) -> Any:
        return [{"added": {}}] if add else [{"changed": {}}]  # the audit log has the values

    def delete_model(self, request: HttpRequest, obj: Any) -> None:
        tool_sets.delete_tool_set(obj)

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> None:
        for row in queryset:
            tool_sets.delete_tool_set(row)

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> Any:
        # The entries are deleted with it. Their members may be reserved for others.
        return [str(row) for row in objs], {"tool sets": len(objs)}, set(), []

    @admin.display(description="address at the gateway")
    def address(self, row: ToolSet) -> str:
        return addresses.address_of_tool_set(row.name)

    @admin.display(description="entries", ordering="entries_in_all")
    def entry_count(self, row: Any) -> str:
        return present.number(row.entries_in_all)


def _explain(check: Any) -> None:
    """Run the check. Raise ValidationError with its refusal as a sentence."""
    try:
        check()
    except RequestRefusedError as refusal:
        text = str(refusal)
        raise ValidationError(f"{text[0].upper()}{text[1:]}.") from refusal
