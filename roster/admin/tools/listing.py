"""The list of tools: by member, or the best matches of a search, with filters by state and by what tools say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from django.contrib import admin
from django.core.paginator import Paginator
from django.db.models import Count, Exists, OuterRef, Q, QuerySet
from django.http import HttpRequest

from mcp_runtime.control.members import tools_version
from mcp_runtime.protocol import mcp
from roster import ranking
from roster.admin import finding, live, present
from roster.admin.members.verbs import annotations_of, visible_status
from roster.admin.rows import FolderFilter, ReachableMembersFilter, RuntimeRowList, principal_of
from roster.admin.tools.annotations import Badge, badges_of, obstacle_of
from roster.models import GuildMember, Tool

# Of the annotations of tools. In MCP a tool is destructive only if it is not read-only.
READS = Q(definition__annotations__readOnlyHint=True)
# A missing key is neither true nor false in SQL.
DELETES = Q(definition__annotations__destructiveHint=True) & (
    Q(definition__annotations__readOnlyHint__isnull=True) | ~READS
)


class MembersFolder(FolderFilter):
    """Show the tools of a selected member even if its folder is gone."""

    title = "folder of the member"
    removed_at = "member__removed_at"

    def queryset(self, request: HttpRequest, queryset: QuerySet[Tool]) -> QuerySet[Tool]:
        if self.value() is None and "member__id__exact" in request.GET:
            return queryset
        return super().queryset(request, queryset)


class MembersInSight(ReachableMembersFilter):
    """Offer the members whose tools the list shows, and the selected one. Not those without tools."""

    has_removed = False  # whether a member of a folder that is gone has tools

    def field_choices(self, field: Any, request: HttpRequest, model_admin: Any) -> Any:
        has_tools = Exists(Tool.objects.filter(member=OuterRef("pk")))
        with_tools = dict(GuildMember.objects.filter(has_tools).order_by().values_list("pk", "removed_at"))
        visible = {"gone": {True}, "any": {True, False}}.get(request.GET.get(MembersFolder.parameter_name, ""), {False})
        selection = list(self.lookup_val or [])
        choices = super().field_choices(field, request, model_admin)
        self.has_removed = any(with_tools.get(pk) for pk, _ in choices)
        return [
            (pk, name)
            for pk, name in choices
            if str(pk) in selection or (pk in with_tools and (with_tools[pk] is not None) in visible)
        ]


class SaysFilter(admin.SimpleListFilter):
    """Tools by their annotations."""

    title = "what the tool says"
    parameter_name = "says"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("reads", "only reads data"), ("deletes", "may delete or overwrite data")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Tool]) -> QuerySet[Tool]:
        condition = {"reads": READS, "deletes": DELETES}.get(self.value() or "")
        return queryset if condition is None else queryset.filter(condition)


class ToolList(RuntimeRowList):
    """By member and in the order of the member, or for a search the best matches first."""

    def get_results(self, request: HttpRequest) -> None:
        words = ranking.words_of(self.query)
        if not words:
            super().get_results(request)
            return
        scores = [(ranking.score(words, finding.texts_of(tool)), tool) for tool in self.queryset[: finding.MAX_ROWS]]
        matches = [tool for points, tool in sorted(scores, key=lambda scored: -scored[0]) if points]
        self.paginator = Paginator(matches, self.list_per_page)
        page = self.paginator.get_page(self.page_num)
        self.page_num, self.result_list = page.number, list(page)
        self.result_count = self.full_result_count = len(matches)
        self.can_show_all, self.multi_page = False, self.paginator.num_pages > 1


@dataclass(frozen=True)
class Row:
    tool: Tool
    badges: Sequence[Badge]
    state: str  # why it is not offered. Empty if it is
    may_call: bool
    needs_task: bool


@dataclass(frozen=True)
class Group:
    """The tools of one member in their order, or those of several as they match."""

    rows: list[Row]
    member: GuildMember | None = None
    status: str = ""


@dataclass(frozen=True)
class Chip:
    """A filter with the number of its tools."""

    label: str
    count: int
    address: str
    is_active: bool


# For each: its label, the parameters of the list, and the condition for its count.
_CHIPS: list[tuple[str, dict[str, str], Q]] = [
    ("all", {}, Q()),
    ("only read data", {"says": "reads"}, READS),
    ("may delete", {"says": "deletes"}, DELETES),
    ("disabled", {"enabled__exact": "0"}, Q(enabled=False)),
    ("held", {"is_held__exact": "1"}, Q(is_held=True)),
    ("no longer listed", {"listed__exact": "0"}, Q(listed=False)),
]
_CHIP_PARAMETERS = {name for _, parameters, _ in _CHIPS for name in parameters}


def context_of(request: HttpRequest, tools: Any) -> dict[str, Any]:
    """What `admin/roster/tool/list_part.html` shows of a ToolList."""
    may_invoke = principal_of(request).invokes
    rows = [_row(tool, may_invoke=may_invoke) for tool in tools.result_list]
    return {
        "cl": tools,
        "groups": [Group(rows)] if tools.query and rows else _groups(request, rows),
        "chips": _chips(tools),
        "pages": _pages(tools),
        "may_control": principal_of(request).controls,
    }


def frame_of(request: HttpRequest, tools: Any) -> dict[str, Any]:
    """What the page has around the list: the search and the members to choose from."""
    members = next((spec for spec in tools.filter_specs if isinstance(spec, MembersInSight)), None)
    choices = members.lookup_choices if members else []
    others = {name: value for name, value in tools.params.items() if name in {*_CHIP_PARAMETERS, "folder"}}
    return {
        "members": [(str(pk), name) for pk, name in choices],
        "member_id": str(tools.params.get("member__id__exact", "")),
        "other_parameters": others,
        "has_removed": members is not None and members.has_removed,
    }


def etag_of(request: HttpRequest) -> str:
    """Changes with everything that the list shows, without reading a definition."""
    principal = principal_of(request)
    columns = ("pk", "name", "display_name", "enabled", "removed_at", "status", "node")
    members = GuildMember.objects.values_list(*columns)
    rights = principal.invokes, principal.controls, sorted(principal.closed_members)
    live_ids, query = present.liveness(request).live_ids, request.GET.urlencode()
    return live.etag(query, rights, live_ids, list(members), tools_version())


def _row(tool: Tool, *, may_invoke: bool) -> Row:
    state = ""
    if not tool.listed:
        state = "no longer listed"
    elif not tool.enabled:
        state = "disabled"
    elif tool.is_held:
        state = "held until somebody approves its change"
    needs_task = mcp.needs_task(tool.definition)
    return Row(tool, badges_of(tool), state, may_invoke and not obstacle_of(tool), needs_task)


def _groups(request: HttpRequest, rows: list[Row]) -> list[Group]:
    by_member: dict[int, list[Row]] = {}
    for row in rows:
        by_member.setdefault(row.tool.member_id, []).append(row)
    members: dict[int, Any] = GuildMember.objects.annotate(**annotations_of(present.liveness(request))).in_bulk(
        by_member
    )
    return [Group(found, members[pk], visible_status(members[pk])) for pk, found in by_member.items() if pk in members]


def _chips(tools: Any) -> list[Chip]:
    """Each chip counts the tools of the chosen member and folder, whatever the search and the other chips."""
    rows = tools.root_queryset
    if member_id := tools.params.get("member__id__exact"):
        rows = rows.filter(member__in=[member_id] if not isinstance(member_id, list) else member_id)
    folder = tools.params.get("folder")
    folder = folder[0] if isinstance(folder, list) else folder
    if folder == "gone":
        rows = rows.exclude(member__removed_at=None)
    elif folder != "any" and not member_id:
        rows = rows.filter(member__removed_at=None)
    counts = rows.aggregate(**{f"count_{place}": Count("pk", filter=each[2]) for place, each in enumerate(_CHIPS)})
    current = {name: value for name, value in _values(tools).items() if name in _CHIP_PARAMETERS}
    others = {name: value for name, value in _values(tools).items() if name not in {*_CHIP_PARAMETERS, "p"}}
    return [
        Chip(label, counts[f"count_{place}"], f"?{urlencode({**others, **parameters})}", current == parameters)
        for place, (label, parameters, _) in enumerate(_CHIPS)
        if counts[f"count_{place}"] or current == parameters or not parameters
    ]


def _values(tools: Any) -> dict[str, str]:
    """The parameters of the list as text, with the search."""
    found = {name: value[-1] if isinstance(value, list) else value for name, value in tools.params.items()}
    return {**({"q": tools.query} if tools.query else {}), **{name: str(value) for name, value in found.items()}}


def _pages(tools: Any) -> list[tuple[int, str]]:
    """The numbers of the pages around the current one, with their addresses. None if there is only one."""
    last = tools.paginator.num_pages
    if last < 2:
        return []
    near = {1, last, *range(tools.page_num - 2, tools.page_num + 3)}
    return [(number, tools.get_query_string({"p": number})) for number in sorted(near) if 1 <= number <= last]
