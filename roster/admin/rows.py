"""Rows that the runtime writes: to be looked at, never added, edited or deleted by hand."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import Model
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect


class RuntimeRowAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # Django's class cannot be subscripted at run time
    """Read-only for everybody. What an operator may do is an action that goes through `mcp_runtime.control`."""

    show_full_result_count = False
    list_per_page = 50

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_control_permission(self, request: HttpRequest) -> bool:
        """For actions with `permissions=["control"]`."""
        return request.user.has_perm("roster.control_member")

    def has_invoke_permission(self, request: HttpRequest) -> bool:
        """For actions with `permissions=["invoke"]`."""
        return request.user.has_perm("roster.invoke_tool")

    def existing(self, request: HttpRequest, object_id: str) -> Any:
        """The row that a button of its page is for."""
        row = self.get_object(request, object_id)
        if row is None:
            raise Http404(f"no {self.opts.verbose_name} {object_id}")
        return row

    def page_of(self, row: Model) -> HttpResponse:
        return redirect(f"admin:{self.opts.app_label}_{self.opts.model_name}_change", row.pk)
