"""Tool sets: create, change and delete them, and show what a client sees at their addresses."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from django.contrib.auth.models import Group, User
from django.db import IntegrityError
from django.db.models import Q, QuerySet
from django.utils import timezone

from mcp_runtime.control.members import members_of_roster, visible_tools
from mcp_runtime.members import tool_sets
from mcp_runtime.members.tool_sets import Entry
from mcp_runtime.protocol import mcp
from mcp_runtime.protocol.errors import RequestRefusedError, UnknownMemberError, UnknownToolError, UnknownToolSetError
from mcp_runtime.rows.database import short_transaction
from mcp_runtime.security.access import Principal
from roster.models import AuditEntry, Call, GuildMember, Hall, Role, Tool, ToolSet, ToolSetEntry

__all__ = ["Entry"]

Kind = AuditEntry.Kind

MAX_SETS = 500
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")


@dataclass(frozen=True)
class Values:
    """The values of a tool set. The order of the entries is that of its list."""

    name: str
    title: str = ""
    description: str = ""
    groups: Sequence[Group] = ()
    entries: Sequence[Entry] = ()


@dataclass(frozen=True)
class PreviewTool:
    """A tool at the address of a set, or one that is not there and why (`fault`)."""

    name: str  # in the set
    member: str
    tool: str
    description: str
    fault: str = ""
    definition: Mapping[str, Any] = field(default_factory=dict)  # as clients get it. Empty if it is not there


def visible_tool_sets(principal: Principal) -> QuerySet[ToolSet]:
    """The tool sets that exist for the principal."""
    rows = ToolSet.objects.exclude(name__in=principal.closed_sets)
    return rows if principal.tool_set is None else rows.filter(name=principal.tool_set)


def find_tool_set(name: str, principal: Principal) -> ToolSet:
    """Raises UnknownToolSetError, also for a tool set that is reserved for others."""
    row = visible_tool_sets(principal).filter(name=name).first()
    if row is None:
        raise UnknownToolSetError(f"the hall has no tool set {name[:100]!r}")
    return row


class ToolSetsOfCalls:
    """What a reader of calls may know about the tool sets at whose addresses they were made.

    In calls of others a tool set that does not exist for the reader is none. A deleted one may have been reserved, so
    only superusers see its name there.
    """

    def __init__(self, principal: Principal, *, is_superuser: bool) -> None:
        self._principal, self._is_superuser = principal, is_superuser

    @cached_property
    def names(self) -> frozenset[str]:
        """The tool sets that exist for the reader."""
        return frozenset(visible_tool_sets(self._principal).values_list("name", flat=True))

    def of(self, call: Call) -> str | None:
        """The name of the tool set. Queries the database only for calls of others."""
        if not call.tool_set or self._is_superuser or self._is_own(call) or call.tool_set in self.names:
            return call.tool_set or None
        return None

    def calls_through(self, name: str) -> Q:
        """The calls for which `of` returns this name."""
        if self._is_superuser or name in self.names:
            return Q(tool_set=name)
        return Q(tool_set=name, requested_by__isnull=False, requested_by=self._principal.user_id)

    def _is_own(self, call: Call) -> bool:
        return call.requested_by_id is not None and call.requested_by_id == self._principal.user_id


# Changes ----------------------------------------------------------------------------------------------------------


def create_tool_set(values: Values, principal: Principal, by: User | None) -> ToolSet:
    """Raises RequestRefusedError, UnknownMemberError, UnknownToolError."""
    _require_valid(values)
    if not _NAME.fullmatch(values.name):
        raise RequestRefusedError(
            f"the name {values.name[:80]!r} must be 1 to 64 lower case letters, digits, '-' and '_', "
            "and begin with a letter or a digit"
        )
    taken = f"the name {values.name!r} is taken by another tool set"
    try:
        with short_transaction():
            Hall.note_access_change()
            if ToolSet.objects.filter(name=values.name).exists():
                raise RequestRefusedError(taken)
            if ToolSet.objects.count() >= MAX_SETS:
                raise RequestRefusedError(f"a hall has {MAX_SETS} tool sets at most; delete one first")
            row = ToolSet.objects.create(
                name=values.name, title=values.title, description=values.description, created_by=by
            )
            row.groups.set(values.groups)
            _set_entries(row, values.entries, principal)
            AuditEntry.record(Kind.TOOL_SET_CREATED, _audit_name(row), after=_details(row))
    except IntegrityError as error:  # another request was faster
        raise RequestRefusedError(taken) from error
    return row


def change_tool_set(row: ToolSet, values: Values, principal: Principal) -> None:
    """Replace all values except the name. Entries of members that are hidden from the principal stay.

    Raises RequestRefusedError, UnknownMemberError, UnknownToolError, UnknownToolSetError.
    """
    _require_valid(values)
    with short_transaction():
        Hall.note_access_change()
        _read_again(row)
        before = _details(row)
        row.title, row.description, row.changed_at = values.title, values.description, timezone.now()
        row.save(update_fields=["title", "description", "changed_at"])
        row.groups.set(values.groups)
        _set_entries(row, values.entries, principal)
        after = _details(row)
        changed = [key for key in {**before, **after} if before.get(key) != after.get(key)]
        if changed:
            sides = [{key: side[key] for key in changed if key in side} for side in (before, after)]
            AuditEntry.record(Kind.TOOL_SET_CHANGED, _audit_name(row), before=sides[0], after=sides[1])


def drop_tools(row: ToolSet, tools: Collection[tuple[str, str]], principal: Principal) -> None:
    """Remove these tools, each (member, tool), from the tool set. In the place of a member come its other tools.

    Raises RequestRefusedError, UnknownToolSetError.
    """
    with short_transaction():
        Hall.note_access_change()
        _read_again(row)
        entries = entries_of(row, principal)
        single = {(entry.member, entry.tool) for entry in entries}
        kept: list[Entry] = []
        for entry in entries:
            if entry.tool or not any(member == entry.member for member, _ in tools):
                kept += [] if (entry.member, entry.tool) in tools else [entry]
                continue
            # Also its tools that are disabled or held now, because they come back.
            names = Tool.objects.filter(member__name=entry.member, listed=True).order_by("position")
            kept += [
                Entry(entry.member, tool)
                for tool in names.values_list("name", flat=True)
                if not {(entry.member, tool)} & (single | set(tools))
            ]
        groups = list(row.groups.all())
        change_tool_set(row, Values(row.name, row.title, row.description, groups, kept), principal)


def delete_tool_set(row: ToolSet) -> None:
    """Delete it. Tokens that are for it give no access any more. Raises UnknownToolSetError."""
    with short_transaction():
        Hall.note_access_change()
        _read_again(row)
        AuditEntry.record(Kind.TOOL_SET_DELETED, _audit_name(row), before=_details(row))
        row.delete()


def _read_again(row: ToolSet) -> None:
    """The row as it is now that nobody else changes it. Raises UnknownToolSetError if somebody has deleted it."""
    try:
        row.refresh_from_db()
    except ToolSet.DoesNotExist as error:
        raise UnknownToolSetError(f"somebody has deleted the tool set {row.name!r}") from error


def entries_of(row: ToolSet, principal: Principal) -> list[Entry]:
    """The entries in their order, without those of members that are hidden from the principal."""
    columns = ("member__name", "tool_name", "new_name", "new_description")
    entries = [Entry(*values) for values in row.entries.filter(member__removed_at=None).values_list(*columns)]
    return [entry for entry in entries if principal.reaches(entry.member)]


def require_possible(values: Values, principal: Principal, row: ToolSet | None) -> None:
    """Raise what `create_tool_set` or, for an existing row, `change_tool_set` would raise because of these values."""
    _require_valid(values)
    _require_possible_entries(row, values.entries, principal)


def _require_valid(values: Values) -> None:
    if names := ", ".join(repr(role.name) for role in Role.objects.filter(group__in=values.groups)):
        raise RequestRefusedError(f"tool sets are reserved for groups that are not roles, and {names} is a role")
    _require_text("title", values.title, ToolSet.MAX_TITLE)
    _require_text("description", values.description, ToolSet.MAX_DESCRIPTION)
    if len(values.entries) > ToolSet.MAX_ENTRIES:
        raise RequestRefusedError(f"a tool set has {ToolSet.MAX_ENTRIES} entries at most")
    seen: set[tuple[str, str]] = set()
    for entry in values.entries:
        if (entry.member, entry.tool) in seen:
            raise RequestRefusedError(f"{str(entry)[:200]!r} is in the tool set twice; keep one of the two entries")
        seen.add((entry.member, entry.tool))
        if not entry.tool and (entry.new_name or entry.new_description):
            raise RequestRefusedError(f"all of {entry.member!r} cannot have a new name; name a tool of it")
        if entry.new_name and not tool_sets.NEW_NAME.fullmatch(entry.new_name):
            raise RequestRefusedError(
                f"the new name {entry.new_name[:80]!r} of {str(entry)[:200]!r} must be 1 to 64 letters, digits, "
                "'_', '.' and '-'"
            )
        _require_text(f"new description of {str(entry)[:200]!r}", entry.new_description, ToolSetEntry.MAX_DESCRIPTION)


def _require_text(name: str, text: str, most: int) -> None:
    if len(text) > most:
        raise RequestRefusedError(f"the {name} has more than {most} characters")
    if _UNPRINTABLE.search(text):
        raise RequestRefusedError(f"the {name} has control characters or invalid characters")


def _set_entries(row: ToolSet, entries: Sequence[Entry], principal: Principal) -> None:
    """Replace the entries that the principal can see. Raises as `require_possible`."""
    members, hidden = _require_possible_entries(row, entries, principal)
    row.entries.exclude(pk__in=[entry.pk for entry in hidden]).delete()
    ToolSetEntry.objects.bulk_create(
        ToolSetEntry(
            tool_set=row,
            member=members[entry.member],
            tool_name=entry.tool,
            new_name=entry.new_name,
            new_description=entry.new_description,
            position=position,
        )
        for position, entry in enumerate(entries)
    )


def _require_possible_entries(
    row: ToolSet | None, entries: Sequence[Entry], principal: Principal
) -> tuple[dict[str, GuildMember], list[ToolSetEntry]]:
    """Return the members of the entries by name, and the entries of the row that stay as they are.

    These are hidden from the principal, or their members are removed and may come back from the trash. Raises
    RequestRefusedError if two tools would have the same name.
    """
    old = list(row.entries.select_related("member")) if row else []
    hidden = [entry for entry in old if entry.member.removed_at or not principal.reaches(entry.member.name)]
    members = _members(entries, principal)
    _require_tools(entries, members, {(entry.member_id, entry.tool_name) for entry in old})
    hidden_entries = [_entry(entry) for entry in hidden]
    for name, first, second in tool_sets.name_conflicts([*hidden_entries, *entries]):
        owner = "another tool" if first in hidden_entries else repr(str(first))
        raise RequestRefusedError(
            f"{owner} already has the name {name!r} in this tool set; give {str(second)!r} another new name"
        )
    if len(entries) + len(hidden) > ToolSet.MAX_ENTRIES:
        raise RequestRefusedError(f"a tool set has {ToolSet.MAX_ENTRIES} entries at most")
    return members, hidden


def _members(entries: Iterable[Entry], principal: Principal) -> dict[str, GuildMember]:
    names = {entry.member for entry in entries}
    rows = {row.name: row for row in members_of_roster().filter(name__in=names)}
    for name in sorted(names):
        if name not in rows or not principal.reaches(name):
            raise UnknownMemberError(f"no member {name[:100]!r} is in the roster")
    return rows


def _require_tools(
    entries: Iterable[Entry], members: dict[str, GuildMember], old_entries: set[tuple[int, str]]
) -> None:
    """Raise UnknownToolError for a tool that the member never listed. Entries that are in the set may stay."""
    existing = set(Tool.objects.filter(member__in=members.values()).values_list("member__name", "name"))
    for entry in entries:
        is_old = (members[entry.member].pk, entry.tool) in old_entries
        if entry.tool and not is_old and (entry.member, entry.tool) not in existing:
            raise UnknownToolError(f"member {entry.member!r} lists no tool {entry.tool[:200]!r}")


def _entry(row: ToolSetEntry) -> Entry:
    return Entry(row.member.name, row.tool_name, row.new_name, row.new_description)


def _audit_name(row: ToolSet) -> str:
    return f"tool set {row.name}"


def _details(row: ToolSet) -> dict[str, Any]:
    """The values for the audit log. Names of members are in `members` and `tools`, which it hides from some readers."""
    entries = [_entry(entry) for entry in row.entries.select_related("member")]
    tools = [
        str(entry)
        + (f" as {entry.new_name}" if entry.new_name else "")
        + (f" with the description: {entry.new_description[:100]}" if entry.new_description else "")
        for entry in entries
        if entry.tool
    ]
    values = {
        "title": row.title,
        "description": row.description,
        "groups": sorted(row.groups.values_list("name", flat=True)),
        "members": [entry.member for entry in entries if not entry.tool],
        "tools": tools,
    }
    return {name: value for name, value in values.items() if value not in ("", [])}


# What clients see -------------------------------------------------------------------------------------------------


def preview(entries: Sequence[Entry], principal: Principal) -> list[PreviewTool]:
    """The tools that the principal sees at the address of a set with these entries, in the order of the list.

    After them come the tools of the entries that are not there, each with the reason.
    """
    rows = _tools_of({entry.member for entry in entries})
    listing = tool_sets.listing(entries, {member: list(tools) for member, tools in rows.items()})
    shown, missing = [], []
    for name, entry in listing.entries.items():
        tool = rows[entry.member][entry.tool]
        description = entry.new_description or _text(tool.definition.get("description"))
        if not principal.may_invoke(entry.member, entry.tool):
            fault = "you may not call it"
        elif mcp.needs_task(tool.definition):
            fault = "it runs only as a task, which tool sets do not offer"
        else:
            own = {**tool.definition, "description": description} if entry.new_description else tool.definition
            definition = mcp.offered_definition(own, name, has_schema=not tool.schema_error)
            shown.append(PreviewTool(name, entry.member, entry.tool, description, definition=definition))
            continue
        missing.append(PreviewTool(name, entry.member, entry.tool, description, fault))
    for (member, tool_name), name in listing.hidden.items():
        fault = f"another tool has the name {name}"
        missing.append(PreviewTool(name, member, tool_name, "", fault))
    for entry in entries:
        if entry.tool and entry.tool not in rows.get(entry.member, {}):
            fault = "the member does not list it now, or it is disabled"
            missing.append(PreviewTool(entry.listed_name, entry.member, entry.tool, "", fault))
    return [*shown, *missing]


def _tools_of(members: set[str]) -> dict[str, dict[str, Tool]]:
    """The tools of enabled members, by member and name, in each member's own order."""
    rows: dict[str, dict[str, Tool]] = defaultdict(dict)
    tools = Tool.objects.filter(visible_tools(), member__name__in=members, member__enabled=True)
    for tool in tools.filter(member__removed_at=None).select_related("member").order_by("position"):
        rows[tool.member.name][tool.name] = tool
    return rows


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def choices(principal: Principal, words: Sequence[str] = (), *, limit: int) -> list[str]:
    """What the principal may put into a tool set: members, and tools as MEMBER/TOOL, of each at most `limit`.

    Each of the words is in the name of the member or of the tool.
    """
    names = sorted(name for name in members_of_roster().values_list("name", flat=True) if principal.reaches(name))
    members = [name for name in names if all(word in name.casefold() for word in words)]
    tools = Tool.objects.filter(visible_tools(), member__name__in=names).order_by("member__name", "position")
    for word in words:
        tools = tools.filter(Q(name__icontains=word) | Q(member__name__icontains=word))
    pairs = tools.values_list("member__name", "name")[:limit]
    return [*members[:limit], *(f"{member}/{tool}" for member, tool in pairs)]
