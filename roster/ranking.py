"""The order of what a search finds. The roster and the search of all pages use the same.

Each word of the query must be in one of the texts. The name counts most, the description least, and a whole word more
than a part of one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

MAX_QUERY = 100  # characters
MAX_WORDS = 8
MAX_TEXT = 2_000  # characters of a description that are searched

# A name is divided where its case changes, as in listOpenOrders, at digits, and at characters that are in no word.
_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[^\W\d_A-Z]+|\d+")

# How much a word counts that is the whole text, one of its words, the beginning of one, and any part.
_NAME = (100, 60, 45, 30)
_TITLE = (60, 40, 30, 20)
_CONTEXT = (25, 20, 15, 10)
_DESCRIPTION = (14, 12, 8, 4)
_SAME_WORDS = 40  # if the query has the words of the name, in this order
_PART_OF_NAME = 1  # less for each word of the name that the query does not have


@dataclass(frozen=True)
class Texts:
    """What a search reads of a row. `context` is a text of what it belongs to, such as the name of a tool's member."""

    name: str
    title: str = ""
    context: str = ""
    description: str = ""


def words_of(query: str) -> list[str]:
    return query[:MAX_QUERY].replace("\0", " ").casefold().split()[:MAX_WORDS]


def score(words: Sequence[str], texts: Texts) -> int:
    """How well the texts fit these words of `words_of`. 0 if one of them is nowhere, or if there are none."""
    fields = [
        (_Text(text), weights)
        for text, weights in (
            (texts.name, _NAME),
            (texts.title, _TITLE),
            (texts.context, _CONTEXT),
            (texts.description[:MAX_TEXT], _DESCRIPTION),
        )
        if text
    ]
    total = 0
    for word in words:
        best = max((text.weight_of(word, weights) for text, weights in fields), default=0)
        if not best:
            return 0
        total += best
    name = parts_of(texts.name)
    if total and [part for word in words for part in parts_of(word)] == name:
        total += _SAME_WORDS
    return max(total - _PART_OF_NAME * max(len(name) - len(words), 0), 1) if total else 0


def parts_of(text: str) -> list[str]:
    return [part.casefold() for part in _PART.findall(text)]


class _Text:
    def __init__(self, text: str) -> None:
        self._text = text.casefold()
        self._parts = parts_of(text)

    def weight_of(self, word: str, weights: tuple[int, int, int, int]) -> int:
        whole, part, beginning, anywhere = weights
        if word not in self._text:
            return 0
        if word == self._text:
            return whole
        if word in self._parts:
            return part
        return beginning if any(each.startswith(word) for each in self._parts) else anywhere
