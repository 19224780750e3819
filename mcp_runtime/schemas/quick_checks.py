"""What is certainly valid, found out without the library, which takes 5 to 20 microseconds for each value. No I/O.

Both checks may say no to what is valid: then the library decides. They never say yes to what is not. All of it is work
on schemas, and minds its budget.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]

from mcp_runtime.schemas.schema_work import current

Check = Callable[[Any], bool]

# Parts of a schema that are translated, each as often as it is referred to: for each value all of them may be tried.
MAX_PARTS = 500
MAX_DEPTH = 12
# Items between two looks at the clock.
CHUNK = 64

_CLASSES: dict[str, frozenset[type]] = {
    "string": frozenset({str}),
    "number": frozenset({int, float}),
    "integer": frozenset({int}),  # 1.0 is one too, in newer drafts
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
    """Tells of a value, as read from JSON, whether it certainly fits `schema`, the validator's or a part of it.

    None for a schema that is left to the library.
    """
    keywords = frozenset(validator.VALIDATORS)
    if not _is_modern(keywords):
        return None
    try:
        return _Translation(keywords).check(schema, validator._resolver, 0)
    except _UntranslatableError:
        return None


def _is_modern(keywords: Iterable[str]) -> bool:
    """Drafts 3 and 4 mean something else by some keywords."""
    return "exclusiveMinimum" in keywords


class _Translation:
    """`keywords` are those that mean something to the library."""

    def __init__(self, keywords: frozenset[str]) -> None:
        self._keywords = keywords
        self._left = MAX_PARTS

    def check(self, schema: Any, resolver: Any, depth: int) -> Check:
        current().trifle()
        self._left -= 1
        if schema is True:
            return lambda _: True
        if not isinstance(schema, dict) or "$id" in schema or self._left < 0 or depth > MAX_DEPTH:
            raise _UntranslatableError
        checks = [
            self._of_keyword(keyword, value, schema, resolver, depth + 1)
            for keyword, value in schema.items()
            if keyword in self._keywords and keyword != "format"  # which asserts nothing
        ]
        if len(checks) == 1:
            return checks[0]
        return lambda value: all(check(value) for check in checks)

    def _of_keyword(self, keyword: str, value: Any, schema: dict[str, Any], resolver: Any, depth: int) -> Check:
        match keyword, value:
            case "$ref", str():
                try:
                    found = resolver.lookup(value)
                except Exception as error:  # a broken reference may break the library anyhow
                    raise _UntranslatableError from error
                return self.check(found.contents, found.resolver, depth)
            case "items", dict() | bool():
                return _each_item(self.check(value, resolver, depth))
            case "properties", dict():
                return _properties({name: self.check(part, resolver, depth) for name, part in value.items()})
            case "additionalProperties", dict() | bool():
                known = schema.get("properties", {})
                if not isinstance(known, dict):
                    raise _UntranslatableError
                if value is False:
                    return _no_others(frozenset(known))
                return _others(frozenset(known), self.check(value, resolver, depth))
            case "allOf", list():
                checks = [self.check(part, resolver, depth) for part in value]
                return lambda value: all(check(value) for check in checks)
            case "anyOf", list():
                return self._any_of(value, resolver, depth)
        return _of_scalar(keyword, value)

    def _any_of(self, parts: list[Any], resolver: Any, depth: int) -> Check:
        """Those that cannot be translated may fit as well: without them it says yes less often."""
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
    left, work = iter(values), current()
    while chunk := list(islice(left, CHUNK)):
        work.look()
        if not all(map(check, chunk)):
            return False
    return True


def _properties(checks: dict[str, Check]) -> Check:
    def properties(value: Any) -> bool:
        return type(value) is not dict or all(check(value[name]) for name, check in checks.items() if name in value)

    return properties


def _no_others(known: frozenset[str]) -> Check:
    return lambda value: type(value) is not dict or value.keys() <= known


def _others(known: frozenset[str], check: Check) -> Check:
    def others(value: Any) -> bool:
        return type(value) is not dict or _all_fit(check, (part for name, part in value.items() if name not in known))

    return others


def _of_scalar(keyword: str, limit: Any) -> Check:
    match keyword, limit:
        case "type", str() | list():
            return _of_type([limit] if isinstance(limit, str) else limit)
        case "enum", list():
            return _one_of(limit)
        case "const", _:
            return _one_of([limit])
        case "required", list():
            needed = frozenset(name for name in limit if isinstance(name, str))
            if len(needed) == len(limit):
                return lambda value: type(value) is not dict or needed <= value.keys()
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


def _of_type(names: list[Any]) -> Check:
    classes: frozenset[type] = frozenset()
    for name in names:
        if not isinstance(name, str) or name not in _CLASSES:
            raise _UntranslatableError
        classes |= _CLASSES[name]
    return lambda value: type(value) in classes


def _one_of(values: list[Any]) -> Check:
    """By class too: 1, 1.0 and true are equal for Python alone."""
    known = {(type(value), value) for value in values if type(value) in _SCALARS}
    return lambda value: type(value) in _SCALARS and (type(value), value) in known


# Schemas ----------------------------------------------------------------------------------------------------------


def is_sound_schema(schema: Any, keywords: Iterable[str]) -> bool:
    """Whether `schema` is certainly what the schema of schemas asks for, in the draft that minds these keywords."""
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
    """Texts, each once."""
    return isinstance(value, list) and all(isinstance(name, str) for name in value) and len(set(value)) == len(value)


_PARTS = {
    *("additionalProperties", "contains", "else", "if", "items", "not", "propertyNames", "then"),
    *("unevaluatedItems", "unevaluatedProperties"),
}
_LISTS_OF_PARTS = {"allOf", "anyOf", "oneOf", "prefixItems"}
_MAPS_OF_PARTS = {"$defs", "definitions", "dependentSchemas", "patternProperties", "properties"}
# Those that any draft asks anything of. Others may be anything.
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
