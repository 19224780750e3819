"""The list of calls, fast for any number of them: filters, a search, and pages that never count or read all calls.

It searches only the newest SCANNED calls, except if the only filter is a member or a token, which have an index. The
page says how far it searched and links to older calls: `?before=ID`.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any, cast

from django.contrib import admin
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import ChangeList
from django.core.paginator import Page, Paginator
from django.db.models import Q, QuerySet, TextField
from django.db.models.functions import Cast, Substr
from django.http import HttpRequest
from django.utils import timezone
from django.utils.dateparse import parse_datetime
from django.utils.html import format_html

from mcp_runtime.control import call_search
from mcp_runtime.control.members import members_of_roster
from mcp_runtime.control.tool_sets import ToolSetsOfCalls
from mcp_runtime.protocol.errors import SearchError
from roster.admin import present
from roster.admin.calls.lines import BEGINNING
from roster.admin.rows import principal_of
from roster.models import Call, GuildMember, Token

PER_PAGE = 50
# The calls on these pages. The last page links to older ones.
MAX_COUNTED = 1000
SCANNED = 100_000
MAX_TOKENS = 100
FIRST_YEAR, LAST_YEAR = 1970, 2999  # near the ends of the calendar no hour can be added
# A call through the gateway is recorded at its end, so its id may belong to a time that much later.
LONGEST_CALL = timedelta(hours=1)

UNINDEXED = (
    "status__exact",
    "error_kind__exact",
    "source__exact",
    "tool_name",
    "tool_set",
    "within",
    "queued_at__gte",
    "queued_at__lt",
)

_TOOL_SETS = "_guild_hall_tool_sets_of_calls"
WITHIN = {"900": "last 15 minutes", "3600": "last hour", "86400": "last day", "604800": "last week"}


def tool_sets_of(request: HttpRequest) -> ToolSetsOfCalls:
    """What the user may know about the tool sets of calls. It is looked up once per request."""
    if not hasattr(request, _TOOL_SETS):
        is_superuser = bool(getattr(request.user, "is_superuser", False))
        setattr(request, _TOOL_SETS, ToolSetsOfCalls(principal_of(request), is_superuser=is_superuser))
    return cast(ToolSetsOfCalls, getattr(request, _TOOL_SETS))


# Filters ----------------------------------------------------------------------------------------------------------


class TypedFilter(admin.SimpleListFilter):
    """A filter with a field in the form of the list's template."""

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return []

    def has_output(self) -> bool:
        return True

    def queryset(self, request: HttpRequest, rows: QuerySet[Any]) -> QuerySet[Any]:
        value = (self.value() or "").strip().replace("\0", "")
        return self.narrow(rows, value) if value else rows

    def narrow(self, rows: QuerySet[Any], value: str) -> QuerySet[Any]:
        raise NotImplementedError


class ByTool(TypedFilter):
    title = parameter_name = "tool_name"

    def narrow(self, rows: QuerySet[Any], value: str) -> QuerySet[Any]:
        return rows.filter(tool_name=value)


class ByToolSet(TypedFilter):
    title = parameter_name = "tool_set"

    def queryset(self, request: HttpRequest, rows: QuerySet[Any]) -> QuerySet[Any]:
        name = (self.value() or "").strip().replace("\0", "")
        return rows.filter(tool_sets_of(request).calls_through(name)) if name else rows


class ByToken(TypedFilter):
    title = parameter_name = "token"

    def narrow(self, rows: QuerySet[Any], value: str) -> QuerySet[Any]:
        return rows.filter(token_id=number_in(value))


class Within(TypedFilter):
    title = parameter_name = "within"

    def narrow(self, rows: QuerySet[Any], value: str) -> QuerySet[Any]:
        if value not in WITHIN:
            raise IncorrectLookupParameters
        return _since(rows, timezone.now() - timedelta(seconds=int(value)))


class Since(TypedFilter):
    title = parameter_name = "queued_at__gte"

    def narrow(self, rows: QuerySet[Any], value: str) -> QuerySet[Any]:
        return _since(rows, moment_in(value))


class Until(TypedFilter):
    title = parameter_name = "queued_at__lt"

    def narrow(self, rows: QuerySet[Any], value: str) -> QuerySet[Any]:
        moment = moment_in(value)
        return rows.filter(queued_at__lt=moment, pk__lt=first_id_at(moment + LONGEST_CALL))


class Before(TypedFilter):
    """Calls with lower ids, which continue the previous page."""

    title = parameter_name = "before"

    def narrow(self, rows: QuerySet[Any], value: str) -> QuerySet[Any]:
        return rows.filter(pk__lt=number_in(value))


def _since(rows: QuerySet[Any], moment: datetime) -> QuerySet[Any]:
    return rows.filter(queued_at__gte=moment, pk__gte=first_id_at(moment - LONGEST_CALL))


def first_id_at(moment: datetime) -> int:
    """The approximate first id at that time, by binary search, because `queued_at` has no index. Ids ascend with it."""
    ids = Call.objects.order_by("id").values_list("id", flat=True)
    low, high = ids.first() or 0, (ids.last() or 0) + 1
    while low < high:
        middle = (low + high) // 2
        first = Call.objects.filter(pk__gte=middle).order_by("id").values_list("id", "queued_at").first()
        if first is None or first[1] >= moment:
            high = middle
        else:
            low = first[0] + 1
    return low


def number_in(value: str) -> int:
    if not (value.isascii() and value.isdigit() and len(value) <= 18):
        raise IncorrectLookupParameters
    return int(value)


def moment_in(value: str) -> datetime:
    """Parse `2026-11-21T15:43`, in UTC unless it has another zone."""
    try:
        moment = parse_datetime(value)
    except ValueError:
        moment = None
    if moment is None or not FIRST_YEAR <= moment.year <= LAST_YEAR:
        raise IncorrectLookupParameters
    return moment if timezone.is_aware(moment) else moment.replace(tzinfo=UTC)


# The list ---------------------------------------------------------------------------------------------------------


class CallPaginator(Paginator):  # type: ignore[type-arg]  # Django's class cannot be subscripted at run time
    """Read at most MAX_COUNTED ids at once and count them. A page is then a query by ids."""

    object_list: QuerySet[Any]

    @cached_property
    def ids(self) -> list[int]:
        return list(self.object_list.values_list("pk", flat=True)[: MAX_COUNTED + 1])

    @property
    def has_more(self) -> bool:
        return len(self.ids) > MAX_COUNTED

    @cached_property
    def count(self) -> int:
        return min(len(self.ids), MAX_COUNTED)

    def page(self, number: int | str) -> Page[Any]:
        valid = self.validate_number(number)
        ids = self.ids[: self.count][(valid - 1) * self.per_page : valid * self.per_page]
        return Page(self.object_list.filter(pk__in=ids), valid, self)


class CallList(ChangeList):
    """Never loads columns that only a call's page shows, because a result may have megabytes. A search stops at
    `oldest_id`.
    """

    oldest_id = 0
    fault = ""  # why there is no result
    filtered: QuerySet[Any]  # all calls that pass the filters, of any age, and also those that the search excludes

    def get_queryset(self, *args: Any, **kwargs: Any) -> QuerySet[Any]:
        self.filtered = super().get_queryset(*args, **kwargs)
        beginning = Substr(Cast("arguments", TextField()), 1, BEGINNING)
        rows: QuerySet[Any] = self.filtered.defer(*Call.UNLISTED).annotate(arguments_beginning=beginning)
        if not self._is_searched:
            return rows
        newest = rows.model.objects.order_by("-id")
        if before := self.filter_value("before"):
            newest = newest.filter(pk__lt=number_in(before))
        if until := self.filter_value("queued_at__lt"):
            newest = newest.filter(pk__lt=first_id_at(moment_in(until) + LONGEST_CALL))
        latest = newest.values_list("id", flat=True).first() or 0
        self.oldest_id = max(0, latest - SCANNED)
        return rows.filter(self.search.within(self.oldest_id, latest), pk__gt=self.oldest_id)

    @cached_property
    def search(self) -> Search:
        return Search(self.query)

    def filter_value(self, name: str) -> str:
        """The value of this filter in the URL."""
        return str(self.params.get(name, "")).strip()

    def get_filters_params(self, params: dict[str, Any] | None = None) -> dict[str, Any]:
        """The filters in the URL, without the span of the page's plots."""
        filters: dict[str, Any] = super().get_filters_params(params)
        filters.pop("span", None)
        return filters

    def get_results(self, request: HttpRequest) -> None:
        try:
            with call_search.limit() if self.query else nullcontext():
                self._read_results(request)
        except SearchError as error:
            self.fault = str(error)
            self.queryset = self.queryset.none()
            self._read_results(request)

    def _read_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        if not self.multi_page:
            # Django would run the whole search once more.
            self.result_list = self.paginator.page(1).object_list
        if self.query:
            self.result_list = list(self.result_list)  # within the limit of time

    @property
    def _is_searched(self) -> bool:
        """Whether the filters need more than indexes."""
        return bool(self.query) or any(self.filter_value(name) for name in UNINDEXED)

    @property
    def newer(self) -> str:
        """The query of the previous page. Empty on the first."""
        return self.get_query_string({"p": self.page_num - 1}) if self.page_num > 1 else ""

    @property
    def older(self) -> str:
        """The query of the next page. Empty on the last."""
        paginator: Any = self.paginator
        if self.page_num < paginator.num_pages:
            return self.get_query_string({"p": self.page_num + 1})
        return (
            self.get_query_string({"before": paginator.ids[paginator.count - 1]}, ["p"]) if paginator.has_more else ""
        )

    @cached_property
    def further_back(self) -> str:
        """The query of the same search among older calls. Empty at the end."""
        if not self.oldest_id or self.older:
            return ""
        if not Call.objects.filter(pk__lte=self.oldest_id).exists():
            return ""  # they were pruned
        return self.get_query_string({"before": self.oldest_id + 1}, ["p"])


def note_of_search(calls: CallList) -> str:
    """What the user must know about a search for words. Empty if there is nothing."""
    if not calls.query:
        return ""
    if fault := call_search.fault():
        return fault
    since = call_search.searched_since()
    text = "Arguments and results are searched of calls that ended after {}."
    return format_html(text, present.when(since)) if since else ""


# The search -------------------------------------------------------------------------------------------------------


@dataclass
class Search:
    """A search for calls whose id is `text`, whose tool, member, requester or error contains it, or whose arguments,
    result and error have all its words.
    """

    text: str

    def within(self, above: int = 0, until: int = call_search.MAX_ID) -> Q:
        """The condition for calls with ids in `above` < id <= `until`. The words are searched only there.

        It is empty without words.
        """
        if not self._words:
            return Q()
        return self._of_columns | call_search.matching(self._words, above=above, until=until)

    @cached_property
    def _words(self) -> str:
        return self.text.strip()[:200].replace("\0", "")

    @cached_property
    def _of_columns(self) -> Q:
        words = self._words
        matches = Q(tool_name__icontains=words) | Q(requester__icontains=words) | Q(error_message__icontains=words)
        members = list(GuildMember.objects.filter(name__icontains=words).values_list("pk", flat=True)[:1000])
        if members:
            matches |= Q(member_id__in=members)
        number = words.removeprefix("#")
        if number.isascii() and number.isdigit() and len(number) <= 18:
            matches |= Q(pk=int(number))
        return matches


# The form of the filters ------------------------------------------------------------------------------------------


def form_of(request: HttpRequest, calls: CallList) -> dict[str, Any]:
    """The choices of the filters' form, and the current ones."""
    closed_names = principal_of(request).closed_members
    members = members_of_roster().exclude(name__in=closed_names).order_by("name").values_list("pk", "name")
    tokens = Token.objects.exclude(last_used_at=None).select_related("user").order_by("-last_used_at")
    if not getattr(request.user, "is_superuser", False):  # others see only their own tokens
        tokens = tokens.filter(user=request.user.pk)
    choices = [
        _select("status__exact", "Status", Call.Status.choices, calls),
        _select("error_kind__exact", "Error kind", Call.ErrorKind.choices, calls),
        _select("member__id__exact", "Member", [(str(pk), name) for pk, name in members], calls),
        _select("source__exact", "Source", Call.Source.choices, calls),
        _select("tool_set", "Tool set", _options([*tool_sets_of(request).names], calls, "tool_set"), calls),
        _select("token", "Token", [(str(token.pk), _token_label(token)) for token in tokens[:MAX_TOKENS]], calls),
        _select("within", "Time", list(WITHIN.items()), calls),
    ]
    texts = {name: calls.filter_value(name) for name in ("tool_name", "queued_at__gte", "queued_at__lt")}
    active_filters = sum(1 for choice in choices if choice["value"]) + sum(1 for value in texts.values() if value)
    return {"choices": choices, "texts": texts, "active_filters": active_filters, "query": calls.query}


def _options(names: list[str], calls: CallList, filter_name: str) -> list[tuple[str, str]]:
    """The names, and the value in the URL, which may be that of a deleted row."""
    value = calls.filter_value(filter_name)
    return [(name, name) for name in sorted({*names, value} - {""})]


def _token_label(token: Token) -> str:
    return f"{token.user} {token.name or token.hint}"


def _select(name: str, label: str, options: list[tuple[str, str]], calls: CallList) -> dict[str, Any]:
    return {"name": name, "label": label, "options": options, "value": calls.filter_value(name)}
