"""The page with what an agent sees, for a token and for a tool set."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.contrib import messages
from django.contrib.admin import ModelAdmin
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse

from mcp_runtime.protocol.errors import McpRuntimeError
from roster.agent_config import ESTIMATE_FORMULA
from roster.agent_view import MAX_COUNTED, AgentView
from roster.models import Token, ToolSet

SHOWN_TOOLS = 50


def page(
    model_admin: ModelAdmin[Any],
    request: HttpRequest,
    row: Token | ToolSet,
    look: Callable[[], AgentView],
    trim: Callable[[], int] | None,
    *,
    trim_help: str,
) -> HttpResponse:
    """Show what `look` returns. On a POST, trim it. Without `trim`, the user may not."""
    if request.method == "POST":
        if trim is None:
            raise PermissionDenied
        try:
            number = trim()
            tools = "1 tool that was" if number == 1 else f"{number} tools that were"
            messages.success(request, f"{row} now has the {tools} called.")
        except McpRuntimeError as refusal:
            messages.error(request, f"Not trimmed: {refusal}")
        return redirect(request.path)
    context = {
        **model_admin.admin_site.each_context(request),
        "opts": model_admin.opts,
        "title": "What the agent sees",
        "subtitle": str(row),
        "row": row,
        "row_name": str(row),
        "trim_help": trim_help,
        "estimate_formula": ESTIMATE_FORMULA,
        "counted_calls": MAX_COUNTED,
    }
    try:
        view = look()
    except McpRuntimeError as refusal:
        context["refusal"] = str(refusal)
    else:
        context |= {
            "view": view,
            "shown_tools": view.most_expensive(SHOWN_TOOLS),
            "left_out": max(view.total.tools - SHOWN_TOOLS, 0),
            "called": view.kept,
            "may_trim": trim is not None and view.may_trim,
        }
    return TemplateResponse(request, "roster/agent_view.html", context)
