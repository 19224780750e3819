"""A sign of poisoning in a definition, and the score of all its signs."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from mcp_runtime.contracts.characters import is_plain, plain

ALARM = 50  # the score from which a definition counts as poisoned
MAX_SCORE = 100
MAX_MATCHES = 50  # of one pattern in one text


class Kind(enum.StrEnum):
    HIDDEN_UNICODE = "hidden_unicode"
    INJECTION = "injection"
    EXFILTRATION = "exfiltration"
    SECRECY = "secrecy"
    PAYLOAD = "payload"
    SHADOWING = "shadowing"
    MISMATCH = "mismatch"
    TOO_LONG = "too_long"


@dataclass(frozen=True)
class Finding:
    """One sign. `place` is a JSON pointer. A hard finding is one that honest definitions do not have."""

    kind: Kind
    place: str
    sentence: str
    weight: int
    is_hard: bool = False


class Text(NamedTuple):
    """A text of a definition: as it is, and as a model understands it."""

    place: str
    raw: str
    plain: str


class Texts:
    """The texts of a definition, each alone, and all of them together.

    One search in all of them takes a fraction of the time, and nearly always finds nothing.
    """

    def __init__(self, texts: Iterable[tuple[str, str]]) -> None:
        """Each text comes with its place."""
        pairs = [*texts]
        self.raw = "\n".join(text for _, text in pairs)
        are_plain = is_plain(self.raw)
        self.each = tuple(Text(place, text, text if are_plain else plain(text)) for place, text in pairs)
        self.plain = "\n".join(text.plain for text in self.each)


def score_of(findings: Iterable[Finding]) -> int:
    """Return 0 to MAX_SCORE. Each kind counts once, with its heaviest finding."""
    weights: dict[Kind, int] = {}
    for finding in findings:
        weights[finding.kind] = max(weights.get(finding.kind, 0), finding.weight)
    return min(sum(weights.values()), MAX_SCORE)
