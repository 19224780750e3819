"""Tool sets in memory, as a part of the catalog. It decides which tools they list now."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property

from msgspec import Raw

from mcp_runtime.gateway import envelope
from mcp_runtime.members.tool_sets import Entry
from mcp_runtime.protocol.errors import ProtocolError
from roster.models import ToolSet, ToolSetEntry


@dataclass(frozen=True)
class OfferedSet:
    """A tool set, from its rows. Its members and tools may be disabled, or reserved for others."""

    name: str
    title: str = ""
    description: str = ""
    entries: tuple[Entry, ...] = ()

    @cached_property
    def members(self) -> frozenset[str]:
        """The members of which it has at least one tool."""
        return frozenset(entry.member for entry in self.entries)

    @cached_property
    def whole_members(self) -> frozenset[str]:
        """The members of which it has everything, with prompts and resources."""
        return frozenset(entry.member for entry in self.entries if not entry.tool)


def load() -> dict[str, OfferedSet]:
    """Load all tool sets by name."""
    entries: dict[int, list[Entry]] = defaultdict(list)
    columns = ("tool_set_id", "member__name", "tool_name", "new_name", "new_description")
    for set_id, *values in ToolSetEntry.objects.values_list(*columns):
        entries[set_id].append(Entry(*values))
    rows = ToolSet.objects.values_list("pk", "name", "title", "description")
    return {name: OfferedSet(name, title, description, tuple(entries[pk])) for pk, name, title, description in rows}


def with_new_texts(definition: bytes, name: str, description: str) -> bytes:
    """Return a tool's definition, which is JSON, with this name and, unless it is empty, this description.

    Only the outermost object is read, because a large definition would block the event loop. One with thousands of keys
    becomes the shortest valid definition.
    """
    try:
        fields = envelope.fields(Raw(definition))
    except ProtocolError:
        fields = {"inputSchema": {"type": "object"}}
    return envelope.encode({**fields, "name": name, **({"description": description} if description else {})})
