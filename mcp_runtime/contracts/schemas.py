"""The changes between two JSON schemas, and what they mean for those who use a tool.

Schemas that differ only in notation count as equal. Examples are `const` and an `enum` of one value, `anyOf` of simple
types and a list of types, or `$ref` and the schema that it names.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mcp_runtime.contracts.canonical import canonical_json
from mcp_runtime.contracts.grades import Change, Grade, pointer, shown
from mcp_runtime.contracts.notation import NOTHING, Schema, is_derived_title, normal

MAX_STEPS = 20_000  # pairs of schemas of one comparison
MAX_LEVELS = 64

# A larger value permits less, or more.
_LOWER_BOUNDS = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties", "minContains")
_UPPER_BOUNDS = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties", "maxContains")
_HANDLED = {"type", "enum", "properties", "required", "additionalProperties", "items", "anyOf", "oneOf"}
# Constraints that are compared only as a whole.
_OPAQUE = {
    *("pattern", "format", "multipleOf", "uniqueItems", "patternProperties", "propertyNames", "dependentRequired"),
    *("dependentSchemas", "dependencies", "prefixItems", "contains", "unevaluatedProperties", "unevaluatedItems"),
    *("if", "then", "else", "not", "allOf", "additionalItems", "contentEncoding", "contentSchema"),
    *("$ref", "$dynamicRef"),  # that name no part of the schema
}
_MISSING = object()


class TooLargeError(Exception):
    """The schemas are too large, or nest too deep, to be compared part by part."""


def changes_of_input(before: Any, after: Any, place: str) -> list[Change]:
    """Return the changes of a schema of arguments. A schema that permits less is narrower or breaking."""
    return _changes(before, after, place, is_output=False)


def changes_of_output(before: Any, after: Any, place: str) -> list[Change]:
    """Return the changes of a schema of results. A schema that permits more is breaking for those who read results."""
    return _changes(before, after, place, is_output=True)


def _changes(before: Any, after: Any, place: str, *, is_output: bool) -> list[Change]:
    try:
        return list(_Comparison(before, after, is_output=is_output).changes(before, after, place))
    except (TooLargeError, RecursionError):
        return [Change(Grade.BREAKING, place, "The schema changed, and it is too large to be compared part by part.")]


class _Comparison:
    """Compares two schemas. `$ref` points into the schema that it stands in."""

    def __init__(self, before: Any, after: Any, *, is_output: bool) -> None:
        self._roots = before, after
        self._is_output = is_output
        self._steps = 0
        self._compared: set[tuple[str, str]] = set()  # pairs of references, which may lead back to themselves

    def changes(self, before: Any, after: Any, place: str, level: int = 0) -> Iterator[Change]:
        self._steps += 1
        if self._steps > MAX_STEPS or level > MAX_LEVELS:
            raise TooLargeError
        if (pair := _references(before, after)) is not None:
            if pair in self._compared:
                return
            self._compared.add(pair)
        old, new = normal(before, self._roots[0]), normal(after, self._roots[1])
        if (canonical := canonical_json(old)) == canonical_json(new) and b'"$ref"' not in canonical:
            return
        if new == NOTHING or old == NOTHING:
            yield (
                self._less(place, "It permits nothing now.")
                if new == NOTHING
                else self._more(place, "It is permitted.")
            )
            return
        for part in (_texts, self._types, self._enums, self._bounds, self._opaque):
            yield from part(old, new, place)
        yield from self._properties(old, new, place, level)
        yield from self._additional(old, new, place, level)
        yield from self._items(old, new, place, level)
        for keyword in ("anyOf", "oneOf"):
            yield from self._alternatives(keyword, old, new, place, level)

    # Grades ---------------------------------------------------------------------------------------------------------

    def _less(self, place: str, sentence: str) -> Change:
        """The schema permits less. A reader of results is glad, and somebody who passes arguments is not."""
        return Change(Grade.WIDER if self._is_output else Grade.NARROWER, place, sentence)

    def _more(self, place: str, sentence: str) -> Change:
        return Change(Grade.BREAKING if self._is_output else Grade.WIDER, place, sentence)

    def _other(self, place: str, sentence: str) -> Change:
        return Change(Grade.BREAKING, place, sentence)

    # Keywords -------------------------------------------------------------------------------------------------------

    def _types(self, old: Schema, new: Schema, place: str) -> Iterator[Change]:
        before, after = old.get("type"), new.get("type")
        if before == after:
            return
        sentence = f"The type was {_type_name(before)} and is {_type_name(after)}."
        yield self._by_sets(_types_of(before), _types_of(after), pointer(place, "type"), sentence)

    def _enums(self, old: Schema, new: Schema, place: str) -> Iterator[Change]:
        before, after, place = old.get("enum"), new.get("enum"), pointer(place, "enum")
        if before == after:
            return
        if before is None or after is None:
            what = f"only these values: {shown(after)}" if before is None else "other values than those listed before"
            yield (self._less if before is None else self._more)(place, f"It permits {what}.")
            return
        old_values, new_values = ({canonical_json(value) for value in values} for values in (before, after))
        parts = []
        if missing := [value for value in before if canonical_json(value) not in new_values]:
            parts.append(f"no longer has {shown(missing)}")
        if additional := [value for value in after if canonical_json(value) not in old_values]:
            parts.append(f"has {shown(additional)} in addition")
        if parts:
            yield self._by_sets(old_values, new_values, place, f"The list of values {' and '.join(parts)}.")

    def _by_sets(self, before: set[Any], after: set[Any], place: str, sentence: str) -> Change:
        if before <= after:
            return self._more(place, sentence)
        return self._less(place, sentence) if after <= before else self._other(place, sentence)

    def _bounds(self, old: Schema, new: Schema, place: str) -> Iterator[Change]:
        for keyword in (*_LOWER_BOUNDS, *_UPPER_BOUNDS):
            before, after = old.get(keyword), new.get(keyword)
            if before == after and type(before) is type(after):
                continue
            there, sentence = pointer(place, keyword), f"{keyword} was {_value(before)} and is {_value(after)}."
            if not all(value is None or _is_number(value) for value in (before, after)):
                yield self._other(there, sentence)
            elif before is None or (after is not None and (after > before) == (keyword in _LOWER_BOUNDS)):
                yield self._less(there, sentence)
            else:
                yield self._more(there, sentence)

    def _opaque(self, old: Schema, new: Schema, place: str) -> Iterator[Change]:
        for keyword in sorted(_OPAQUE & (old.keys() | new.keys())):
            before, after = old.get(keyword, _MISSING), new.get(keyword, _MISSING)
            if before is _MISSING:
                yield self._less(pointer(place, keyword), f"It has the new constraint {keyword}: {shown(after)}.")
            elif after is _MISSING:
                yield self._more(pointer(place, keyword), f"It lost the constraint {keyword}: {shown(before)}.")
            elif canonical_json(before) != canonical_json(after):
                sentence = f"{keyword} was {shown(before)} and is {shown(after)}."
                yield self._other(pointer(place, keyword), sentence)

    def _properties(self, old: Schema, new: Schema, place: str, level: int) -> Iterator[Change]:
        before, after = old.get("properties", {}), new.get("properties", {})
        was_required, is_required = set(old.get("required", ())), set(new.get("required", ()))
        for name in before.keys() - after.keys():
            yield self._other(pointer(place, "properties", name), f"The property {shown(name)} was removed.")
        for name in sorted(after.keys() - before.keys()):
            there = pointer(place, "properties", name)
            if name in is_required and not self._is_output:
                yield self._other(there, f"The new property {shown(name)} is required.")
            else:
                yield Change(Grade.WIDER, there, f"The property {shown(name)} was added.")
        for name in sorted((was_required ^ is_required) & before.keys() & after.keys()):
            there = pointer(place, "required")
            if name in is_required:
                grade = Grade.WIDER if self._is_output else Grade.BREAKING
                yield Change(grade, there, f"The property {shown(name)} is required now.")
            else:
                yield self._more(there, f"The property {shown(name)} is no longer required.")
        for name in sorted((was_required ^ is_required) - before.keys() - after.keys()):
            there, is_new = pointer(place, "required"), name in is_required
            sentence = f"{shown(name)}, which is no listed property, is {'' if is_new else 'no longer '}required."
            yield self._other(there, sentence) if is_new != self._is_output else self._more(there, sentence)
        for name in sorted(before.keys() & after.keys()):
            yield from self.changes(before[name], after[name], pointer(place, "properties", name), level + 1)

    def _additional(self, old: Schema, new: Schema, place: str, level: int) -> Iterator[Change]:
        before, after = old.get("additionalProperties", True), new.get("additionalProperties", True)
        there = pointer(place, "additionalProperties")
        if isinstance(before, dict) and isinstance(after, dict):
            yield from self.changes(before, after, there, level + 1)
        elif before is False and after is not False:
            yield self._more(there, "It permits additional properties now.")
        elif after is False and before is not False:
            yield self._less(there, "It refuses additional properties now.")
        elif before is not after:
            is_less = isinstance(after, dict)
            sentence = (
                "It has rules for additional properties now." if is_less else "It permits any additional property."
            )
            yield self._less(there, sentence) if is_less else self._more(there, sentence)

    def _items(self, old: Schema, new: Schema, place: str, level: int) -> Iterator[Change]:
        before, after, there = old.get("items", _MISSING), new.get("items", _MISSING), pointer(place, "items")
        if isinstance(before, list) or isinstance(after, list):  # a tuple of older dialects
            if before is _MISSING or after is _MISSING or canonical_json(before) != canonical_json(after):
                yield self._other(there, "The rules for its items are others than before.")
        elif before is _MISSING and after is not _MISSING:
            yield self._less(there, "It has rules for its items now.")
        elif before is not _MISSING and after is _MISSING:
            yield self._more(there, "It has no rules for its items any more.")
        elif before is not _MISSING:
            yield from self.changes(before, after, there, level + 1)

    def _alternatives(self, keyword: str, old: Schema, new: Schema, place: str, level: int) -> Iterator[Change]:
        before, after, there = old.get(keyword), new.get(keyword), pointer(place, keyword)
        if canonical_json(before) == canonical_json(after) and b'"$ref"' not in canonical_json(before):
            return
        if not isinstance(before, list) or not isinstance(after, list):
            is_less = isinstance(after, list)
            sentence = f"It has {'now' if is_less else 'no longer'} alternatives ({keyword})."
            yield self._less(there, sentence) if is_less else self._more(there, sentence)
            return
        old_rest, new_rest = self._without_common(before, after)
        if len(old_rest) == len(new_rest):
            for (number, new_part), (_, old_part) in zip(new_rest, old_rest, strict=True):
                yield from self.changes(old_part, new_part, pointer(there, number), level + 1)
        elif not old_rest or not new_rest:
            sentence = f"It has {len(after)} alternatives ({keyword}) instead of {len(before)}."
            yield (self._more if not old_rest else self._less)(there, sentence)
        else:
            yield self._other(there, f"Its alternatives ({keyword}) are others than before.")

    def _without_common(self, before: list[Any], after: list[Any]) -> tuple[list[Any], list[Any]]:
        """Return the alternatives, with their numbers, that the other list does not have."""
        old, new = (
            {canonical_json(normal(part, root)): (number, part) for number, part in enumerate(parts)}
            for parts, root in ((before, self._roots[0]), (after, self._roots[1]))
        )
        old_rest = [part for key, part in old.items() if key not in new or _refers(part[1])]
        return old_rest, [part for key, part in new.items() if key not in old or _refers(part[1])]


def _texts(old: Schema, new: Schema, place: str) -> Iterator[Change]:
    """The changes of texts, and of keywords that the hall does not know."""
    for keyword in sorted((old.keys() | new.keys()) - _HANDLED - _OPAQUE - {*_LOWER_BOUNDS, *_UPPER_BOUNDS}):
        before, after = old.get(keyword), new.get(keyword)
        if (change := change_of_text(before, after, pointer(place, keyword), keyword)) is not None:
            name = place.rpartition("/")[2]
            is_notation = keyword == "title" and all(is_derived_title(title, name) for title in (before, after))
            yield Change(Grade.NOTATION, change.place, change.sentence) if is_notation else change


def change_of_text(before: Any, after: Any, place: str, what: str) -> Change | None:
    """Return the change of a text, or of any other value that models and people read. None if it is the same."""
    if canonical_json(before) == canonical_json(after):
        return None
    if isinstance(before, str) and isinstance(after, str) and before.split() == after.split():
        return Change(Grade.NOTATION, place, f"The white space of {what} changed.")
    if before is None:
        return Change(Grade.TEXT, place, f"{what} is new: {shown(after)}.")
    if after is None:
        return Change(Grade.TEXT, place, f"{what} was removed: {shown(before)}.")
    return Change(Grade.TEXT, place, f"{what} was {shown(before)} and is {shown(after)}.")


def _references(before: Any, after: Any) -> tuple[str, str] | None:
    """Return the references of two schemas. None if not both of them refer to another one."""
    old, new = (part.get("$ref") if isinstance(part, dict) else None for part in (before, after))
    return (old, new) if isinstance(old, str) and isinstance(new, str) else None


def _refers(schema: Any) -> bool:
    """Whether two equal schemas may mean different things, because they refer to other parts of their documents."""
    return b'"$ref"' in canonical_json(schema)


def _types_of(types: list[str] | None) -> set[str]:
    every = {"array", "boolean", "integer", "null", "number", "object", "string"}
    return every if types is None else {*types, *({"integer"} if "number" in types else ())}


def _type_name(types: list[str] | None) -> str:
    return "any type" if types is None else " or ".join(types)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _value(value: Any) -> str:
    return "not set" if value is None else shown(value)
