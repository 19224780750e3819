"""All texts of a definition: everything that a model or a person reads, wherever it stands."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from mcp_runtime.contracts.grades import pointer
from mcp_runtime.contracts.notation import is_derived_title

# Texts of a schema that say what it permits. `schemas` compares them.
_LISTS_OF_VALUES = {"enum", "required", "type"}
_NAMES = {"properties", "patternProperties", "$defs", "definitions", "dependentRequired"}
TASK_SUPPORT = ("forbidden", "optional", "required")
_DIALECT = re.compile("https?://json-schema.org/(draft-0[4-7]|draft/20(19-09|20-12))/schema#?")
_IDENTIFIER = re.compile("[$A-Za-z0-9_.-]{1,64}")
_REFERENCE = re.compile("#(/[$A-Za-z0-9_.~-]{1,64}){0,8}")


def every_text(definition: Any) -> Iterator[tuple[str, str]]:
    """Yield each text of a definition with its JSON pointer: values, and keys that are no short plain words."""
    stack = [("", definition)]
    while stack:
        place, value = stack.pop()
        if isinstance(value, str):
            yield place, value
        elif isinstance(value, dict):
            for key, each in reversed(value.items()):
                there = pointer(place, key)
                if not _IDENTIFIER.fullmatch(key):
                    yield there, key
                stack.append((there, each))
        elif isinstance(value, list):
            stack += [(pointer(place, number), each) for number, each in reversed([*enumerate(value)])]


def new_texts(before: Any, after: Any) -> Iterator[tuple[str, str]]:
    """Yield the texts of `after` that `before` does not have anywhere, each with its JSON pointer.

    Values that a schema permits, names of properties, and what is only notation are left out.
    """
    known = {_plain(text) for _, text in every_text(before)}
    for place, text in every_text(after):
        if _plain(text) not in known and not (_is_notation(place, text) and _is_in_list(after, place)):
            yield place, text


def _is_in_list(definition: Any, place: str) -> bool:
    """Whether a value of an enumeration is in a list. What stands in an object there is a text that models read."""
    *parents, parent, _ = ["", *place.split("/")]
    if parent not in _LISTS_OF_VALUES:
        return True
    for part in [*parents[2:], parent]:
        key = part.replace("~1", "/").replace("~0", "~")
        definition = definition[int(key)] if isinstance(definition, list) else definition[key]
    return isinstance(definition, list)


def _is_notation(place: str, text: str) -> bool:
    *_, grandparent, parent, key = ["", "", *place.split("/")]
    if parent in _LISTS_OF_VALUES or key in ("const", "type") or (key == "taskSupport" and text in TASK_SUPPORT):
        return True
    if key == "title":
        return is_derived_title(text, parent)
    if grandparent in _NAMES and parent.isdecimal():  # the names in a list of dependentRequired
        return True
    if key == "$schema":
        return _DIALECT.fullmatch(text) is not None
    return key == "$ref" and _REFERENCE.fullmatch(text) is not None


def _plain(text: str) -> str:
    return " ".join(text.split())
