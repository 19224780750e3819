"""Status changes and ports."""

from __future__ import annotations

from django.contrib import admin
from django.http import HttpRequest
from django.template.defaultfilters import pluralize
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from mcp_runtime.protocol.errors import describe_exit
from roster.admin import present
from roster.admin.rows import ReachableMembersFilter, RuntimeRowAdmin, titled
from roster.models import PortAllocation, StatusChange


class MemberRowAdmin(RuntimeRowAdmin):
    """Rows that members get when they start."""

    def next_step(self, request: HttpRequest) -> SafeString | str:
        return format_html('Members get it when they start: <a href="{}">go to the roster</a>.', reverse("admin:index"))


@admin.register(StatusChange)
class StatusChangeAdmin(MemberRowAdmin):
    nothing_yet = "The status of no member has changed yet."
    list_display = ["happened", "of_member", "change", "cause", "exit", "short_message"]
    list_select_related = ["member"]
    list_filter = [
        ("new", titled("new status", admin.ChoicesFieldListFilter)),
        ("created_at", titled("time", admin.DateFieldListFilter)),
        ("member", ReachableMembersFilter),
    ]
    search_fields = ["member__name", "cause", "message"]
    fields = ["happened", "of_member", "change", "cause", "exit", "full_message", "repeated", "log"]

    happened = present.moment_column("created_at", "time")

    @admin.display(description="member", ordering="member__name")
    def of_member(self, change: StatusChange) -> SafeString:
        return present.link(change.member)

    @admin.display(description="change", ordering="new")
    def change(self, change: StatusChange) -> SafeString:
        return format_html("{} → {}", present.badge(change.old), present.badge(change.new))

    @admin.display(description="exit")
    def exit(self, change: StatusChange) -> str:
        return present.NOTHING if change.exit_code is None else describe_exit(change.exit_code)

    @admin.display(description="message")
    def short_message(self, change: StatusChange) -> str:
        times = f" ({change.repeats} more time{pluralize(change.repeats)})" if change.repeats else ""
        return present.with_times((present.one_line(change.message) or present.NOTHING) + times)

    @admin.display(description="message")
    def full_message(self, change: StatusChange) -> str:
        return present.text_block(change.message)

    @admin.display(description="restarts with the same failure")
    def repeated(self, change: StatusChange) -> str:
        if change.repeated_at is None:
            return present.NOTHING
        return format_html("{}, the last one at {}", change.repeats, present.when(change.repeated_at))

    @admin.display(description="last lines of output")
    def log(self, change: StatusChange) -> str:
        return present.text_block(change.log_tail)


@admin.register(PortAllocation)
class PortAllocationAdmin(MemberRowAdmin):
    nothing_yet = "No member has a port yet."
    list_display = ["port", "of_member", "endpoint", "allocated"]
    list_select_related = ["member"]
    search_fields = ["=port", "member__name"]
    fields = ["port", "of_member", "endpoint", "allocated"]

    allocated = present.moment_column("allocated_at")

    @admin.display(description="member", ordering="member__name")
    def of_member(self, allocation: PortAllocation) -> SafeString:
        return present.link(allocation.member)
