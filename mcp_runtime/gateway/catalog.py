"""The roster in memory. Lists are served from it at once and in a stable order, even when members start or stop."""

from __future__ import annotations

import collections
import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mcp_runtime.client import quick_json
from mcp_runtime.gateway import tool_sets
from mcp_runtime.gateway.tool_sets import OfferedSet
from mcp_runtime.members import search_tools
from mcp_runtime.members.extras import Disabled, Holds, ListedExtras
from mcp_runtime.members.tool_sets import Entry as SetEntry
from mcp_runtime.members.tool_sets import listing
from mcp_runtime.protocol import mcp
from mcp_runtime.security.access import Principal

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
    only_reads: bool = False  # the agreed version of its contract says so
    digest: bytes = b""  # of everything that it was created from


@dataclass(frozen=True, slots=True)
class ListedTool:
    """A tool under the name that it has at an address. Only a tool set changes names and descriptions."""

    name: str
    tool: OfferedTool
    new_description: str = ""

    @property
    def key(self) -> tuple[bytes, str, str]:
        """What its definition at the address depends on."""
        return self.tool.digest or self.tool.own_json, self.name, self.new_description

    def is_for(self, principal: Principal) -> bool:
        return principal.may_invoke(self.tool.member, self.tool.name)

    def is_pinned_by(self, principal: Principal) -> bool:
        """Return whether the client lists it beside the tools that search."""
        return (self.tool.member, self.tool.name) in principal.pinned and self.name not in search_tools.NAMES

    @property
    def definition(self) -> bytes:
        if self.name == self.tool.listed_name and not self.new_description:
            return self.tool.listed_json
        return tool_sets.with_new_texts(self.tool.listed_json, self.name, self.new_description)


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
    """Prompts, resources and resource templates of a member that clients can use. `listed` has the others too."""

    prompts: tuple[Entry, ...] = ()
    resources: tuple[Entry, ...] = ()
    templates: tuple[Entry, ...] = ()
    listed: ListedExtras = field(default_factory=ListedExtras)
    holds: Holds = field(default_factory=dict, compare=False)  # of the member's contracts
    disabled: Disabled = field(default_factory=dict, compare=False)
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

    At the address of a tool set, `members` are those that are in it as a whole. It may also have tools of others. With
    `searches`, tools are found with a search, and the list has only the tools for that.
    """

    members: frozenset[str] | None = None
    tool_set: str = ""
    searches: bool = False

    def is_searched_by(self, principal: Principal) -> bool:
        """Return whether this client searches for tools here, because of the address or of its token."""
        return self.searches or principal.searches

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

    def is_searched_by(self, principal: Principal) -> bool:
        """Return whether this client searches for tools here. At a member's own path nobody does."""
        return self.member is None and self.selection.is_searched_by(principal)


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

    def tools_at(self, selection: Selection) -> list[ListedTool]:
        """Return the selected tools that run without a task, under the names that they have at this address."""
        if selection.tool_set:
            in_set = self.tools_of_set(selection.tool_set).items()
            listed = (ListedTool(name, tool, entry.new_description) for name, (tool, entry) in in_set)
            return [each for each in listed if not each.tool.needs_task]
        return [
            ListedTool(name, tool)
            for name, tool in self.tools.items()
            if selection.has(tool.member) and not tool.needs_task
        ]

    def listed_tools(self, principal: Principal, selection: Selection) -> list[ListedTool]:
        """Return the tools that this client may call, by member and in each member's own order."""
        return [each for each in self.tools_at(selection) if each.is_for(principal)]

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
        if kind == "tools":
            tools = self.listed_tools(principal, selection)
            if not selection.is_searched_by(principal):
                return [tool.definition for tool in tools]
            servers = () if selection.tool_set else dict.fromkeys(each.tool.member for each in tools)
            pinned = (tool.definition for tool in tools if tool.is_pinned_by(principal))
            return [*search_tools.definitions(servers), *pinned]
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

    def blocked_prompt(self, listed_name: str) -> tuple[str, str] | None:
        """Return the member of a prompt that nobody can use now, and the member's name for it."""
        for name, extras in self.extras.items():
            for prompt in extras.listed.hidden("prompts"):
                if mcp.qualified_name(name, prompt) == listed_name:
                    return name, prompt
        return None

    def blocked_owners_of(self, uri: str, principal: Principal, selection: Selection) -> list[tuple[str, str]]:
        """Return all pairs of a member and this URI, if nobody can use it at this member now."""
        return [
            (name, uri)
            for name, extras in self.extras.items()
            if selection.has(name) and principal.may_use_all(name) and extras.listed.block_of_uri(uri)
        ]

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
    if not isinstance(key, str) or not key:
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
