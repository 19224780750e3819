"""Calls: a call's page, and the actions. `list_screen` has the list."""

from __future__ import annotations

import uuid
from typing import Any, cast
from urllib.parse import urlencode

from django.contrib import admin, messages
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.db.models import Model, QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.decorators import method_decorator
from django.views.decorators.http import require_POST

from mcp_runtime.calls.transitions import Requester
from mcp_runtime.control.calls import cancel_call, masked_arguments, queue_call, why_not_again
from mcp_runtime.protocol import mcp
from mcp_runtime.protocol.errors import (
    AccessError,
    NotAllowedError,
    NotCancellableError,
    RequestRefusedError,
)
from mcp_runtime.security import access
from roster.admin import live, present
from roster.admin.calls import comparison, files, listing, results
from roster.admin.calls.list_screen import CallListScreen
from roster.admin.calls.log import page_of_log
from roster.admin.downloads import attachment
from roster.admin.rows import principal_of
from roster.admin.tools import runner
from roster.models import Call, Tool, ToolSet

PART = "admin/roster/call/part.html"
SENT_BEFORE = "You already pressed this button. This is the call that it made."


@admin.register(Call)
class CallAdmin(CallListScreen):
    has_history = True
    actions = ["cancel", "compare"]
    change_form_template = "admin/roster/call/change_form.html"

    def get_queryset(self, request: HttpRequest) -> QuerySet[Call]:
        """Own calls, even if the member has been reserved for others since. With the permission those of all users."""
        principal = principal_of(request)
        rights = (principal.is_narrowed, self.views_all(request), principal.closed_members)
        readable = access.calls_readable_by(*rights, user=principal.user_id, token=principal.token_id)
        rows: QuerySet[Call] = admin.ModelAdmin.get_queryset(self, request).select_related("member", "token")
        return rows.filter(readable)

    def has_view_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Who calls tools sees the list. `get_queryset` decides which calls are in it, and which have a page."""
        if isinstance(obj, Call) and obj.requested_by_id and obj.requested_by_id == request.user.pk:
            return True
        return super().has_view_permission(request, obj) or (obj is None and self.has_invoke_permission(request))

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        return []  # the page has its own template

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view
        return [
            path("compare/", view(self.compare_view), name="roster_call_compare"),
            path("<int:call_id>/file/<slug:file>/", view(self.file_view), name="roster_call_file"),
            path("<int:call_id>/part/", view(self.part_view), name="roster_call_part"),
            path("<int:call_id>/cancel/", view(self.cancel_view), name="roster_call_cancel"),
            path("<int:call_id>/replay/", view(self.replay_view), name="roster_call_replay"),
            path("<int:call_id>/log/", view(self.log_view), name="roster_call_log"),
            path("<int:call_id>/previous/", view(self.previous_view), name="roster_call_previous"),
            *super().get_urls(),
        ]

    def _visible(self, request: HttpRequest, call_id: object) -> Call:
        """A call that the user may see. Raises Http404, also for calls of others."""
        return cast(Call, self.existing(request, str(call_id)))

    # A call

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> Any:
        call = self._visible(request, object_id)
        title = {"title": f"Call {call.pk}", "etag": self._etag(call)}
        context = {**(extra_context or {}), **self._page_context(request, call), **title}
        return super().change_view(request, object_id, form_url, context)

    def history_view(self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None) -> Any:
        self._visible(request, object_id)
        return super().history_view(request, object_id, extra_context)

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

    def file_view(self, request: HttpRequest, call_id: int, file: str) -> HttpResponse:
        """A part of the result as a download. `file` is a name of `files.file_of`."""
        call = self._visible(request, call_id)
        found = files.file_of(call, file) if call.is_finished else None
        if found is None:
            raise Http404(f"call {call_id} has no {file!r}")
        return attachment(found.body, found.name)

    @staticmethod
    def _etag(call: Call) -> str:
        return live.etag("call", call.pk, call.status, call.progress, call.cancel_requested_at, call.finished_at)

    def _page_context(self, request: HttpRequest, call: Call) -> dict[str, Any]:
        member = call.member
        tool = Tool.objects.filter(member=member, name=call.tool_name).first()
        may_invoke = self.has_invoke_permission(request)
        is_there = member.enabled and not member.removed_at and principal_of(request).reaches(member.name)
        is_offered = tool is not None and tool.listed and tool.enabled and not tool.is_held
        is_callable = is_offered and may_invoke and is_there and not (tool and mcp.needs_task(tool.definition))
        return {
            "call": call,
            "is_active": not call.is_finished,
            "may_invoke": may_invoke,
            "may_cancel": self._may_cancel(request, call),
            "tool": tool if is_callable else None,
            "tool_page": tool.pk if tool and request.user.has_perm("roster.view_tool") else None,
            "fault": why_not_again(call),
            "call_key": uuid.uuid4(),
            "progress": runner.progress_of(call),
            "view": results.result_view(call, tool.output_schema if tool else None, principal_of(request)),
            "arguments": present.json_block(masked_arguments(call)),
            "duration": present.seconds(call.duration),
            "token": _token(call),
            "tool_set": _tool_set(request, call),
            "has_log": call.started_at is not None and _may_read_log(request, call),
        }

    def log_view(self, request: HttpRequest, call_id: int) -> HttpResponse:
        """The lines that the member wrote during the call."""
        call = self._visible(request, call_id)
        if not _may_read_log(request, call):
            raise PermissionDenied
        context = {
            **self.admin_site.each_context(request),
            **page_of_log(call),
            "title": f"Log during call {call.pk}",
            "opts": self.opts,
            "call": call,
        }
        return TemplateResponse(request, "admin/roster/call/log.html", context)

    # Cancel

    @admin.action(description="Cancel selected calls", permissions=["cancel"])
    def cancel(self, request: HttpRequest, queryset: QuerySet[Call]) -> None:
        self._cancel(request, list(queryset))

    @method_decorator(require_POST)
    def cancel_view(self, request: HttpRequest, call_id: int) -> HttpResponseBase:
        call = self._visible(request, call_id)
        if not self._may_cancel(request, call):
            raise PermissionDenied
        self._cancel(request, [call])
        return live.form_response(request, self.page_of(call))

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
        earlier = comparison.previous_of(self.get_queryset(request), call)
        if earlier is None:
            messages.info(request, "There is no earlier call of this tool to compare with.")
            return self.page_of(call)
        return redirect(_comparison(earlier, call.pk))

    def compare_view(self, request: HttpRequest) -> HttpResponse:
        left, right = (self._visible(request, request.GET.get(name, "")[:18]) for name in ("left", "right"))
        tool_sets = listing.tool_sets_of(request)
        context = {
            **self.admin_site.each_context(request),
            "title": f"Calls {left.pk} and {right.pk}",
            "opts": self.opts,
            "calls": [left, right],
            "facts": list(zip(_FACTS, *(_facts(call, tool_sets.of(call)) for call in (left, right)), strict=True)),
            "parts": comparison.compare(left, right),
            "max_lines": comparison.MAX_LINES,
            "max_characters": comparison.MAX_CHARACTERS,
        }
        return TemplateResponse(request, "admin/roster/call/compare.html", context)


# Texts about a call -----------------------------------------------------------------------------------------------

_FACTS = ("Member", "Tool", "Status", "Duration", "Requester", "Source", "Tool set", "Queued")


def _facts(call: Call, tool_set: str | None) -> tuple[str, ...]:
    status = f"{call.status} ({call.error_kind})" if call.error_kind else call.status
    duration, requester = present.seconds(call.duration), call.requester or present.NOTHING
    origin = str(Call.Source(call.source).label), tool_set or present.NOTHING
    return call.member.name, call.tool_name, status, duration, requester, *origin, present.when(call.queued_at)


def _may_read_log(request: HttpRequest, call: Call) -> bool:
    try:
        access.require_log(principal_of(request), call.member.name)
    except NotAllowedError:
        return False
    return call.member.name not in principal_of(request).closed_members


def _token(call: Call) -> str:
    token = call.token
    return f"{token.hint}…" + (f" ({token.name})" if token.name else "") if token else present.NOTHING


def _tool_set(request: HttpRequest, call: Call) -> str:
    """Its name, with a link to its page if it still exists for the user."""
    tool_sets = listing.tool_sets_of(request)
    name = tool_sets.of(call)
    if name in tool_sets.names and request.user.has_perm("roster.view_toolset"):
        return present.link(ToolSet.objects.get(name=name))
    return name or present.NOTHING


def _comparison(left: int, right: int) -> str:
    return f"{reverse('admin:roster_call_compare')}?{urlencode({'left': left, 'right': right})}"
