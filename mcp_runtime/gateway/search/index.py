"""Rank tools by the words of a query (BM25).

A client may not learn anything about tools that it may not use, so a search counts only the tools that its view allows.
The weight of a word in a tool depends on this tool alone. How rare a word is depends on the allowed tools.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from mcp_runtime.gateway.search.synonyms import synonyms
from mcp_runtime.gateway.search.words import words_of

# Tuned with one half of the labelled queries in tests/unit/mcp_runtime/gateway/search/retrieval. The other half
# measures the result.
NAME_WEIGHT, DESCRIPTION_WEIGHT, PARAMETER_WEIGHT = 2.0, 1.0, 0.5
SATURATION = 1.2  # how much a word counts that occurs again in the same tool
LENGTH_SHARE = 0.5  # how much a long text lowers the weight of each of its words
USUAL_LENGTH = 20.0  # words of a tool. A constant, because an average would be about tools of others
SYNONYM_WEIGHT = 0.2
# Limits of one tool and of one query. The search runs on the gateway's event loop.
MAX_NAME, MAX_DESCRIPTION, MAX_PARAMETERS, MAX_PARAMETER = (
    300,
    2_000,
    60,
    60,
)  # characters, and the number of parameters
MAX_WORDS = 150  # of a tool
MAX_QUERY = 1_000  # characters
MAX_QUERY_WORDS = 24
# Tools with the rare words of a query, in addition to the limit. Frequent words then only add to the scores of these.
ENOUGH = 25
MAX_CACHED_SCORES = 30_000  # of a view

Weights = Mapping[str, float]  # by word
Postings = tuple[Sequence[int], Sequence[float]]  # the numbers of tools, and the weight of a word in each of them


def weigh(name: str, description: str, parameters: Iterable[str]) -> Weights:
    """Return the weight of each word of a tool."""
    counts: defaultdict[str, float] = defaultdict(float)
    for word in words_of(name[:MAX_NAME]):
        counts[word] += NAME_WEIGHT
    for word in words_of(description[:MAX_DESCRIPTION]):
        counts[word] += DESCRIPTION_WEIGHT
    for parameter in list(parameters)[:MAX_PARAMETERS]:
        for word in words_of(parameter[:MAX_PARAMETER]):
            counts[word] += PARAMETER_WEIGHT
    length = sum(counts.values())
    norm = SATURATION * (1 - LENGTH_SHARE + LENGTH_SHARE * length / USUAL_LENGTH)
    most_frequent = heapq.nlargest(MAX_WORDS, counts, key=counts.__getitem__)
    return {word: counts[word] * (SATURATION + 1) / (counts[word] + norm) for word in most_frequent}


@dataclass
class View:
    """The tools of an index that one client may use. `allowed` has a flag for each tool, or is None for all."""

    allowed: Sequence[int] | None
    size: int
    cache: dict[str, dict[int, float]] = field(default_factory=dict)  # the scores of tools for a word of a query
    cached_scores: int = 0

    def store(self, word: str, scores: dict[int, float]) -> None:
        if self.cached_scores > MAX_CACHED_SCORES:
            self.cache.clear()
            self.cached_scores = 0
        self.cache[word] = scores
        self.cached_scores += len(scores)


class Index:
    """The words of many tools. It does not change."""

    def __init__(self, tools: Sequence[Weights]) -> None:
        postings: defaultdict[str, tuple[list[int], list[float]]] = defaultdict(lambda: ([], []))
        for number, weights in enumerate(tools):
            for word, weight in weights.items():
                numbers, of_word = postings[word]
                numbers.append(number)
                of_word.append(weight)
        self._postings: Mapping[str, Postings] = dict(postings)

    def view(self, allowed: Sequence[bool]) -> View:
        """Return a view of the tools whose flag is set."""
        return View(None if all(allowed) else bytes(allowed), sum(allowed))

    def search(self, query: str, view: View, limit: int) -> list[int]:
        """Return the numbers of the best tools, the best first."""
        words = list(dict.fromkeys(words_of(query[:MAX_QUERY])))[:MAX_QUERY_WORDS]
        scores: dict[int, float] = {}
        score_of, enough = scores.get, ENOUGH + limit
        # Rare words first. A tool with only frequent words of a long query cannot be among the best.
        for part in sorted((self.scores_of(word, view) for word in words), key=len):
            if len(scores) < enough:
                for number, score in part.items():
                    scores[number] = score_of(number, 0.0) + score
            else:
                for number in scores.keys() & part.keys():
                    scores[number] += part[number]
        threshold = min(heapq.nlargest(limit, scores.values()), default=0.0)
        best = [number for number, score in scores.items() if score >= threshold]
        best.sort(key=lambda number: (-scores[number], number))
        return best[:limit]

    def scores_of(self, word: str, view: View) -> dict[int, float]:
        """Return what the tools with the word or one of its synonyms score for it."""
        scores = view.cache.get(word)
        if scores is None:
            scores = {}
            for synonym in (word, *synonyms().get(word, ())):
                numbers, weights = self._allowed_postings(synonym, view)
                count = len(numbers)
                rarity = math.log(1 + (view.size - count + 0.5) / (count + 0.5))
                factor = rarity if synonym == word else rarity * SYNONYM_WEIGHT
                for number, weight in zip(numbers, weights, strict=True):
                    scores[number] = scores.get(number, 0.0) + factor * weight
            view.store(word, scores)
        return scores

    def _allowed_postings(self, word: str, view: View) -> Postings:
        postings = self._postings.get(word, ((), ()))
        if (allowed := view.allowed) is None:
            return postings
        pairs = [(number, weight) for number, weight in zip(*postings, strict=True) if allowed[number]]
        return [number for number, _ in pairs], [weight for _, weight in pairs]
