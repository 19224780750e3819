"""The page of the search, which is also the dialog that Ctrl+K opens on every page, and the pins of tools."""

from __future__ import annotations

from typing import cast

from django.contrib import admin, messages
from django.contrib.auth.models import User
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.http import require_POST

from roster import ranking
from roster.admin import finding, live
from roster.models import PinnedTool


def search_view(request: HttpRequest) -> HttpResponse:
    """The results of `q`: a page, or for static/roster/search.js only the list."""
    query = request.GET.get("q", "")[: ranking.MAX_QUERY]
    context = {"query": query.strip(), "hits": finding.hits_for(request, query)}
    if request.headers.get("X-Live") == "part":
        return live.part(request, "roster/search_hits.html", lambda: context)
    return render(request, "roster/search.html", {**admin.site.each_context(request), "title": "Search", **context})


@require_POST
def pin_view(request: HttpRequest, tool_id: int) -> HttpResponseBase:
    """Pin a tool, or with `unpin` take its pin away. Leads back to the page with the button."""
    tool = finding.tools_in_sight(request).filter(pk=tool_id).first()
    if tool is None:
        raise Http404(f"no tool {tool_id}")
    pins = PinnedTool.objects.filter(user=request.user.pk)
    if "unpin" in request.POST:
        pins.filter(tool=tool).delete()
        messages.success(request, f"{tool.name} is not pinned any more.")
    elif pins.exclude(tool=tool).count() >= PinnedTool.MAX_PER_USER:
        messages.error(request, f"You have pinned {PinnedTool.MAX_PER_USER} tools. Take a pin away first.")
    else:
        PinnedTool.objects.get_or_create(user=cast(User, request.user), tool=tool)
        messages.success(request, f"{tool.name} is pinned. The search (Ctrl+K) shows it first.")
    return live.form_response(request, redirect(_page_with_the_button(request)))


def _page_with_the_button(request: HttpRequest) -> str:
    page = request.POST.get("next", "")
    is_own = url_has_allowed_host_and_scheme(page, allowed_hosts=None, require_https=request.is_secure())
    return page if is_own else reverse("admin:search")
