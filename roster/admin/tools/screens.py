"""Tools: enable and disable them, and read their schemas. `runner` has the calls."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponseBase
from django.urls import URLPattern, path, reverse
from django.utils.decorators import method_decorator
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.views.decorators.http import require_POST

from mcp_runtime.control.members import set_tool_enabled
from roster.admin import live, present
from roster.admin.rows import FolderFilter, ReachableMembersFilter
from roster.admin.tools.runner import ToolRunner
from roster.models import GuildMember, Tool


def call_link(tool: Tool) -> SafeString | str:
    is_offered = tool.listed and tool.enabled and not tool.is_held
    if not (is_offered and tool.member.enabled and tool.member.removed_at is None):
        return present.NOTHING
    return format_html('<a href="{}">Call</a>', reverse("admin:roster_tool_call", args=[tool.pk]))


class MembersFolder(FolderFilter):
    """Show the tools of a selected member even if its folder is gone."""

    title = "folder of the member"
    removed_at = "member__removed_at"

    def queryset(self, request: HttpRequest, queryset: QuerySet[Tool]) -> QuerySet[Tool]:
        if self.value() is None and "member__id__exact" in request.GET:
            return queryset
        return super().queryset(request, queryset)


class MembersInSight(ReachableMembersFilter):
    """Offer the members whose tools the list shows, and the selected one."""

    def field_choices(self, field: Any, request: HttpRequest, model_admin: Any) -> Any:
        removed = set(GuildMember.objects.exclude(removed_at=None).values_list("pk", flat=True))
        visible = {"gone": {True}, "any": {True, False}}.get(request.GET.get(MembersFolder.parameter_name, ""), {False})
        selection = list(self.lookup_val or [])
        choices = super().field_choices(field, request, model_admin)
        return [(pk, name) for pk, name in choices if (pk in removed) in visible or str(pk) in selection]


class ToolColumns:
    """The state of a tool for the list and its page."""

    @admin.display(description="title")
    def title(self, tool: Tool) -> str:
        return present.one_line(tool.title, 60) or present.NOTHING

    @admin.display(description="description")
    def short_description(self, tool: Tool) -> str:
        return present.one_line(tool.description) or present.NOTHING

    @admin.display(description="call")
    def call(self, tool: Tool) -> str:
        return call_link(tool)


@admin.register(Tool)
class ToolAdmin(ToolColumns, ToolRunner):
    list_display = ["name", "of_member", "title", "short_description", "listed", "enabled", "call"]
    list_select_related = ["member"]
    list_filter = ["enabled", "listed", "is_held", MembersFolder, ("member", MembersInSight)]
    search_fields = ["name", "member__name"]
    actions = ["enable", "disable"]
    change_form_template = "admin/roster/tool/change_form.html"
    fields = [
        "name",
        "of_member",
        "title",
        "description",
        "listed",
        "enabled",
        "is_held",
        "version",
        "schema_error",
        "input_schema",
        "output_schema",
        "definition_as_sent",
    ]

    def get_list_display(self, request: HttpRequest) -> Any:
        return [name for name in self.list_display if name != "call" or self.has_invoke_permission(request)]

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view
        return [
            path("<int:tool_id>/enable/", view(self.enable_view), name="roster_tool_enable"),
            path("<int:tool_id>/disable/", view(self.disable_view), name="roster_tool_disable"),
            *self.runner_urls(),
            *super().get_urls(),
        ]

    # Enable and disable

    @admin.action(description="Enable selected tools", permissions=["control"])
    def enable(self, request: HttpRequest, queryset: QuerySet[Tool]) -> None:
        self._set_enabled(request, list(queryset), True)

    @admin.action(description="Disable selected tools", permissions=["control"])
    def disable(self, request: HttpRequest, queryset: QuerySet[Tool]) -> None:
        self._set_enabled(request, list(queryset), False)

    @method_decorator(require_POST)
    def enable_view(self, request: HttpRequest, tool_id: int) -> HttpResponseBase:
        return self._set_enabled_of_one(request, tool_id, True)

    @method_decorator(require_POST)
    def disable_view(self, request: HttpRequest, tool_id: int) -> HttpResponseBase:
        return self._set_enabled_of_one(request, tool_id, False)

    def _set_enabled_of_one(self, request: HttpRequest, tool_id: int, enabled: bool) -> HttpResponseBase:
        if not self.has_control_permission(request):
            raise PermissionDenied
        tool = self.existing(request, str(tool_id))
        self._set_enabled(request, [tool], enabled)
        return live.form_response(request, self.page_of(tool))

    def _set_enabled(self, request: HttpRequest, tools: list[Tool], enabled: bool) -> None:
        word = "enabled" if enabled else "disabled"
        changes = [tool for tool in tools if tool.enabled is not enabled]
        for tool in changes:
            set_tool_enabled(tool, enabled)
            self.log_change(request, tool, f"{word.capitalize()}.")
        refusals = [f"{tool.name}: it is already {word}" for tool in tools if tool not in changes]
        present.report(request, word.capitalize(), [tool.name for tool in changes], refusals)

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> Any:
        permissions = {
            "may_control": self.has_control_permission(request),
            "may_invoke": self.has_invoke_permission(request),
        }
        return super().change_view(request, object_id, form_url, {**(extra_context or {}), **permissions})

    # Columns

    @admin.display(description="member", ordering="member__name")
    def of_member(self, tool: Tool) -> SafeString:
        return present.link(tool.member)

    @admin.display(description="description")
    def description(self, tool: Tool) -> str:
        return present.text_block(tool.description)

    @admin.display(description="input schema")
    def input_schema(self, tool: Tool) -> str:
        return present.json_block(tool.input_schema)

    @admin.display(description="output schema")
    def output_schema(self, tool: Tool) -> str:
        return present.json_block(tool.output_schema)

    @admin.display(description="definition from the member")
    def definition_as_sent(self, tool: Tool) -> str:
        return present.json_block(tool.definition)
