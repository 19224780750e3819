"""The grades of changes, and one change."""

from __future__ import annotations

import enum
import json
from collections.abc import Iterable
from dataclasses import dataclass

MAX_CHANGES = 100  # of one definition
MAX_SHOWN = 200  # characters of a value in a sentence


class Grade(enum.StrEnum):
    """What a change means for those who use the definition. The order is that of `worst`: the last is the worst."""

    NOTATION = "notation"
    ADDED = "added"
    WIDER = "wider"
    REMOVED = "removed"
    TEXT = "text"
    NARROWER = "narrower"
    BREAKING = "breaking"
    SOFTENED = "softened"

    @property
    def meaning(self) -> str:
        """For people."""
        return _MEANINGS[self]


_MEANINGS = {
    Grade.NOTATION: "the same in another notation",
    Grade.ADDED: "it is new",
    Grade.WIDER: "all earlier uses are still right",
    Grade.REMOVED: "it is not listed any more",
    Grade.TEXT: "a model or a person reads another text",
    Grade.NARROWER: "some earlier arguments are refused now",
    Grade.BREAKING: "earlier uses fail, or get something else",
    Grade.SOFTENED: "an annotation says now that the tool is harmless",
}
_ORDER = {grade: number for number, grade in enumerate(Grade)}

# A tool with such a change may do something else than what people agreed to.
HELD_GRADES = (Grade.TEXT, Grade.NARROWER, Grade.BREAKING, Grade.SOFTENED)


@dataclass(frozen=True)
class Change:
    """One change. `place` is a JSON pointer into the definition, and `sentence` says what is different there."""

    grade: Grade
    place: str
    sentence: str


TOO_LARGE = Change(Grade.BREAKING, "", "So much of it changed that it is not compared part by part.")


def worst(changes: Iterable[Change]) -> Grade | None:
    """Return the worst grade. None if there is no change."""
    return max((change.grade for change in changes), key=_ORDER.__getitem__, default=None)


def pointer(place: str, *keys: str | int) -> str:
    """Return the JSON pointer (RFC 6901) of a value below `place`."""
    return place + "".join("/" + str(key).replace("~", "~0").replace("/", "~1") for key in keys)


def shown(value: object) -> str:
    """Return a JSON value for a sentence, in one short line without invisible characters."""
    text = json.dumps(value)
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 3]}..."
