"""Fast checks for values that are certainly valid. The library takes 5 to 20 microseconds for each value. No I/O.

Both checks may return False for a valid value. Then the library decides. They never return True for an invalid value.
All of this is work on schemas, within its budget.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]

from mcp_runtime.schemas.schema_work import current

Check = Callable[[Any], bool]

# Translated parts of a schema. A part counts once for each reference to it, because each value may need all of them.
MAX_PARTS = 500
MAX_DEPTH = 12
# Items between two checks of the time.
CHUNK = 64

_CLASSES: dict[str, frozenset[type]] = {
    "string": frozenset({str}),
    "number": frozenset({int, float}),
    "integer": frozenset({int}),  # in newer drafts 1.0 is an integer too
    "boolean": frozenset({bool}),
    "null": frozenset({type(None)}),
    "array": frozenset({list}),
    "object": frozenset({dict}),
}
_NUMBERS = _CLASSES["number"]
_SCALARS = frozenset({str, int, float, bool, type(None)})


# Values -----------------------------------------------------------------------------------------------------------


class _UntranslatableError(Exception):
    pass


def fitting(validator: Any, schema: Any) -> Check | None:
    """A function that checks whether a value, as read from JSON, certainly fits `schema`.

    `schema` is the validator's schema or a part of it. None if only the library can check it.
    """
    keywords = frozenset(validator.VALIDATORS)
    if not _is_modern(keywords):
        return None
    try:
        return _Translation(keywords).check(schema, validator._resolver, 0)
    except _UntranslatableError:
        return None


def _is_modern(keywords: Iterable[str]) -> bool:
    """Whether the draft is newer than drafts 3 and 4, in which some keywords have another meaning."""
    return "exclusiveMinimum" in keywords


class _Translation:
    """Translates schemas into checks. `keywords` are the keywords that the library checks."""

    def __init__(self, keywords: frozenset[str]) -> None:
        self._keywords = keywords
        self._remaining_parts = MAX_PARTS

    def check(self, schema: Any, resolver: Any, depth: int) -> Check:
        current().trifle()
        self._remaining_parts -= 1
        if schema is True:
            return lambda _: True
        if not isinstance(schema, dict) or "$id" in schema or self._remaining_parts < 0 or depth > MAX_DEPTH:
            raise _UntranslatableError
        checks = [
            self._keyword_check(keyword, value, schema, resolver, depth + 1)
            for keyword, value in schema.items()
            if keyword in self._keywords and keyword != "format"  # `format` is not checked
        ]
        if len(checks) == 1:
            return checks[0]
        return lambda value: all(check(value) for check in checks)

    def _keyword_check(self, keyword: str, value: Any, schema: dict[str, Any], resolver: Any, depth: int) -> Check:
        match keyword, value:
            case "$ref", str():
                try:
                    target = resolver.lookup(value)
                except Exception as error:  # a broken reference may raise anything in the library
                    raise _UntranslatableError from error
                return self.check(target.contents, target.resolver, depth)
            case "items", dict() | bool():
                return _each_item(self.check(value, resolver, depth))
            case "properties", dict():
                return _properties({name: self.check(part, resolver, depth) for name, part in value.items()})
            case "additionalProperties", dict() | bool():
                properties = schema.get("properties", {})
                if not isinstance(properties, dict):
                    raise _UntranslatableError
                if value is False:
                    return _no_others(frozenset(properties))
                return _others(frozenset(properties), self.check(value, resolver, depth))
            case "allOf", list():
                checks = [self.check(part, resolver, depth) for part in value]
                return lambda value: all(check(value) for check in checks)
            case "anyOf", list():
                return self._any_of(value, resolver, depth)
        return _scalar_check(keyword, value)

    def _any_of(self, parts: list[Any], resolver: Any, depth: int) -> Check:
        """Leave out alternatives that cannot be translated. The check then returns True less often."""
        checks = []
        for part in parts:
            try:
                checks.append(self.check(part, resolver, depth))
            except _UntranslatableError:
                continue
        return lambda value: any(check(value) for check in checks)


def _each_item(check: Check) -> Check:
    return lambda value: type(value) is not list or _all_fit(check, value)


def _all_fit(check: Check, values: Iterable[Any]) -> bool:
    remaining, work = iter(values), current()
    while chunk := list(islice(remaining, CHUNK)):
        work.look()
        if not all(map(check, chunk)):
            return False
    return True


def _properties(checks: dict[str, Check]) -> Check:
    def properties(value: Any) -> bool:
        return type(value) is not dict or all(check(value[name]) for name, check in checks.items() if name in value)

    return properties


def _no_others(names: frozenset[str]) -> Check:
    return lambda value: type(value) is not dict or value.keys() <= names


def _others(names: frozenset[str], check: Check) -> Check:
    def others_fit(value: Any) -> bool:
        return type(value) is not dict or _all_fit(check, (part for name, part in value.items() if name not in names))

    return others_fit


def _scalar_check(keyword: str, limit: Any) -> Check:
    match keyword, limit:
        case "type", str() | list():
            return _type_check([limit] if isinstance(limit, str) else limit)
        case "enum", list():
            return _membership_check(limit)
        case "const", _:
            return _membership_check([limit])
        case "required", list():
            names = frozenset(name for name in limit if isinstance(name, str))
            if len(names) == len(limit):
                return lambda value: type(value) is not dict or names <= value.keys()
        case "uniqueItems", False:
            return lambda _: True
    if type(limit) not in _NUMBERS:
        raise _UntranslatableError
    match keyword:
        case "minimum":
            return lambda value: type(value) not in _NUMBERS or value >= limit
        case "maximum":
            return lambda value: type(value) not in _NUMBERS or value <= limit
        case "exclusiveMinimum":
            return lambda value: type(value) not in _NUMBERS or value > limit
        case "exclusiveMaximum":
            return lambda value: type(value) not in _NUMBERS or value < limit
        case "minLength":
            return lambda value: type(value) is not str or len(value) >= limit
        case "maxLength":
            return lambda value: type(value) is not str or len(value) <= limit
        case "minItems":
            return lambda value: type(value) is not list or len(value) >= limit
        case "maxItems":
            return lambda value: type(value) is not list or len(value) <= limit
    raise _UntranslatableError


def _type_check(names: list[Any]) -> Check:
    classes: frozenset[type] = frozenset()
    for name in names:
        if not isinstance(name, str) or name not in _CLASSES:
            raise _UntranslatableError
        classes |= _CLASSES[name]
    return lambda value: type(value) in classes


def _membership_check(values: list[Any]) -> Check:
    """Compare the classes too, because 1, 1.0 and true are equal in Python."""
    scalars = {(type(value), value) for value in values if type(value) in _SCALARS}
    return lambda value: type(value) in _SCALARS and (type(value), value) in scalars


# Schemas ----------------------------------------------------------------------------------------------------------


def is_sound_schema(schema: Any, keywords: Iterable[str]) -> bool:
    """Whether `schema` certainly fits the meta-schema of the draft that has these keywords."""
    if not _is_modern(keywords):
        return False
    todo: list[Any] = [schema]
    work = current()
    while todo:
        part = todo.pop()
        work.trifle()
        if isinstance(part, bool):
            continue
        if not isinstance(part, dict):
            return False
        for keyword, value in part.items():
            work.trifle()
            if keyword in _PARTS:
                todo.append(value)
            elif keyword in _LISTS_OF_PARTS and isinstance(value, list) and value:
                todo += value
            elif keyword in _MAPS_OF_PARTS and isinstance(value, dict):
                todo += value.values()
            elif keyword in _SHAPES:
                if not _SHAPES[keyword](value):
                    return False
            elif keyword in _KEYWORDS:
                return False
    return True


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_truth(value: Any) -> bool:
    return isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return type(value) in _NUMBERS


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_type(value: Any) -> bool:
    return (
        value in _CLASSES if isinstance(value, str) else _are_names(value) and value and _CLASSES.keys() >= set(value)
    )


def _is_id(value: Any) -> bool:
    return isinstance(value, str) and "#" not in value


def _are_names(value: Any) -> bool:
    """Whether `value` is a list of different texts."""
    return isinstance(value, list) and all(isinstance(name, str) for name in value) and len(set(value)) == len(value)


_PARTS = {
    *("additionalProperties", "contains", "else", "if", "items", "not", "propertyNames", "then"),
    *("unevaluatedItems", "unevaluatedProperties"),
}
_LISTS_OF_PARTS = {"allOf", "anyOf", "oneOf", "prefixItems"}
_MAPS_OF_PARTS = {"$defs", "definitions", "dependentSchemas", "patternProperties", "properties"}
# The keywords for which a draft has rules. Any other keyword may have any value.
_KEYWORDS = frozenset(name for uri in REGISTRY for name in REGISTRY.contents(uri).get("properties", ()))
_SHAPES: dict[str, Check] = {
    **dict.fromkeys(("$comment", "$ref", "$schema", "description", "format", "pattern", "title"), _is_text),
    **dict.fromkeys(("deprecated", "readOnly", "uniqueItems", "writeOnly"), _is_truth),
    **dict.fromkeys(("exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum"), _is_number),
    **dict.fromkeys(("maxItems", "maxLength", "maxProperties", "minItems", "minLength", "minProperties"), _is_count),
    **dict.fromkeys(("const", "default"), lambda _: True),
    "enum": lambda value: isinstance(value, list) and len(value) > 0,
    "$id": _is_id,
    "dependentRequired": lambda value: isinstance(value, dict) and all(map(_are_names, value.values())),
    "examples": lambda value: isinstance(value, list),
    "multipleOf": lambda value: type(value) in _NUMBERS and value > 0,
    "required": _are_names,
    "type": _is_type,
}
