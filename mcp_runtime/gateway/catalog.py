"""The roster in memory. Lists are served from it at once and in a stable order, even when members start or stop."""

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
from mcp_runtime.gateway import tool_sets
from mcp_runtime.gateway.tool_sets import OfferedSet
from mcp_runtime.members import contracts
from mcp_runtime.members.tool_sets import Entry as SetEntry
from mcp_runtime.members.tool_sets import listing
from mcp_runtime.protocol import mcp
from mcp_runtime.schemas import secrets
from mcp_runtime.security.access import Principal
from roster.models import Agent, Contract, GuildMember, MemberExtras, Tool

RESOURCE_PREFIX = "guild://"
# The key of each list method's result.
LISTS = {
    "tools/list": "tools",
    "prompts/list": "prompts",
    "resources/list": "resources",
    "resources/templates/list": "resourceTemplates",
}
# The key that identifies an entry of each list.
KEYS = {"prompts": "name", "resources": "uri", "resourceTemplates": "uriTemplate"}
# Bytes of cached lists. A user can request any number of selections (`?members=`).
MAX_LISTS = 64_000_000
MAX_LISTS_OF_USER = 16_000_000
LIST_BYTES = 10_000  # overhead of a cached list, including the names in its selection
# URIs are compared with templates on the gateway's event loop. These limits protect it from templates that take long.
MAX_TEMPLATE = 2_000  # characters of a URI or a template
MAX_EXPRESSIONS = 20  # in a template
MAX_TEMPLATES = 200  # of a member
MAX_LITERAL = 32  # characters of the text between two expressions that are compared
_EXPRESSION = re.compile(r"\{[^{}]*\}")


@dataclass(frozen=True, slots=True)
class OfferedTool:
    """An enabled tool.

    `own_json` is its definition as the member lists it. `listed_json` is the same with the name that it has in the
    roster's list. The other fields are the parts that calls need.
    """

    member: str
    name: str
    listed_name: str
    own_json: bytes
    listed_json: bytes
    secretive_schema: str  # of its arguments, as JSON. Empty if it marks no secrets
    parameter_headers: Mapping[mcp.Place, str]  # headers that repeat an argument, by its place
    version: str = ""  # of its contract
    needs_task: bool = False  # it runs only as a task, which `/mcp` does not support
    digest: bytes = b""  # of everything that it was created from


@dataclass(frozen=True, slots=True)
class Entry:
    """A prompt, a resource or a resource template.

    `key` is its name or URI, and `own_json` its definition as the member lists it. `listed_name` and `listed_json` are
    the same in the roster's list. `literals` are the texts before, between and after the expressions of a template.
    They are empty if no URI is compared with it.
    """

    key: str
    listed_name: str
    own_json: bytes
    listed_json: bytes
    literals: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Extras:
    """Prompts, resources and resource templates of a member."""

    prompts: tuple[Entry, ...] = ()
    resources: tuple[Entry, ...] = ()
    templates: tuple[Entry, ...] = ()
    digest: str = field(default="", compare=False)  # of the row
    _uris: frozenset[str] = field(init=False, compare=False)
    _literals: tuple[tuple[str, ...], ...] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_uris", frozenset(resource.key for resource in self.resources + self.templates))
        compared = [template.literals for template in self.templates if template.literals]
        object.__setattr__(self, "_literals", tuple(compared[:MAX_TEMPLATES]))

    def entries(self, kind: str) -> tuple[Entry, ...]:
        return {"prompts": self.prompts, "resources": self.resources, "resourceTemplates": self.templates}[kind]

    def may_have(self, uri: str) -> bool:
        """Return whether a listed resource or template may match this URI."""
        return uri in self._uris or (
            len(uri) <= MAX_TEMPLATE and any(literals_match(literals, uri) for literals in self._literals)
        )


@dataclass(frozen=True, slots=True)
class OfferedMember:
    """An enabled member, from its row. `hidden` has the names of its disabled and held tools.

    `held` has the held ones, each with the reason. With `holds_changes` its tools are offered only as the hall knows
    them.
    """

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
    held: Mapping[str, str] = field(default_factory=dict)
    holds_changes: bool = False

    def timeout_of(self, tool: str) -> float:
        """Return the seconds that a call may take in total (REQ-MCP-HTTP-28)."""
        return float(self.tool_timeouts.get(tool, self.timeout))


@dataclass(frozen=True)
class Selection:
    """The members that an address selects. None selects all. The principal decides which of them a token may use.

    At the address of a tool set, `members` are those that are in it as a whole. It may also have tools of others.
    """

    members: frozenset[str] | None = None
    tool_set: str = ""

    def has(self, member: str) -> bool:
        """Return whether everything of the member is selected, with prompts and resources."""
        return self.members is None or member in self.members

    def tool(self, roster: Roster, name: str) -> OfferedTool | None:
        """Return the selected tool that has this name at this address."""
        if self.tool_set:
            return roster.tools_of_set(self.tool_set).get(name, (None,))[0]
        tool = roster.tools.get(name)
        return tool if self.members is None or tool is None or tool.member in self.members else None


@dataclass(frozen=True)
class Place:
    """The address of a message. `member` is set at a member's own path. Sessions are bound to `path`.

    `is_forwarded` says that another node forwarded the message. Then it is only about the members of this node.
    """

    path: str
    selection: Selection
    member: str | None = None
    is_forwarded: bool = False


SetTool = tuple[OfferedTool, SetEntry]
ListKey = tuple[str, int, Selection]  # kind, `id()` of the principal, selection


@dataclass(slots=True)
class _List:
    principal: Principal  # a reference, so that no other object gets its `id()`
    entries: bytes
    digest: bytes = b""  # empty until it is needed

    @property
    def size(self) -> int:
        return len(self.entries) + LIST_BYTES


class _Lists:
    """A cache of encoded lists. When it is full, the oldest lists are dropped.

    Lists of a user above MAX_LISTS_OF_USER are dropped first, then lists of the user with the most bytes.
    """

    def __init__(self) -> None:
        self._lists: dict[ListKey, _List] = {}
        self._bytes: collections.Counter[int | None] = collections.Counter()  # by user

    def get(self, key: ListKey) -> _List | None:
        return self._lists.get(key)

    def store(self, key: ListKey, cached_list: _List) -> None:
        user = cached_list.principal.user_id
        if cached_list.size > MAX_LISTS_OF_USER:
            return
        self._lists[key] = cached_list
        self._bytes[user] += cached_list.size
        while self._bytes[user] > MAX_LISTS_OF_USER:
            self._drop_first_of(user)
        while self._bytes.total() > MAX_LISTS:
            self._drop_first_of(max(self._bytes, key=self._bytes.__getitem__))

    def _drop_first_of(self, user: int | None) -> None:
        key = next(key for key, cached_list in self._lists.items() if cached_list.principal.user_id == user)
        self._bytes[user] -= self._lists.pop(key).size


@dataclass(frozen=True)
class Roster:
    """The catalog at one moment. A change creates a new Roster."""

    members: Mapping[str, OfferedMember] = field(default_factory=dict)
    tools: Mapping[str, OfferedTool] = field(default_factory=dict)  # by listed name
    held: Mapping[str, tuple[str, str]] = field(default_factory=dict)  # member and own name of held tools, likewise
    extras: Mapping[str, Extras] = field(default_factory=dict)  # by member
    tool_sets: Mapping[str, OfferedSet] = field(default_factory=dict)
    _set_tools: dict[str, Mapping[str, SetTool]] = field(default_factory=dict, init=False, compare=False, repr=False)
    _lists: _Lists = field(default_factory=_Lists, init=False, compare=False, repr=False)

    def tools_for(self, principal: Principal, selection: Selection) -> list[OfferedTool]:
        """Return the tools that this client may call, by member and in each member's own order."""
        return [
            tool
            for tool in self.tools.values()
            if selection.has(tool.member) and not tool.needs_task and principal.may_invoke(tool.member, tool.name)
        ]

    def selection_of_set(self, name: str) -> Selection | None:
        """Return what the tool set selects now, or None if there is no such set."""
        tool_set = self.tool_sets.get(name)
        return None if tool_set is None else Selection(tool_set.whole_members, name)

    def tools_of_set(self, name: str) -> Mapping[str, SetTool]:
        """Return all tools of the set by their names in it, each with its entry. The set may have been deleted."""
        tools = self._set_tools.get(name)
        if tools is None:
            tool_set = self.tool_sets.get(name)
            entries = tool_set.entries if tool_set else ()
            members = {entry.member for entry in entries} & self.members.keys()
            listed = listing(entries, {member: self.members[member].tools for member in members}).entries
            tools = {
                listed_name: (self.members[entry.member].tools[entry.tool], entry)
                for listed_name, entry in listed.items()
            }
            if tool_set is not None:
                self._set_tools[name] = tools
        return tools

    def _definitions_in_set(self, name: str, principal: Principal) -> list[bytes]:
        """Return the definitions of the tools that this client may call, as the set lists them."""
        return [
            tool.listed_json
            if listed_name == tool.listed_name and not entry.new_description
            else tool_sets.with_new_texts(tool.listed_json, listed_name, entry.new_description)
            for listed_name, (tool, entry) in self.tools_of_set(name).items()
            if not tool.needs_task and principal.may_invoke(tool.member, tool.name)
        ]

    def list_of(self, kind: str, principal: Principal, selection: Selection) -> bytes:
        """Return a list as JSON, and cache it. `kind` is tools, prompts, resources or resourceTemplates."""
        return self._list(kind, principal, selection).entries

    def digest_of(self, kind: str, principal: Principal, selection: Selection) -> bytes:
        """Return a hash of the list."""
        cached_list = self._list(kind, principal, selection)
        cached_list.digest = cached_list.digest or hashlib.sha256(cached_list.entries).digest()
        return cached_list.digest

    def _list(self, kind: str, principal: Principal, selection: Selection) -> _List:
        key = (kind, id(principal), selection)
        cached_list = self._lists.get(key)
        if cached_list is None:
            cached_list = _List(principal, b"[" + b",".join(self._entries(kind, principal, selection)) + b"]")
            self._lists.store(key, cached_list)
        return cached_list

    def _entries(self, kind: str, principal: Principal, selection: Selection) -> Iterable[bytes]:
        if kind == "tools" and selection.tool_set:
            return self._definitions_in_set(selection.tool_set, principal)
        if kind == "tools":
            return [tool.listed_json for tool in self.tools_for(principal, selection)]
        names = [name for name in self.members if selection.has(name) and principal.may_use_all(name)]
        return [entry.listed_json for name in names if name in self.extras for entry in self.extras[name].entries(kind)]

    def prompt(self, listed_name: str) -> tuple[str, str] | None:
        """Return the member of a prompt, and the member's name for it."""
        for name, extras in self.extras.items():
            for prompt in extras.prompts:
                if prompt.listed_name == listed_name:
                    return name, prompt.key
        return None

    def resource(self, uri: str, principal: Principal, selection: Selection) -> tuple[str, str] | None:
        """Return the member of a resource and the member's URI for it, or None if no member or several have it."""
        owners = self.owners_of(uri, principal, selection)
        return owners[0] if len(owners) == 1 else None

    def owners_of(self, uri: str, principal: Principal, selection: Selection) -> list[tuple[str, str]]:
        """Return all pairs of a member and its own URI that `uri` may mean.

        A listed URI includes the name of its member. Any other URI may belong to every member that lists it or has a
        template for it.
        """
        if uri.startswith(RESOURCE_PREFIX):
            member, slash, own_uri = uri.removeprefix(RESOURCE_PREFIX).partition("/")
            is_there = member in self.members and selection.has(member) and principal.may_use_all(member)
            return [(member, own_uri)] if slash and own_uri and is_there else []
        return [
            (name, uri)
            for name, extras in self.extras.items()
            if selection.has(name) and principal.may_use_all(name) and extras.may_have(uri)
        ]


def resource_uri(member: str, uri: str) -> str:
    """Return the listed URI of a resource. It contains the member's own URI, and no other member can use it."""
    return f"{RESOURCE_PREFIX}{member}/{uri}"


def entry(member: str, kind: str, definition: dict[str, Any]) -> Entry | None:
    """Return an entry for a member's prompt, resource or template, or None if it has no valid name or URI."""
    name = KEYS[kind]
    key = definition.get(name)
    if not isinstance(key, str):
        return None
    listed_name = mcp.qualified_name(member, key) if kind == "prompts" else resource_uri(member, key)
    listed_definition = mcp.offered_entry(definition, name, listed_name)
    literals = literals_of(key) if kind == "resourceTemplates" else ()
    return Entry(key, listed_name, quick_json.encode(definition), quick_json.encode(listed_definition), literals)


def literals_of(template: str) -> tuple[str, ...]:
    """Return the texts before, between and after the expressions of a template (RFC 6570).

    Return nothing for a template that is not compared with URIs. One that starts with an expression is not compared,
    because it would match everything.
    """
    if len(template) > MAX_TEMPLATE:
        return ()
    first, *others = _EXPRESSION.split(template)
    if not first or not 1 <= len(others) <= MAX_EXPRESSIONS:
        return ()
    *middle, last = others
    return first, *(part[:MAX_LITERAL] for part in middle), last


def literals_match(literals: tuple[str, ...], uri: str) -> bool:
    """Return whether the URI may match the template: it has these texts in order, also at both ends.

    The values of expressions and the ends of long texts are not checked. So the result may be a false yes, but never a
    false no.
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


def members_of_agent(agent_id: int, user_id: int | None) -> frozenset[str] | None:
    """Return the members of an agent that the user or the operator created, or None if there is none."""
    agent = Agent.objects.filter(Q(created_by=None) | Q(created_by=user_id), pk=agent_id).first()
    return None if agent is None else frozenset(agent.members.values_list("name", flat=True))


# From rows --------------------------------------------------------------------------------------------------------


def load(before: Roster) -> Roster:
    """Load the roster from the database: enabled members whose folder exists, their enabled tools, and their extras.

    Reuse the tools and extras that have not changed since `before`. Decoding and encoding a large definition blocks all
    other threads for tens of milliseconds, and any client can cause frequent reloads.
    """
    member_columns = ("name", "display_name", "manifest", "capabilities", "server_info", "instructions")
    rows = list(GuildMember.objects.filter(enabled=True, removed_at=None).only(*member_columns).order_by("name"))
    tools: dict[int, dict[str, OfferedTool]] = {row.pk: {} for row in rows}
    hidden: dict[int, set[str]] = {row.pk: set() for row in rows}
    names = {row.pk: row.name for row in rows}
    tool_rows = Tool.objects.filter(listed=True, enabled=True, is_held=False, member_id__in=names).order_by("position")
    previous_tools = {tool.digest: tool for member in before.members.values() for tool in member.tools.values()}
    columns = ("member_id", "name", Cast("definition", TextField()), "schema_error", "version")
    for member_id, name, definition, fault, version in tool_rows.values_list(*columns):
        content = f"{names[member_id]}\0{name}\0{bool(fault)}\0{version}\0{definition}"
        digest = hashlib.sha256(content.encode()).digest()
        tools[member_id][name] = previous_tools.get(digest) or _tool(
            names[member_id], name, json.loads(definition), digest, version, has_schema=not fault
        )
    # Include disabled tools that the member does not list now. It may accept a call anyway, or list them again soon.
    for member_id, name in Tool.objects.filter(enabled=False, member_id__in=names).values_list("member_id", "name"):
        hidden[member_id].add(name)
    held: dict[int, dict[str, str]] = {row.pk: {} for row in rows}
    held_rows = Contract.objects.filter(is_held=True, kind=Contract.Kind.TOOL, member_id__in=names).order_by("pk")
    for member_id, name, reason in held_rows.values_list("member_id", "name", "reason"):
        held[member_id][name] = reason
        hidden[member_id].add(name)
    members = {row.name: _member(row, tools[row.pk], frozenset(hidden[row.pk]), held[row.pk]) for row in rows}
    held_names = {mcp.qualified_name(names[pk], name): (names[pk], name) for pk in held for name in held[pk]}
    by_listed_name = {tool.listed_name: tool for member in members.values() for tool in member.tools.values()}
    return Roster(members, by_listed_name, held_names, _load_extras(names, before.extras), tool_sets.load())


def _load_extras(names: Mapping[int, str], before: Mapping[str, Extras]) -> dict[str, Extras]:
    """Load the extras of the members with these ids and names. Only the changed ones are read whole."""
    digests = dict(MemberExtras.objects.filter(member_id__in=names).values_list("member_id", "digest"))
    before_by_id = {pk: before.get(names[pk], Extras()) for pk in digests}
    known = {pk: extras for pk, extras in before_by_id.items() if extras.digest == digests[pk]}
    changed_rows = MemberExtras.objects.filter(member_id__in=digests.keys() - known.keys())
    loaded = {row.member_id: _extras(names[row.member_id], row) for row in changed_rows.iterator(chunk_size=1)}
    extras = known | loaded
    return {name: extras[pk] for pk, name in names.items() if pk in extras}


def _extras(member: str, row: MemberExtras) -> Extras:
    def entries(kind: str, definitions: list[dict[str, Any]]) -> tuple[Entry, ...]:
        return tuple(filter(None, (entry(member, kind, definition) for definition in definitions)))

    return Extras(
        entries("prompts", row.prompts),
        entries("resources", row.resources),
        entries("resourceTemplates", row.resource_templates),
        row.digest,
    )


def _tool(
    member: str, name: str, definition: dict[str, Any], digest: bytes, version: str, *, has_schema: bool
) -> OfferedTool:
    listed_name = mcp.qualified_name(member, name)
    listed_definition = mcp.offered_definition(definition, listed_name, has_schema=has_schema)
    # Not the schema in `listed_definition`, which has none if it is invalid. An invalid schema can still mark secrets.
    schema = definition.get("inputSchema")
    text = json.dumps(schema) if isinstance(schema, dict) else "{}"
    return OfferedTool(
        member=member,
        name=name,
        listed_name=listed_name,
        own_json=quick_json.encode(definition),
        listed_json=quick_json.encode(listed_definition),
        secretive_schema=text if secrets.may_mark_secrets(text) else "",
        parameter_headers=_parameter_headers(schema, text),
        version=version,
        needs_task=mcp.needs_task(definition),
        digest=digest,
    )


def _parameter_headers(schema: Any, text: str) -> Mapping[mcp.Place, str]:
    """Return the headers that a schema asks for, or none if it is invalid. Most ask for none and are skipped."""
    if "x-mcp-header" not in text:
        return {}
    try:
        return mcp.parameter_headers(schema)
    except ValueError:
        return {}


def _member(
    row: GuildMember, tools: Mapping[str, OfferedTool], hidden: frozenset[str], held: Mapping[str, str]
) -> OfferedMember:
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
        held=held,
        holds_changes=contracts.policy_of(row.manifest) == contracts.Policy.HOLD,
    )
