"""The prompts, resources and resource templates of members, as readers see them, and their switches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from django.db.models import Func, IntegerField, Q, QuerySet, TextField
from django.db.models.functions import Cast
from django.db.models.lookups import IContains

from mcp_runtime.members import contracts, extras
from mcp_runtime.protocol.errors import UnknownExtraError
from mcp_runtime.protocol.jsonrpc import object_of
from mcp_runtime.rows.database import short_transaction
from mcp_runtime.security import access
from mcp_runtime.security.access import Decision, Principal
from roster.models import AuditEntry, DisabledExtra, GuildMember, Hall, MemberExtras

Kind = DisabledExtra.Kind

MAX_LISTS = 200  # members whose lists a search reads

# For each kind, the column of its list, the key of its name there, and the entries of the audit log.
_COLUMNS = {Kind.PROMPT: "prompts", Kind.RESOURCE: "resources", Kind.RESOURCE_TEMPLATE: "resource_templates"}
_KEYS = {Kind.PROMPT: "name", Kind.RESOURCE: "uri", Kind.RESOURCE_TEMPLATE: "uriTemplate"}
_ENTRIES = {
    Kind.PROMPT: (AuditEntry.Kind.PROMPT_DISABLED, AuditEntry.Kind.PROMPT_ENABLED),
    Kind.RESOURCE: (AuditEntry.Kind.RESOURCE_DISABLED, AuditEntry.Kind.RESOURCE_ENABLED),
    Kind.RESOURCE_TEMPLATE: (
        AuditEntry.Kind.RESOURCE_TEMPLATE_DISABLED,
        AuditEntry.Kind.RESOURCE_TEMPLATE_ENABLED,
    ),
}


@dataclass(frozen=True)
class Argument:
    """An argument of a prompt."""

    name: str
    title: str
    description: str
    is_required: bool


@dataclass(frozen=True)
class Extra:
    """A prompt, a resource or a resource template. `name` is its name, its URI or its URI template.

    `hold` is the reason why it waits for an approval. The definition is the member's, and nobody has checked it.
    """

    kind: Kind
    name: str
    definition: dict[str, Any]
    is_listed: bool = True
    is_enabled: bool = True
    hold: str = ""

    @property
    def is_usable(self) -> bool:
        return self.is_enabled and not self.hold

    @property
    def title(self) -> str:
        """The text for people. Empty if it is the name."""
        own_name = "" if self.kind == Kind.PROMPT else self.text("name")
        return self.text("title") or own_name

    @property
    def description(self) -> str:
        return self.text("description")

    @property
    def mime_type(self) -> str:
        return self.text("mimeType")

    @property
    def size(self) -> int | None:
        """In bytes, as the member says."""
        size = self.definition.get("size")
        return size if isinstance(size, int) and not isinstance(size, bool) and size >= 0 else None

    @property
    def arguments(self) -> list[Argument]:
        listed = self.definition.get("arguments")
        definitions = [object_of(each) for each in listed] if isinstance(listed, list) else []
        return [
            Argument(
                each["name"],
                _text(each.get("title")),
                _text(each.get("description")),
                each.get("required") is True,
            )
            for each in definitions
            if isinstance(each.get("name"), str) and each["name"]
        ]

    def text(self, key: str) -> str:
        return _text(self.definition.get(key))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def extras_of(row: GuildMember, kind: Kind) -> list[Extra]:
    """All of a kind, in the member's order. Disabled ones that left its list come last."""
    listed = MemberExtras.objects.filter(member=row).values_list(_COLUMNS[kind], flat=True).first() or []
    definitions = {each[_KEYS[kind]]: each for each in listed if isinstance(each, dict)}
    return _with_states(row, kind, definitions)


def counts_of(row: GuildMember) -> dict[Kind, int]:
    """How many of each kind the member listed last. It reads no definitions."""
    numbers = {column: _Length(column) for column in _COLUMNS.values()}
    counts = MemberExtras.objects.filter(member=row).values_list(*numbers.values()).first() or [0] * len(numbers)
    return dict(zip(_COLUMNS, counts, strict=True))


class _Length(Func):
    """The number of values in a list in a column."""

    function = "jsonb_array_length"
    output_field = IntegerField()

    def as_sqlite(self, compiler: Any, connection: Any, **context: Any) -> Any:
        return self.as_sql(compiler, connection, function="json_array_length", **context)


def find_extra(row: GuildMember, kind: Kind, name: str) -> Extra:
    """Raises UnknownExtraError if the member does not list it."""
    found = next((extra for extra in extras_of(row, kind) if extra.name == name), None)
    if found is None:
        raise UnknownExtraError(f"member {row.name!r} lists no {kind.label} {name[:200]!r}")
    return found


def _with_states(row: GuildMember, kind: Kind, definitions: dict[str, dict[str, Any]]) -> list[Extra]:
    holds = extras.holds_of(row.pk) if kind != Kind.RESOURCE else {}
    disabled = set(row.disabled_extras.filter(kind=kind).values_list("name", flat=True))
    listed = [
        Extra(
            kind,
            name,
            definition,
            is_enabled=name not in disabled,
            hold=_hold(holds, kind, name),
        )
        for name, definition in definitions.items()
    ]
    gone = sorted(disabled - definitions.keys())
    return [*listed, *(Extra(kind, name, {}, is_listed=False, is_enabled=False) for name in gone)]


def _hold(holds: extras.Holds, kind: Kind, name: str) -> str:
    key = (kind.value, contracts.key_of(name)) if holds else ("", "")
    return (holds[key] or "it changed") if key in holds else ""


def versions_of(row: GuildMember, kind: Kind) -> list[Any]:
    """A value that changes when `extras_of` changes. It reads no definitions."""
    digest = MemberExtras.objects.filter(member=row).values_list("digest", flat=True).first()
    disabled = row.disabled_extras.filter(kind=kind).order_by("pk").values_list("pk", flat=True)
    return [digest, *disabled, sorted(extras.holds_of(row.pk))]


def search(found: Iterable[Extra], words: str) -> list[Extra]:
    """Those that have each word in their name, title or description."""
    parts = words.casefold().split()
    return [
        extra
        for extra in found
        if all(part in f"{extra.name}\n{extra.title}\n{extra.description}".casefold() for part in parts)
    ]


# Of many members, and of one principal ----------------------------------------------------------------------------


def usable_extras(members: QuerySet[GuildMember], words: Iterable[str]) -> Iterator[tuple[GuildMember, Extra]]:
    """What these members listed last, without what is disabled or held, by member. A few queries.

    `words` only leave out members that have one of them nowhere in their lists and names. The caller compares the rest.
    """
    lists = MemberExtras.objects.filter(member__in=members).select_related("member").order_by("member__name")
    for word in words:
        if word.isascii() and word.isalnum():  # JSON may write others differently
            lists = lists.filter(_has_word(word))
    rows = list(lists.only(*_COLUMNS.values(), "member__name", "member__display_name")[:MAX_LISTS])
    ids = [row.pk for row in rows]
    disabled, held = extras.disabled_of(ids), extras.held_of(ids)
    for row in rows:
        off = disabled.get(row.pk, {})
        for kind, column in _COLUMNS.items():
            for definition in getattr(row, column):
                name = definition.get(_KEYS[kind]) if isinstance(definition, dict) else None
                if not isinstance(name, str) or name in off.get(kind, ()):
                    continue
                if (row.pk, kind.value, contracts.key_of(name)) not in held:
                    yield row.member, Extra(kind, name, definition)


def _has_word(word: str) -> Q:
    condition = Q(member__name__icontains=word) | Q(member__display_name__icontains=word)
    for column in _COLUMNS.values():
        condition |= Q(IContains(Cast(column, TextField()), word))
    return condition


def explain_use(principal: Principal, member: str, kind: Kind, name: str) -> Decision:
    """Whether the principal may use this prompt, resource or resource template now, and all reasons."""
    what = f"{kind.label} {name[:200]!r}"
    row = GuildMember.objects.filter(name=member, removed_at=None).first()
    if row is None:
        return access.explain_use(principal, member, what, [f"no member {member!r} is in the roster"])
    obstacles = [] if row.enabled else [f"member {member!r} is disabled"]
    listed = extras.read(row.pk)
    block = listed.block_of_prompt(name) if kind == Kind.PROMPT else listed.block_of_uri(name)
    lists = {Kind.PROMPT: listed.prompts, Kind.RESOURCE_TEMPLATE: listed.templates}
    if block is not None:
        state = "is disabled" if block.hold is None else f"is held until somebody approves it: {block.hold}"
        obstacles.append(f"{block.kind.label} {block.name[:200]!r} of member {member!r} {state}")
    elif kind in lists and name not in lists[kind]:
        obstacles.append(f"member {member!r} lists no {what}")
    decision = access.explain_use(principal, member, what, obstacles)
    if decision.allowed and kind == Kind.RESOURCE and not listed.has(name):
        note = "it is in no list of the member, which decides whether there is such a resource"
        return Decision(True, [*decision.reasons[:-1], note])
    return decision


def set_extra_enabled(row: GuildMember, extra: Extra, enabled: bool) -> None:
    """Enable or disable it. What is disabled is in no list of the gateway, and all uses are refused."""
    key = contracts.key_of(extra.name)
    with short_transaction():
        Hall.note_access_change()
        if enabled:
            DisabledExtra.objects.filter(member=row, kind=extra.kind, key=key).delete()
        else:
            names = {"defaults": {"name": extra.name}}
            DisabledExtra.objects.get_or_create(member=row, kind=extra.kind, key=key, **names)
        target = f"{extra.kind.label} {row.name}/{extra.name}"
        AuditEntry.record(_ENTRIES[extra.kind][enabled], target, member=row.name)
