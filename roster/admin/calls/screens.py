"""Calls: the list, a call's page, and the actions."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import urlencode

from django.contrib import admin, messages
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import ChangeList
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.db.models import Model, Q, QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase, QueryDict
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.decorators import method_decorator
from django.utils.safestring import SafeString
from django.views.decorators.http import require_POST

from mcp_runtime.calls.transitions import Requester
from mcp_runtime.control.calls import SPANS, calls_version, cancel_call, masked_arguments, queue_call, why_not_again
from mcp_runtime.protocol.errors import AccessError, NotCancellableError, RequestRefusedError
from roster.admin import live, present, statistics
from roster.admin.calls import comparison, export, listing, results
from roster.admin.calls.listing import CallList, CallPaginator
from roster.admin.rows import ReachableMembersFilter, RuntimeRowAdmin, principal_of
from roster.admin.tools import runner
from roster.models import Call, Tool

LIST_PART = "admin/roster/call/list_part.html"
PART = "admin/roster/call/part.html"
AGING_SECONDS = 10
EXPORTS_FULL = "Too many exports are in progress. Try again when one of them is complete.\n"
SENT_BEFORE = "You already pressed this button. This is the call that it made."


@dataclass(frozen=True)
class Row:
    """A line of the list."""

    call: Call
    badge: SafeString
    error: str
    requester: str
    duration: str
    is_running: bool


@admin.register(Call)
class CallAdmin(RuntimeRowAdmin):
    list_display = ["number"]
    list_filter = [
        *("status", "error_kind", "source", ("member", ReachableMembersFilter)),
        *(listing.ByTool, listing.ByToken, listing.Within, listing.Since, listing.Until, listing.Before),
    ]
    search_fields = ["tool_name"]  # listing.search decides which columns are searched
    sortable_by = ()
    list_per_page = list_max_show_all = listing.PER_PAGE
    paginator = CallPaginator
    actions = ["cancel", "compare"]
    change_list_template = "admin/roster/call/change_list.html"
    change_form_template = "admin/roster/call/change_form.html"

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return CallList

    def get_queryset(self, request: HttpRequest) -> QuerySet[Call]:
        """Users may see their own calls, even if the member has been reserved for others since."""
        closed_members = principal_of(request).closed_members
        rows = admin.ModelAdmin.get_queryset(self, request).select_related("member", "token")
        if closed_members:
            rows = rows.filter(~Q(member__name__in=closed_members) | Q(requested_by=request.user.pk))
        return rows

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        return listing.search(queryset, search_term), False

    def has_view_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Users may see their own calls."""
        if isinstance(obj, Call) and obj.requested_by_id and obj.requested_by_id == request.user.pk:
            return True
        return super().has_view_permission(request, obj)

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        return []  # the page has its own template

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view
        return [
            path("statistics/", view(statistics.fragment), name="roster_statistics"),
            path("export/<slug:form>/", view(self.export_view), name="roster_call_export"),
            path("compare/", view(self.compare_view), name="roster_call_compare"),
            path("<int:call_id>/part/", view(self.part_view), name="roster_call_part"),
            path("<int:call_id>/cancel/", view(self.cancel_view), name="roster_call_cancel"),
            path("<int:call_id>/replay/", view(self.replay_view), name="roster_call_replay"),
            path("<int:call_id>/previous/", view(self.previous_view), name="roster_call_previous"),
            *super().get_urls(),
        ]

    def _visible(self, request: HttpRequest, call_id: object) -> Call:
        """Raises Http404, PermissionDenied."""
        call = cast(Call, self.existing(request, str(call_id)))
        if not self.has_view_permission(request, call):
            raise PermissionDenied
        return call

    # The list

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        if request.method == "GET" and "" in request.GET.values():
            return redirect(f"{request.path}{_without_empty(request.GET)}")  # of an unchanged form
        if request.headers.get("X-Live") == "part":
            return self._list_part(request)
        etag = self._list_etag(request)  # before the rows are read, so that a change meanwhile causes another request
        response = super().changelist_view(request, {**(extra_context or {}), "title": "Calls", "etag": etag})
        context = getattr(response, "context_data", None) or {}
        if calls := context.get("cl"):
            context.update(self._list_context(calls), **self._frame_context(request, calls))
        return response

    def _list_part(self, request: HttpRequest) -> HttpResponse:
        """Only the rows, for live updates."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        try:
            return live.part(
                request,
                LIST_PART,
                lambda: self._list_context(cast(CallList, self.get_changelist_instance(request))),
                tag=self._list_etag(request),
            )
        except IncorrectLookupParameters as error:
            raise Http404("the list has no such filter") from error

    @staticmethod
    def _list_etag(request: HttpRequest) -> str:
        """Changes when any call was queued, started or ended, so that an unchanged search does not run each second."""
        # With a filter for the last minutes, calls drop out even without new ones.
        clock = int(time.time() // AGING_SECONDS) if request.GET.get("within") else 0
        return live.etag(*calls_version(), sorted(principal_of(request).closed_members), clock)

    @staticmethod
    def _list_context(calls: CallList) -> dict[str, Any]:
        return {
            "cl": calls,
            "rows": [_row(call) for call in calls.result_list],
            "scanned": f"{listing.SCANNED:,}",
        }

    def _frame_context(self, request: HttpRequest, calls: CallList) -> dict[str, Any]:
        member_id = calls.filter_value("member__id__exact")
        return {
            "form": listing.form_of(request, calls),
            "filter_query": calls.get_query_string(remove=["p", "span", "e"]),
            "has_plots": "span" in request.GET,
            "plots_query": calls.get_query_string({"span": SPANS[0]}, ["p", "e"]),
            "follows": calls.page_num == 1
            and not calls.filter_value("before")
            and not calls.filter_value("queued_at__lt"),
            "plot_member": statistics.member_of(request, member_id),
            "may_cancel": self.has_cancel_permission(request),
        }

    def export_view(self, request: HttpRequest, form: str) -> HttpResponseBase:
        if not self.has_view_permission(request):
            raise PermissionDenied
        if form not in export.FORMATS:
            raise Http404(f"there is no export format {form!r}")
        try:
            calls = self.get_changelist_instance(request)
        except IncorrectLookupParameters as error:
            raise Http404("the list has no such filter") from error
        response = export.exported(cast(CallList, calls).unbounded, form, (request.user.pk, None))
        return response or HttpResponse(EXPORTS_FULL, status=429, content_type="text/plain; charset=utf-8")

    # A call

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> Any:
        call = self.get_object(request, object_id)
        context: dict[str, Any] = {}
        if isinstance(call, Call) and self.has_view_permission(request, call):
            title = {"title": f"Call {call.pk}", "etag": self._etag(call)}
            context = {**self._page_context(request, call), **title}
        return super().change_view(request, object_id, form_url, {**(extra_context or {}), **context})

    def part_view(self, request: HttpRequest, call_id: int) -> HttpResponse:
        """The live part of a call in progress."""
        call = self._visible(request, call_id)
        return live.part(
            request,
            PART,
            lambda: self._page_context(request, call),
            tag=self._etag(call),
            is_final=call.is_finished,
        )

    @staticmethod
    def _etag(call: Call) -> str:
        return live.etag("call", call.pk, call.status, call.progress, call.cancel_requested_at, call.finished_at)

    def _page_context(self, request: HttpRequest, call: Call) -> dict[str, Any]:
        member = call.member
        tool = Tool.objects.filter(member=member, name=call.tool_name).first()
        may_invoke = self.has_invoke_permission(request)
        is_there = member.enabled and not member.removed_at and principal_of(request).reaches(member.name)
        is_callable = tool is not None and tool.listed and tool.enabled and not tool.is_held and may_invoke and is_there
        return {
            "call": call,
            "is_active": not call.is_finished,
            "may_invoke": may_invoke,
            "may_cancel": self._may_cancel(request, call),
            "tool": tool if is_callable else None,
            "fault": why_not_again(call),
            "call_key": uuid.uuid4(),
            "progress": runner.progress_of(call),
            "view": results.result_view(call, tool.output_schema if tool else None),
            "arguments": present.json_block(masked_arguments(call)),
            "duration": present.seconds(call.duration),
            "token": _token(call),
        }

    # Cancel

    @admin.action(description="Cancel selected calls", permissions=["cancel"])
    def cancel(self, request: HttpRequest, queryset: QuerySet[Call]) -> None:
        self._cancel(request, list(queryset))

    @method_decorator(require_POST)
    def cancel_view(self, request: HttpRequest, call_id: int) -> HttpResponseBase:
        call = self.existing(request, str(call_id))
        if not self.has_view_permission(request, call) or not self._may_cancel(request, call):
            raise PermissionDenied
        self._cancel(request, [call])
        return live.form_response(request, self.page_of(call))

    def has_cancel_permission(self, request: HttpRequest) -> bool:
        """Whether the action is offered. `_may_cancel` decides for each call."""
        principal = principal_of(request)
        return principal.invokes or principal.controls

    @staticmethod
    def _may_cancel(request: HttpRequest, call: Call) -> bool:
        return principal_of(request).may_cancel(call.member.name, call.requested_by_id)

    def _cancel(self, request: HttpRequest, calls: list[Call]) -> None:
        cancelled: list[str] = []
        pending: list[str] = []
        refusals: list[str] = []
        for call in calls:
            if not self._may_cancel(request, call):
                refusals.append(f"{call} is another user's call, and you may not stop {call.member.name}")
                continue
            try:
                is_over = cancel_call(call).is_finished
            except NotCancellableError as refusal:
                refusals.append(str(refusal))
            else:
                (cancelled if is_over else pending).append(str(call))
                self.log_change(request, call, "Cancelled." if is_over else "Cancellation requested.")
        present.report(request, "Cancelled", cancelled, [])
        present.report(request, "Cancellation requested", pending, refusals)

    # Again

    @method_decorator(require_POST)
    def replay_view(self, request: HttpRequest, call_id: int) -> HttpResponse:
        """Make the same call again. With the page's key, a second press leads to the call of the first."""
        call = self._visible(request, call_id)
        if not self.has_invoke_permission(request):
            raise PermissionDenied
        if fault := why_not_again(call):
            messages.warning(request, f"The call was not made: {fault}.")
            return self.page_of(call)
        try:
            new_call, is_new = queue_call(
                call.member.name,
                call.tool_name,
                call.arguments,
                requester=Requester(Call.Source.ADMIN, cast(User, request.user)),
                idempotency_key=request.POST.get("call_key", "")[:255] or None,
            )
        except (AccessError, RequestRefusedError) as refusal:
            messages.warning(request, f"The call was not made: {refusal}")
            return self.page_of(call)
        if not is_new:
            messages.info(request, SENT_BEFORE)
        return self.page_of(new_call)

    # Side by side

    @admin.action(description="Compare two calls")
    def compare(self, request: HttpRequest, queryset: QuerySet[Call]) -> HttpResponse | None:
        ids = sorted(queryset.values_list("pk", flat=True)[:3])
        if len(ids) != 2:
            messages.warning(request, "Choose exactly two calls to compare.")
            return None
        return redirect(_comparison(*ids))

    def previous_view(self, request: HttpRequest, call_id: int) -> HttpResponse:
        """Redirect to the comparison with the previous call of the same tool."""
        call = self._visible(request, call_id)
        rows = self.get_queryset(request)
        if not self.has_view_permission(request):
            rows = rows.filter(requested_by=request.user.pk)
        earlier = comparison.previous_of(rows, call)
        if earlier is None:
            messages.info(request, "There is no earlier call of this tool to compare with.")
            return self.page_of(call)
        return redirect(_comparison(earlier, call.pk))

    def compare_view(self, request: HttpRequest) -> HttpResponse:
        left, right = (self._visible(request, request.GET.get(name, "")[:18]) for name in ("left", "right"))
        context = {
            **self.admin_site.each_context(request),
            "title": f"Calls {left.pk} and {right.pk}",
            "opts": self.opts,
            "calls": [left, right],
            "facts": list(zip(_FACTS, _facts(left), _facts(right), strict=True)),
            "parts": comparison.compare(left, right),
            "max_lines": f"{comparison.MAX_LINES:,}",
            "max_characters": f"{comparison.MAX_CHARACTERS:,}",
        }
        return TemplateResponse(request, "admin/roster/call/compare.html", context)

    @admin.display(description="call")
    def number(self, call: Call) -> int:
        return call.pk


# Texts about a call -----------------------------------------------------------------------------------------------

_FACTS = ("Member", "Tool", "Status", "Duration", "Requester", "Source", "Queued (UTC)")


def _facts(call: Call) -> tuple[str, ...]:
    status = f"{call.status} ({call.error_kind})" if call.error_kind else call.status
    duration, requester = present.seconds(call.duration), call.requester or present.NOTHING
    source = Call.Source(call.source).label
    return call.member.name, call.tool_name, status, duration, requester, str(source), present.when(call.queued_at)


def _row(call: Call) -> Row:
    return Row(
        call=call,
        badge=present.badge(call.status),
        error=present.one_line(call.error_message, 160),
        requester=present.one_line(call.requester, 60) or present.NOTHING,
        duration=present.seconds(call.duration),
        is_running=call.status == Call.Status.RUNNING and call.started_at is not None,
    )


def _token(call: Call) -> str:
    token = call.token
    return f"{token.hint}…" + (f" ({token.name})" if token.name else "") if token else present.NOTHING


def _comparison(left: int, right: int) -> str:
    return f"{reverse('admin:roster_call_compare')}?{urlencode({'left': left, 'right': right})}"


def _without_empty(params: QueryDict) -> str:
    query = urlencode([(name, value) for name, value in params.items() if value])
    return f"?{query}" if query else ""
