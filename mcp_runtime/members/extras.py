"""A member's prompts, resources and resource templates as rows, from its last lists, and which of them are blocked.

What waits for an approval is held, and what somebody switched off is disabled. Nobody can use either.
"""

from __future__ import annotations

import hashlib
import itertools
import posixpath
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any
from urllib.parse import unquote

from mcp_runtime.client import quick_json
from mcp_runtime.members import contracts
from mcp_runtime.members.contracts import Listing, Policy
from roster.models import Contract, DisabledExtra, MemberExtras

Kind = DisabledExtra.Kind

COLUMNS = {"prompts": "prompts", "resources": "resources", "resourceTemplates": "resource_templates"}
KEYS = {"prompts": "name", "resources": "uri", "resourceTemplates": "uriTemplate"}  # of the names in the definitions
KINDS = {"prompts": Kind.PROMPT, "resources": Kind.RESOURCE, "resourceTemplates": Kind.RESOURCE_TEMPLATE}
# Resources have no contracts. They are data, and some members list thousands of them.
CONTRACTS = {"prompts": Contract.Kind.PROMPT, "resourceTemplates": Contract.Kind.RESOURCE_TEMPLATE}
MAX_NAMED = 20  # blocked templates that are compared one by one, to name the right one
MAX_UNQUOTED = 3  # how often a URI is unquoted, for servers that do it more than once
MAX_FOLDED = 4_000  # characters of a URI that is compared with disabled ones. It takes 4 ms of the gateway's loop

Lists = Mapping[str, Mapping[str, dict[str, Any]]]  # the definitions of each list by their names or URIs
Holds = Mapping[tuple[str, str], str]  # the reasons, by the kind and the name of the contract
Disabled = Mapping[str, Collection[str]]  # the names or URIs, by kind


@dataclass(frozen=True)
class Block:
    """Why nobody can use a prompt, a resource or a template. `hold` is the reason of a hold. None: it is disabled."""

    kind: Kind
    name: str
    hold: str | None


@dataclass(frozen=True)
class ListedExtras:
    """What a member lists, by names and URIs. What is held or disabled is apart."""

    prompts: frozenset[str] = frozenset()
    resources: frozenset[str] = frozenset()
    templates: frozenset[str] = frozenset()
    held_prompts: Mapping[str, str] = field(default_factory=dict)  # with the reasons
    held_templates: Mapping[str, str] = field(default_factory=dict)
    disabled_prompts: frozenset[str] = frozenset()
    disabled_resources: frozenset[str] = frozenset()
    disabled_templates: frozenset[str] = frozenset()

    @classmethod
    def of(cls, names: Mapping[str, Iterable[str]], holds: Holds, disabled: Disabled) -> ListedExtras:
        """`names` are those of all entries of each list. What is disabled may be in no list now."""
        prompts, templates = (_reasons(names[kind], contract, holds) for kind, contract in CONTRACTS.items())
        off = {kind: frozenset(disabled.get(kind, ())) for kind in Kind}
        return cls(
            prompts=frozenset(names["prompts"]) - prompts.keys() - off[Kind.PROMPT],
            resources=frozenset(names["resources"]) - off[Kind.RESOURCE],
            templates=frozenset(names["resourceTemplates"]) - templates.keys() - off[Kind.RESOURCE_TEMPLATE],
            held_prompts=prompts,
            held_templates=templates,
            disabled_prompts=off[Kind.PROMPT],
            disabled_resources=off[Kind.RESOURCE],
            disabled_templates=off[Kind.RESOURCE_TEMPLATE],
        )

    def with_holds(self, holds: Holds) -> ListedExtras:
        """The same lists after approvals."""
        prompts, templates = self.prompts | self.held_prompts.keys(), self.templates | self.held_templates.keys()
        held_prompts = _reasons(prompts, Contract.Kind.PROMPT, holds)
        held_templates = _reasons(templates, Contract.Kind.RESOURCE_TEMPLATE, holds)
        return replace(
            self,
            prompts=frozenset(prompts) - held_prompts.keys() - self.disabled_prompts,
            templates=frozenset(templates) - held_templates.keys() - self.disabled_templates,
            held_prompts=held_prompts,
            held_templates=held_templates,
        )

    @cached_property
    def has_blocks(self) -> bool:
        return bool(
            self.held_prompts
            or self.held_templates
            or self.disabled_prompts
            or self.disabled_resources
            or self.disabled_templates
        )

    def hidden(self, kind: str) -> Collection[str]:
        """The names in this list that clients do not see."""
        if kind == "resources":
            return self.disabled_resources
        return (self._blocked_prompts if kind == "prompts" else self._blocked_templates).keys()

    def has(self, uri: str) -> bool:
        """Whether this is a URI or a template in the lists, or may be a URI of a template that can be used."""
        return uri in self.resources or uri in self.templates or self._may_be_usable(uri)

    def block_of_prompt(self, name: str) -> Block | None:
        return Block(Kind.PROMPT, name, self._blocked_prompts[name]) if name in self._blocked_prompts else None

    def block_of_uri(self, uri: str) -> Block | None:
        """Why the resource with this URI, or this template, cannot be used.

        A URI of a blocked template is not blocked if it may be anything else in the lists.
        """
        if uri in self.disabled_resources:
            return Block(Kind.RESOURCE, uri, None)
        if self.disabled_resources and uri not in self.resources and self._may_be_disabled(uri):
            return Block(Kind.RESOURCE, uri, None)
        blocked = self._blocked_templates
        if uri in blocked:
            return Block(Kind.RESOURCE_TEMPLATE, uri, blocked[uri])
        if not blocked or not self._may_be_blocked(uri) or self.has(uri):
            return None
        first = itertools.islice(blocked, MAX_NAMED)
        template = next((each for each in first if _matcher([each])(uri)), next(iter(blocked)))
        return Block(Kind.RESOURCE_TEMPLATE, template, blocked[template])

    def _may_be_disabled(self, uri: str) -> bool:
        """Whether this is another spelling of a disabled resource. What is too long to compare may be one."""
        return len(uri) > MAX_FOLDED or folded_uri(uri) in self._folded_resources

    @cached_property
    def _blocked_prompts(self) -> dict[str, str | None]:
        return {**self.held_prompts, **dict.fromkeys(self.disabled_prompts)}

    @cached_property
    def _blocked_templates(self) -> dict[str, str | None]:
        return {**self.held_templates, **dict.fromkeys(self.disabled_templates)}

    @cached_property
    def _folded_resources(self) -> frozenset[str]:
        return frozenset(map(folded_uri, self.disabled_resources))

    @cached_property
    def _may_be_blocked(self) -> Callable[[str], bool]:
        return _matcher(self._blocked_templates)

    @cached_property
    def _may_be_usable(self) -> Callable[[str], bool]:
        return _matcher(self.templates, is_strict=True)


def folded_uri(uri: str) -> str:
    """A URI as lenient servers may read it: without escapes, `..`, double slashes, a fragment and capital letters.

    A disabled resource must not be readable in another spelling.
    """
    text = uri.partition("#")[0]
    for _ in range(MAX_UNQUOTED):
        text = unquote(text)
    scheme, colon, rest = text.replace("\\", "/").casefold().partition(":")
    return f"{scheme}{colon}{posixpath.normpath('/' + rest)}".replace("//", "/")


def _reasons(names: Iterable[str], kind: Contract.Kind, holds: Holds) -> dict[str, str]:
    contracts_by_name = {name: (kind.value, contracts.key_of(name)) for name in names} if holds else {}
    return {name: holds[contract] for name, contract in contracts_by_name.items() if contract in holds}


def _matcher(templates: Collection[str], *, is_strict: bool = False) -> Callable[[str], bool]:
    from mcp_runtime.contracts import uri_templates  # it loads RE2, which few halls need here

    return uri_templates.matcher(templates, is_strict=is_strict)


# Rows -------------------------------------------------------------------------------------------------------------


def digest_of(lists: Lists) -> str:
    """The SHA-256 of the lists. It depends on their order."""
    return hashlib.sha256(quick_json.encode([[*lists[kind].values()] for kind in COLUMNS])).hexdigest()


def contracts_of(member_id: int, lists: Lists, policy: Policy) -> list[Listing]:
    """Compare the lists with their contracts, without writing them. Takes too long for a transaction."""
    return [contracts.prepare(member_id, contract, lists[kind], policy) for kind, contract in CONTRACTS.items()]


def write(member_id: int, lists: Lists, digest: str) -> None:
    """Make these the member's lists, after their contracts are written."""
    values = {column: [*lists[kind].values()] for kind, column in COLUMNS.items()}
    MemberExtras.objects.update_or_create(pk=member_id, defaults={**values, "digest": digest})


def holds_of(member_id: int) -> Holds:
    """What is held of the member, with the reasons."""
    rows = Contract.objects.filter(member=member_id, kind__in=CONTRACTS.values(), is_held=True)
    return {(kind, name): reason for kind, name, reason in rows.values_list("kind", "name", "reason")}


def read(member_id: int) -> ListedExtras:
    """What the rows have of the member's last lists."""
    lists = MemberExtras.objects.filter(pk=member_id).values(*COLUMNS.values()).first() or {}
    names = {
        kind: [each[KEYS[kind]] for each in lists.get(column, []) if isinstance(each, dict) and KEYS[kind] in each]
        for kind, column in COLUMNS.items()
    }
    return ListedExtras.of(names, holds_of(member_id), disabled_of([member_id]).get(member_id, {}))


def held_of(member_ids: Iterable[int]) -> set[tuple[int, str, str]]:
    """What is held of these members: the id of the member, the kind and the key of the contract."""
    rows = Contract.objects.filter(member_id__in=[*member_ids], kind__in=CONTRACTS.values(), is_held=True)
    return set(rows.values_list("member_id", "kind", "name"))


def disabled_of(member_ids: Iterable[int]) -> dict[int, dict[str, set[str]]]:
    """What is disabled of each member, by kind."""
    disabled: dict[int, dict[str, set[str]]] = {}
    rows = DisabledExtra.objects.filter(member_id__in=[*member_ids])
    for member_id, kind, name in rows.values_list("member_id", "kind", "name"):
        disabled.setdefault(member_id, {}).setdefault(kind, set()).add(name)
    return disabled
