"""The roster, the hall's first page. It has a card per member, broken members first, and updates automatically."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from heapq import nlargest
from operator import itemgetter
from typing import Any
from urllib.parse import urlencode

from django.db.models import Exists, OuterRef, Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse

from mcp_runtime.control import proposals
from mcp_runtime.control.members import visible_tools
from roster import ranking, roles
from roster.admin import finding, live
from roster.admin.members import cards
from roster.admin.members.cards import VIEW_TOOLS, Line
from roster.admin.rows import RuntimeRowAdmin, principal_of
from roster.models import GuildMember, Tool

Status = GuildMember.Status

CARDS_AT_A_TIME = 48  # full rows of two, three and four columns
MAX_CARDS = 300
MAX_QUERY = 100
MAX_TOOLS_FOUND = 6


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
        view = self.admin_site.admin_view(self.cards_view)
        return [path("cards/", view, name="roster_cards"), *super().get_urls()]

    def roster_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> TemplateResponse:
        """The page. Users without the permission to view members get a message."""
        context = {**self.admin_site.each_context(request), "title": "Roster", **(extra_context or {})}
        if self.has_view_permission(request):
            search = Search.of(request)
            lines = self._lines(request, search)
            part = f"{reverse('admin:roster_cards')}?{search.as_query()}"
            context |= {**self._cards(request, search, lines), "part": part, "etag": _tag(request, search, lines)}
            if request.user.has_perm(proposals.PERMISSION):
                context["proposed_count"] = proposals.open_proposals().count()
        elif not roles.has_any_right(request.user):
            context |= {"title": "No role", "is_without_rights": True}
        return TemplateResponse(request, "roster/page.html", context)

    def cards_view(self, request: HttpRequest) -> HttpResponse:
        """Only the cards, for static/roster/live.js."""
        if not self.has_view_permission(request):
            return HttpResponse("You do not have permission to view members.", status=403, content_type="text/plain")
        search = Search.of(request)
        lines = self._lines(request, search)
        tag = _tag(request, search, lines)
        return live.part(request, "roster/cards.html", lambda: self._cards(request, search, lines), tag=tag)

    def _lines(self, request: HttpRequest, search: Search) -> list[Line]:
        """All members that match the query, with any status. Read before the rows, so that no change is missed."""
        members = super().get_queryset(request).filter(removed_at=None)
        return cards.read_lines(request, search.filter_members(members, with_tools=_may_see_tools(request)))

    def _rows(self, request: HttpRequest, ids: list[int]) -> QuerySet[Any]:
        return cards.read_rows(self.get_queryset(request).filter(pk__in=ids))

    def _cards(self, request: HttpRequest, search: Search, lines: list[Line]) -> dict[str, Any]:
        """The context of roster/cards.html: the best matches first, or without words the broken members."""
        tools: dict[int, list[Tool]] = {}
        if search.words:
            ordered, tools = _ranked(search, lines, with_tools=_may_see_tools(request))
        else:
            ordered = sorted(lines, key=lambda line: line.order)
        counts = Counter(line.status for line in ordered)
        matches = [line for line in ordered if not search.status or line.status == search.status]
        visible = matches[: search.show]
        has_more = len(matches) > len(visible) and search.show < MAX_CARDS
        return {
            "cards": cards.render(request, visible, tools, lambda ids: self._rows(request, ids)),
            "shown": len(visible),
            "matches": len(matches),
            "left_out": len(matches) - len(visible),
            "more": replace(search, show=search.show + CARDS_AT_A_TIME) if has_more else None,
            "chips": _chips(search, counts),
            "search": search,
            "is_empty": not ordered and not search.query,
        }


def _tag(request: HttpRequest, search: Search, lines: Iterable[Line]) -> str:
    """The ETag of all that the cards show, without their rows."""
    return live.etag(search, cards.shared_version(request), [line.version.hex() for line in lines])


@dataclass(frozen=True)
class Search:
    """A search in the roster."""

    query: str = ""
    status: str = ""
    show: int = CARDS_AT_A_TIME  # cards

    @classmethod
    def of(cls, request: HttpRequest) -> Search:
        status = request.GET.get("status", "")
        show = request.GET.get("show", "")
        return cls(
            request.GET.get("q", "")[:MAX_QUERY].strip(),
            status if status in Status.values else "",
            min(max(int(show), CARDS_AT_A_TIME), MAX_CARDS) if show.isascii() and show.isdigit() else CARDS_AT_A_TIME,
        )

    @property
    def words(self) -> list[str]:
        return ranking.words_of(self.query)

    def as_query(self) -> str:
        show = str(self.show) if self.show != CARDS_AT_A_TIME else ""
        pairs = (("q", self.query), ("status", self.status), ("show", show))
        return urlencode({key: value for key, value in pairs if value})

    def filter_members(self, members: QuerySet[Any], *, with_tools: bool) -> QuerySet[Any]:
        """The members that have all words in their texts, or with a tool that has all words in its own."""
        if not self.words:
            return members
        own, tools = Q(), Tool.objects.filter(visible_tools(), member=OuterRef("pk"))
        for word in self.words:
            own &= finding.any_text_of_member(word)
            tools = tools.filter(finding.any_text_of_tool(word))
        return members.filter(own | Q(Exists(tools)) if with_tools else own)


def _may_see_tools(request: HttpRequest) -> bool:
    """Whether the user sees names of tools, with a permission to list, call or control them."""
    principal = principal_of(request)
    return principal.invokes or principal.controls or request.user.has_perm(VIEW_TOOLS)


def _ranked(search: Search, lines: list[Line], *, with_tools: bool) -> tuple[list[Line], dict[int, list[Tool]]]:
    """The members that match, the best first, and the best matching tools of each."""
    words = search.words
    scores = {line.pk: ranking.score(words, line.texts) for line in lines}
    tools: dict[int, list[tuple[int, Tool]]] = {}
    rows = Tool.objects.filter(visible_tools(), member__in=scores) if with_tools else Tool.objects.none()
    for word in words:
        rows = rows.filter(finding.any_text_of_tool(word))
    for tool in rows.select_related("member").order_by("member_id", "position")[: finding.MAX_ROWS]:
        if points := ranking.score(words, finding.texts_of(tool)):
            tools.setdefault(tool.member_id, []).append((points, tool))
            scores[tool.member_id] = max(scores[tool.member_id], points)
    ordered = sorted((line for line in lines if scores[line.pk]), key=lambda line: (-scores[line.pk], line.order))
    best = {
        pk: [tool for _, tool in nlargest(MAX_TOOLS_FOUND, found, key=itemgetter(0))] for pk, found in tools.items()
    }
    return ordered, best


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
