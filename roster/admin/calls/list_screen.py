"""The list of calls: its filters and search, its saved filters, its live rows, and the export of what it shows."""

from __future__ import annotations

import time
from typing import Any, cast
from urllib.parse import urlencode

from django.contrib import admin, messages
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase, QueryDict
from django.shortcuts import redirect
from django.urls import URLPattern, path, reverse
from django.utils.decorators import method_decorator
from django.views.decorators.http import require_POST

from mcp_runtime.control.calls import SPANS, calls_version
from mcp_runtime.protocol.errors import SearchError, TooManyCallsError
from roster.admin import live, statistics
from roster.admin.calls import lines, listing, saved
from roster.admin.calls.listing import CallList, CallPaginator
from roster.admin.rows import ReachableMembersFilter, RuntimeRowAdmin, principal_of
from roster.api.call_export import exported
from roster.call_export import FORMATS, Selection
from roster.models import Call, SavedFilter

LIST_PART = "admin/roster/call/list_part.html"
AGING_SECONDS = 10


class CallListScreen(RuntimeRowAdmin):
    """The part of the calls' admin with the list."""

    list_display = ["number"]
    list_filter = [
        *("status", "error_kind", "source", ("member", ReachableMembersFilter)),
        *(
            listing.ByTool,
            listing.ByToolSet,
            listing.ByToken,
            listing.Within,
            listing.Since,
            listing.Until,
            listing.Before,
        ),
    ]
    search_fields = ["tool_name"]  # listing.search decides which columns are searched
    sortable_by = ()
    list_per_page = list_max_show_all = listing.PER_PAGE
    paginator = CallPaginator
    change_list_template = "admin/roster/call/change_list.html"

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return CallList

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        return queryset, False  # CallList searches

    def views_all(self, request: HttpRequest) -> bool:
        """Whether the user may see the calls of others."""
        return super().has_view_permission(request)

    def has_cancel_permission(self, request: HttpRequest) -> bool:
        """Whether the action is offered. `_may_cancel` decides for each call."""
        principal = principal_of(request)
        return principal.invokes or principal.controls

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view
        return [
            path("statistics/", view(statistics.fragment), name="roster_statistics"),
            path("export/<slug:form>/", view(self.export_view), name="roster_call_export"),
            path("saved-filters/", view(self.save_filter_view), name="roster_call_save_filter"),
            path(
                "saved-filters/<int:filter_id>/delete/", view(self.delete_filter_view), name="roster_call_delete_filter"
            ),
            *super().get_urls(),
        ]

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        if request.method == "GET" and "" in request.GET.values():
            return redirect(f"{request.path}{_without_empty(request.GET)}")  # of an unchanged form
        if request.headers.get("X-Live") == "part":
            return self._list_part(request)
        etag = self._list_etag(request)  # before the rows are read, so that a change meanwhile causes another request
        response = super().changelist_view(request, {**(extra_context or {}), "title": "Calls", "etag": etag})
        context = getattr(response, "context_data", None) or {}
        if calls := context.get("cl"):
            context.update(self._list_context(request, calls), **self._frame_context(request, calls))
        return response

    def _list_part(self, request: HttpRequest) -> HttpResponse:
        """Only the rows, for live updates."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        try:
            return live.part(
                request,
                LIST_PART,
                lambda: self._list_context(request, cast(CallList, self.get_changelist_instance(request))),
                tag=self._list_etag(request),
            )
        except IncorrectLookupParameters as error:
            raise Http404("the list has no such filter") from error

    @staticmethod
    def _list_etag(request: HttpRequest) -> str:
        """Changes when any call was queued, started or ended, so that an unchanged search does not run each second."""
        # With a filter for the last minutes, calls drop out even without new ones.
        clock = int(time.time() // AGING_SECONDS) if request.GET.get("within") else 0
        principal = principal_of(request)
        closed_names = sorted(principal.closed_members), sorted(principal.closed_sets)
        return live.etag(*calls_version(), *closed_names, clock, principal.user_id)

    @staticmethod
    def _list_context(request: HttpRequest, calls: CallList) -> dict[str, Any]:
        tool_sets, tool_ids = listing.tool_sets_of(request), lines.tool_ids_of(request, calls.result_list)
        return {
            "cl": calls,
            "rows": [
                lines.row_of(call, tool_sets.of(call), tool_ids.get((call.member_id, call.tool_name)))
                for call in calls.result_list
            ],
            "scanned": listing.SCANNED,
            "search_note": listing.note_of_search(calls),
        }

    def _frame_context(self, request: HttpRequest, calls: CallList) -> dict[str, Any]:
        member_id = calls.filter_value("member__id__exact")
        return {
            "form": listing.form_of(request, calls),
            "filter_query": calls.get_query_string(remove=["p", "span", "e"]),
            "views_all": self.views_all(request),
            "has_plots": "span" in request.GET and self.views_all(request),
            "plots_query": calls.get_query_string({"span": SPANS[0]}, ["p", "e"]),
            "follows": calls.page_num == 1
            and not calls.filter_value("before")
            and not calls.filter_value("queued_at__lt"),
            "plot_member": statistics.member_of(request, member_id),
            "may_cancel": self.has_cancel_permission(request),
            "saved_filters": (saved_filters := saved.of(request)),
            "current_filter": (query := saved.clean_query(calls.get_query_string(remove=["p", "span", "e"]))),
            "is_saved": any(each.query == query for each in saved_filters),
        }

    @method_decorator(require_POST)
    def save_filter_view(self, request: HttpRequest) -> HttpResponse:
        if not self.has_view_permission(request):
            raise PermissionDenied
        query = request.POST.get("query", "")
        try:
            name = saved.save(request, request.POST.get("name", ""), query).name
            messages.success(request, f"Saved the filter {name}.")
        except saved.NotSavedError as error:
            messages.warning(request, str(error))
        return redirect(f"{reverse('admin:roster_call_changelist')}?{saved.clean_query(query)}")

    @method_decorator(require_POST)
    def delete_filter_view(self, request: HttpRequest, filter_id: int) -> HttpResponse:
        if not self.has_view_permission(request):
            raise PermissionDenied
        try:
            messages.success(request, f"Deleted the saved filter {saved.delete(request, filter_id)}.")
        except SavedFilter.DoesNotExist as error:
            raise Http404("there is no such saved filter") from error
        return redirect("admin:roster_call_changelist")

    def export_view(self, request: HttpRequest, form: str) -> HttpResponseBase:
        if not self.has_view_permission(request):
            raise PermissionDenied
        if form not in FORMATS:
            raise Http404(f"there is no export format {form!r}")
        try:
            calls = self.get_changelist_instance(request)
        except IncorrectLookupParameters as error:
            raise Http404("the list has no such filter") from error
        filtered, search = cast(CallList, calls).filtered, cast(CallList, calls).search
        selection = Selection(filtered, listing.tool_sets_of(request), search.within())
        try:
            return exported(selection, form, (request.user.pk, None))
        except SearchError as error:
            return HttpResponse(f"{error}\n", status=400, content_type="text/plain; charset=utf-8")
        except TooManyCallsError as error:
            return HttpResponse(f"{error}\n", status=429, content_type="text/plain; charset=utf-8")

    @admin.display(description="call")
    def number(self, call: Call) -> int:
        return call.pk


def _without_empty(params: QueryDict) -> str:
    query = urlencode([(name, value) for name, value in params.items() if value])
    return f"?{query}" if query else ""
