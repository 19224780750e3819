"""The roster, the hall's first page. It has a card per member, broken members first, and updates automatically."""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode, urlsplit

from django.db.models import Exists, OuterRef, Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse

from mcp_runtime.control.calls import calls_of_last_hour
from mcp_runtime.control.members import visible_tools
from roster import roles
from roster.admin import live, present
from roster.admin.members.verbs import (
    Verb,
    annotations_of,
    diagnosis_of,
    verbs_now,
    visible_row,
    visible_since,
    visible_status,
)
from roster.admin.rows import RuntimeRowAdmin, principal_of
from roster.diagnosis import Diagnosis
from roster.models import GuildMember, Tool

if TYPE_CHECKING:
    from roster.admin.members.verbs import Member

Status = GuildMember.Status

VIEW_TOOLS = "roster.view_tool"
MAX_CARDS = 300
MAX_QUERY = 100
MAX_TOOLS_FOUND = 6
# All columns that a card shows. It changes only when one of them changes.
COLUMNS = (
    *("id", "name", "directory", "removed_at", "display_name", "description", "server_url", "manifest_error"),
    *("manifest_warnings", "enabled", "desired_state", "restart_requested_at", "status", "status_changed_at"),
    *("last_error", "progress", "no_answer_since", "warnings", "started_at", "protocol_version", "next_restart_at"),
    "node",
)


@dataclass(frozen=True)
class Card:
    """A member's card."""

    member: Member
    row: GuildMember  # its current state
    diagnosis: Diagnosis | None
    verbs: list[Verb]
    matching_tools: list[Tool]
    last_hour: list[tuple[int, int]]  # (calls, failed), as `control.calls.calls_of_last_hour`
    node: str  # the name of its owner in a hall with several nodes. Otherwise empty

    @property
    def status(self) -> str:
        return self.row.status

    @property
    def calls(self) -> int:
        return sum(calls for calls, _ in self.last_hour)

    @property
    def failed(self) -> int:
        return sum(failed for _, failed in self.last_hour)

    @property
    def host(self) -> str:
        """The address of a remote server."""
        return urlsplit(self.member.server_url).netloc.rpartition("@")[2]

    @property
    def is_alive(self) -> bool:
        """Whether the row's facts about a process are current."""
        return self.member.runtime_is_alive

    @property
    def since(self) -> datetime | None:
        return visible_since(self.member)

    @property
    def progress(self) -> str:
        return self.row.progress if self.status == Status.STARTING else ""

    @property
    def warning(self) -> str:
        warnings = self.row.all_warnings
        suffix = f" (and {len(warnings) - 1} more)" if len(warnings) > 1 else ""
        return present.one_line(str(warnings[0]), 200) + suffix if warnings else ""

    @property
    def next_try(self) -> datetime | None:
        return self.row.next_restart_at if self.status == Status.ERROR else None

    @property
    def has_pending_restart(self) -> bool:
        return self.is_alive and self.member.enabled and self.member.restart_requested_at is not None


@dataclass(frozen=True)
class Chip:
    """A status as a filter of the roster, with the number of its members."""

    status: str
    label: str
    count: int
    address: str
    is_active: bool


class RosterScreen(RuntimeRowAdmin):
    """The part of the members' admin with the first page."""

    def get_urls(self) -> list[URLPattern]:
        cards = self.admin_site.admin_view(self.cards_view)
        return [path("cards/", cards, name="roster_cards"), *super().get_urls()]

    def roster_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> TemplateResponse:
        """The page. Users without the permission to view members get a message."""
        context = {**self.admin_site.each_context(request), "title": "Roster", **(extra_context or {})}
        if self.has_view_permission(request):
            search = Search.of(request)
            tag = self._tag(request, search)  # first, so that a change meanwhile is requested again and not missed
            part = f"{reverse('admin:roster_cards')}?{search.as_query()}"
            context |= {**self._cards(request, search), "part": part, "etag": tag}
        elif not roles.has_any_right(request.user):
            context |= {"title": "No role", "is_without_rights": True}
        return TemplateResponse(request, "roster/page.html", context)

    def cards_view(self, request: HttpRequest) -> HttpResponse:
        """Only the cards, for static/roster/live.js."""
        if not self.has_view_permission(request):
            return HttpResponse("You do not have permission to view members.", status=403, content_type="text/plain")
        search = Search.of(request)
        tag = self._tag(request, search)
        return live.part(request, "roster/cards.html", lambda: self._cards(request, search), tag=tag)

    def _search_results(self, request: HttpRequest, search: Search) -> QuerySet[Any]:
        """All members that match the query, with any status."""
        members = self.get_queryset(request).filter(removed_at=None)
        return search.filter_members(members, with_tools=_may_see_tools(request))

    def _tag(self, request: HttpRequest, search: Search) -> str:
        """The ETag of all that the cards show, without their rows. Values cost a third of rows."""
        hour, principal = last_hour.figures(), principal_of(request)
        permissions = principal.controls, principal.invokes, principal.views_calls, request.user.has_perm(VIEW_TOOLS)
        columns = (*COLUMNS, "port_allocation__port", "tool_count", *annotations_of(present.liveness(request)))
        rows = [(*row, hour.get(row[0])) for row in self._search_results(request, search).values_list(*columns)]
        return live.etag(search, permissions, present.runtime_is_alive(request), rows)

    def _cards(self, request: HttpRequest, search: Search) -> dict[str, Any]:
        """The context of roster/cards.html, with broken members first, then by name."""
        unsorted = list(self._search_results(request, search).only(*COLUMNS, "port_allocation__port"))
        members = sorted(unsorted, key=_order)
        counts = Counter(visible_status(member) for member in members)
        matches = [member for member in members if not search.status or visible_status(member) == search.status]
        visible = matches[:MAX_CARDS]
        tools = _matching_tools(search, visible) if _may_see_tools(request) else {}
        principal = principal_of(request)
        return {
            "cards": [_card(request, member, tools.get(member.pk, [])) for member in visible],
            "left_out": len(matches) - len(visible),
            "chips": _chips(search, counts),
            "search": search,
            "may_invoke": principal.invokes,
            "may_list_tools": request.user.has_perm(VIEW_TOOLS),
            "may_list_calls": principal.views_calls,
            "is_empty": not members and not search.query,
        }


class LastHour:
    """The figures of the last hour. They cost more than the rest of the page, so they are cached for a few seconds."""

    SECONDS = 3.0

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._updated_at = -self.SECONDS
        self._figures: dict[int, list[tuple[int, int]]] = {}

    def figures(self) -> dict[int, list[tuple[int, int]]]:
        with self._lock:
            if time.monotonic() >= self._updated_at + self.SECONDS:
                self._figures = calls_of_last_hour()
                self._updated_at = time.monotonic()
            return self._figures

    def forget(self) -> None:
        """Clear the cache."""
        self._updated_at = -self.SECONDS


last_hour = LastHour()


@dataclass(frozen=True)
class Search:
    """A search in the roster."""

    query: str = ""
    status: str = ""

    @classmethod
    def of(cls, request: HttpRequest) -> Search:
        status = request.GET.get("status", "")
        return cls(request.GET.get("q", "")[:MAX_QUERY].strip(), status if status in Status.values else "")

    @property
    def words(self) -> list[str]:
        return self.query.replace("\0", " ").split()

    def as_query(self) -> str:
        return urlencode({key: value for key, value in (("q", self.query), ("status", self.status)) if value})

    def filter_members(self, members: QuerySet[Any], *, with_tools: bool) -> QuerySet[Any]:
        """The members for which each word is in one of their texts, or in the name or title of one of their tools."""
        for word in self.words:
            condition = Q(name__icontains=word) | Q(display_name__icontains=word) | Q(description__icontains=word)
            if with_tools:
                tools = Tool.objects.filter(_says(word), visible_tools(), member=OuterRef("pk"))
                condition |= Q(Exists(tools))
            members = members.filter(condition)
        return members


def _says(word: str) -> Q:
    title = Q(definition__title__icontains=word) | Q(definition__annotations__title__icontains=word)
    return Q(name__icontains=word) | title


def _may_see_tools(request: HttpRequest) -> bool:
    """Whether the user sees names of tools, with a permission to list, call or control them."""
    principal = principal_of(request)
    return principal.invokes or principal.controls or request.user.has_perm(VIEW_TOOLS)


def _order(member: Member) -> tuple[bool, str, str]:
    return visible_status(member) != Status.ERROR, member.title.casefold(), member.name


def _card(request: HttpRequest, member: Member, matching_tools: list[Tool]) -> Card:
    verbs = verbs_now(member) if principal_of(request).may_control(member.name) else []
    figures = last_hour.figures().get(member.pk, [])
    liveness = present.liveness(request)
    node = (liveness.owner_of(member) or "none") if liveness.has_several_nodes else ""
    return Card(member, visible_row(member), diagnosis_of(member), verbs, matching_tools, figures, node)


def _matching_tools(search: Search, members: list[Any]) -> dict[int, list[Tool]]:
    """The first matching tools of each member."""
    by_member: dict[int, list[Tool]] = {}
    if not search.words or not members:
        return by_member
    condition = Q()
    for word in search.words:
        condition |= _says(word)
    rows = Tool.objects.filter(condition, visible_tools(), member__in=[member.pk for member in members])
    for tool in rows.only("name", "member_id").order_by("member_id", "position")[: MAX_CARDS * MAX_TOOLS_FOUND]:
        tools = by_member.setdefault(tool.member_id, [])
        if len(tools) < MAX_TOOLS_FOUND:
            tools.append(tool)
    return by_member


def _chips(search: Search, counts: Counter[str]) -> list[Chip]:
    order = ["", Status.ERROR, Status.CONNECTED, Status.STARTING, Status.STOPPING, Status.DISCONNECTED]
    chips = []
    for status in map(str, order):
        count = counts[status] if status else counts.total()
        if status and not count and status != search.status:
            continue
        address = f"?{Search(search.query, status).as_query()}"
        chips.append(Chip(status, status or "all", count, address, status == search.status))
    return chips
