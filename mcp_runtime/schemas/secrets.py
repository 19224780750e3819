"""Finds the places of secrets in arguments with the tool's schema, and masks or removes them.

If the search exceeds its budget, everything counts as a secret. Broken parts of a schema are skipped.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, lru_cache
from operator import itemgetter
from typing import Any

from referencing import Registry
from referencing.jsonschema import DRAFT202012

from mcp_runtime.schemas.guards import MAX_COMPILED, is_covered
from mcp_runtime.schemas.schema_work import (
    MAX_SCHEMA_CHARACTERS,
    Schema,
    TooMuchWorkError,
    Work,
    current,
    paced,
    too_slow,
)
from mcp_runtime.secrets.references import MASK

SECRETS_SECONDS = 0.25  # of one search for secrets
# The number of parts that apply to the same value, summed over all parts of a schema. With more, there is no search.
MAX_IN_PLACE = 50_000
# Names and indexes in all places of secrets of one call. They are stored with the call.
MAX_SECRET_STEPS = 20_000
# The place that stands for every argument. It saves writing and reading thousands of names with the call.
EVERYWHERE: list[list[str | int]] = [[]]
TOO_COMPLEX = "the input schema is too complex to tell secrets from other arguments: all are masked"
_SECRET_WORDS = ('"writeOnly"', '"password"')
_IN_PLACE = ("if", "then", "else")
_IN_PLACE_LISTS = ("allOf", "anyOf", "oneOf")
_IN_PLACE_MAPS = ("dependentSchemas", "dependencies")
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_OTHER_PROPERTIES = ("additionalProperties", "unevaluatedProperties")
_OTHER_ITEMS = ("items", "additionalItems", "unevaluatedItems", "contains")
Part = dict[str, Any]


def may_mark_secrets(text: str) -> bool:
    """Whether a schema, as JSON, may mark secrets. A quick check, which may return True without a reason."""
    return any(word in text for word in _SECRET_WORDS)


def secret_paths(schema: Schema, arguments: dict[str, Any], seconds: float = SECRETS_SECONDS) -> list[list[str | int]]:
    """Places in `arguments` that the schema marks `writeOnly` or `format: password`. Broken parts are skipped.

    If the search takes more than `seconds` of CPU time, everything counts as a secret: EVERYWHERE.
    """
    if not arguments:
        return []
    try:
        text = schema if isinstance(schema, str) else json.dumps(schema)
    except RecursionError:
        return EVERYWHERE
    if not may_mark_secrets(text):
        return []
    if len(text) > MAX_SCHEMA_CHARACTERS:
        return EVERYWHERE
    try:
        with paced():
            marks = secret_marks(text, seconds)
            with Work(seconds):
                keyed = [(str(place), place) for place in _bounded(marks.places_in(arguments))] if marks else []
    except TooMuchWorkError:
        return EVERYWHERE
    keyed.sort(key=itemgetter(0))
    return [place for _, place in keyed]


def _bounded(places: Iterator[list[str | int]]) -> Iterator[list[str | int]]:
    steps = 0
    for place in places:
        steps += len(place)
        if steps > MAX_SECRET_STEPS:
            raise TooMuchWorkError
        yield place


def secret_marks(text: str, seconds: float = SECRETS_SECONDS) -> _SecretMarks | None:
    """The marks of the schema with this text. None if it has none. Raises TooMuchWorkError for too many."""
    if not may_mark_secrets(text):
        return None
    key = ("marks", hash(text))
    if too_slow.get(key):
        raise TooMuchWorkError
    try:
        with Work(seconds):
            return _gathered_marks(text)
    except TooMuchWorkError:
        too_slow.put(key, TOO_COMPLEX)
        raise


@lru_cache(maxsize=64)
def _gathered_marks(text: str) -> _SecretMarks:
    return _SecretMarks(json.loads(text))


class _SecretMarks:
    """The places where a schema marks secrets. It maps each part of the schema to the parts for the same value.

    Create it within Work. Raises TooMuchWorkError. Many threads may read it, because it never changes.
    """

    def __init__(self, schema: Part) -> None:
        self._references = _References(schema)
        self._root = schema
        self._in_place: dict[int, tuple[Part, ...]] = {}
        self._gather()

    def _gather(self) -> None:
        remaining = MAX_IN_PLACE
        todo: list[Any] = [self._root]
        while todo:
            part = todo.pop()
            current().trifle()
            if isinstance(part, dict) and id(part) not in self._in_place:
                parts = self._in_place[id(part)] = self._closure(part, remaining)
                remaining -= len(parts)
                if sum(len(_dict(other.get("patternProperties"))) for other in parts) > MAX_COMPILED:
                    raise TooMuchWorkError
                todo += [*part.values(), *parts]
            elif isinstance(part, list):
                todo += part

    def _closure(self, part: Part, most: int) -> tuple[Part, ...]:
        """`part` and all parts that apply to the same value. Raises TooMuchWorkError for more than `most`."""
        parts = {id(part): part}
        todo: list[Part] = [part]
        while todo:
            for other in _same_place(todo.pop(), self._references):
                if isinstance(other, dict) and id(other) not in parts:
                    current().trifle()
                    if len(parts) >= most:
                        raise TooMuchWorkError
                    parts[id(other)] = other
                    todo.append(other)
        return tuple(parts.values())

    def places_in(self, arguments: dict[str, Any]) -> Iterator[list[str | int]]:
        """The places of secrets. Call it within Work. Raises TooMuchWorkError."""
        path: list[str | int] = []
        # This avoids recursion and a list of all work. Each level is an iterator over its remaining children.
        parts = self._expand([self._root])
        if any(_is_secret(part) for part in parts):
            yield []
            return
        levels = [self._children(parts, arguments)]
        while levels:
            child = next(levels[-1], None)
            if child is None:
                levels.pop()
                if path:
                    path.pop()
                continue
            key, value, parts = child
            if any(_is_secret(part) for part in parts):
                yield [*path, key]
            elif isinstance(value, (dict, list)):
                path.append(key)
                levels.append(self._children(parts, value))

    def _children(self, parts: list[Part], value: Any) -> Iterator[tuple[str | int, Any, list[Part]]]:
        """Key, value and parts of each child that may contain a secret."""
        return self._properties(parts, value) if isinstance(value, dict) else self._items(parts, value)

    def _properties(self, parts: list[Part], value: dict[str, Any]) -> Iterator[tuple[str, Any, list[Part]]]:
        work = current()
        for key, item in value.items():
            candidates: list[Any] = []
            for part in parts:
                work.trifle()
                candidates += _property_parts(part, key)
            if candidates and (item_parts := self._expand(candidates)):
                yield key, item, item_parts

    def _items(self, parts: list[Part], value: list[Any]) -> Iterator[tuple[int, Any, list[Part]]]:
        work = current()
        prefix_length = max((len(_prefix(part)) for part in parts), default=0)
        item_parts: list[Part] = []
        is_secret = False
        for index, item in enumerate(value):
            work.trifle()
            if index <= prefix_length:  # all later items have the same parts
                candidates: list[Any] = []
                for part in parts:
                    work.trifle()
                    candidates += _item_parts(part, index)
                item_parts = self._expand(candidates)
                is_secret = any(_is_secret(part) for part in item_parts)
            if item_parts and (is_secret or isinstance(item, (dict, list))):
                yield index, item, item_parts

    def _expand(self, parts: list[Any]) -> list[Part]:
        """`parts`, and all parts that apply to the same values, each once."""
        expanded: dict[int, Part] = {}
        for part in parts:
            if isinstance(part, dict) and id(part) not in expanded:
                current().trifle()
                expanded.update((id(other), other) for other in self._in_place[id(part)])
        return list(expanded.values())


def _is_secret(part: Part) -> bool:
    return part.get("writeOnly") is True or part.get("format") == "password"


def _same_place(schema: dict[str, Any], references: _References) -> Iterator[Any]:
    """Schemas that apply to the same value as `schema` does."""
    yield from (schema.get(keyword) for keyword in _IN_PLACE)
    for keyword in _IN_PLACE_LISTS:
        yield from _list(schema.get(keyword))
    for keyword in _IN_PLACE_MAPS:
        yield from _dict(schema.get(keyword)).values()
    for keyword in _REFERENCES:
        if isinstance(schema.get(keyword), str):
            yield references.target(schema[keyword])


def _property_parts(schema: dict[str, Any], key: str) -> Iterator[Any]:
    properties = _dict(schema.get("properties"))
    matches = [part for pattern, part in _dict(schema.get("patternProperties")).items() if is_covered(key, [pattern])]
    yield from matches
    if key in properties:
        yield properties[key]
    elif not matches:
        yield from (schema.get(keyword) for keyword in _OTHER_PROPERTIES)


def _prefix(schema: dict[str, Any]) -> list[Any]:
    # Before 2020-12 a list under `items` had the meaning of `prefixItems`.
    return _list(schema.get("prefixItems")) or _list(schema.get("items"))


def _item_parts(schema: dict[str, Any], index: int) -> Iterator[Any]:
    prefix = _prefix(schema)
    if index < len(prefix):
        yield prefix[index]
    else:
        yield from (schema.get(keyword) for keyword in _OTHER_ITEMS)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


class _References:
    """The targets of references inside `schema`. It is read once, and only if there is a reference."""

    def __init__(self, schema: dict[str, Any]) -> None:
        self._schema = schema

    @cached_property
    def _resolver(self) -> Any:
        root = DRAFT202012.create_resource({**self._schema, "$id": ""})
        try:
            return Registry().with_resource("", root).crawl().resolver()
        except Exception:  # noqa: BLE001 - a broken schema may raise anything in the library
            return Registry().resolver()

    def target(self, reference: str) -> Any:
        """The schema to which `reference` leads ("#/$defs/login", "#anchor"). None if it is not inside the schema."""
        try:
            return self._resolver.lookup(reference).contents
        except Exception:  # noqa: BLE001 - as above
            return None


def mask(arguments: dict[str, Any], paths: Sequence[Sequence[str | int]]) -> dict[str, Any]:
    """A copy of `arguments` with MASK at `paths`. Places that do not exist are skipped."""
    if [] in paths:
        return dict.fromkeys(arguments, MASK)
    masked: dict[str, Any] = _copy_with_changes(arguments, _tree_of(paths), _hide)
    return masked


def without(arguments: dict[str, Any], paths: Sequence[Sequence[str | int]]) -> dict[str, Any]:
    """A copy of `arguments` without the values at `paths`. A property is removed, an item of a list becomes null."""
    if [] in paths:
        return {}
    remaining: dict[str, Any] = _copy_with_changes(arguments, _tree_of(paths), _remove)
    return remaining


def _hide(holder: Any, key: Any) -> None:
    holder[key] = MASK


def _remove(holder: Any, key: Any) -> None:
    if isinstance(holder, dict):
        del holder[key]
    else:
        holder[key] = None


_Tree = dict[str | int, Any]  # None at the end of a path


def _tree_of(paths: Sequence[Sequence[str | int]]) -> _Tree:
    """The paths as one tree, so that a value with thousands of secrets is copied once. The shorter path counts."""
    tree: _Tree = {}
    for path in paths:
        place: _Tree | None = tree
        for key in path[:-1]:
            place = place.setdefault(key, {}) if place is not None else None
        if place is not None:
            place[path[-1]] = None
    return tree


def _copy_with_changes(value: Any, tree: _Tree, change: Callable[[Any, Any], None]) -> Any:
    copied = value.copy()
    for key, subtree in tree.items():
        if isinstance(value, dict) != isinstance(key, str) or not _is_there(value, key):
            continue
        if subtree is None:
            change(copied, key)
        elif isinstance(value[key], (dict, list)):
            copied[key] = _copy_with_changes(value[key], subtree, change)
    return copied


def _is_there(value: Any, key: Any) -> bool:
    return key in value if isinstance(value, dict) else 0 <= key < len(value)
