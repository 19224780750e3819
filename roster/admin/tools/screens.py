"""Tools: the list, a page for each, and the buttons that enable and disable them. `runner` has the calls."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.contrib.admin.options import IncorrectLookupParameters
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.urls import URLPattern, path
from django.utils.decorators import method_decorator
from django.views.decorators.http import require_POST

from mcp_runtime.control.members import set_tool_enabled
from mcp_runtime.security import access
from roster import ranking
from roster.admin import finding, live, present
from roster.admin.tools import listing
from roster.admin.tools.annotations import badges_of, obstacle_of
from roster.admin.tools.listing import MembersFolder, MembersInSight, SaysFilter, ToolList
from roster.admin.tools.parameters import MAX_PARAMETERS, parameters_of
from roster.admin.tools.runner import ToolRunner
from roster.models import Tool

LIST_PART = "admin/roster/tool/list_part.html"


@admin.register(Tool)
class ToolAdmin(ToolRunner):
    has_history = True
    list_display = ["name"]
    list_display_links = None
    list_select_related = ["member"]
    list_per_page = 25
    list_filter = ["enabled", "listed", "is_held", SaysFilter, MembersFolder, ("member", MembersInSight)]
    search_fields = ["name"]  # `get_search_results` searches all texts
    actions = ["enable", "disable"]
    change_list_template = "admin/roster/tool/change_list.html"
    change_form_template = "admin/roster/tool/change_form.html"

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view
        return [
            path("<int:tool_id>/enable/", view(self.enable_view), name="roster_tool_enable"),
            path("<int:tool_id>/disable/", view(self.disable_view), name="roster_tool_disable"),
            *self.runner_urls(),
            *super().get_urls(),
        ]

    # The list

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ToolList]:
        return ToolList

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        for word in ranking.words_of(search_term):
            queryset = queryset.filter(finding.any_text_of_tool(word))
        return queryset, False

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        etag = listing.etag_of(request)  # before the rows are read, so that a change meanwhile causes another request
        if request.headers.get("X-Live") == "part":
            return self._list_part(request, etag)
        response = super().changelist_view(request, {**(extra_context or {}), "etag": etag})
        context = getattr(response, "context_data", None) or {}
        if tools := context.get("cl"):
            context.update(listing.context_of(request, tools), **listing.frame_of(request, tools))
        return response

    def _list_part(self, request: HttpRequest, etag: str) -> HttpResponse:
        """Only the rows, for live updates."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        try:
            return live.part(
                request,
                LIST_PART,
                lambda: listing.context_of(request, self.get_changelist_instance(request)),
                tag=etag,
            )
        except IncorrectLookupParameters as error:
            raise Http404("the list has no such filter") from error

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

    # A tool

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        return []  # the page has its own template

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> Any:
        tool = self.get_object(request, object_id)
        context = {} if tool is None else self._page_context(request, tool)
        return super().change_view(request, object_id, form_url, {**(extra_context or {}), **context})

    def _page_context(self, request: HttpRequest, tool: Tool) -> dict[str, Any]:
        may_invoke = self.has_invoke_permission(request)
        return {
            "title": present.one_line(present.shown_text(tool.title or tool.name), 100),
            "badges": badges_of(tool),
            "obstacle": obstacle_of(tool),
            "parameters": parameters_of(tool.input_schema),
            "results": parameters_of(tool.output_schema or {}),
            "max_parameters": MAX_PARAMETERS,
            "input_schema": present.json_block(tool.input_schema),
            "output_schema": present.json_block(tool.output_schema),
            "definition": present.json_block(tool.definition),
            "may_control": self.has_control_permission(request),
            "may_invoke": may_invoke,
            "may_list_calls": may_invoke or request.user.has_perm(access.VIEW_CALLS),
        }
