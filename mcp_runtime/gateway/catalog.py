"""What is on the roster, in memory: so that lists come at once, and in the same order, whatever members do meanwhile.

Tools are the rows' own. Prompts and resources have no rows: they are asked of a member when it is connected, and kept
while it is away.
"""

from __future__ import annotations

import collections
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from django.db.models import Q, TextField
from django.db.models.functions import Cast

from mcp_runtime.client import quick_json
from mcp_runtime.protocol import mcp
from mcp_runtime.schemas import secrets
from mcp_runtime.security.access import Principal
from roster.models import AgentSession, GuildMember, Tool

RESOURCE_PREFIX = "guild://"
# What each method lists.
LISTS = {
    "tools/list": "tools",
    "prompts/list": "prompts",
    "resources/list": "resources",
    "resources/templates/list": "resourceTemplates",
}
# What entries of lists are told apart by.
KEYS = {"prompts": "name", "resources": "uri", "resourceTemplates": "uriTemplate"}
# Bytes of lists that are kept. A user may ask for any number of selections (`?members=`).
MAX_LISTS = 64_000_000
MAX_LISTS_OF_USER = 16_000_000
LIST_BYTES = 10_000  # that a kept list takes beside its own, for the names of its selection too
# A URI is compared with templates on the gateway's loop: of templates that are made to take long, so much and no more.
MAX_MATCHED = 2_000  # characters of a URI, and of a template that it is compared with
MAX_EXPRESSIONS = 20  # of a template that a URI is compared with
MAX_TEMPLATES = 200  # of a member that a URI is compared with
MAX_LITERAL = 32  # characters of what stands between two expressions that are looked for
_EXPRESSION = re.compile(r"\{[^{}]*\}")


@dataclass(frozen=True, slots=True)
class OfferedTool:
    """A tool that is switched on.

    `own` is its JSON, as the member lists it, `listed` the same under the name it has beside other members' tools. Of
    its parts only those are kept beside it that calls need.
    """

    member: str
    name: str
    listed_as: str
    own: bytes
    listed: bytes
    secretive_schema: str  # of its arguments, as JSON; empty when they hold no secrets
    parameter_headers: Mapping[mcp.Place, str]  # which arguments go into headers too, and the headers' names
    needs_task: bool = False  # it runs only as a task, and `/mcp` has no tasks
    digest: bytes = b""  # of all that it was made of


@dataclass(frozen=True, slots=True)
class Entry:
    """A prompt, a resource or a template. `key` is its name or URI; `own` its JSON, as the member lists it.

    `listed_as` and `listed` are the same beside those of other members. `literals` are what a template has between its
    expressions, and around them; empty when no URI is compared with it.
    """

    key: str
    listed_as: str
    own: bytes
    listed: bytes
    literals: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Extras:
    """Prompts, resources and resource templates of a member."""

    prompts: tuple[Entry, ...] = ()
    resources: tuple[Entry, ...] = ()
    templates: tuple[Entry, ...] = ()
    _uris: frozenset[str] = field(init=False, compare=False)
    _literals: tuple[tuple[str, ...], ...] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_uris", frozenset(one.key for one in self.resources + self.templates))
        compared = [one.literals for one in self.templates if one.literals]
        object.__setattr__(self, "_literals", tuple(compared[:MAX_TEMPLATES]))

    def of(self, kind: str) -> tuple[Entry, ...]:
        return {"prompts": self.prompts, "resources": self.resources, "resourceTemplates": self.templates}[kind]

    def may_have(self, uri: str) -> bool:
        """Whether a resource, or a template, is listed for this URI."""
        return uri in self._uris or (
            len(uri) <= MAX_MATCHED and any(literals_match(literals, uri) for literals in self._literals)
        )


@dataclass(frozen=True, slots=True)
class OfferedMember:
    """A member that may run, as its row tells. `hidden` are names of its tools that are switched off."""

    pk: int
    name: str
    title: str
    capabilities: Mapping[str, Any]
    server_info: Mapping[str, Any]
    instructions: str
    timeout: float
    tool_timeouts: Mapping[str, float]
    max_concurrency: int
    tools: Mapping[str, OfferedTool]
    hidden: frozenset[str]

    def timeout_of(self, tool: str) -> float:
        """Seconds a call may take in total (REQ-MCP-HTTP-28)."""
        return float(self.tool_timeouts.get(tool, self.timeout))


@dataclass(frozen=True)
class Selection:
    """Which members an address selects; None: all. What a token opens of them is said by its principal."""

    members: frozenset[str] | None = None

    def has(self, member: str) -> bool:
        return self.members is None or member in self.members


@dataclass(frozen=True)
class Place:
    """Where a message came in: `member` for a member's own path; `path` as sessions are bound to it."""

    path: str
    selection: Selection
    member: str | None = None


ListKey = tuple[str, int, Selection]  # kind, `id()` of the principal, selection


@dataclass(slots=True)
class _List:
    principal: Principal  # kept alive, so that no other object gets its `id()`
    entries: bytes
    digest: bytes = b""  # empty until it is needed

    @property
    def size(self) -> int:
        return len(self.entries) + LIST_BYTES


class _Lists:
    """Finished lists. Beyond the bounds the oldest are dropped.

    They are those of the user above the bound of one user, else of the user with the most bytes.
    """

    def __init__(self) -> None:
        self._kept: dict[ListKey, _List] = {}
        self._bytes: collections.Counter[int | None] = collections.Counter()  # by user

    def get(self, key: ListKey) -> _List | None:
        return self._kept.get(key)

    def keep(self, key: ListKey, made: _List) -> None:
        user = made.principal.user_id
        if made.size > MAX_LISTS_OF_USER:
            return
        self._kept[key] = made
        self._bytes[user] += made.size
        while self._bytes[user] > MAX_LISTS_OF_USER:
            self._drop_first_of(user)
        while self._bytes.total() > MAX_LISTS:
            self._drop_first_of(max(self._bytes, key=self._bytes.__getitem__))

    def _drop_first_of(self, user: int | None) -> None:
        key = next(key for key, one in self._kept.items() if one.principal.user_id == user)
        self._bytes[user] -= self._kept.pop(key).size


@dataclass(frozen=True)
class Roster:
    """Everything as of one moment. A change makes another one."""

    members: Mapping[str, OfferedMember] = field(default_factory=dict)
    tools: Mapping[str, OfferedTool] = field(default_factory=dict)  # by the name they are listed as
    extras: Mapping[str, Extras] = field(default_factory=dict)  # by member
    _lists: _Lists = field(default_factory=_Lists, init=False, compare=False, repr=False)

    def tools_for(self, principal: Principal, selection: Selection) -> list[OfferedTool]:
        """What this client may call, by member and in each member's own order."""
        return [
            tool
            for tool in self.tools.values()
            if selection.has(tool.member) and not tool.needs_task and principal.may_invoke(tool.member, tool.name)
        ]

    def list_of(self, kind: str, principal: Principal, selection: Selection) -> bytes:
        """A list as JSON: `kind` is tools, prompts, resources or resourceTemplates. It is kept."""
        return self._list(kind, principal, selection).entries

    def digest_of(self, kind: str, principal: Principal, selection: Selection) -> bytes:
        """A hash of the list."""
        one = self._list(kind, principal, selection)
        one.digest = one.digest or hashlib.sha256(one.entries).digest()
        return one.digest

    def _list(self, kind: str, principal: Principal, selection: Selection) -> _List:
        key = (kind, id(principal), selection)
        one = self._lists.get(key)
        if one is None:
            one = _List(principal, b"[" + b",".join(self._entries(kind, principal, selection)) + b"]")
            self._lists.keep(key, one)
        return one

    def _entries(self, kind: str, principal: Principal, selection: Selection) -> Iterable[bytes]:
        if kind == "tools":
            return [tool.listed for tool in self.tools_for(principal, selection)]
        names = [name for name in self.members if selection.has(name) and principal.may_use_all(name)]
        return [entry.listed for name in names if name in self.extras for entry in self.extras[name].of(kind)]

    def prompt(self, listed_as: str) -> tuple[str, str] | None:
        """Member and own name of a prompt."""
        for name, extras in self.extras.items():
            for prompt in extras.prompts:
                if prompt.listed_as == listed_as:
                    return name, prompt.key
        return None

    def resource(self, uri: str, principal: Principal, selection: Selection) -> tuple[str, str] | None:
        """Member and own URI of a resource; None where no member has it, or several do."""
        found = self.owners_of(uri, principal, selection)
        return found[0] if len(found) == 1 else None

    def owners_of(self, uri: str, principal: Principal, selection: Selection) -> list[tuple[str, str]]:
        """All pairs of a member and its own URI that `uri` may mean.

        A listed URI names its member. A member's own URI may be that of every member that lists it, or has a template
        for it.
        """
        if uri.startswith(RESOURCE_PREFIX):
            member, slash, own = uri.removeprefix(RESOURCE_PREFIX).partition("/")
            is_there = member in self.members and selection.has(member) and principal.may_use_all(member)
            return [(member, own)] if slash and own and is_there else []
        return [
            (name, uri)
            for name, extras in self.extras.items()
            if selection.has(name) and principal.may_use_all(name) and extras.may_have(uri)
        ]


def resource_uri(member: str, uri: str) -> str:
    """A resource's URI beside those of other members; nothing is lost, and no other member changes it."""
    return f"{RESOURCE_PREFIX}{member}/{uri}"


def entry(member: str, kind: str, definition: dict[str, Any]) -> Entry | None:
    """A prompt, a resource or a template of the member, with its JSON; None when it has no valid name or URI."""
    name = KEYS[kind]
    key = definition.get(name)
    if not isinstance(key, str):
        return None
    listed_as = mcp.qualified_name(member, key) if kind == "prompts" else resource_uri(member, key)
    listed = mcp.offered_entry(definition, name, listed_as)
    literals = literals_of(key) if kind == "resourceTemplates" else ()
    return Entry(key, listed_as, quick_json.encode(definition), quick_json.encode(listed), literals)


def literals_of(template: str) -> tuple[str, ...]:
    """What a template (RFC 6570) has between its expressions, and around them; empty for one that matches nothing.

    One that begins with an expression would match everything, so it matches nothing.
    """
    if len(template) > MAX_MATCHED:
        return ()
    first, *others = _EXPRESSION.split(template)
    if not first or not 1 <= len(others) <= MAX_EXPRESSIONS:
        return ()
    *middle, last = others
    return first, *(part[:MAX_LITERAL] for part in middle), last


def literals_match(literals: tuple[str, ...], uri: str) -> bool:
    """Whether the URI may be one of the template's: these parts occur in order, at both ends as well.

    What stands in for an expression is not looked at, nor the end of a long part between two of them, so this says yes
    rather than no.
    """
    first, last = literals[0], literals[-1]
    if not uri.startswith(first) or not uri.endswith(last):
        return False
    at, end = len(first), len(uri) - len(last)
    for part in literals[1:-1]:
        at = uri.find(part, at, end)
        if at < 0:
            return False
        at += len(part)
    return at <= end


def members_of_session(session_id: int, user_id: int | None) -> frozenset[str] | None:
    """The members of an agent's session that the user made, or the operator; None when there is no such session."""
    session = AgentSession.objects.filter(Q(created_by=None) | Q(created_by=user_id), pk=session_id).first()
    return None if session is None else frozenset(session.members.values_list("name", flat=True))


# From rows --------------------------------------------------------------------------------------------------------


def load(extras: Mapping[str, Extras], before: Roster) -> Roster:
    """The roster as the rows tell it: enabled members whose folder is there, and their tools that are switched on.

    Tools that are as they were `before` are not made again: reading and writing the JSON of a large one holds up all
    other threads for tens of milliseconds, and anybody can have the roster loaded often.
    """
    shown = ("name", "display_name", "manifest", "capabilities", "server_info", "instructions")
    rows = list(GuildMember.objects.filter(enabled=True, removed_at=None).only(*shown).order_by("name"))
    tools: dict[int, dict[str, OfferedTool]] = {row.pk: {} for row in rows}
    hidden: dict[int, set[str]] = {row.pk: set() for row in rows}
    names = {row.pk: row.name for row in rows}
    told = Tool.objects.filter(listed=True, enabled=True, member_id__in=names).order_by("position")
    made = {tool.digest: tool for member in before.members.values() for tool in member.tools.values()}
    columns = ("member_id", "name", Cast("definition", TextField()), "schema_error")
    for member_id, name, definition, fault in told.values_list(*columns):
        digest = hashlib.sha256(f"{names[member_id]}\0{name}\0{bool(fault)}\0{definition}".encode()).digest()
        tools[member_id][name] = made.get(digest) or _tool(
            names[member_id], name, json.loads(definition), digest, has_schema=not fault
        )
    # Also those that the member does not list now: it may take a call all the same, or list them again before we look.
    for member_id, name in Tool.objects.filter(enabled=False, member_id__in=names).values_list("member_id", "name"):
        hidden[member_id].add(name)
    members = {row.name: _member(row, tools[row.pk], frozenset(hidden[row.pk])) for row in rows}
    by_listed_name = {tool.listed_as: tool for member in members.values() for tool in member.tools.values()}
    return Roster(members, by_listed_name, {name: extras[name] for name in members if name in extras})


def _tool(member: str, name: str, definition: dict[str, Any], digest: bytes, *, has_schema: bool) -> OfferedTool:
    listed_as = mcp.qualified_name(member, name)
    listed = mcp.offered_definition(definition, listed_as, has_schema=has_schema)
    # Not of what is listed: a schema that cannot be used is left out there, and marks secrets all the same.
    schema = definition.get("inputSchema")
    text = json.dumps(schema) if isinstance(schema, dict) else "{}"
    return OfferedTool(
        member=member,
        name=name,
        listed_as=listed_as,
        own=quick_json.encode(definition),
        listed=quick_json.encode(listed),
        secretive_schema=text if secrets.may_mark_secrets(text) else "",
        parameter_headers=_parameter_headers(schema, text),
        needs_task=mcp.needs_task(definition),
        digest=digest,
    )


def _parameter_headers(schema: Any, text: str) -> Mapping[mcp.Place, str]:
    """Empty for a schema that asks for such headers in a wrong way. Most ask for none, and are not walked through."""
    if "x-mcp-header" not in text:
        return {}
    try:
        return mcp.parameter_headers(schema)
    except ValueError:
        return {}


def _member(row: GuildMember, tools: Mapping[str, OfferedTool], hidden: frozenset[str]) -> OfferedMember:
    return OfferedMember(
        pk=row.pk,
        name=row.name,
        title=row.title,
        capabilities=row.capabilities,
        server_info=row.server_info,
        instructions=row.instructions,
        timeout=row.call_timeout,
        tool_timeouts=row.manifest.get("tool_timeouts", {}),
        max_concurrency=row.max_concurrency,
        tools=tools,
        hidden=hidden,
    )
