"""Calls: who asked what of whom, and what came of it."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import PermissionDenied
from django.db.models import Model, Q, QuerySet
from django.http import HttpRequest, HttpResponseBase
from django.urls import URLPattern, path
from django.utils import timezone
from django.utils.decorators import method_decorator
from django.utils.safestring import SafeString
from django.views.decorators.http import require_POST

from mcp_runtime import control
from mcp_runtime.errors import NotCancellableError
from roster.admin import live, present, statistics
from roster.admin.rows import ReachedMembers, RuntimeRowAdmin, principal_of
from roster.calls import progress_text, texts_of
from roster.models import Invocation, Tool

# What a page says of how a call ended, and the column each of it needs.
OUTCOME = {
    "error_kind": "error_kind",
    "full_error": "error_message",
    "error_code": "error_code",
    "error_details": "error_data",
    "answer": "result",
    "whole_result": "result",
}


class LeanChangeList(ChangeList):
    """The list never loads what only a page shows: a result may be megabytes."""

    def get_queryset(self, *args: Any, **kwargs: Any) -> QuerySet[Any]:
        return super().get_queryset(*args, **kwargs).defer("arguments", "result", "error_data")


@admin.register(Invocation)
class InvocationAdmin(RuntimeRowAdmin):
    list_display = [
        "number",
        "status_word",
        "of_member",
        "tool_name",
        "error_kind",
        "requester",
        "door",
        "queued",
        "took",
    ]
    list_filter = ["status", "error_kind", "door", "queued_at", ("member", ReachedMembers)]
    search_fields = ["tool_name"]
    actions = ["cancel"]
    change_form_template = "admin/roster/invocation/change_form.html"

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return LeanChangeList

    def get_queryset(self, request: HttpRequest) -> QuerySet[Invocation]:
        """Whoever made a call may see it, though its member was reserved for others since."""
        closed = principal_of(request).closed_members
        rows = admin.ModelAdmin.get_queryset(self, request).select_related("member", "token")
        return rows.filter(~Q(member__name__in=closed) | Q(requested_by=request.user.pk)) if closed else rows

    def has_view_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Whoever made a call may see what came of it."""
        if isinstance(obj, Invocation) and obj.requested_by_id and obj.requested_by_id == request.user.pk:
            return True
        return super().has_view_permission(request, obj)

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        call = ["status_word", "of_member", "tool_name", "requester", "of_token", "door", "masked_arguments"]
        if obj and obj.progress:
            call.insert(1, "progress_said")
        outcome = [name for name, column in OUTCOME.items() if obj and getattr(obj, column) not in (None, "")]
        return [
            (None, {"fields": call}),
            *([("Outcome", {"fields": outcome})] if outcome else []),
            ("Times", {"fields": ["queued", "started", "finished", "took", "timeout", "cancel_requested"]}),
        ]

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view
        return [
            path("statistics/", view(statistics.fragment), name="roster_statistics"),
            path("<int:invocation_id>/cancel/", view(self.cancel_view), name="roster_invocation_cancel"),
            *super().get_urls(),
        ]

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> Any:
        invocation = self.get_object(request, object_id)
        may_invoke = self.has_invoke_permission(request)
        context = {
            "is_active": invocation is not None and not invocation.is_finished,
            "may_invoke": may_invoke,
            "tool": self._tool_of(invocation) if invocation is not None and may_invoke else None,
        }
        return super().change_view(request, object_id, form_url, {**(extra_context or {}), **context})

    @staticmethod
    def _tool_of(invocation: Invocation) -> Tool | None:
        tools = Tool.objects.filter(control.visible_tools(), member=invocation.member_id, name=invocation.tool_name)
        return tools.only("pk").first()

    # Cancel

    @admin.action(description="Cancel selected calls", permissions=["invoke"])
    def cancel(self, request: HttpRequest, selected: QuerySet[Invocation]) -> None:
        self._cancel(request, list(selected))

    @method_decorator(require_POST)
    def cancel_view(self, request: HttpRequest, invocation_id: int) -> HttpResponseBase:
        invocation = self.existing(request, str(invocation_id))
        if not (self.has_invoke_permission(request) and self.has_view_permission(request, invocation)):
            raise PermissionDenied
        self._cancel(request, [invocation])
        return live.done(request, self.page_of(invocation))

    def _cancel(self, request: HttpRequest, selected: list[Invocation]) -> None:
        cancelled: list[str] = []
        asked: list[str] = []
        refusals: list[str] = []
        for invocation in selected:
            try:
                ended = control.cancel_call(invocation).is_finished
            except NotCancellableError as refusal:
                refusals.append(str(refusal))
            else:
                (cancelled if ended else asked).append(str(invocation))
                self.log_change(request, invocation, "Cancelled." if ended else "Asked to cancel.")
        present.report(request, "Cancelled", cancelled, [])
        present.report(request, "Running, asked to cancel", asked, refusals)

    # Columns

    queued = present.moment_column("queued_at")
    started = present.moment_column("started_at")
    finished = present.moment_column("finished_at")
    cancel_requested = present.moment_column("cancel_requested_at")

    @admin.display(description="call", ordering="id")
    def number(self, invocation: Invocation) -> int:
        return invocation.pk

    @admin.display(description="status", ordering="status")
    def status_word(self, invocation: Invocation) -> SafeString:
        return present.badge(invocation.status)

    @admin.display(description="member", ordering="member__name")
    def of_member(self, invocation: Invocation) -> SafeString:
        return present.link(invocation.member)

    @admin.display(description="token")
    def of_token(self, invocation: Invocation) -> str:
        token = invocation.token
        return f"{token.hint}…" + (f" ({token.name})" if token.name else "") if token else present.NOTHING

    @admin.display(description="took")
    def took(self, invocation: Invocation) -> str:
        if invocation.status == Invocation.Status.RUNNING and invocation.started_at:
            return f"{present.seconds(timezone.now() - invocation.started_at)} so far"
        return present.seconds(invocation.duration)

    @admin.display(description="progress")
    def progress_said(self, invocation: Invocation) -> str:
        return progress_text(invocation.progress)

    @admin.display(description="error")
    def full_error(self, invocation: Invocation) -> str:
        return present.text_block(invocation.error_message)

    @admin.display(description="error data")
    def error_details(self, invocation: Invocation) -> str:
        return present.json_block(invocation.error_data)

    @admin.display(description="arguments")
    def masked_arguments(self, invocation: Invocation) -> str:
        return present.json_block(control.shown_arguments(invocation))

    @admin.display(description="answer")
    def answer(self, invocation: Invocation) -> str:
        return present.text_block("\n".join(texts_of(invocation.result)))

    @admin.display(description="whole result")
    def whole_result(self, invocation: Invocation) -> str:
        return present.json_block(invocation.result)
