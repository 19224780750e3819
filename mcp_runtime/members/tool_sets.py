"""Which tools a tool set lists, and under which names.

The gateway serves this list, and the admin shows it before. So both use this module.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from mcp_runtime.protocol import mcp

NEW_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")  # what MCP recommends, in the length that all clients accept


@dataclass(frozen=True, slots=True)
class Entry:
    """A tool in a set, or all of a member if `tool` is empty. Empty new texts mean that the text stays."""

    member: str
    tool: str = ""
    new_name: str = ""
    new_description: str = ""

    @property
    def listed_name(self) -> str:
        """The name of its tool in the set."""
        return self.new_name or mcp.qualified_name(self.member, self.tool)

    def __str__(self) -> str:
        return f"{self.member}/{self.tool}" if self.tool else self.member


@dataclass(frozen=True, slots=True)
class Listing:
    """The tools of a set: `entries` by listed name, each with its tool. `hidden` has the tools that are not listed.

    A tool is hidden if an earlier entry, or an entry of a single tool, has its name. Its value is the name.
    """

    entries: Mapping[str, Entry]
    hidden: Mapping[tuple[str, str], str]


def listing(entries: Iterable[Entry], tools: Mapping[str, Collection[str]]) -> Listing:
    """Return what a set with these entries lists, if each member has these tools.

    An entry of a single tool keeps its name also while the member does not list the tool. Otherwise another tool could
    get the name meanwhile, and a client would call that one.
    """
    entries = list(entries)
    owners: dict[str, Entry] = {}
    for entry in entries:
        if entry.tool:
            owners.setdefault(entry.listed_name, entry)
    single_tools = {(entry.member, entry.tool) for entry in entries if entry.tool}
    listed: dict[str, Entry] = {}
    hidden: dict[tuple[str, str], str] = {}
    for entry in entries:
        names = tools.get(entry.member, ())
        if entry.tool:
            candidates = [entry] if entry.tool in names else []
        else:
            candidates = [Entry(entry.member, name) for name in names if (entry.member, name) not in single_tools]
        for candidate in candidates:
            name = candidate.listed_name
            if owners.setdefault(name, candidate) is candidate:
                listed[name] = candidate
            else:
                hidden[candidate.member, candidate.tool] = name
    return Listing(listed, hidden)


def name_conflicts(entries: Iterable[Entry]) -> list[tuple[str, Entry, Entry]]:
    """Return the pairs of single tools that would have the same name, with this name."""
    owners: dict[str, Entry] = {}
    conflicts = []
    for entry in entries:
        if entry.tool and (owner := owners.setdefault(entry.listed_name, entry)) is not entry:
            conflicts.append((entry.listed_name, owner, entry))
    return conflicts
