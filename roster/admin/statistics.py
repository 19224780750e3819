"""Plots of calls as a part of pages: the section in a page, and the view of its updates."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils.safestring import SafeString

from mcp_runtime.control.calls import SPANS, call_series
from roster.admin import live, plots
from roster.admin.rows import principal_of
from roster.models import GuildMember

PART = "roster/statistics_part.html"


def section(request: HttpRequest, member: GuildMember | None, tool_name: str = "") -> dict[str, Any]:
    """The context of roster/statistics.html, with the plots of the span in the page's URL."""
    name = request.GET.get("span", "")
    span = name if name in SPANS else SPANS[0]
    tool_name = tool_name if member else ""
    html = render_to_string(PART, _context(request, member, tool_name, span), request)
    return {"address": _address(member, tool_name, span), "plots": SafeString(html), "etag": live.etag(html)}


def fragment(request: HttpRequest) -> HttpResponse:
    """The section's updates: `?member=ID&tool=NAME&span=day`, all optional."""
    principal = principal_of(request)
    if not principal.views_figures:
        raise PermissionDenied
    member, span = member_of(request, request.GET.get("member", "")), request.GET.get("span", SPANS[0])
    if span not in SPANS:
        raise Http404(f"there is no span {span!r}")
    tool_name = request.GET.get("tool", "") if member else ""
    if member and not principal.may_view_figures(member.name, tool_name):
        raise PermissionDenied
    return live.part(request, PART, lambda: _context(request, member, tool_name, span))


def member_of(request: HttpRequest, text: str) -> GuildMember | None:
    """The member with this id, or None without an id. Raises Http404 if the user may not see such a member."""
    if not text:
        return None
    member = (
        GuildMember.objects.filter(pk=int(text)).first()
        if text.isascii() and text.isdecimal() and len(text) < 18
        else None
    )
    if member is None or not principal_of(request).reaches(member.name):
        raise Http404(f"no member {text[:20]}")
    return member


def _context(request: HttpRequest, member: GuildMember | None, tool_name: str, span: str) -> dict[str, Any]:
    closed_members = principal_of(request).closed_members
    series = call_series(span, member=member, tool_name=tool_name, without=closed_members)
    return {
        **plots.plot(series),
        "spans": [(name, _address(member, tool_name, name), name == span) for name in SPANS],
    }


def _address(member: GuildMember | None, tool_name: str, span: str) -> str:
    params = {"member": member.pk if member else "", "tool": tool_name, "span": span}
    return f"{reverse('admin:roster_statistics')}?{urlencode({key: value for key, value in params.items() if value})}"
