"""Tools that take the place of a tool of another member, or say what to do with it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import re2  # type: ignore[import-untyped]

from mcp_runtime.contracts import other_tools
from mcp_runtime.contracts.canonical import version_of
from mcp_runtime.contracts.characters import letters_of
from mcp_runtime.contracts.grades import shown
from mcp_runtime.contracts.mentions import rest_of_sentence, sentence_before
from mcp_runtime.contracts.signs import ALARM, Finding, Kind, Texts

SIMILAR = 0.75  # the part of their words that two descriptions share, and at least so many words
SIMILAR_WORDS = 3
# A name that is no ordinary word: `read_file`, `read-file` or `readFile`.
NAME_OF_TOOL = re2.compile(r"\b[A-Za-z][A-Za-z0-9]*([_-][A-Za-z0-9]+)+|\b[a-z]+([A-Z][a-z0-9]+)+")


@dataclass(frozen=True)
class Peer:
    """A tool of another member."""

    member: str
    name: str
    description: str
    version: str = ""


class Peers:
    """The tools of the other members, found by their names."""

    def __init__(self, peers: Iterable[Peer]) -> None:
        self._by_name: dict[str, list[Peer]] = {}
        self._by_letters: dict[str, list[Peer]] = {}
        for peer in peers:
            self._by_name.setdefault(peer.name, []).append(peer)
            self._by_letters.setdefault(letters_of(peer.name), []).append(peer)

    @property
    def exist(self) -> bool:
        return bool(self._by_name)

    def named(self, name: str) -> list[Peer]:
        return self._by_name.get(name, [])

    def that_look_like(self, name: str) -> list[Peer]:
        return self._by_letters.get(letters_of(name), [])


NO_PEERS = Peers([])


def shadowing(tool: Mapping[str, Any], texts: Texts, peers: Peers) -> Iterator[Finding]:
    name = tool.get("name")
    if isinstance(name, str) and peers.exist:
        yield from _lookalikes(name, tool, peers)
        yield from _directives(name, texts, peers)


def _lookalikes(name: str, tool: Mapping[str, Any], peers: Peers) -> Iterator[Finding]:
    for peer in peers.that_look_like(name):
        if peer.version and peer.version == version_of(dict(tool)):
            continue  # the same server, installed twice
        is_lookalike = not name.isascii() and name != peer.name
        if is_lookalike or _is_similar(str(tool.get("description") or ""), peer.description):
            sentence = f"It looks like the tool {shown(peer.name)} of member {shown(peer.member)}."
            yield Finding(Kind.SHADOWING, "/name", sentence, ALARM, is_hard=is_lookalike)


def _directives(name: str, texts: Texts, peers: Peers) -> Iterator[Finding]:
    for text in texts.each:
        if text.place == "/name":
            continue
        for match in NAME_OF_TOOL.finditer(text.plain):
            others = peers.named(match[0]) if match[0] != name else []
            if not others or letters_of(match[0]) == letters_of(name):
                continue
            if _is_directive(text.plain, match.start(), match.end()):
                sentence = f"It says what to do with the tool {shown(match[0])} of member {shown(others[0].member)}."
                yield Finding(Kind.SHADOWING, text.place, sentence, ALARM)


def _is_directive(text: str, start: int, end: int) -> bool:
    before, after = sentence_before(text, start), rest_of_sentence(text, end)
    if other_tools.DIRECTIVE_BEFORE.search(before) or other_tools.DIRECTIVE_AFTER.search(after):
        return True
    return bool(other_tools.CONDITION.search(before) and other_tools.ORDER.search(after))


_EMPTY_WORDS = {*("the", "and", "for", "from", "with", "this", "that", "all", "its", "into", "your", "given", "using")}


def _is_similar(one: str, other: str) -> bool:
    """Whether two descriptions say the same with nearly the same words."""
    words, others = ({*re.findall(r"\w{3,}", text.lower())} - _EMPTY_WORDS for text in (one, other))
    if words == others:
        return True
    common = words & others
    return len(common) >= SIMILAR_WORDS and len(common) >= SIMILAR * len(words | others)
