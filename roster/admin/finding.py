"""The search of all pages: tools, prompts, resources, members, calls, people, pages and commands, the best match first.

It reads only rows that the user may see, and ranks them afterwards. So what somebody may not see changes no answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from heapq import nlargest
from itertools import islice
from typing import Any, cast
from urllib.parse import urlencode

from django.contrib import admin
from django.contrib.auth.models import User
from django.db.models import Model, Q, QuerySet
from django.http import HttpRequest
from django.urls import reverse

from mcp_runtime.control import extras
from mcp_runtime.control.extras import Extra
from mcp_runtime.control.members import members_of_roster, visible_tools
from mcp_runtime.control.proposals import PERMISSION as APPROVE_MEMBER
from roster import ranking
from roster.admin.members.verbs import VERBS
from roster.admin.places import MAIN, MORE, places_for
from roster.admin.rows import principal_of
from roster.models import Agent, Call, GuildMember, PinnedTool, Secret, Token, Tool, ToolSet
from roster.ranking import Texts

MAX_HITS = 20
MAX_ROWS = 3_000  # of one kind that are ranked
RECENT_CALLS = 2_000  # that are searched by their tool and member
MAX_CALLS = 3
MAX_RECENT_TOOLS = 8
MAX_VERB_HITS = 6
VIEW_TOOLS = "roster.view_tool"
# How much a kind counts beside others with the same texts, in hundredths.
_WEIGHTS = {"call": 50, "page": 110}


@dataclass(frozen=True)
class Hit:
    """A line of the results. `post` is the address of a form for commands, which change something."""

    kind: str
    label: str
    address: str = ""
    detail: str = ""
    post: str = ""
    score: int = 0
    is_pinned: bool = False


def hits_for(request: HttpRequest, query: str) -> list[Hit]:
    """The best matches. Without words: the pinned tools, those that the user called last, and the pages."""
    words = ranking.words_of(query)
    if not words:
        return [*_pinned_and_recent_tools(request), *_pages(request)]
    found = (hit for find in _FINDERS for hit in find(request, words))
    return nlargest(MAX_HITS, found, key=lambda hit: hit.score)


def _ranked(words: list[str], candidates: Iterable[tuple[Texts, Hit]]) -> Iterator[Hit]:
    for texts, hit in candidates:
        if points := ranking.score(words, texts):
            yield replace(hit, score=points * _WEIGHTS.get(hit.kind, 100))


# Tools and members ------------------------------------------------------------------------------------------------


def tools_in_sight(request: HttpRequest) -> QuerySet[Tool]:
    """The tools that the user may call or read, of members in the roster."""
    principal = principal_of(request)
    if not (principal.invokes or request.user.has_perm(VIEW_TOOLS)):
        return Tool.objects.none()
    rows = _rows(request, Tool).filter(visible_tools(), member__removed_at=None)
    return cast("QuerySet[Tool]", rows.select_related("member"))


def texts_of(tool: Tool) -> Texts:
    return Texts(tool.name, tool.title, f"{tool.member.name} {tool.member.display_name}", tool.description)


def any_text_of_tool(word: str) -> Q:
    """A condition for tools with the word in one of the texts of `texts_of`."""
    title = Q(definition__title__icontains=word) | Q(definition__annotations__title__icontains=word)
    member = Q(member__name__icontains=word) | Q(member__display_name__icontains=word)
    return Q(name__icontains=word) | title | member | Q(definition__description__icontains=word)


def _tools(request: HttpRequest, words: list[str]) -> Iterator[Hit]:
    rows = tools_in_sight(request)
    for word in words:
        rows = rows.filter(any_text_of_tool(word))
    yield from _ranked(words, ((texts_of(tool), _hit_of(request, tool)) for tool in rows[:MAX_ROWS]))


def _hit_of(request: HttpRequest, tool: Tool) -> Hit:
    page = "roster_tool_call" if principal_of(request).invokes else "roster_tool_change"
    detail = f"{tool.member.name} · {tool.title or tool.description}" if tool.title or tool.description else ""
    return Hit("tool", tool.name, reverse(f"admin:{page}", args=[tool.pk]), detail or tool.member.name)


def _members(request: HttpRequest, words: list[str]) -> Iterator[Hit]:
    yield from _ranked(words, ((member_texts(row), _hit_of_member(row)) for row in _roster(request)))


def _roster(request: HttpRequest) -> QuerySet[Any]:
    rows = _rows(request, GuildMember).filter(removed_at=None).select_related(None).order_by("name")
    return rows.only("name", "display_name", "description", "enabled")[:MAX_ROWS]


def member_texts(member: GuildMember) -> Texts:
    return Texts(member.name, member.display_name, "", member.description)


def any_text_of_member(word: str) -> Q:
    """A condition for members with the word in one of the texts of `member_texts`."""
    return Q(name__icontains=word) | Q(display_name__icontains=word) | Q(description__icontains=word)


def _hit_of_member(member: GuildMember) -> Hit:
    detail = member.display_name or member.description
    return Hit("member", member.name, reverse("admin:roster_guildmember_change", args=[member.pk]), detail)


def _commands(request: HttpRequest, words: list[str]) -> Iterator[Hit]:
    """What can be done with a member: the first word is the verb, the others are for the member."""
    verbs = [verb for verb in VERBS if verb.label.casefold().startswith(words[0])]
    if not verbs or len(words) < 2 or not principal_of(request).controls:
        return
    members = nlargest(
        MAX_VERB_HITS,
        ((ranking.score(words[1:], member_texts(row)), row.name, row) for row in _roster(request)),
    )
    for points, name, row in members:
        for verb in verbs:
            if points and verb.name != ("enable" if row.enabled else "disable"):
                address = reverse("admin:roster_guildmember_verb", args=[row.pk, verb.name])
                yield Hit("command", f"{verb.label}: {name}", post=address, score=(points + 50) * 100)


# Prompts and resources --------------------------------------------------------------------------------------------


def _extras(request: HttpRequest, words: list[str]) -> Iterator[Hit]:
    """The prompts, resources and resource templates that somebody can use, of members that the user may use or read."""
    principal = principal_of(request)
    if not (principal.invokes or request.user.has_perm(VIEW_TOOLS)):
        return
    members = members_of_roster().filter(enabled=True).exclude(name__in=principal.closed_members)
    found = islice(extras.usable_extras(members, words), MAX_ROWS)
    yield from _ranked(
        words, ((_texts_of_extra(member, extra), _hit_of_extra(member, extra)) for member, extra in found)
    )


def _texts_of_extra(member: GuildMember, extra: Extra) -> Texts:
    return Texts(extra.name, extra.title, f"{member.name} {member.display_name}", extra.description)


def _hit_of_extra(member: GuildMember, extra: Extra) -> Hit:
    text = extra.title or extra.description
    detail = f"{member.name} · {text}" if text else member.name
    return Hit(extra.kind.label, extra.name, page_of_extra(member.pk, extra), detail)


def page_of_extra(member_id: int, extra: Extra) -> str:
    """The page on which people use it."""
    name, key = {
        extras.Kind.PROMPT: ("prompt", "name"),
        extras.Kind.RESOURCE: ("resource", "uri"),
        extras.Kind.RESOURCE_TEMPLATE: ("template", "template"),
    }[extra.kind]
    return f"{reverse(f'admin:roster_guildmember_{name}', args=[member_id])}?{urlencode({key: extra.name})}"


# Calls ------------------------------------------------------------------------------------------------------------


def _calls(request: HttpRequest, words: list[str]) -> Iterator[Hit]:
    rows = admin.site.get_model_admin(Call).get_queryset(request)
    rows = rows.select_related(None).select_related("member")
    number = words[0].removeprefix("#")
    if len(words) == 1 and number.isascii() and number.isdigit() and len(number) <= 18:
        yield from (replace(_hit_of_call(call), score=20_000) for call in rows.filter(pk=int(number)))
        return
    oldest = Call.objects.order_by("-pk").values_list("pk", flat=True)[RECENT_CALLS : RECENT_CALLS + 1].first() or 0
    rows = rows.filter(pk__gt=oldest)
    for word in words:
        rows = rows.filter(Q(tool_name__icontains=word) | Q(member__name__icontains=word))
    newest = rows.order_by("-pk").only("tool_name", "status", "member__name")[:MAX_CALLS]
    yield from _ranked(words, ((Texts(call.tool_name, "", call.member.name), _hit_of_call(call)) for call in newest))


def _hit_of_call(call: Call) -> Hit:
    address = reverse("admin:roster_call_change", args=[call.pk])
    return Hit("call", f"#{call.pk} {call.tool_name}", address, f"{call.member.name} · {call.status}")


# Other rows, and pages --------------------------------------------------------------------------------------------

_OTHERS: list[tuple[type[Model], str, tuple[str, ...]]] = [
    (User, "person", ("username", "first_name", "last_name", "email")),
    (ToolSet, "tool set", ("name", "title")),
    (Agent, "agent", ("name",)),
    (Token, "token", ("name",)),
    (Secret, "secret", ("name",)),
]


def _others(request: HttpRequest, words: list[str]) -> Iterator[Hit]:
    for model, kind, columns in _OTHERS:
        rows = _rows(request, model)
        for word in words:
            condition = Q()
            for column in columns:
                condition |= Q(**{f"{column}__icontains": word})
            rows = rows.filter(condition)
        yield from _ranked(words, (_other(row, kind, columns) for row in rows[:MAX_ROWS]))


def _other(row: Any, kind: str, columns: tuple[str, ...]) -> tuple[Texts, Hit]:
    name, *rest = (getattr(row, column) for column in columns)
    address = reverse(f"admin:{row._meta.app_label}_{row._meta.model_name}_change", args=[row.pk])
    others = " ".join(filter(None, rest))
    return Texts(name, others), Hit(kind, name, address, others)


def _found_pages(request: HttpRequest, words: list[str]) -> Iterator[Hit]:
    yield from _ranked(words, ((Texts(hit.label), hit) for hit in _pages(request)))


def _pages(request: HttpRequest) -> list[Hit]:
    hits = [Hit("page", place.label, place.address) for place in places_for(request, [*MAIN, *MORE])]
    user = cast(User, request.user)
    tasks = [
        ("Add a member", "roster_guildmember_proposals", user.has_perm(APPROVE_MEMBER)),
        ("Create a token", "roster_token_add", user.has_perm("roster.add_token")),
        ("Start an agent", "roster_agent_new", principal_of(request).invokes),
        ("Invite a person", "roster_invitation_invite", user.has_perm("auth.add_user")),
        ("Trash of removed members", "roster_guildmember_trash", user.has_perm(APPROVE_MEMBER)),
        ("Change my password", "password_change", user.has_usable_password()),
    ]
    return hits + [Hit("page", label, reverse(f"admin:{name}")) for label, name, is_open in tasks if is_open]


def _rows(request: HttpRequest, model: type[Model]) -> QuerySet[Any]:
    """The rows of the model in the lists of the admin for this user. None if the user may not open the list."""
    screen = admin.site.get_model_admin(model)
    rows: QuerySet[Any] = screen.get_queryset(request)
    may_list = model is Tool or screen.has_view_or_change_permission(request)
    return rows if may_list else rows.none()


_FINDERS: tuple[Callable[[HttpRequest, list[str]], Iterator[Hit]], ...] = (
    _tools,
    _extras,
    _members,
    _commands,
    _calls,
    _others,
    _found_pages,
)


# Pinned and recent tools ------------------------------------------------------------------------------------------


def _pinned_and_recent_tools(request: HttpRequest) -> list[Hit]:
    tools = tools_in_sight(request)
    pins = PinnedTool.objects.filter(user=request.user.pk).order_by("pk").values_list("tool_id", flat=True)
    pinned = tools.in_bulk(list(pins))
    own_calls = Call.objects.filter(requested_by=request.user.pk).order_by("-pk")
    names = dict.fromkeys(own_calls.values_list("member_id", "tool_name")[:100])
    condition = Q(pk=None)
    for member_id, name in list(names)[: MAX_RECENT_TOOLS + len(pinned)]:
        condition |= Q(member=member_id, name=name)
    recent = {(tool.member_id, tool.name): tool for tool in tools.filter(condition) if tool.pk not in pinned}
    ordered = [recent[name] for name in names if name in recent][:MAX_RECENT_TOOLS]
    pinned_hits = [replace(_hit_of(request, pinned[pk]), is_pinned=True) for pk in pins if pk in pinned]
    return pinned_hits + [_hit_of(request, tool) for tool in ordered]
